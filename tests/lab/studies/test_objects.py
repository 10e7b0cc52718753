"""Where the objects are: built in, boxes of arrays, folders of masks."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support import SHARED
from vitmix.lab.cli import main as cli
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.images import FileImages
from vitmix.lab.data.npz import npz_splits
from vitmix.lab.data.object_masks import MaskFolder
from vitmix.lab.data.sources import open_images
from vitmix.lab.studies import objects
from vitmix.lab.studies.batches import Batches

AUGMENTATION = Augmentation(size=16, crop_pct=1.0)


def test_batches_are_shuffled_and_keep_their_objects() -> None:
    images = open_images("shapes(size=16, length=24, test_length=24)", "test")
    finder = objects.object_finder(images, AUGMENTATION)
    batches = Batches(images, AUGMENTATION, count=12, batch=4, seed=1, finder=finder)
    assert [len(each.labels) for each in batches] == [4, 4, 4]
    first, again = (torch.cat([each.labels for each in batches]).tolist() for _ in range(2))
    assert batches._kept is not None  # the second time nothing was read
    assert first == again == images.labels[batches.rows].tolist() and sorted(batches.rows) != batches.rows.tolist()
    masks = torch.cat([each.objects for each in batches if each.objects is not None])
    assert torch.equal(masks, torch.from_numpy(images.objects(batches.rows.tolist())))


def test_boxes_of_arrays_mark_the_objects(tmp_path: Path) -> None:
    pixels = np.zeros((3, 16, 16, 3), np.uint8)
    boxes = np.array([[0, 0, 15, 15], [4, 8, 7, 13], [15, 0, 15, 0]], np.uint8)
    np.savez(tmp_path / "train.npz", images=pixels, labels=np.array([0, 1, 0]))
    np.savez(tmp_path / "val_0.npz", images=pixels[:2], labels=np.array([0, 1]), box=boxes[:2])
    np.savez(tmp_path / "val_1.npz", images=pixels[2:], labels=np.array([0]), box=boxes[2:])
    images = open_images(f"npz:{tmp_path}", "val")
    finder = objects.object_finder(images, AUGMENTATION)
    assert finder is not None
    found = finder([2, 1, 0])
    assert found.sum((1, 2)).tolist() == [1, 4 * 6, 16 * 16]
    assert found[1, 8:14, 4:8].all() and found[0, 0, 15]
    part = images.subset(np.array([1]), "part")
    assert torch.equal(finder([1]), objects.object_finder(part, AUGMENTATION)([0]))  # type: ignore[misc]
    assert objects.object_finder(open_images(f"npz:{tmp_path}", "train"), AUGMENTATION) is None


@pytest.mark.parametrize(
    ("box", "sentence"),
    [
        (np.array([[0.0, 0, 1, 1]] * 3), "float64"),
        (np.array([[0, 0, 5]] * 3), "(3, 3)"),
        (np.array([[0, 0, 15, 15], [4, 0, 3, 5], [0, 0, 1, 1]]), "[4, 0, 3, 5] for train.npz[1]"),
        (np.array([[0, 0, 15, 15], [0, 0, 1, 1], [0, 0, 1, 16]]), "[0, 0, 1, 16] for train.npz[2]"),
    ],
)
def test_wrong_boxes_are_no_objects(box: np.ndarray, sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((3, 16, 16, 3), np.uint8), labels=np.array([0, 1, 0]), box=box)
    images = npz_splits(str(tmp_path))["train"]()  # good enough as images
    with pytest.raises(ValueError, match=re.escape(sentence)):
        objects.object_finder(images, AUGMENTATION)


def test_a_folder_of_masks(tmp_path: Path) -> None:
    for number, name in enumerate(("cat/a.jpg", "cat/b.jpg", "dog/c.jpg")):
        for folder, ending in (("images", ".jpg"), ("masks", ".png")):
            path = (tmp_path / folder / name).with_suffix(ending)
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = np.zeros((32, 32), dtype=np.uint8)
            levels[:, : 8 * (number + 1)] = 1
            levels[:, 24:] = 2
            Image.fromarray(levels).save(path)
    images = open_images(f"imagefolder:{tmp_path / 'images'}?holdout=0.5", "train")
    finder = objects.object_finder(images, AUGMENTATION, masks=tmp_path / "masks", value=1)
    assert finder is not None
    found = finder(range(len(images)))
    places = [int("abc".index(Path(images.name(index)).stem)) for index in range(len(images))]
    assert found.sum((1, 2)).tolist() == [16 * 4 * (place + 1) for place in places]
    cats = FileImages(tmp_path / "images", ["cat/a.jpg", "cat/b.jpg", "cat/z.jpg"], [0, 0, 0], ["cat"], "cats")
    read = MaskFolder(tmp_path / "masks", cats).read
    with pytest.raises(ValueError, match="there is no mask .*for the image"):
        read(2)
    Image.fromarray(np.zeros((20, 40), dtype=np.uint8)).save(tmp_path / "masks" / "cat" / "a.png")
    with pytest.raises(ValueError, match="a.png is 40x20 pixels and its image 32x32"):
        read(0)
    (tmp_path / "masks" / "cat" / "b.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match="b.png cannot be read: not an image"):
        read(1)
    with pytest.raises(ValueError, match="no mask folder"):
        objects.object_finder(images, AUGMENTATION, masks=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="needs image files"):
        shapes = open_images("shapes(size=16, length=24)", "train")
        objects.object_finder(shapes, AUGMENTATION, masks=tmp_path / "masks")
    assert objects.object_finder(images, AUGMENTATION) is None
    with pytest.raises(ValueError, match="needs a folder of masks"):
        objects.object_finder(images, AUGMENTATION, value=1)


NATURAL = SHARED / "natural64"


@pytest.mark.skipif(not NATURAL.is_dir(), reason="the shared data folder is not beside this checkout")
def test_outlines_of_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oxford-IIIT Pet's trimaps as a folder of masks: they follow the image, and labels are measured on them."""
    pets = [row for row in json.loads((NATURAL / "index.json").read_text()) if row["set"] == "pets"]
    for row in pets:
        for folder, file in (("images/val", row["file"]), ("masks", row["trimap"])):
            place = tmp_path / folder / str(row["label"]) / Path(file).name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(NATURAL / file)
    images = open_images(f"imagefolder:{tmp_path / 'images'}", "val")
    augmentation = Augmentation(size=64, crop_pct=1.0)  # of square images nothing is lost
    finder = objects.object_finder(images, augmentation, masks=tmp_path / "masks", value=1)
    assert finder is not None
    parts = {Path(row["file"]).name: row["foreground"] for row in pets}
    found = finder(range(len(images))).double().mean((1, 2)).tolist()
    assert found == pytest.approx([parts[Path(images.name(index)).name] for index in range(len(images))], abs=0.01)
    small = ["img_size=32", "patch_size=8", "embed_dim=24", "depth=2", "num_heads=2", "num_classes=8"]
    given = ["analyze", "vit_tiny_patch16_224", "--model-args", *small, "--data", f"imagefolder:{tmp_path / 'images'}"]
    given += ["--split", "val", "--masks", str(tmp_path / "masks"), "--mask-value", "1", "--workers", "0"]
    assert cli.main([*given, "--study", "labels", "coverage", "--output", str(tmp_path / "found")]) == 0
    assert "salient window, aligned" in capsys.readouterr().out
    stored = json.loads((tmp_path / "found" / "labels.json").read_text())
    assert stored["tables"][0]["rows"][0]["error"]["n"] == len(pets) == 32
