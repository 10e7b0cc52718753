"""Data of which images, archives, shards, indices or class names are changed, and what reads it."""

import io
import json
import os
import random
import struct
import tarfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fuzz import Case
from fuzz_values import change_bytes, change_value, hostile
from samples import train_sample
from vitmix.lab.data import open_images
from vitmix.lab.data.augment import eval_pixels
from vitmix.lab.data.augmentation import Augmentation
from vitmix.lab.data.images import ArrayImages, BrokenImage, ImageSet, in_memory
from vitmix.lab.figures.images import read_image

SUFFIXES = (".png", ".jpg", ".webp", ".gif", ".bmp", ".tif", ".ppm", ".pgm")
SEEN = Augmentation(size=16, erasing=0.5, auto_augment=None)


@cache
def valid_images() -> tuple[tuple[str, bytes], ...]:
    """Valid images of all kinds, with the ending of their name."""
    found = []
    for suffix, form, modes in (
        (".png", "PNG", ("RGB", "L", "P", "RGBA", "1", "I;16", "LA")),
        (".jpg", "JPEG", ("RGB", "L", "CMYK")),
        (".webp", "WEBP", ("RGB", "RGBA")),
        (".gif", "GIF", ("P", "L")),
        (".bmp", "BMP", ("RGB", "L", "1", "P")),
        (".tif", "TIFF", ("RGB", "L", "I;16", "F", "CMYK", "1", "I")),
        (".ppm", "PPM", ("RGB",)),
        (".pgm", "PPM", ("L", "I")),
    ):
        for mode in modes:
            for size in ((9, 7), (1, 40)):
                file = io.BytesIO()
                _drawn(mode, size).save(file, form)
                found.append((suffix, file.getvalue()))
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turned
    _drawn("RGB", (12, 8)).save(file, "JPEG", exif=exif, progressive=True)
    return (*found, (".jpg", file.getvalue()))


def _drawn(mode: str, size: tuple[int, int]) -> Image.Image:
    levels = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)
    image = Image.fromarray(levels)
    if mode in ("I;16", "I", "F"):
        numbers = np.asarray(image.convert("L")).astype({"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode])
        return Image.fromarray(numbers * 100)
    return image.convert(mode)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _claiming(chance: random.Random) -> bytes:
    """A PNG whose header is right in form and says anything; its pixels are all zero where there are enough."""
    width, height = (chance.choice([0, 1, 3, 100, 9000, 9459, 20_000, 2**31 - 1]) for _ in range(2))
    depth, color = chance.choice([1, 8, 16, 3]), chance.choice([0, 2, 3, 4, 6, 9])
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, chance.choice([0, 0, 1, 7]))
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(color, 1)
    stored = min((1 + (width * bits + 7) // 8) * height, chance.choice([0, 100, 10**6, 4 * 10**8]))
    packer = zlib.compressobj(1)
    pieces = [packer.compress(bytes(min(2**24, stored - start))) for start in range(0, stored, 2**24)]
    pixels = b"".join(pieces) + packer.flush()
    palette = _chunk(b"PLTE", bytes(768)) if color == 3 else b""
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + palette + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _image(chance: random.Random) -> tuple[str, bytes]:
    suffix, content = chance.choice(valid_images())
    if chance.random() < 0.01:
        return ".png", _claiming(chance)
    for _ in range(chance.choice([0, 1, 1, 2])):
        content = change_bytes(content, chance)
    if suffix == ".png" and chance.random() < 0.5:
        content = _with_checksums(content)
    return (chance.choice(SUFFIXES) if chance.random() < 0.1 else suffix), content


def _with_checksums(content: bytes) -> bytes:
    """A damaged PNG whose chunks have the checksums of what they hold, so that it is read on."""
    fixed, at = content[:8], 8
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        end = at + 8 + length
        if end > len(content):
            break
        fixed += content[at:end] + struct.pack(">I", zlib.crc32(content[at + 4 : end]))
        at = end + 4
    return fixed + content[at:]


def _look_at(images: ImageSet, chance: random.Random) -> bool:
    """Reads images as the loaders do; whether one could be read."""
    good = 0
    for index in range(min(len(images), 4)):
        try:
            image, _ = images[index]
        except BrokenImage:
            continue
        good += 1
        eval_pixels(image, SEEN)
        train_sample(image, SEEN, seed_numbers=(index,))
    first, *_ = images.readable(chance.randrange(len(images)))
    if chance.random() < 0.2 and first.width * first.height < 10**6:
        in_memory(images)
    if isinstance(images, ArrayImages):
        images.objects([0])
    return good > 0


def _split(chance: random.Random) -> Any:
    return chance.choice(["train", "train", "val", "test"])


# Folders of images


def _image_folder(case: Case) -> bool:
    chance, shown = case.chance, []
    for number in range(4):
        suffix, content = _image(chance)
        path = case.folder / "data" / chance.choice(["train", "train", "val"]) / "ab"[number % 2] / f"{number}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        shown.append(content[:80])
    place = case.folder / "data" / "train" / "a" / "more.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    kind = chance.randrange(12)
    if kind == 0:
        os.mkfifo(place)
    elif kind == 1:
        place.symlink_to("/dev/zero")
    elif kind == 2:
        place.symlink_to(case.folder)
    elif kind == 3:
        place.mkdir()
    elif kind == 4:
        (case.folder / "data" / "train" / os.fsdecode(b"\xff\xfe")).mkdir()
    case.shown = f"imagefolder {shown!r}"
    return _look_at(open_images(f"imagefolder:data{chance.choice(['', '', '?holdout=0.5'])}", _split(chance)), chance)


def _shown_image(case: Case) -> bool:
    suffix, content = _image(case.chance)
    path = case.folder / f"a{suffix}"
    path.write_bytes(content)
    case.shown = f"read_image {path.name} {content[:3000]!r}"
    read_image(str(path), 16)
    return True


# Arrays


@cache
def _scans() -> dict[str, np.ndarray]:
    files = []
    for number in range(3):
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (number, 9, 9)).save(file, "JPEG", quality=90)
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    start = next(at for at in range(len(files[0])) if len({bytes(each[: at + 1]) for each in files}) > 1)
    ends = np.cumsum([0, *(len(each) - start for each in files)])
    scan = np.concatenate([each[start:] for each in files])
    head = files[0][:start]
    return {"scan": scan, "offset": ends, "gray": np.zeros(3, bool), "header_rgb": head, "header_gray": head}


@cache
def _strips() -> dict[str, np.ndarray]:
    file = io.BytesIO()
    Image.new("RGB", (8, 24), (1, 2, 3)).save(file, "WEBP", lossless=True)
    data = np.frombuffer(file.getvalue(), np.uint8)
    return {"webp": data, "offset": np.array([0, len(data)])}


def _arrays(chance: random.Random) -> dict[str, np.ndarray]:
    kind = chance.randrange(3)
    if kind == 0:
        arrays = {"images": np.zeros((3, 8, 8, 3), np.uint8), "labels": np.arange(3)}
    else:
        arrays = dict(_scans() if kind == 1 else _strips()) | {"label": np.arange(3)}
    if chance.random() < 0.3:
        arrays["box"] = np.array([[0, 0, 3, 3]] * 3)
    return arrays


def _change_array(array: np.ndarray, chance: random.Random) -> np.ndarray:
    kind = chance.randrange(9)
    if array.ndim == 0:  # changed before
        return array
    if kind == 0:
        dtypes = ["f8", "f2", "i1", "u8", "c16", "S3", "U2", "?", "M8[s]", [("a", "i4")]]
        return np.zeros(array.shape, np.dtype(chance.choice(dtypes)))
    if kind == 1:
        return array[..., None]
    if kind == 2:
        return array[:0]
    if kind == 3:
        return array[:-1]
    if kind == 4:
        return np.array(chance.choice([0, 1, -1, 2**40, "x"]))
    if kind == 5:
        return np.zeros((*array.shape[:-1], 0), array.dtype)
    if kind == 6:
        return np.asfortranarray(array[::-1])
    if array.dtype.kind in "iu" and array.size:
        changed = array.astype(np.int64).copy()
        limits = np.iinfo(array.dtype)
        values = [limits.min, limits.max, -1, 5, 200, 2**40]
        changed.flat[chance.randrange(array.size)] = min(max(chance.choice(values), limits.min), limits.max)
        return changed.astype(array.dtype)
    return np.concatenate([array, array])


def _packed(arrays: dict[str, np.ndarray], chance: random.Random) -> bytes:
    file = io.BytesIO()
    (np.savez if chance.random() < 0.5 else np.savez_compressed)(file, **arrays)  # pyright: ignore
    return file.getvalue()


def _npz(case: Case) -> bool:
    chance, arrays = case.chance, _arrays(case.chance)
    for _ in range(chance.choice([0, 1, 1, 2])):
        name = chance.choice([*arrays])
        kind = chance.random()
        if kind < 0.1:
            del arrays[name]
        elif kind < 0.15:
            arrays[chance.choice(["images", "labels", "webp", "offset", "x", "../x"])] = arrays[name]
        else:
            arrays[name] = _change_array(arrays[name], chance)
        if not arrays:
            break
    content = _packed(arrays, chance)
    if chance.random() < 0.4:
        content = change_bytes(content, chance)
    names = ["train.npz"] + ["val.npz", "train_1.npz", "test_00.npz"][: chance.randrange(4)]
    for name in names:
        (case.folder / name).write_bytes(content if name == "train.npz" else _packed(_arrays(chance), chance))
    _class_names(case)
    described = {name: f"{array.dtype} {array.shape}" for name, array in arrays.items()}
    case.shown = f"npz {described} {content[:100]!r}"
    place = chance.choice([".", ".", "train.npz"])
    return _look_at(open_images(f"npz:{place}", _split(chance)), chance)


def _class_names(case: Case) -> None:
    chance = case.chance
    if chance.random() < 0.3:
        forms: list[Any] = [["a", "b", "c"], {"0": "a", "1": "b", "2": "c"}]
        forms.append([{"label": number, "name": "x"} for number in range(3)])
        value = change_value(chance.choice(forms), chance)
        (case.folder / "classes.json").write_text(json.dumps(value))


# Shards


def _member(name: str, content: bytes, chance: random.Random) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    if chance.random() < 0.05:
        member.type = chance.choice([tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE, b"S", b"x"])
        member.linkname = "0.png"
    return member, content


def _shard(case: Case) -> bool:
    chance, file, samples = case.chance, io.BytesIO(), []
    for number in range(3):
        suffix, content = _image(chance)
        labels = [str(number).encode(), b"-1", b"", b"9" * 5000, b"x", "٣".encode(), b"99999999", str(2**63).encode()]
        label = labels[0] if chance.random() < 0.85 else chance.choice(labels)
        samples.append(_member(f"{number}{suffix}", content, chance))
        if chance.random() < 0.7:
            samples.append(_member(f"{number}.cls", label, chance))
        else:
            value = change_value({"label": number}, chance) if chance.random() < 0.3 else {"label": number}
            samples.append(_member(f"{number}.json", json.dumps(value).encode(), chance))
    if chance.random() < 0.2:
        chance.shuffle(samples)
    with tarfile.open(fileobj=file, mode="w", format=chance.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:
        for member, content in samples:
            tar.addfile(member, io.BytesIO(content))
    content = file.getvalue()
    for _ in range(chance.choice([0, 0, 1, 2])):
        content = change_bytes(content, chance)
    if chance.random() < 0.3:
        content = _with_sums(content)
    (case.folder / "train-00.tar").write_bytes(content)
    _class_names(case)
    case.shown = f"shard {[(member.name, member.type, data[:60]) for member, data in samples]!r} {content[:200]!r}"
    patterns = [".", ".", "train-{00..00}.tar", "*.tar", "train-{00..01}.tar", "train-{0..9{0..9}}.tar", "[", "{a,b"]
    pattern = f"wds:{patterns[0] if chance.random() < 0.8 else chance.choice(patterns)}"
    if chance.random() < 0.3:  # once more, with an index that was changed in between
        open_images(pattern, "train")
        for index in case.folder.glob(".vitmix-*"):
            index.write_bytes(change_bytes(index.read_bytes(), chance))
    return _look_at(open_images(pattern, _split(chance)), chance)


def _with_sums(content: bytes) -> bytes:
    """A damaged tar whose first headers have the sums of what they hold, so that it is read on."""
    fixed = bytearray(content)
    for at in range(0, min(len(fixed) - 511, 512 * 12), 512):
        if fixed[at + 257 : at + 262] == b"ustar":
            fixed[at + 148 : at + 156] = b" " * 8
            fixed[at + 148 : at + 156] = b"%06o\0 " % sum(fixed[at : at + 512])
    return bytes(fixed)


# Data of Hugging Face


def _saved(case: Case) -> bool:
    try:
        import datasets
    except ImportError:
        return _npz(case)
    chance = case.chance
    datasets.disable_progress_bars()
    rows = {"image": [{"bytes": content, "path": None} for _, content in valid_images()[:3]], "label": [0, 1, 2]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk("saved")
    path = chance.choice(sorted(Path("saved").iterdir()))
    content = path.read_bytes()
    if path.suffix == ".json":
        value = json.loads(content)
        content = json.dumps(hostile(chance) if chance.random() < 0.05 else change_value(value, chance)).encode()
    else:
        content = change_bytes(content, chance)
    path.write_bytes(content)
    case.shown = f"hfds {path}: {content[:2000]!r}"
    return _look_at(open_images("hfds:saved", _split(chance)), chance)


READERS: tuple[tuple[float, Callable[[Case], bool]], ...] = (
    (0.40, _image_folder),
    (0.18, _shown_image),
    (0.20, _npz),
    (0.20, _shard),
    (0.02, _saved),
)


def run_image(case: Case) -> bool:
    """One of the kinds of data."""
    _ = case.folder  # which becomes the current one
    weights, readers = zip(*READERS, strict=True)
    (reader,) = case.chance.choices(readers, weights)
    return reader(case)
