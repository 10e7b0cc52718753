"""Images stored as arrays in `.npz` files: plain pixels, strips of lossless WebP, or JPEG scans with a shared header.

A folder holds `train.npz`, `val.npz`, `test.npz`, or numbered parts of them (`train_0.npz`, `train_1.npz`, ...), and
may hold `classes.json`. A single file is data without splits. Everything is decoded once, to uint8.

    images (N, H, W, 3) or (N, H, W) uint8, labels (N,)
    webp, offset, label                         lossless WebP files end to end, each a column of square images
    scan, offset, gray, header_rgb, header_gray, label      JPEG files end to end without their header

Any of them may have `box` (N, 4): left, top, right and bottom of each picture's object, the last pixel included.
"""

import io
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from vitmix.lab.reading import open_regular, read_json

from .images import ArrayImages, check_pixels, count_classes, reason_of

# The most that a byte of an archive can stand for, by its kind: as it is, or deflated.
MOST_COMPRESSED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


def npz_splits(location: str) -> dict[str, Callable[[], ArrayImages]]:
    """For each split that is stored at this place, a function that reads it."""
    place = Path(location)
    if place.is_file():
        parts = {"train": [place]}
    elif place.is_dir():
        parts = _find_parts(place)
    else:
        raise ValueError(f"npz: {location!r} does not exist; give a folder with train.npz, or one .npz file")
    if not parts:
        raise ValueError(f"npz: no train.npz, train_0.npz, val.npz or test.npz in {location!r}; name the files so")
    # The classes are those of the training labels: a list of names may be longer than what is stored here.
    known = parts.get("train") or next(iter(parts.values()))
    count = count_classes(np.concatenate([_labels(path) for path in known]), f"npz:{location}")
    classes = class_names(place if place.is_dir() else place.parent, count)
    return {split: lambda split=split: _read(split, parts[split], classes, location) for split in parts}


def _find_parts(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob("*.npz"):
        match = re.fullmatch(r"([a-z]+?)(?:_(\d+))?", path.stem)
        for split, names in SPLIT_NAMES.items():
            if match and match[1] in names:
                found.setdefault(split, []).append((int(match[2] or 0), path))
    return {split: [path for _, path in sorted(found[split])] for split in SPLIT_NAMES if split in found}


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """The file as the archive that it is."""
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open_regular(path))
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise ValueError("it holds one array without a name")
            archive = opened.enter_context(zipfile.ZipFile(file))
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, struct.error) as problem:
            raise ValueError(
                f"npz: {str(path)!r} is not a readable .npz file ({problem}); write it with numpy.savez"
            ) from None
        yield archive


def _names(archive: zipfile.ZipFile) -> set[str]:
    return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}


def _array(path: Path, *names: str) -> np.ndarray:
    """The first of these arrays that the file has."""
    with _open(path) as archive:
        for name in names:
            if name in _names(archive):
                return _read_array(archive, name, path)
        raise ValueError(
            f"npz: {str(path)!r} must hold images and labels, or webp, offset and label, or scan, offset, gray, "
            f"header_rgb, header_gray and label; got {', '.join(sorted(_names(archive))) or 'nothing'}"
        )


def read_arrays(path: Path, names: Iterable[str]) -> list[np.ndarray]:
    """Arrays of a file by name; a ValueError where one is missing or damaged."""
    with _open(path) as archive:
        return [_read_array(archive, name, path) for name in names]


def _read_array(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    try:
        entry = archive.getinfo(f"{name}.npy")
        with archive.open(entry) as file:
            _check_length(file, entry, path)
        with archive.open(entry) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError:
        raise ValueError(f"npz: array {name!r} of {str(path)!r} does not fit into memory") from None
    except Exception as problem:  # of numpy, zipfile or zlib, depending on what is damaged
        raise ValueError(f"npz: array {name!r} of {str(path)!r} cannot be read: {problem}") from None


def _check_length(file: IO[bytes], entry: zipfile.ZipInfo, path: Path) -> None:
    """Refuses an array that says it is longer than its bytes can be: numpy takes the memory before it reads them."""
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = header(file)
    claimed = math.prod(shape) * kind.itemsize
    stored = min(entry.compress_size, path.stat().st_size)
    most = stored * MOST_COMPRESSED.get(entry.compress_type, 0)
    if min(shape, default=0) < 0 or claimed > min(most, entry.file_size, _memory()):
        raise ValueError(f"it says that it has {claimed:,} bytes, and {stored:,} are stored")


def _memory() -> float:
    """Bytes of memory that this machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return math.inf


def _labels(path: Path) -> np.ndarray:
    labels = _array(path, "labels", "label")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"npz: labels of {str(path)!r} must be (N,) integers, got {labels.dtype} {labels.shape}; "
            "store class numbers from 0"
        )
    return labels.astype(np.int64)


def class_names(folder: Path, count: int) -> list[str]:
    """Names from `classes.json`: a list of names, or of `{"label": 0, "name": "cat"}`, or `{"0": "cat"}`."""
    path = folder / "classes.json"
    if not path.is_file():
        return [str(label) for label in range(count)]
    try:
        stored = read_json(path)
        if isinstance(stored, dict):
            named = {int(label): str(name) for label, name in stored.items()}
        elif stored and isinstance(stored[0], dict):
            named = {int(row["label"]): str(row["name"]) for row in stored}
        else:
            named = dict(enumerate(map(str, stored)))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{str(path)!r} must be a JSON list of class names, got {problem!r}; write one name a label"
        ) from None
    missing = [label for label in range(count) if label not in named]
    if missing:
        raise ValueError(f"{str(path)!r} has no name for label {missing[0]}, but the data has {count} classes; add it")
    return [named[label] for label in range(count)]


def _read(split: str, paths: list[Path], classes: list[str], location: str) -> ArrayImages:
    pixels, labels, boxes, names, broken = [], [], [], [], {}
    for path in paths:
        part, part_broken = _decode(path)
        part_labels = _labels(path)
        if len(part) != len(part_labels):
            raise ValueError(f"npz: {str(path)!r} has {len(part)} images and {len(part_labels)} labels; store one each")
        if pixels and part.shape[1:] != pixels[0].shape[1:]:
            raise ValueError(
                f"npz: parts must hold images of one size, got {pixels[0].shape[1:3]} in {paths[0].name} and "
                f"{part.shape[1:3]} in {path.name}"
            )
        start = sum(map(len, labels))
        broken |= {start + index: f"{path.name}[{index}]: {reason}" for index, reason in part_broken.items()}
        pixels.append(part)
        labels.append(part_labels)
        with _open(path) as archive:
            boxes += [_read_array(archive, "box", path)] if "box" in _names(archive) else []
        names.append((path.name, start))
    whole = pixels[0] if len(pixels) == 1 else np.concatenate(pixels)
    return ArrayImages(
        whole,
        np.concatenate(labels),
        classes,
        f"npz:{location} ({split})",
        broken=broken,
        name_of=_PartNames(names),
        boxes=_joined_boxes(boxes, len(paths)),
    )


def _joined_boxes(parts: list[np.ndarray], count: int) -> np.ndarray | None:
    """The boxes of all parts, unlooked at; None where a part has none or they do not fit together."""
    if len(parts) < count or len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
        return None
    return np.concatenate(parts)


class _PartNames:
    """Names such as `train_1.npz[17]`."""

    def __init__(self, parts: list[tuple[str, int]]) -> None:
        self.parts = parts

    def __call__(self, index: int) -> str:
        name, start = next(part for part in reversed(self.parts) if part[1] <= index)
        return f"{name}[{index - start}]"


def _decode(path: Path) -> tuple[np.ndarray, dict[int, str]]:
    """Pixels `(N, H, W, 3)`, and the reasons of those that could not be decoded."""
    with _open(path) as archive:
        arrays = _names(archive)
    if {"webp", "offset"} <= arrays:
        return _decode_strips(path), {}
    if {"scan", "offset", "gray", "header_rgb", "header_gray"} <= arrays:
        return _decode_scans(path)
    images = _array(path, "images")
    if images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 1):
        images = np.repeat(images.reshape(*images.shape[:3], 1), 3, axis=3)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f"npz: images of {str(path)!r} must be uint8 (N, height, width, 3) or (N, height, width), "
            f"got {images.dtype} {images.shape}"
        )
    if 0 in images.shape[1:]:
        raise ValueError(f"npz: images of {str(path)!r} have no pixels, got {images.shape}; store whole ones")
    return images, {}


def _row(path: Path, name: str) -> np.ndarray:
    """An array of bytes, or of places among them."""
    found = _array(path, name)
    if found.ndim != 1 or found.dtype.kind not in "iub":
        raise ValueError(f"npz: {name} of {str(path)!r} must be (N,) integers, got {found.dtype} {found.shape}")
    return found


def _decode_strips(path: Path) -> np.ndarray:
    data, offset = _row(path, "webp"), _row(path, "offset")

    def decode(number: int) -> np.ndarray:
        try:
            strip = Image.open(io.BytesIO(data[offset[number] : offset[number + 1]].tobytes()))
            check_pixels(strip)
            return np.asarray(strip.convert("RGB")).reshape(-1, strip.width, strip.width, 3)
        except Exception as problem:  # a strip holds hundreds of images: without it the data is not what it claims
            raise ValueError(
                f"npz: strip {number} of {str(path)!r} cannot be read ({problem}); get the file again"
            ) from None

    with ThreadPoolExecutor() as threads:
        return np.concatenate(list(threads.map(decode, range(len(offset) - 1))))


def _decode_scans(path: Path) -> tuple[np.ndarray, dict[int, str]]:
    scan, offset, gray = _row(path, "scan"), _row(path, "offset"), _row(path, "gray")
    headers = _row(path, "header_rgb").tobytes(), _row(path, "header_gray").tobytes()
    decoded: dict[int, np.ndarray] = {}
    broken: dict[int, str] = {}
    for index in range(len(gray)):
        try:
            image = Image.open(
                io.BytesIO(headers[int(gray[index])] + scan[offset[index] : offset[index + 1]].tobytes())
            )
            check_pixels(image)
            decoded[index] = np.asarray(image.convert("RGB"))
        except Exception as problem:  # decoders raise nearly anything on damaged bytes
            broken[index] = reason_of(problem)
    if not decoded:
        raise ValueError(f"npz: none of the {len(gray)} images of {str(path)!r} can be read; get the file again")
    pixels = np.zeros((len(gray), *next(iter(decoded.values())).shape), dtype=np.uint8)
    for index, image in decoded.items():
        pixels[index] = image
    return pixels, broken
