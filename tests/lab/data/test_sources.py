"""Sources of images: every kind opens, splits are as described, bad input gets one clear sentence."""

import json
import logging
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from training import one_thread  # noqa: F401
from vitmix.lab.data import decoding
from vitmix.lab.data.decoding import as_rgb
from vitmix.lab.data.images import ArrayImages, BrokenImage, FileImages, ImageSet, in_memory
from vitmix.lab.data.shapes import Shapes
from vitmix.lab.data.sources import SOURCES, Source, held_out_mask, open_images, without_folders

pytestmark = pytest.mark.usefixtures("one_thread")


def solid_image(color: int, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", size, (color, 255 - color, 7)).convert(mode)


def fill_folder(root: Path, classes=("cat", "dog"), count: int = 5, start: int = 0) -> Path:
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            solid_image(start + 20 * label + number).save(root / name / f"{number}.png")
    return root


# Built-in data


def test_shapes_are_the_built_in_data_as_arrays():
    images = open_images("shapes(size=16, length=50)", "train")
    assert isinstance(images, ArrayImages)
    dataset = Shapes(size=16, length=50)
    assert images.pixels.shape == (50, 16, 16, 3)
    for index in (0, 7, 49):
        expected, label = dataset[index]
        assert np.array_equal(np.asarray(images[index][0]), np.asarray(expected))
        assert images[index][1] == images.labels[index] == label
    assert images.classes == list(Shapes.classes)


def test_shapes_defaults_and_test_split():
    test = open_images("shapes(size=8)", "val")
    assert len(test) == 2000 and "test" in test.description
    assert len(open_images("shapes(size=8, length=30, test_length=20)", "test")) == 20
    assert not np.array_equal(
        open_images("shapes(size=8, length=20, test_length=20)", "train").pixels,  # pyright: ignore
        open_images("shapes(size=8, length=20, test_length=20)", "test").pixels,  # pyright: ignore
    )


def test_large_shapes_are_drawn_when_asked_for():
    small = open_images("shapes(size=1200, length=500)", "train")
    assert not isinstance(small, ArrayImages) and len(small) == 500
    image, label = small[3]
    assert image.size == (1200, 1200)
    assert label == Shapes(size=32, length=500)[3][1]


# Image folders


def test_folder_with_train_and_val(tmp_path):
    fill_folder(tmp_path / "train")
    fill_folder(tmp_path / "val", count=2, start=100)
    train, val, test = (open_images(f"imagefolder:{tmp_path}", split) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (10, 4, 4)
    assert train.classes == val.classes == ["cat", "dog"]
    assert train.labels.tolist() == [0] * 5 + [1] * 5
    image, label = train[6]
    assert image.mode == "RGB" and image.size == (12, 10) and label == 1
    assert image.getpixel((0, 0)) == (21, 234, 7)
    assert train.name(6) == str(Path("dog", "1.png"))


@pytest.mark.parametrize("name", ["val", "validation", "valid", "test", "Test"])
def test_folder_finds_the_held_out_images_by_any_usual_name(tmp_path, name):
    fill_folder(tmp_path / "train")
    fill_folder(tmp_path / name, count=3)
    assert len(open_images(f"imagefolder:{tmp_path}", "val")) == 6


def test_folder_keeps_val_and_test_apart(tmp_path):
    for name, count in (("train", 6), ("val", 2), ("test", 3)):
        fill_folder(tmp_path / name, count=count)
    sizes = {split: len(open_images(f"imagefolder:{tmp_path}", split)) for split in ("train", "val", "test")}
    assert sizes == {"train": 12, "val": 4, "test": 6}
    held = {split: len(open_images(f"imagefolder:{tmp_path}?holdout=0.5", split)) for split in ("train", "val", "test")}
    assert held == {"train": 6, "val": 6, "test": 6}


@pytest.mark.parametrize("inside", ["", "train"])
def test_folder_without_splits_is_divided(tmp_path, inside):
    fill_folder(tmp_path / inside, count=20)
    train, val, test = (open_images(f"imagefolder:{tmp_path}", split) for split in ("train", "val", "test"))
    assert (len(train), len(val)) == (36, 4)
    assert val.labels.tolist() == [0, 0, 1, 1]
    names = [{images.name(i) for i in range(len(images))} for images in (train, val, test)]
    assert not names[0] & names[1] and names[1] == names[2]
    assert "held out" in train.description and "held out" in val.description


def test_folder_reads_nested_files_and_leaves_others_alone(tmp_path):
    fill_folder(tmp_path / "train")
    (tmp_path / "train" / "cat" / "deep").mkdir()
    solid_image(3).save(tmp_path / "train" / "cat" / "deep" / "x.JPG", format="jpeg")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    assert len(open_images(f"imagefolder:{tmp_path}", "train")) == 9  # of 11: one of each class is held out
    assert open_images(f"imagefolder:{tmp_path}", "train").classes == ["cat", "dog"]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA", "CMYK", "I;16"])
def test_images_of_every_mode_become_rgb(tmp_path, mode):
    fill_folder(tmp_path / "train")
    image = Image.new("I;16", (8, 8), 300) if mode == "I;16" else solid_image(50, mode=mode)
    image.save(tmp_path / "train" / "cat" / ("9.jpg" if mode == "CMYK" else "9.png"))
    images = open_images(f"imagefolder:{tmp_path}?holdout=0.1", "train")
    index = [images.name(i) for i in range(len(images))].index(str(Path("cat", "9.jpg" if mode == "CMYK" else "9.png")))
    assert images[index][0].mode == "RGB"


def test_sixteen_bits_are_scaled_to_eight(tmp_path):
    levels = np.arange(256).reshape(16, 16, 1)
    image = Image.fromarray((257 * levels[..., 0]).astype(np.uint16))
    image.save(tmp_path / "gray.png")
    with Image.open(tmp_path / "gray.png") as stored:
        for found in (stored, image.convert("I")):
            assert (np.asarray(as_rgb(found)) == levels).all()
    assert (np.asarray(as_rgb(Image.new("I", (2, 2), 200))) == 200).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "is not a folder"),
        (lambda root: root.mkdir(), "holds no class folders"),
        (lambda root: fill_folder(root / "train", classes=("cat",)), "one class folder only"),
        (lambda root: (fill_folder(root / "train"), (root / "train" / "owl").mkdir()), "owl' holds no images"),
        (lambda root: (fill_folder(root / "train"), fill_folder(root / "val", classes=("cow",))), "a class 'cow'"),
        (lambda root: fill_folder(root / "val"), "no training images"),
    ],
)
def test_folder_problems(tmp_path, make, message):
    make(tmp_path / "data")
    with pytest.raises(ValueError, match=message):
        for split in ("train", "val"):
            open_images(f"imagefolder:{tmp_path / 'data'}", split)


# Specs and held-out images


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("imagefoldr:x", "did you mean 'imagefolder'"),
        ("imagefolder:", "does not say where it is"),
        ("npz", "does not say where it is"),
        ("torchvision:CIFAR10", "names no folder"),
        ("torchvision:CIFAR11:x", "did you mean 'CIFAR10'"),
        ("shapes(sise=32)", "did you mean 'size'"),
        ("shapes(size=big)", "whole number"),
        ("shapes(length=2147483648)", "length may be at most 10,000,000"),
        ("shapes(size=100000)", "size may be at most 4,096"),
        ("shapes(size=32", "not understood"),
        ("shapes(length=0)", "length"),
        ("shapes?holdout=2", "between 0 and 1"),
        ("shapes?holdout=none", "between 0 and 1"),
        ("shapes?hold=0.1", "did you mean 'holdout'"),
        ("npz:nowhere", "does not exist"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError, match=message):
        open_images(spec, "train")


def test_unknown_split():
    with pytest.raises(ValueError, match="unknown split 'training'"):
        open_images("shapes", "training")  # pyright: ignore


def test_holdout_is_stratified_disjoint_and_the_same_every_time():
    spec = "shapes(size=8, length=600)?holdout=0.1"
    train, val, test = (open_images(spec, split) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (540, 60, 2000)
    assert np.bincount(val.labels).tolist() == [5] * 12
    names = {train.name(i) for i in range(540)} | {val.name(i) for i in range(60)}
    assert len(names) == 600
    again = open_images(spec, "val")
    assert [again.name(i) for i in range(60)] == [val.name(i) for i in range(60)]


def test_held_out_mask_never_takes_a_whole_class():
    mask = held_out_mask(np.array([0, 0, 0, 1, 1, 2]), 0.9)
    assert mask.tolist().count(True) == 3 and not mask[5]
    with pytest.raises(ValueError, match="a single image"):
        held_out_mask(np.array([0, 1, 2]), 0.5)


# torchvision


def fake_cifar10(root: Path) -> np.ndarray:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    data = np.random.default_rng(0).integers(0, 256, (24, 3072), dtype=np.uint8)
    parts = [f"data_batch_{number}" for number in range(1, 6)]
    for number, name in enumerate([*parts, "test_batch"]):
        rows = slice(4 * number, 4 * number + 4)
        (folder / name).write_bytes(pickle.dumps({"data": data[rows], "labels": [number % 10] * 4}))
    meta = {"label_names": [f"class {number}" for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta))
    return data


def test_torchvision_cifar10_is_an_array(tmp_path, monkeypatch):
    data = fake_cifar10(tmp_path)
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
    train, val, test = (open_images(f"torchvision:CIFAR10:{tmp_path}", split) for split in ("train", "val", "test"))
    assert isinstance(train, ArrayImages)
    assert (len(train), len(val), len(test)) == (20, 4, 4)
    assert np.array_equal(train.pixels, data[:20].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert train.classes[3] == "class 3" and test.labels.tolist() == [5] * 4
    held = open_images(f"torchvision:CIFAR10:{tmp_path}?holdout=0.25", "val")
    assert len(held) == 5 and "train" in held.description


def test_torchvision_food101_reads_files(tmp_path):
    meta = tmp_path / "food-101" / "meta"
    meta.mkdir(parents=True)
    for name, count in (("train", 3), ("test", 1)):
        rows = {food: [f"{food}/{name}{number}" for number in range(count)] for food in ("pie", "soup")}
        (meta / f"{name}.json").write_text(json.dumps(rows))
        for food, files in rows.items():
            (meta.parent / "images" / food).mkdir(parents=True, exist_ok=True)
            for file in files:
                solid_image(40).save(meta.parent / "images" / f"{file}.jpg")
    train = open_images(f"torchvision:Food101:{tmp_path}", "train")
    assert len(train) == 6 and train.labels.tolist() == [0] * 3 + [1] * 3 and train.classes == ["pie", "soup"]
    assert train[4][0].size == (12, 10) and train[4][1] == 1
    assert len(open_images(f"torchvision:Food101:{tmp_path}", "val")) == 2
    half = open_images(f"torchvision:Food101:{tmp_path}?holdout=0.34", "train")
    assert len(half) == 4 and half[3][1] == 1


def test_torchvision_data_that_cannot_be_downloaded(tmp_path, monkeypatch):
    def no_network(*args, **settings):
        raise OSError("no\nnetwork.")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    with pytest.raises(ValueError, match=r"CIFAR100 is not complete in .* could not be downloaded \(no network\)"):
        open_images(f"torchvision:CIFAR100:{tmp_path / 'new'}", "train")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="ImageNet is not complete"):
        open_images(f"torchvision:ImageNet:{tmp_path}", "train")


# Unreadable images


def damaged_folder(root: Path) -> ImageSet:
    """Ten files of two classes, of which number 2 is cut short, 3 is no image and 9 is gone."""
    fill_folder(root / "train")
    fill_folder(root / "val")
    path = root / "train" / "cat" / "2.png"
    noise = np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:200])
    (root / "train" / "cat" / "3.png").write_text("hello")
    images = open_images(f"imagefolder:{root}", "train")
    (root / "train" / "dog" / "4.png").unlink()
    return images


def test_a_folder_without_its_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill_folder(tmp_path / "img" / "train")
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays" / "train.npz", x=np.zeros(1))
    for spec, hint in (
        ("img", "unknown kind of data 'img', but a folder of this name exists; did you mean imagefolder:img?"),
        ("img?holdout=0.2", "did you mean imagefolder:img?holdout=0.2?"),
        ("arrays", "did you mean npz:arrays?"),
        ("nowhere", "unknown kind of data 'nowhere', known: "),
    ):
        with pytest.raises(ValueError, match=re.escape(hint)):
            open_images(spec, "train")


def test_unreadable_images_are_named_and_replaced(tmp_path, caplog):
    images = damaged_folder(tmp_path)
    with caplog.at_level(logging.WARNING):
        found = [images.readable(index)[2] for index in range(10)] + [images.readable(2)[2]]
    assert found == [0, 1, 4, 4, 4, 5, 6, 7, 8, 0, 4]
    assert sorted(images.broken) == [2, 3, 9]
    for index, name in ((2, "2.png"), (3, "3.png"), (9, "4.png")):
        assert images.broken[index].startswith(images.name(index)) and name in images.broken[index]
    assert len(caplog.records) == 3
    with pytest.raises(BrokenImage, match="3.png"):
        images[3]
    with pytest.raises(IndexError):
        images[10]


def test_nothing_readable_is_an_error(tmp_path):
    fill_folder(tmp_path / "train", count=2)
    images = open_images(f"imagefolder:{tmp_path}", "train")
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="none of the 2 images .* could be read"):
        images.readable(0)


def test_images_of_absurd_size_are_unreadable(tmp_path, monkeypatch):
    fill_folder(tmp_path / "train")
    monkeypatch.setattr(decoding, "MAX_PIXELS", 100)
    images = open_images(f"imagefolder:{tmp_path}", "train")
    with pytest.raises(BrokenImage, match="12 x 10 pixels, more than the 100 allowed"):
        images[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own limit: an error beyond twice this
    with pytest.raises(BrokenImage, match="more than the 100 pixels allowed"):
        images[1]


def test_in_memory_needs_one_size(tmp_path):
    images = damaged_folder(tmp_path)
    arrays = in_memory(images)
    assert arrays.pixels.shape == (10, 10, 12, 3) and sorted(arrays.broken) == [2, 3, 9]
    assert arrays.readable(2)[2] == 4 and in_memory(arrays) is arrays
    solid_image(1, (9, 9)).save(tmp_path / "train" / "dog" / "2.png")
    with pytest.raises(ValueError, match="one size, got 12 x 10 .* and 9 x 9.*leave --resident out"):
        in_memory(open_images(f"imagefolder:{tmp_path}", "train"))


def test_image_sets_travel_between_processes(tmp_path):
    images = damaged_folder(tmp_path)
    assert isinstance(images, FileImages)
    subset = in_memory(images).subset(np.array([4, 2, 0]), "three")
    for each in (images, subset, open_images("shapes(size=8, length=24)?holdout=0.5", "val")):
        copy = pickle.loads(pickle.dumps(each))
        assert np.array_equal(np.asarray(copy[0][0]), np.asarray(each[0][0])) and copy.name(0) == each.name(0)
    assert list(subset.broken) == [1] and subset.name(1) == images.name(2)


def test_a_kind_of_data_is_one_entry(monkeypatch):
    def splits(argument: str):
        pixels = np.zeros((int(argument.partition("/")[2]), 4, 4, 3), np.uint8)
        return {"train": lambda: ArrayImages(pixels, np.arange(len(pixels)) % 2, ["a", "b"], f"black:{argument}")}

    monkeypatch.setitem(SOURCES, "black", Source(splits, form="FOLDER/COUNT"))
    train, held_out = open_images("black:x/20", "train"), open_images("black:x/20", "test")
    assert (len(train), len(held_out)) == (18, 2) and train.name(17) == "image 19"
    assert without_folders("black:x/20", "black:x/20") == "black:20"
    with pytest.raises(ValueError, match="does not say where it is; write black:FOLDER/COUNT"):
        open_images("black:", "train")


def test_a_subset_of_a_subset_keeps_names_and_what_is_broken():
    pixels = np.arange(6, dtype=np.uint8)[:, None, None, None].repeat(3, axis=3).repeat(4, axis=1).repeat(4, axis=2)
    images = ArrayImages(pixels, [0, 1] * 3, ["a", "b"], "six", broken={4: "cut"}, boxes=np.tile([0, 0, 1, 1], (6, 1)))
    part = images.subset(np.array([5, 4, 2]), "three").subset(np.array([1, 0]), "two")
    assert [part.name(index) for index in range(2)] == ["image 4", "image 5"] and part.broken == {0: "cut"}
    assert part.labels.tolist() == [0, 1] and part.pixels[:, 0, 0, 0].tolist() == [4, 5]
    assert part.description == "two" and part.objects([0, 1]).shape == (2, 4, 4)
    assert len(images) == 6 and images.broken == {4: "cut"}
