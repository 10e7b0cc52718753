"""CIFAR-10-C and CIFAR-100-C as published: `<corruption>.npy` with all severities in a row, and `labels.npy`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitmix.lab.data.classes import count_classes
from vitmix.lab.data.images import ImageSet

from .corruptions import SEVERITIES
from .subject import Subject

LABELS = "labels.npy"


class NpyImages(ImageSet):
    """Some `rows` of a file of images `(N, H, W, 3)` uint8, read when they are asked for."""

    def __init__(self, place: Path, rows: np.ndarray, labels: np.ndarray, classes: list[str], description: str) -> None:
        super().__init__(labels, classes, description)
        self.place, self.rows = place, rows
        self.pixels = _load(place)
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[-1] != 3:
            raise ValueError(
                f"{str(place)!r} must hold images (N, height, width, 3) uint8, got {self.pixels.dtype} "
                f"{self.pixels.shape}; download it again"
            )

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[self.rows[index]])

    def name(self, index: int) -> str:
        return f"{self.place.name} {self.rows[index]}"


def is_cifar_c(root: Path) -> bool:
    return (root / LABELS).is_file()


def open_cifar_c(root: Path, kinds: Iterable[tuple[str, int]], subject: Subject) -> dict[tuple[str, int], NpyImages]:
    """The images by corruption and severity; label i is taken as the model's output i."""
    labels = _load(root / LABELS)
    count, left = divmod(len(labels) if labels.ndim == 1 else 0, len(SEVERITIES))
    parts = labels.reshape(len(SEVERITIES), -1) if count and not left else labels
    if left or not count or not np.issubdtype(labels.dtype, np.integer) or (parts != parts[0]).any():
        raise ValueError(
            f"{str(root / LABELS)!r} must hold the same labels once for each of {len(SEVERITIES)} severities, got "
            f"{labels.dtype} {labels.shape}; is it CIFAR-10-C's or CIFAR-100-C's?"
        )
    own, outputs = parts[0].astype(np.int64), subject.settings["num_classes"]
    classes = count_classes(own, str(root))
    if classes != outputs:
        raise ValueError(
            f"{str(root)!r} has {classes} classes, but {subject.weights} has {outputs} outputs; "
            "evaluate a model of the same classes"
        )
    names = list(subject.classes or map(str, range(outputs)))
    found: dict[tuple[str, int], NpyImages] = {}
    for name, severity in kinds:
        place = root / f"{name}.npy"
        if not place.is_file():
            raise ValueError(f"{str(root)!r} has no {place.name!r}; download it, or choose with --corruptions")
        rows = np.arange((severity - 1) * count, severity * count)
        images = NpyImages(place, rows, own, names, f"{place} ({severity})")
        if len(images.pixels) != len(labels):
            raise ValueError(
                f"{str(place)!r} has {len(images.pixels)} images, {LABELS} {len(labels)} labels; download them again"
            )
        found[name, severity] = images
    return found


def _load(place: Path) -> Any:
    try:
        return np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise ValueError(f"{str(place)!r} is not a readable .npy file ({problem}); download it again") from None
