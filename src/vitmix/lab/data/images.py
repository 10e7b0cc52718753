"""Sets of images: pairs of a picture and a label, whatever they are stored in.

A picture that cannot be read never stops a run: it is named in `ImageSet.broken`, and the next readable one takes its
place. Which one that is depends on the index alone, so every worker and every resumed run makes the same choice.
"""

import io
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS

from vitmix.lab.reading import read_bytes

MAX_PIXELS = 89_478_485  # of one picture; Pillow warns from here on, since a tiny file can unpack to any size
MAX_BYTES = 2**30  # of the file of one picture: as many pixels, not compressed, in 16 bits
MOST_UNSEEN_CLASSES = 100_000  # a label may be this large in data of fewer images; every smaller number gets a name
log = logging.getLogger("vitmix.lab.data")


class BrokenImage(Exception):
    """A picture that could not be read; the text starts with its name."""


class NothingReadable(ValueError):
    """Not a single picture of a set could be read."""


class ImageSet(Dataset, ABC):
    """Pictures (PIL, RGB) with labels. `labels` is known without reading a picture.

    Attributes:
        broken: what was found unreadable so far, as index → "name: reason".
    """

    def __init__(self, labels: Sequence[int] | np.ndarray, classes: Sequence[str], description: str) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = list(classes)
        self.description = description
        self.broken: dict[int, str] = {}
        if len(self.labels) == 0:
            raise ValueError(f"{description} holds no images; point to data with at least one")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(
                f"labels of {description} must lie in 0..{len(self.classes) - 1} for {len(self.classes)} classes, "
                f"got {low}..{high}; correct the labels or the list of classes"
            )

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """The picture as stored; may raise anything when it is damaged."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call this picture in a message."""

    @abstractmethod
    def subset(self, rows: np.ndarray, description: str) -> "ImageSet":
        """The pictures at these indices, in this order."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """Picture and label; raises `BrokenImage` where the picture cannot be read."""
        if not 0 <= index < len(self):
            raise IndexError(f"index must be in 0..{len(self) - 1}, got {index}")
        if index in self.broken:
            raise BrokenImage(self.broken[index])
        try:
            with warnings.catch_warnings():
                # Pillow warns of damaged metadata and of size; the first does not matter here, the second is checked.
                warnings.simplefilter("ignore")
                image = self.read(index)
                check_pixels(image)
                return as_rgb(image), int(self.labels[index])
        except MemoryError:
            raise
        except Exception as problem:  # decoders raise nearly anything on damaged bytes
            raise BrokenImage(f"{self.name(index)}: {reason_of(problem)}") from problem

    def readable(self, index: int) -> tuple[Image.Image, int, int]:
        """Picture, label and index of the first readable sample from `index` on, going around at the end."""
        for step in range(len(self)):
            found = (index + step) % len(self)
            if found in self.broken:
                continue
            try:
                return *self[found], found
            except BrokenImage as problem:
                self.note_broken({found: str(problem)})
        raise self.nothing_readable()

    def nothing_readable(self) -> NothingReadable:
        """The error to raise where every picture is broken."""
        return NothingReadable(
            f"none of the {len(self)} images of {self.description} could be read, the first says: "
            f"{self.broken[min(self.broken)]}; get the files again"
        )

    def note_broken(self, found: dict[int, str]) -> None:
        """Remembers unreadable pictures and logs each one once."""
        for index, reason in found.items():
            if index not in self.broken:
                self.broken[index] = reason
                log.warning("skipped an unreadable image of %s: %s", self.description, reason)


class FileImages(ImageSet):
    """Image files below a folder."""

    def __init__(
        self,
        root: str | Path,
        files: Sequence[str] | np.ndarray,
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        description: str,
    ) -> None:
        super().__init__(labels, classes, description)
        self.root = os.fspath(root)
        # One block of bytes instead of a million Python strings: a forked worker that merely looks at a Python
        # object copies its memory page, so that a long list ends up once in every worker.
        self.files = files if isinstance(files, np.ndarray) else np.array([os.fsencode(file) for file in files])

    def name(self, index: int) -> str:
        return os.fsdecode(bytes(self.files[index]))

    def read(self, index: int) -> Image.Image:
        # From memory: of a file, Pillow asks for as many bytes as a header says, and Python takes memory for them.
        image = Image.open(io.BytesIO(read_bytes(os.path.join(self.root, self.name(index)), MAX_BYTES)))
        check_pixels(image)  # before the pixels are unpacked
        image.load()
        return image

    def subset(self, rows: np.ndarray, description: str) -> "FileImages":
        return FileImages(self.root, self.files[rows], self.labels[rows], self.classes, description)


class ArrayImages(ImageSet):
    """Images of one size, held in memory as `pixels` `(N, H, W, 3)` uint8.

    Args:
        broken: pictures that could not be decoded when the array was filled.
        name_of: what to call a picture; its number when not given.
        boxes: `(N, 4)` the object of each picture as left, top, right, bottom, the last row and column included.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        description: str,
        *,
        broken: dict[int, str] | None = None,
        name_of: Callable[[int], str] | None = None,
        boxes: np.ndarray | None = None,
    ) -> None:
        super().__init__(labels, classes, description)
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3 or len(pixels) != len(self.labels):
            raise ValueError(
                f"pixels of {description} must be uint8 ({len(self.labels)}, height, width, 3), one per label, "
                f"got {pixels.dtype} {pixels.shape}"
            )
        self.pixels = pixels
        self.name_of = name_of
        self.boxes = boxes
        self.note_broken(broken or {})

    def name(self, index: int) -> str:
        return (self.name_of or _numbered)(index)

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def objects(self, indices: Sequence[int]) -> np.ndarray | None:
        """`(n, H, W)` bool: where the objects of these pictures are; None if that is not known."""
        if self.boxes is None:
            return None
        self._check_boxes(self.boxes)
        left, top, right, bottom = self.boxes[list(indices)].astype(np.int64).T[:, :, None, None]
        row, column = np.ogrid[: self.pixels.shape[1], : self.pixels.shape[2]]
        return (top <= row) & (row <= bottom) & (left <= column) & (column <= right)

    def _check_boxes(self, boxes: np.ndarray) -> None:
        count, height, width = self.pixels.shape[:3]
        wanted = f"boxes of {self.description} must be whole pixels (N, 4) with 0 <= left <= right < {width} and "
        wanted += f"0 <= top <= bottom < {height}"
        if boxes.dtype.kind not in "iu" or boxes.shape != (count, 4):
            raise ValueError(f"{wanted}, got {boxes.dtype} {boxes.shape}")
        wrong = (boxes[:, :2] > boxes[:, 2:]).any(1) | (boxes < 0).any(1) | (boxes[:, 2:] >= (width, height)).any(1)
        if wrong.any():
            raise ValueError(f"{wanted}, got {boxes[wrong][0].tolist()} for {self.name(int(wrong.argmax()))}")

    def subset(self, rows: np.ndarray, description: str) -> "ArrayImages":
        place = {int(row): index for index, row in enumerate(rows)}
        broken = {place[row]: reason for row, reason in self.broken.items() if row in place}
        subset = ArrayImages(
            self.pixels[rows],
            self.labels[rows],
            self.classes,
            description,
            name_of=_Renamed(self.name_of, rows),
            boxes=None if self.boxes is None else self.boxes[rows],
        )
        subset.broken.update(broken)  # already logged
        return subset


class DatasetImages(ImageSet):
    """A data set that yields (PIL image, label), such as torchvision's."""

    def __init__(
        self,
        dataset: Any,
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        description: str,
        *,
        rows: np.ndarray | None = None,
    ) -> None:
        super().__init__(labels, classes, description)
        self.dataset = dataset
        self.rows = rows

    def name(self, index: int) -> str:
        return _numbered(self._row(index))

    def read(self, index: int) -> Image.Image:
        return self.dataset[self._row(index)][0]

    def subset(self, rows: np.ndarray, description: str) -> "DatasetImages":
        inner = rows if self.rows is None else self.rows[rows]
        return DatasetImages(self.dataset, self.labels[rows], self.classes, description, rows=inner)

    def _row(self, index: int) -> int:
        return index if self.rows is None else int(self.rows[index])


def image_files(folder: Path, root: Path, description: str) -> list[str]:
    """The image files below a folder, links followed, as sorted paths relative to `root`.

    Folders that were read already, to which a link may lead back, are passed over, and so is what is named like an
    image and is no regular file, such as a pipe; how many, goes to the log.
    """
    files: list[str] = []
    passed_over: list[str] = []
    seen: set[tuple[int, int]] = set()
    folders, links = [os.fspath(folder)], []  # links last, so that files keep the name of the folder they are in
    while folders or links:
        place = folders.pop() if folders else links.pop()
        try:
            facts = os.stat(place)
            entries = sorted(os.scandir(place), key=lambda entry: entry.name, reverse=True)
        except OSError:
            passed_over.append(place)
            continue
        if (facts.st_dev, facts.st_ino) in seen:
            passed_over.append(place)
            continue
        seen.add((facts.st_dev, facts.st_ino))
        for entry in entries:
            if os.path.isdir(entry) if entry.is_symlink() else entry.is_dir():
                (links if entry.is_symlink() else folders).append(entry.path)
            elif entry.name.lower().endswith(IMG_EXTENSIONS) and not entry.name.startswith("."):
                # A link to nowhere is a broken image, which is named when it is read.
                regular = entry.is_file() if not entry.is_symlink() else _is_file_or_nothing(entry.path)
                (files if regular else passed_over).append(entry.path)
    if passed_over:
        log.warning(
            "passed over %d entries of %s that are no regular files or folders read before, the first: %s",
            *(len(passed_over), description, os.path.relpath(min(passed_over), root)),
        )
    return sorted(os.path.relpath(path, root) for path in files)


def _is_file_or_nothing(path: str) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)


def _numbered(index: int) -> str:
    return f"image {index}"


class _Renamed:
    """Names of a subset: a class and not a lambda, so that it travels to worker processes."""

    def __init__(self, name_of: Callable[[int], str] | None, rows: np.ndarray) -> None:
        self.name_of, self.rows = name_of or _numbered, rows

    def __call__(self, index: int) -> str:
        return self.name_of(int(self.rows[index]))


def reason_of(problem: Exception) -> str:
    """A line about an error, without what the picture's name says already."""
    if isinstance(problem, UnidentifiedImageError):
        return "not an image of a known kind"
    if isinstance(problem, Image.DecompressionBombError):  # Pillow's own limit, met before ours
        return f"more than the {MAX_PIXELS:,} pixels allowed"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__


def as_rgb(image: Image.Image) -> Image.Image:
    """The picture in 8 bits a channel. Of integers, which Pillow would clip, those above 255 are taken for 16 bits."""
    if image.mode.startswith("I"):
        wide = max(int(values.max(initial=0)) for values in _bands(image)) > 255
        levels = [(values / 257 if wide else values).round().clip(0, 255).astype(np.uint8) for values in _bands(image)]
        image = Image.fromarray(np.concatenate(levels))
    return image.convert("RGB")


def _bands(image: Image.Image) -> Iterator[np.ndarray]:
    """The values of some rows at a time: as numbers a large picture takes several times its memory."""
    for top in range(0, image.height, 256):
        yield np.asarray(image.crop((0, top, image.width, min(top + 256, image.height))))


def check_pixels(image: Image.Image) -> None:
    """Refuses pictures too large to be meant."""
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} allowed")


def count_classes(labels: np.ndarray, description: str) -> int:
    """How many classes numbers from 0 stand for; refuses what would name millions that no picture shows."""
    count = 1 + int(labels.max(initial=-1))
    most = max(MOST_UNSEEN_CLASSES, len(labels))
    if count > most:
        raise ValueError(
            f"{description} has label {count - 1} among {len(labels)} images, more than the {most:,} classes allowed; "
            "number the classes from 0 without gaps"
        )
    return count


def match_names(names: Sequence[str], known: Sequence[str], *, description: str, whose: str) -> list[int]:
    """The place of each of these class names among those that are known."""
    if list(names) == list(known[: len(names)]):
        return list(range(len(names)))  # names need not be unique then
    number = {name: place for place, name in enumerate(known)}
    unknown = [name for name in names if name not in number]
    if unknown:
        raise ValueError(
            f"{description} has a class {unknown[0]!r} that {whose} does not know; "
            f"its classes are {', '.join(known[:5])}{', ...' if len(known) > 5 else ''}"
        )
    return [number[name] for name in names]


def in_memory(images: ImageSet) -> ArrayImages:
    """The same set as one array; its pictures must be of one size."""
    if isinstance(images, ArrayImages):
        return images
    first, _, start = images.readable(0)
    pixels = np.zeros((len(images), first.height, first.width, 3), dtype=np.uint8)
    for index in range(len(images)):
        try:
            image, _ = images[index]
        except BrokenImage as problem:
            images.note_broken({index: str(problem)})
            continue
        if image.size != first.size:
            raise ValueError(
                f"images kept in memory must be of one size, got {first.width} x {first.height} "
                f"({images.name(start)}) and {image.width} x {image.height} ({images.name(index)}); "
                "leave --resident out (TrainLoader in a program)"
            )
        pixels[index] = np.asarray(image)
    result = ArrayImages(pixels, images.labels, images.classes, images.description, name_of=images.name)
    result.broken.update(images.broken)  # already logged
    return result
