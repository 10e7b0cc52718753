"""Sets of labeled images in any storage.

An unreadable image never stops a run: `ImageSet.broken` names it, and the next readable image replaces it. The
replacement depends on the index alone, so every worker and every resumed run makes the same choice.
"""

import copy
import errno
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from vitmix.lab.reading import is_fault, read_bytes

from .decoding import MAX_BYTES, as_rgb, check_pixels, decode, reason_of
from .plan import Window

log = logging.getLogger("vitmix.lab.data")
Loaded = TypeVar("Loaded")
_OF_ONE_FILE = (errno.EACCES, errno.EPERM, errno.EIO)  # others are of the whole place where the images are


class BrokenImage(Exception):
    """An unreadable image; the text starts with its name."""


class DataLost(ValueError):
    """The place where images are stored fails, so that none of them can be called damaged; the text says how."""


class NothingReadable(ValueError):
    """No image of a set could be read."""

    def __init__(self, text: str = "none of the images to evaluate on could be read; get the files again") -> None:
        super().__init__(text)


class ImageSet(Dataset, ABC):
    """Images (PIL, RGB) with labels. `labels` is known without reading an image.

    Attributes:
        rows: the stored position of each image; a subset has some of them.
        broken: the unreadable images found so far, as index → "name: reason".
        skipped: number of other files beside the images, by suffix.
        window: how to shuffle images of which only a part is at hand; None shuffles them all.
    """

    window: Window | None = None

    def __init__(self, labels: Sequence[int] | np.ndarray, classes: Sequence[str], description: str) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = list(classes)
        self.description = description
        self.rows = np.arange(len(self.labels))
        self.broken: dict[int, str] = {}
        self.skipped: dict[str, int] = {}
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
        """The image as stored; may raise anything when it is damaged."""

    def name(self, index: int) -> str:
        """What to call this image in a message."""
        return f"image {self.rows[index]}"

    def subset(self, rows: np.ndarray, description: str) -> Self:
        """The images at these indices, in this order."""
        part = copy.copy(self)
        part.description = description
        part.labels, part.rows = self.labels[rows], self.rows[rows]
        if self.window is not None:
            part.window = Window(self.window.shards[rows], self.window.size)
        part.broken = {index: self.broken[row] for index, row in enumerate(rows.tolist()) if row in self.broken}
        return part

    def check_shuffled(self) -> None:
        """Refuses an epoch's order if reading in it would fetch the same data again and again."""

    def objects(self, indices: Sequence[int]) -> np.ndarray | None:
        """`(n, H, W)` bool: where the objects of these images are; None if unknown."""
        return None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """Image and label; raises `BrokenImage` if the image cannot be read."""
        if not 0 <= index < len(self):
            raise IndexError(f"index must be in 0..{len(self) - 1}, got {index}")
        if index in self.broken:
            raise BrokenImage(self.broken[index])
        try:
            with warnings.catch_warnings():
                # Pillow warns of damaged metadata, which does not matter here, and of size, which is checked.
                warnings.simplefilter("ignore")
                image = self.read(index)
                check_pixels(image)
                return as_rgb(image), int(self.labels[index])
        except (MemoryError, DataLost):
            raise
        except Exception as problem:  # decoders raise nearly anything on damaged bytes
            raise self.unreadable(index, problem) from problem

    def unreadable(self, index: int, problem: Exception) -> "BrokenImage | DataLost":
        """What to raise for an image whose reading ended in this error."""
        if isinstance(problem, OSError) and is_fault(problem) and problem.errno not in _OF_ONE_FILE:
            return DataLost(
                f"{self.description} cannot be read now: {problem.strerror}; rerun the command when its place answers"
            )
        return BrokenImage(f"{self.name(index)}: {reason_of(problem)}")

    def readable(self, index: int) -> tuple[Image.Image, int, int]:
        """Image, label and index of the first readable sample from `index` on, wrapping around at the end."""
        (image, label), found = self.first_readable(index, self.__getitem__)
        return image, label, found

    def first_readable(self, index: int, read: Callable[[int], Loaded]) -> tuple[Loaded, int]:
        """What `read` returns for the first sample from `index` on that it can read, and the index of that sample."""
        for step in range(len(self)):
            found = (index + step) % len(self)
            if found in self.broken:
                continue
            try:
                return read(found), found
            except BrokenImage as problem:
                self.note_broken({found: str(problem)})
        raise self.nothing_readable()

    def unbroken(self) -> np.ndarray:
        """The index of each sample, or of the next one that is not known to be broken."""
        rows = np.arange(len(self))
        good = np.setdiff1d(rows, list(self.broken))
        if not len(good):
            raise self.nothing_readable()
        return good[np.searchsorted(good, rows) % len(good)]

    def readable_ones(self, indices: Iterable[int], broken: dict[int, str]) -> Iterator[tuple[int, Image.Image, int]]:
        """Index, image and label of each sample that can be read; the others enter `broken` with the reason."""
        for index in indices:
            try:
                yield index, *self[index]
            except BrokenImage as problem:
                broken[index] = str(problem)

    def nothing_readable(self) -> NothingReadable:
        """The error if every image is broken."""
        return NothingReadable(
            f"none of the {len(self)} images of {self.description} could be read; the first error: "
            f"{self.broken[min(self.broken)]}; get the files again"
        )

    def note_broken(self, found: dict[int, str]) -> None:
        """Remembers unreadable images and logs each one once."""
        for index, reason in found.items():
            if index not in self.broken:
                self.broken[index] = reason
                log.warning("skipped an unreadable image of %s: %s", self.description, reason)


def as_bytes(names: Iterable[str]) -> np.ndarray:
    """Names as one block of bytes instead of a million Python strings.

    Reading a Python object in a forked worker copies its memory page, so every worker would end up with a copy of a
    long list.
    """
    return np.array([os.fsencode(name) for name in names])


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
        self.files = files if isinstance(files, np.ndarray) else as_bytes(files)

    def name(self, index: int) -> str:
        return os.fsdecode(bytes(self.files[self.rows[index]]))

    def read(self, index: int) -> Image.Image:
        return decode(read_bytes(os.path.join(self.root, self.name(index)), MAX_BYTES))


class ArrayImages(ImageSet):
    """Images of one size, held in memory as `pixels` `(N, H, W, 3)` uint8.

    Args:
        broken: images that could not be decoded when the array was filled.
        names: name of the image at each stored position (default: its number).
        boxes: `(N, 4)` the object of each image as left, top, right, bottom, the last row and column included.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        description: str,
        *,
        broken: dict[int, str] | None = None,
        names: Sequence[str] | None = None,
        boxes: np.ndarray | None = None,
    ) -> None:
        super().__init__(labels, classes, description)
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3 or len(pixels) != len(self.labels):
            raise ValueError(
                f"pixels of {description} must be uint8 ({len(self.labels)}, height, width, 3), one per label, "
                f"got {pixels.dtype} {pixels.shape}"
            )
        self.pixels, self.boxes = pixels, boxes
        self.names = None if names is None else as_bytes(names)
        self.note_broken(broken or {})

    def name(self, index: int) -> str:
        return super().name(index) if self.names is None else os.fsdecode(bytes(self.names[self.rows[index]]))

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def subset(self, rows: np.ndarray, description: str) -> Self:
        part = super().subset(rows, description)
        part.pixels, part.boxes = self.pixels[rows], None if self.boxes is None else self.boxes[rows]
        return part

    def objects(self, indices: Sequence[int]) -> np.ndarray | None:
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


class DatasetImages(ImageSet):
    """The images of a dataset that yields (PIL image, label), such as torchvision's."""

    def __init__(
        self, dataset: Dataset, labels: Sequence[int] | np.ndarray, classes: Sequence[str], description: str
    ) -> None:
        super().__init__(labels, classes, description)
        self.dataset = dataset

    def read(self, index: int) -> Image.Image:
        return self.dataset[int(self.rows[index])][0]


def in_memory(images: ImageSet) -> ArrayImages:
    """The same set as one array; its images must have one size."""
    if isinstance(images, ArrayImages):
        return images
    first, _, start = images.readable(0)
    pixels = np.zeros((len(images), first.height, first.width, 3), dtype=np.uint8)
    broken: dict[int, str] = {}
    for index, image, _ in images.readable_ones(range(len(images)), broken):
        if image.size != first.size:
            raise ValueError(
                f"images kept in memory must have one size, got {first.width} x {first.height} "
                f"({images.name(start)}) and {image.width} x {image.height} ({images.name(index)}); "
                "leave --resident out (TrainLoader in a program)"
            )
        pixels[index] = np.asarray(image)
    images.note_broken(broken)
    names = [images.name(index) for index in range(len(images))]
    result = ArrayImages(pixels, images.labels, images.classes, images.description, names=names)
    result.broken.update(images.broken)  # already logged
    return result
