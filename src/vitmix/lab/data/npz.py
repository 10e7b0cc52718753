"""Images stored as arrays in `.npz` files: plain pixels, strips of lossless WebP, or JPEG scans with a shared header.

A folder holds `train.npz`, `val.npz`, `test.npz`, or numbered parts of them (`train_0.npz`, `train_1.npz`, ...), and
may hold `classes.json`. A single file is data without splits. Everything is decoded once, to uint8.

    images (N, H, W, 3) or (N, H, W) uint8, labels (N,)
    webp, offset, label                         lossless WebP files end to end, each a column of square images
    scan, offset, gray, header_rgb, header_gray, label      JPEG files end to end without their header

Each may also have `box` (N, 4): left, top, right and bottom of each image's object, the last pixel included.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from .archive import Archive
from .classes import class_names, count_classes
from .decoding import decode, reason_of
from .images import ArrayImages
from .splits import SPLIT_NAMES, Openers


def npz_splits(location: str) -> Openers:
    """For each stored split, a function that reads it."""
    place = Path(location)
    if place.is_file():
        parts = {"train": [place]}
    elif place.is_dir():
        parts = _find_parts(place)
    else:
        raise ValueError(f"npz: {location!r} does not exist; give a folder with train.npz, or one .npz file")
    if not parts:
        raise ValueError(f"npz: no train.npz, train_0.npz, val.npz or test.npz in {location!r}; use one of these names")
    # The classes are those of the training labels: a list of names may be longer than what is stored here.
    known = parts.get("train") or next(iter(parts.values()))
    count = count_classes(np.concatenate([_read_labels(path) for path in known]), f"npz:{location}")
    classes = class_names(place if place.is_dir() else place.parent, count)
    return {split: lambda split=split: _open(split, parts[split], classes, location) for split in parts}


def _find_parts(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob("*.npz"):
        match = re.fullmatch(r"([a-z]+?)(?:_(\d+))?", path.stem)
        for split, names in SPLIT_NAMES.items():
            if match and match[1] in names:
                found.setdefault(split, []).append((int(match[2] or 0), path))
    return {split: [path for _, path in sorted(found[split])] for split in SPLIT_NAMES if split in found}


def _open(split: str, paths: list[Path], classes: list[str], location: str) -> ArrayImages:
    contents: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
    names: list[str] = []
    broken: dict[int, str] = {}
    for path in paths:
        with Archive(path) as archive:
            pixels, reasons = _decode(archive)
            labels, boxes = _labels(archive), archive.read("box") if "box" in archive.names else None
            if len(pixels) != len(labels):
                raise ValueError(f"{archive} has {len(pixels)} images and {len(labels)} labels; store one each")
        contents.append((pixels, labels, boxes))
        size = contents[0][0].shape[1:3]
        if pixels.shape[1:3] != size:
            raise ValueError(
                f"npz: parts must hold images of one size, got {size} in {paths[0].name} and {pixels.shape[1:3]} in "
                f"{path.name}"
            )
        broken |= {len(names) + row: f"{path.name}[{row}]: {reason}" for row, reason in reasons.items()}
        names += [f"{path.name}[{row}]" for row in range(len(pixels))]
    pixels, labels, boxes = zip(*contents, strict=True)
    return ArrayImages(
        pixels[0] if len(pixels) == 1 else np.concatenate(pixels),
        np.concatenate(labels),
        classes,
        f"npz:{location} ({split})",
        broken=broken,
        names=names,
        boxes=_joined_boxes(boxes),
    )


def _read_labels(path: Path) -> np.ndarray:
    with Archive(path) as archive:
        return _labels(archive)


def _labels(archive: Archive) -> np.ndarray:
    labels = archive.first("labels", "label")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{archive}: labels must be (N,) integers, got {labels.dtype} {labels.shape}; store class numbers from 0"
        )
    return labels.astype(np.int64)


def _joined_boxes(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The boxes of all parts, unchecked; None if a part has none or they do not fit together."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len({(part.dtype, part.shape[1:]) for part in found}) > 1:
        return None
    return np.concatenate(found)


def _decode(archive: Archive) -> tuple[np.ndarray, dict[int, str]]:
    """Pixels `(N, H, W, 3)`, and the reasons for images that could not be decoded."""
    if {"webp", "offset"} <= archive.names:
        return _decode_strips(archive), {}
    if {"scan", "offset", "gray", "header_rgb", "header_gray"} <= archive.names:
        return _decode_scans(archive)
    images = archive.first("images")
    if images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 1):
        images = np.repeat(images.reshape(*images.shape[:3], 1), 3, axis=3)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f"{archive}: images must be uint8 (N, height, width, 3) or (N, height, width), got {images.dtype} "
            f"{images.shape}"
        )
    if 0 in images.shape[1:]:
        raise ValueError(f"{archive}: images have no pixels, got {images.shape}; store whole ones")
    return images, {}


def _row(archive: Archive, name: str) -> np.ndarray:
    """An array of bytes, or of offsets into them."""
    found = archive.read(name)
    if found.ndim != 1 or found.dtype.kind not in "iub":
        raise ValueError(f"{archive}: {name} must be (N,) integers, got {found.dtype} {found.shape}")
    return found


def _decode_strips(archive: Archive) -> np.ndarray:
    data, offset = _row(archive, "webp"), _row(archive, "offset")

    def decode_strip(number: int) -> np.ndarray:
        try:
            strip = decode(data[offset[number] : offset[number + 1]].tobytes())
            return np.asarray(strip.convert("RGB")).reshape(-1, strip.width, strip.width, 3)
        except Exception as problem:  # a strip holds hundreds of images, so the data would be incomplete without it
            raise ValueError(f"{archive}: strip {number} cannot be read ({problem}); get the file again") from None

    with ThreadPoolExecutor() as threads:
        return np.concatenate(list(threads.map(decode_strip, range(len(offset) - 1))))


def _decode_scans(archive: Archive) -> tuple[np.ndarray, dict[int, str]]:
    scan, offset, gray = (_row(archive, name) for name in ("scan", "offset", "gray"))
    headers = [_row(archive, name).tobytes() for name in ("header_rgb", "header_gray")]
    decoded: dict[int, np.ndarray] = {}
    broken: dict[int, str] = {}
    for index in range(len(gray)):
        try:
            image = decode(headers[int(gray[index])] + scan[offset[index] : offset[index + 1]].tobytes())
            decoded[index] = np.asarray(image.convert("RGB"))
        except Exception as problem:  # decoders raise nearly anything on damaged bytes
            broken[index] = reason_of(problem)
    if not decoded:
        raise ValueError(f"{archive}: none of the {len(gray)} images can be read; get the file again")
    pixels = np.zeros((len(gray), *next(iter(decoded.values())).shape), dtype=np.uint8)
    for index, image in decoded.items():
        pixels[index] = image
    return pixels, broken
