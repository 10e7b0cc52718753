"""COCO annotations from files: what is read, what is left out, and what is refused."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from coco_toys import write_toys
from vitmix.lab.dense.config import DenseAugmentation
from vitmix.lab.dense.detection.augment import Augment
from vitmix.lab.dense.detection.coco import read_coco
from vitmix.lab.dense.detection.data import open_coco
from vitmix.lab.dense.loader import as_tensor
from vitmix.lab.dense.task import Sides

SIDES = Sides((64, 64), (0.5,) * 3, (0.25,) * 3)


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    return write_toys(tmp_path / "toys")


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_targets_are_those_of_the_file(toys: Path) -> None:
    images = open_coco(f"coco:{toys}", "train")
    assert (images.classes, len(images), images.notes) == (["rectangle", "ellipse"], 8, ())
    stored = json.loads((toys / "train.json").read_text())
    image, target = images.sample(1)
    mine = [each for each in stored["annotations"] if each["image_id"] == 2]
    left, top, width, height = mine[0]["bbox"]
    assert target.boxes.tolist()[0] == [left, top, left + width, top + height]
    assert target.labels.tolist() == [1, 2] and (target.truth.image, target.truth.categories) == (2, [2, 5])
    assert [{**each, "id": 0} for each in mine] == [{**each, "id": 0} for each in target.truth.objects]
    assert target.truth.size == (image.height, image.width) == (64, 80)


@pytest.mark.parametrize(
    "names",
    [
        {"train": "annotations/instances_train2017.json", "test": "annotations/instances_val2017.json"},
        {"train": "train/_annotations.coco.json", "test": "test/_annotations.coco.json"},
    ],
)
def test_usual_layouts_of_folders(toys: Path, names: dict[str, str]) -> None:
    for split, name in names.items():
        change(toys / f"{split}.json", lambda c: [i.update(file_name=Path(i["file_name"]).name) for i in c["images"]])
        (toys / name).parent.mkdir(exist_ok=True)
        (toys / f"{split}.json").rename(toys / name)
    if "2017" in names["train"]:
        (toys / "train").rename(toys / "train2017")
        (toys / "test").rename(toys / "val2017")
    assert len(open_coco(f"coco:{toys}", "train")) == 8
    assert len(open_coco(f"coco:{toys}", "test")) == 6
    assert open_coco(f"coco:{toys}", "train").sample(0)[0].size == (64, 64)


def test_a_single_file_is_divided_the_same_way_each_time(toys: Path) -> None:
    spec = f"coco:{toys / 'train.json'},images={toys}?holdout=0.25"
    train, held_out = open_coco(spec, "train"), open_coco(spec, "val")
    names = [{each.name(n) for n in range(len(each))} for each in (train, held_out)]
    assert (len(train), len(held_out)) == (6, 2) and not names[0] & names[1]
    assert {held_out.name(n) for n in range(2)} == {open_coco(spec, "val").name(n) for n in range(2)}


def test_held_out_images_without_objects_are_kept_for_scoring(toys: Path) -> None:
    spec = f"coco:{toys / 'train.json'},images={toys}?holdout=0.25"
    held_out, train = (
        [each.name(n) for n in range(len(each))] for each in map(partial(open_coco, spec), ("val", "train"))
    )
    emptied = {held_out[0], train[0]}

    def empty(content: dict[str, Any]) -> None:
        ids = {image["id"] for image in content["images"] if image["file_name"] in emptied}
        content["annotations"] = [each for each in content["annotations"] if each["image_id"] not in ids]

    change(toys / "train.json", empty)
    assert [open_coco(spec, "val").name(n) for n in range(2)] == held_out
    assert [open_coco(spec, "train").name(n) for n in range(len(train) - 1)] == train[1:]
    assert "1 training images of train.json without objects" in open_coco(spec, "train").notes[-1]


def test_what_cannot_be_used_is_counted(toys: Path) -> None:
    def spoil(content: dict[str, Any]) -> None:
        objects, images = content["annotations"], content["images"]
        objects[0]["bbox"] = [70, 70, 20, 20]  # outside; its image then has no object
        objects[1]["bbox"] = [-10, 5, 30, 30]  # cut
        objects[2]["bbox"] = [5, 5, 0, 30]
        objects[3]["category_id"] = 99
        objects[4]["bbox"] = [1, 2, 3]
        objects[5]["image_id"] = 1000
        objects[6]["segmentation"] = {"size": [64, 64], "counts": [3]}
        objects.append({"image_id": [1], "category_id": 2, "bbox": [1, 1, 5, 5]})
        images.append({"id": 50, "file_name": "train/lost.png", "height": 8, "width": 8})
        objects.append({"id": 99, "image_id": 50, "category_id": 2, "bbox": [1, 1, 5, 5]})

    change(toys / "train.json", spoil)
    notes = " | ".join(open_coco(f"coco:{toys}", "train").notes)
    for part in (
        "1 objects with a box outside their image",
        "changed: 1 boxes cut at the border",
        "1 objects with an empty box",
        "1 objects of unknown categories",
        "category 99",
        "1 objects without a box of four numbers",
        "2 objects of images that are not listed",
        "1 objects with an invalid mask",
        "1 images whose file is missing",
        "training images of train.json without objects",
    ):
        assert part in notes, (part, notes)


def test_crowd_regions_are_scored_but_not_learned(toys: Path) -> None:
    change(toys / "train.json", lambda content: content["annotations"][1].update(iscrowd=1))
    images = open_coco(f"coco:{toys}", "train")
    target = images.sample(1)[1]
    assert len(target.boxes) == 1 and [each.get("iscrowd") for each in target.truth.objects] == [1, 0]


def test_images_without_objects_are_kept_for_scoring(toys: Path) -> None:
    change(toys / "test.json", lambda content: content["annotations"].pop(0))
    images = open_coco(f"coco:{toys}", "test")
    assert len(images) == 6 and len(images.sample(0)[1].boxes) == 0


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda c: c["images"][0].update(file_name="../secret.png"), "outside the folder"),
        (lambda c: c["images"][0].update(file_name="/etc/secret.png"), "outside the folder"),
        (lambda c: c["images"][0].update(height="64"), "image without its own id"),
        (lambda c: c["images"][1].update(id=1), "image without its own id"),
        (lambda c: c["categories"].clear(), "no categories"),
        (lambda c: c["categories"][0].update(name=3), "category without its own id and name"),
        (lambda c: c.pop("images"), "not a COCO file"),
        (lambda c: c.update(annotations=[3]), "not a COCO file"),
        (lambda c: c["annotations"].clear(), "no usable objects"),
        (lambda c: [i.update(file_name="no/" + i["file_name"]) for i in c["images"]], "none of the 8 images"),
    ],
)
def test_a_file_that_makes_no_sense_is_one_sentence(toys: Path, edit: Callable[..., None], words: str) -> None:
    change(toys / "train.json", edit)
    with pytest.raises(ValueError, match=words) as caught:
        open_coco(f"coco:{toys}", "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 2000, "{", "", "[]", '{"images": 5}', "\0"])
def test_hostile_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="COCO"):
        read_coco(path, [tmp_path])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("coco:", "coco:FOLDER"),
        ("masks:toys", "unknown kind of data 'masks'"),
        ("coco:nowhere", "neither a folder nor an annotation file"),
        ("coco:.,image=x", "only images=FOLDER"),
        ("coco:.?holdout=2", "fraction between 0 and 1"),
        ("coco:.?hold=0.1", "holdout"),
    ],
)
def test_wrong_texts_are_refused(spec: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        open_coco(spec, "train")


def test_an_empty_folder_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no annotations such as train.json"):
        open_coco(f"coco:{tmp_path}", "train")


@pytest.mark.parametrize("short_sides", [(), (48,), (40, 56)])
def test_boxes_and_masks_move_with_the_image(toys: Path, short_sides: tuple[int, ...]) -> None:
    """Of a rectangle of one color, the box around its pixels is the box of the target, after every transform."""
    images = open_coco(f"coco:{toys}", "train")
    augment = Augment(
        DenseAugmentation(jitter=(0.6, 1.6), distortion=False, short_sides=short_sides), SIDES, 80, masks=True
    )
    seen = 0
    for number in range(12):
        torch.manual_seed(number)
        image, target = images.sample(2 * (number % 4))  # those with a single rectangle
        pixels, moved = augment(as_tensor(image), target)
        if not short_sides:
            assert pixels.shape[-2:] == (64, 64)
        assert isinstance(moved["boxes"], tv_tensors.BoundingBoxes)
        assert len(moved["boxes"]) == len(moved["labels"]) == len(moved["masks"])
        red = (pixels[0].float() - pixels[1].float() > 85).numpy()
        if len(moved["boxes"]) and red.sum() > 80:
            rows, columns = np.nonzero(red)
            around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            np.testing.assert_allclose(moved["boxes"][0].numpy(), around, atol=1.6)
            rows, columns = np.nonzero(moved["masks"][0].numpy())  # resized by the nearest pixel, up to two times
            drawn = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            np.testing.assert_allclose(drawn, around, atol=2)
            seen += 1
    assert seen >= 8


def test_an_object_without_a_mask_is_named(toys: Path) -> None:
    change(toys / "train.json", lambda content: content["annotations"][0].pop("segmentation"))
    images = open_coco(f"coco:{toys}", "train")
    augment = Augment(DenseAugmentation(), SIDES, 80, masks=True)
    image, target = images.sample(0)
    with pytest.raises(ValueError, match="no mask; use --head fasterrcnn"):
        augment(as_tensor(image), target)
