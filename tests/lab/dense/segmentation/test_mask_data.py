"""Layouts of images with masks, what is wrong with them, and transforms that move image and mask alike."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from mask_toys import image_of, labels_of, write_masks, write_pair
from vitmix.lab.data.augment import global_generators_kept, seed_global_generators
from vitmix.lab.data.images import BrokenImage
from vitmix.lab.dense.config import DenseAugmentation
from vitmix.lab.dense.segmentation.data import ADE20K, VOC, from_offset, open_masks
from vitmix.lab.dense.task import IGNORED, Sides
from vitmix.lab.dense.transforms import joint_transform

SIDES = Sides((32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def mask(images: object, index: int) -> np.ndarray:
    return images.sample(index)[1].numpy()  # pyright: ignore[reportAttributeAccessIssue]


def test_folders_of_images_and_masks(tmp_path: Path) -> None:
    found = open_masks(f"masks:{write_masks(tmp_path)}", "train")
    assert len(found) == 8 and found.classes == ["0", "1", "2"] and found.notes == ()
    assert all((mask(found, index) == labels_of(index)).all() for index in range(8))
    assert len(open_masks(f"masks:{tmp_path}", "test")) == 3
    (tmp_path / "classes.json").write_text(json.dumps(["ground", "red", "blue"]))
    assert open_masks(f"masks:{tmp_path}", "val").classes == ["ground", "red", "blue"]


def test_masks_in_a_folder_of_their_own_and_an_offset(tmp_path: Path) -> None:
    """As in Oxford-IIIT Pets: class folders of images, one folder of trimaps, labels from 1."""
    for number in range(4):
        split = "train" if number < 3 else "test"
        write_pair(
            tmp_path / split / f"breed{number % 2}" / f"{number}.webp",
            tmp_path / "trimaps" / f"{number}.png",
            number,
            1,
        )
    found = open_masks(f"masks:{tmp_path}(masks=trimaps, offset=1, classes=animal/background/edge)", "train")
    assert found.classes == ["animal", "background", "edge"] and len(found) == 3
    names = [Path(found.name(index)).stem for index in range(3)]
    assert all((mask(found, index) == labels_of(int(name))).all() for index, name in enumerate(names))
    numbered = open_masks(f"masks:{tmp_path}(masks=trimaps, offset=1)", "test")
    assert numbered.classes == ["1", "2", "3"] and len(numbered) == 1


def test_an_offset_is_a_whole_number(tmp_path: Path) -> None:
    write_masks(tmp_path)
    for given in ("x", "-1", "1.5", "9" * 20, "9" * 5000):
        with pytest.raises(ValueError, match="offset must be a whole number"):
            open_masks(f"masks:{tmp_path}(offset={given})", "train")


@pytest.mark.parametrize("settings", ["", "(classes=a/b)"])
def test_empty_folders_are_named(tmp_path: Path, settings: str) -> None:
    for folder in ("images", "masks"):
        (tmp_path / "train" / folder).mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no images; put them into train/images"):
        open_masks(f"masks:{tmp_path}{settings}", "train")


def test_images_above_splits_and_no_splits_at_all(tmp_path: Path) -> None:
    for number in range(10):
        write_pair(tmp_path / "a/images/train" / f"{number}.png", tmp_path / "a/masks/train" / f"{number}.png", number)
        write_pair(tmp_path / "b/images" / f"{number}.png", tmp_path / "b/masks" / f"{number}.png", number)
    for name in "ab":
        train, held_out = (open_masks(f"masks:{tmp_path / name}", split) for split in ("train", "val"))
        assert len(train) == 9 and len(held_out) == 1
        assert held_out.name(0) not in {train.name(index) for index in range(9)}
        assert mask(held_out, 0).shape == (40, 48)
    assert len(open_masks(f"masks:{tmp_path / 'b'}?holdout=0.3", "train")) == 7


def test_pascal_voc(tmp_path: Path) -> None:
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for number in range(3):
        write_pair(root / "JPEGImages" / f"{number}.jpg", root / "SegmentationClass" / f"{number}.png", number)
    palette = Image.fromarray(labels_of(0)).convert("P")
    palette.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    palette.save(root / "SegmentationClass" / "0.png")
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets/Segmentation/train.txt").write_text("0\n1\n")
    (root / "ImageSets/Segmentation/val.txt").write_text("2\n")
    found = open_masks(f"voc:{tmp_path / 'VOCdevkit'}", "train")
    assert found.classes == list(VOC) and len(VOC) == 21
    assert (mask(found, 0) == labels_of(0)).all()
    assert len(open_masks(f"voc:{root}", "val")) == 1


def test_ade20k(tmp_path: Path) -> None:
    root = tmp_path / "ADEChallengeData2016"
    for split in ("training", "validation"):
        write_pair(root / "images" / split / "a.jpg", root / "annotations" / split / "a.png", 1)
    found = open_masks(f"ade20k:{tmp_path}", "train")
    assert len(found.classes) == ADE20K == 150
    labels = labels_of(1)
    expected = np.where(labels == 0, IGNORED, labels.astype(int) - 1)  # 0 has no class
    assert (mask(found, 0) == expected).all()
    assert len(open_masks(f"ade20k:{root}", "val")) == 1


def test_what_is_wrong_with_a_mask_is_said(tmp_path: Path) -> None:
    found = open_masks(f"masks:{write_masks(tmp_path)}", "train")
    masks = tmp_path / "train" / "masks"
    Image.fromarray(labels_of(0)[:20]).save(masks / "0.png")
    Image.fromarray(np.full((40, 48), 7, np.uint8)).save(masks / "1.png")
    Image.fromarray(image_of(labels_of(2))).save(masks / "2.png")
    (masks / "3.png").write_bytes(b"nothing")
    (masks / "4.png").unlink()
    reasons = [
        "48 x 20 pixels, the image is 48 x 40",
        "label 7; labels must be 0..2",
        "colors",
        "not an image",
        "no such",
    ]
    for index, said in enumerate(reasons):
        with pytest.raises(BrokenImage, match=said):
            found.sample(index)
    *_, place = found.usable(0)
    assert place == 5 and len(found.broken) == 5


@pytest.mark.parametrize("content", ["5", "null", "0", '"cats"', "[]", "{}", "[", '{"a": 1}'])
def test_a_list_of_classes_that_is_none_is_one_sentence(tmp_path: Path, content: str) -> None:
    (write_masks(tmp_path) / "classes.json").write_text(content)
    with pytest.raises(ValueError, match=r"classes\.json' (must be a JSON list|has no name)"):
        open_masks(f"masks:{tmp_path}", "train")


def write_tiff(path: Path, label: float, dtype: type) -> None:
    Image.fromarray(np.full((40, 48), label, dtype)).save(path, format="TIFF")


def test_masks_are_not_believed_when_classes_are_counted(tmp_path: Path) -> None:
    """Each is named: the label would fill the memory with names, and the others come with a decoder's own words."""
    mask = write_masks(tmp_path) / "train" / "masks" / "3.png"
    huge = Image.new("1", (20_000, 20_000))
    for write, said in (
        (lambda: write_tiff(mask, 2e9, np.int32), "has the label 2000000000, and at most 100,000 classes are allowed"),
        (lambda: huge.save(mask), "cannot be read: more than the 89,478,485 pixels allowed"),
        (lambda: mask.write_bytes(b"garbage"), "cannot be read: not an image of a known kind"),
        (lambda: write_tiff(mask, np.nan, np.float32), "has fractions"),
    ):
        write()
        with pytest.raises(ValueError, match=f"the mask .*3.png {said}"):
            open_masks(f"masks:{tmp_path}", "train")


def test_images_without_masks_are_counted(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    (folder / "train" / "masks" / "0.png").unlink()
    found = open_masks(f"masks:{folder}", "train")
    assert len(found) == 7 and "1 image has no mask" in found.notes[0] and "0.png" in found.notes[0]
    shutil.rmtree(folder / "test" / "masks")
    (folder / "test" / "masks").mkdir()
    with pytest.raises(ValueError, match="none of its 3 images has a mask"):
        open_masks(f"masks:{folder}", "test")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("masks:{0}/nowhere", "is not a folder"),
        ("masks:{0}", "holds no images with masks"),
        ("masks:{0}(mask=x)", "setting of masks"),
        ("voc:{0}", "SegmentationClass"),
        ("ade20k:{0}", "annotations/training"),
        ("imagefolder:{0}", "kind of data"),
        ("masks:", "does not say where it is"),
        ("{0}", "did you mean masks:"),
    ],
)
def test_wrong_places(tmp_path: Path, spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_masks(spec.format(tmp_path), "train")


def test_offsets() -> None:
    labels = np.array([[0, 1, 2, 3, 255]])
    assert from_offset(labels, 1, 3).tolist() == [[IGNORED, 0, 1, 2, IGNORED]]
    with pytest.raises(ValueError, match=r"label 3; labels must be 0\.\.2 or 255"):
        from_offset(labels, 0, 3)


@pytest.mark.parametrize("seed", range(6))
def test_image_and_mask_move_alike(seed: int) -> None:
    """The image shows the numbers of its mask, so that they must still agree after cropping, scaling and flipping."""
    labels = np.kron(labels_of(seed), np.ones((2, 2), np.uint8))
    shown = torch.from_numpy(labels)[None].expand(3, -1, -1).contiguous() * 100
    transform = joint_transform(DenseAugmentation(distortion=False, jitter=(0.5, 2.0)), SIDES)
    with global_generators_kept():
        seed_global_generators(seed)
        image, moved = transform(tv_tensors.Image(shown), tv_tensors.Mask(torch.from_numpy(labels).long()))
    assert image.shape == (3, 32, 32) and moved.shape == (32, 32)
    known = moved != IGNORED
    assert known.any()
    assert (image[0][~known] == 128).all()  # padded with the mean color
    agree = (image[0].long() - 100 * moved).abs() <= 50
    assert agree[known].float().mean() > 0.9  # all but the interpolated edges


def test_colors_change_the_image_alone() -> None:
    labels = torch.from_numpy(labels_of(1)).long()
    pixels = torch.from_numpy(image_of(labels_of(1))).permute(2, 0, 1)
    still = {"jitter": (1.0, 1.0), "hflip": 0.0}
    found = []
    for distortion in (False, True):
        transform = joint_transform(DenseAugmentation(distortion=distortion, **still), SIDES)
        with global_generators_kept():
            seed_global_generators(3)
            found.append(transform(tv_tensors.Image(pixels), tv_tensors.Mask(labels)))
    assert (found[0][1] == found[1][1]).all()
    assert (found[0][0] != found[1][0]).any()
