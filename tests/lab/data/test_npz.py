"""Images in .npz files: plain arrays, strips and scans, their names, and what is wrong with a file."""

import io
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support import SHARED
from vitmix.lab.data.images import ArrayImages, BrokenImage
from vitmix.lab.data.sources import open_images

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")


def save_plain(path: Path, count: int = 6, labels=None, **arrays) -> np.ndarray:
    pixels = np.random.default_rng(count).integers(0, 256, (count, 5, 4, 3), dtype=np.uint8)
    labels = np.arange(count) % 3 if labels is None else labels
    np.savez(path, **{"images": pixels, "labels": np.asarray(labels), **arrays})
    return pixels


def test_plain_arrays_with_names(tmp_path):
    pixels = save_plain(tmp_path / "train.npz")
    save_plain(tmp_path / "val.npz", 4)
    (tmp_path / "classes.json").write_text(json.dumps(["ant", "bee", "fly", "not used"]))
    train = open_images(f"npz:{tmp_path}", "train")
    assert isinstance(train, ArrayImages)
    assert np.array_equal(train.pixels, pixels)
    assert train.classes == ["ant", "bee", "fly"]
    assert len(open_images(f"npz:{tmp_path}", "test")) == 4
    assert train.name(2) == "train.npz[2]"


@pytest.mark.parametrize(
    "stored", [{"0": "ant", "1": "bee", "2": "fly"}, [{"label": 2 - i, "name": "fba"[i]} for i in range(3)]]
)
def test_class_names_in_other_forms(tmp_path, stored):
    save_plain(tmp_path / "train.npz")
    (tmp_path / "classes.json").write_text(json.dumps(stored))
    assert [name[0] for name in open_images(f"npz:{tmp_path}", "train").classes] == ["a", "b", "f"]


def test_numbered_parts_are_joined_in_order(tmp_path):
    parts = [save_plain(tmp_path / f"train_{number}.npz", 3 + number) for number in range(11)]
    images = open_images(f"npz:{tmp_path}?holdout=0.01", "train")
    whole = np.concatenate(parts)
    assert len(images) == len(whole) - 3
    first = images.name(0)
    assert np.array_equal(np.asarray(images[0][0]), whole[int(first[first.index("[") + 1 : -1])])
    assert images.name(len(images) - 1).startswith("train_10.npz[")


def test_single_file_is_data_without_splits(tmp_path):
    save_plain(tmp_path / "all.npz", 30)
    sizes = [len(open_images(f"npz:{tmp_path / 'all.npz'}", split)) for split in ("train", "val", "test")]
    assert sizes == [27, 3, 3]


def test_gray_arrays_get_three_channels(tmp_path):
    save_plain(tmp_path / "train.npz", images=np.full((6, 5, 4), 9, dtype=np.uint8))
    save_plain(tmp_path / "test.npz", images=np.full((6, 5, 4, 1), 9, dtype=np.uint8))
    for split in ("train", "test"):
        assert np.asarray(open_images(f"npz:{tmp_path}", split)[0][0]).tolist() == [[[9, 9, 9]] * 4] * 5


def test_webp_strips(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    files = []
    for strip in (pixels[:4], pixels[4:]):
        file = io.BytesIO()
        Image.fromarray(strip.reshape(-1, 8, 3)).save(file, format="webp", lossless=True)
        files.append(file.getvalue())
    offset = np.cumsum([0, *map(len, files)])
    data = np.frombuffer(b"".join(files), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", webp=data, offset=offset, label=np.arange(6, dtype=np.uint8) % 2)
    np.savez(tmp_path / "test.npz", webp=data[100:], offset=offset[:2], label=np.zeros(4, dtype=np.uint8))
    images = open_images(f"npz:{tmp_path}", "train")
    assert isinstance(images, ArrayImages) and np.array_equal(images.pixels, pixels)
    with pytest.raises(ValueError, match="strip 0 cannot be read"):
        open_images(f"npz:{tmp_path}", "test")


def save_scans(path: Path, count: int = 6) -> list[bytes]:
    """JPEG files that share a header, stored without it."""
    files = []
    for number in range(count):
        file = io.BytesIO()
        Image.new("RGB", (16, 16), (30 * number, 255 - 30 * number, 7)).save(file, format="jpeg", quality=90)
        files.append(file.getvalue())
    cut = files[0].index(b"\xff\xda")
    assert all(file[:cut] == files[0][:cut] for file in files)
    scans = [np.frombuffer(file[cut:], dtype=np.uint8) for file in files]
    scans[2] = scans[2][:12]  # damaged
    np.savez(
        path,
        scan=np.concatenate(scans),
        offset=np.cumsum([0, *map(len, scans)]),
        gray=np.zeros(count, dtype=np.uint8),
        header_rgb=np.frombuffer(files[0][:cut], dtype=np.uint8),
        header_gray=np.zeros(0, dtype=np.uint8),
        label=np.arange(count) % 2,
        box=np.zeros((count, 4), dtype=np.uint8),
    )
    return files


def test_jpeg_scans_and_a_damaged_one(tmp_path, caplog):
    files = save_scans(tmp_path / "train.npz")
    save_scans(tmp_path / "val.npz")
    with caplog.at_level(logging.WARNING):
        images = open_images(f"npz:{tmp_path}", "train")
    for index in (0, 1, 3, 4, 5):
        assert np.array_equal(np.asarray(images[index][0]), np.asarray(Image.open(io.BytesIO(files[index]))))
    assert list(images.broken) == [2] and images.broken[2].startswith("train.npz[2]: ")
    assert "train.npz[2]" in caplog.text
    with pytest.raises(BrokenImage, match=r"train.npz\[2\]"):
        images[2]
    assert images.readable(2)[2] == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.array([0, 1, -1, 0, 1, 2])}, "labels of .* must lie in 0..2"),
        ({"labels": np.array([0.5] * 6)}, "must be .* integers, got float64"),
        ({"labels": np.array([0, 1, 1, 0, 1, 10**7])}, "label 10000000 among 6 images"),
        ({"labels": np.arange(5) % 2}, "6 images and 5 labels"),
        ({"images": np.zeros((6, 5, 4, 3))}, "must be uint8"),
        ({"images": np.zeros((6, 5, 4, 2), dtype=np.uint8)}, "must be uint8 .* got uint8"),
    ],
)
def test_bad_arrays(tmp_path, arrays, message):
    save_plain(tmp_path / "train.npz", **arrays)
    save_plain(tmp_path / "val.npz")
    with pytest.raises(ValueError, match=message):
        open_images(f"npz:{tmp_path}", "train")


def test_npz_without_the_known_arrays(tmp_path):
    np.savez(tmp_path / "train.npz", x=np.zeros(3), label=np.arange(3))
    with pytest.raises(ValueError, match="must hold the arrays images and labels, got label, x; "):
        open_images(f"npz:{tmp_path}", "train")


def test_npz_files_of_unknown_origin_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "train.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.array([{}, 1], dtype=object))
    with pytest.raises(ValueError, match="cannot be read: Object arrays"):
        open_images(f"npz:{tmp_path}", "train")
    for content in (b"no zip file", b""):
        (tmp_path / "train.npz").write_bytes(content)
        with pytest.raises(ValueError, match="not a readable .npz file"):
            open_images(f"npz:{tmp_path}", "train")


def test_npz_folder_problems(tmp_path):
    with pytest.raises(ValueError, match=r"no train.npz"):
        open_images(f"npz:{tmp_path}", "train")
    save_plain(tmp_path / "train.npz")
    save_plain(tmp_path / "val.npz", labels=[0, 1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match=r"labels of .* must lie in 0..2 for 3 classes, got 0..5"):
        open_images(f"npz:{tmp_path}", "val")
    (tmp_path / "classes.json").write_text('["one", "two"]')
    with pytest.raises(ValueError, match="no name for label 2"):
        open_images(f"npz:{tmp_path}", "train")
    for damaged in ("{oops", '[{"label": Infinity, "name": "one"}]'):
        (tmp_path / "classes.json").write_text(damaged)
        with pytest.raises(ValueError, match="must be a JSON list"):
            open_images(f"npz:{tmp_path}", "train")


@needs_shared
def test_shared_cifar10():
    test = open_images(f"npz:{SHARED / 'cifar10'}", "val")
    assert isinstance(test, ArrayImages)
    assert test.pixels.shape == (10_000, 32, 32, 3)
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert test.labels[:4].tolist() == [3, 8, 8, 0]  # cat, ship, ship, airplane


@needs_shared
def test_shared_tiny_imagenet():
    val = open_images(f"npz:{SHARED / 'tinyimagenet100'}", "val")
    assert len(val) == 5000 and len(val.classes) == 100 and val.classes[0] == "Egyptian cat"
    assert np.bincount(val.labels).tolist() == [50] * 100 and not val.broken
