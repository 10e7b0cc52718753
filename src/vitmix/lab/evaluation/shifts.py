"""Downloaded test sets: ImageNet's variants, CIFAR-10-C and CIFAR-100-C.

ImageNet's have class folders by WordNet id, which are matched to the classes of a model. CIFAR's are as published:
`labels.npy` and `<corruption>.npy` with all severities in a row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitmix.lab.data.classes import count_classes
from vitmix.lab.data.folders import image_files
from vitmix.lab.data.images import FileImages, ImageSet
from vitmix.lab.suite import COMMON, EXTRA, SEVERITIES, SHIFTS

from .subject import Subject

# Test sets with some of ImageNet's classes: the model chooses among those, as published.
SUBSETS = {"a": "imagenet_a_synsets.txt", "r": "imagenet_r_synsets.txt"}
LABELS = "labels.npy"  # of CIFAR
Corruption = tuple[str, int]
"""A corruption and its severity."""


@dataclass(frozen=True)
class FolderImages:
    """Images in class folders, labeled by the model's outputs; `outputs` are those of the test set, if not all.

    `left_out` counts the class folders that the model does not know.
    """

    images: FileImages
    outputs: tuple[int, ...] | None
    left_out: int


@cache
def synsets(file: str = "imagenet_synsets.txt") -> tuple[str, ...]:
    """WordNet ids as timm lists them, in the order of ImageNet's class numbers."""
    return tuple((files("timm.data") / "_info" / file).read_text(encoding="utf-8").split())


def class_numbers(subject: Subject) -> dict[str, int]:
    """The model's output for each class folder that it knows."""
    if subject.classes is not None:
        return {name: number for number, name in enumerate(subject.classes)}
    outputs = subject.outputs
    if outputs != len(synsets()):
        raise ValueError(
            f"{subject.weights} has {outputs} classes without names, so ImageNet's folders cannot be "
            "matched; evaluate a model of ImageNet's 1000 classes or a run that was trained on such folders"
        )
    return {name: number for number, name in enumerate(synsets())}


def open_shift(kind: str, folder: Path, subject: Subject) -> FolderImages:
    """One of the sets of `SHIFTS`."""
    allowed = set(synsets(SUBSETS[kind])) if kind in SUBSETS else None
    return open_class_folders(folder, class_numbers(subject), SHIFTS[kind], allowed=allowed, numbered=kind == "v2")


def open_class_folders(
    root: Path, numbers: dict[str, int], name: str, *, allowed: set[str] | None = None, numbered: bool = False
) -> FolderImages:
    """Images of the class folders that the model knows.

    Args:
        allowed: the classes of the test set; other folders are an error.
        numbered: folders may be ImageNet's class numbers instead of WordNet ids.
    """
    if not root.is_dir():
        raise ValueError(f"there is no folder {str(root)!r} of {name}; give the one that holds its class folders")
    found, labels, left_out = list[str](), list[int](), 0
    folders = [entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__"))]
    for folder in sorted(folders):
        own = synsets()[int(folder.name)] if numbered and _is_number(folder.name) else folder.name
        if allowed is not None and own not in allowed:
            raise ValueError(
                f"{str(folder)!r} is not one of the {len(allowed)} classes of {name}; is it from another test set?"
            )
        if own not in numbers:
            left_out += 1
            continue
        inside = image_files(folder, root, f"{name} in {folder}")
        found += inside
        labels += [numbers[own]] * len(inside)
    if (classes := len(set(labels))) < 2:
        raise ValueError(
            f"{str(root)!r} has images of {classes} classes that the model knows, at least two are needed to measure "
            f"{name}; class folders are WordNet ids such as n01440764, or the classes of the model's training data"
        )
    # All classes of the test set, even if folders are missing: that must not make the task easier.
    outputs = None if allowed is None else tuple(sorted(numbers[each] for each in allowed if each in numbers))
    names = [""] * (max(numbers.values()) + 1)
    for each, number in numbers.items():
        names[number] = each
    images = FileImages(root, found, labels, names, f"{name} in {root}")
    return FolderImages(images, outputs, left_out)


def stored_corruptions(root: Path, kinds: Iterable[Corruption], subject: Subject) -> Mapping[Corruption, ImageSet]:
    """The images of a downloaded ImageNet-C, CIFAR-10-C or CIFAR-100-C; the same images for every corruption."""
    return _cifar_c(root, kinds, subject) if is_cifar_c(root) else _imagenet_c(root, kinds, subject)


def is_cifar_c(root: Path) -> bool:
    return (root / LABELS).is_file()


def _imagenet_c(root: Path, kinds: Iterable[Corruption], subject: Subject) -> dict[Corruption, FileImages]:
    folders, numbers = _corruption_folders(root), class_numbers(subject)
    found: dict[Corruption, FileImages] = {}
    for name, severity in kinds:
        if name not in folders:
            raise ValueError(f"{str(root)!r} has no folder {name!r}; download it, or choose with --corruptions")
        found[name, severity] = open_class_folders(folders[name] / str(severity), numbers, "ImageNet-C").images
    first = next(iter(found.values()))
    for each in found.values():
        if not np.array_equal(each.files, first.files):
            raise ValueError(f"{each.root!r} and {first.root!r} hold different images ({len(each)} and {len(first)})")
    return found


def _corruption_folders(root: Path) -> dict[str, Path]:
    """Folders by corruption, with or without the folder of the group, such as blur/glass_blur."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {str(root)!r}; give ImageNet-C's, with <corruption>/<severity>/<class>")
    places = [*root.iterdir(), *root.glob("*/*")]
    found = {place.name: place for place in places if place.is_dir() and place.name in COMMON + EXTRA}
    if not found:
        raise ValueError(
            f"{str(root)!r} holds no <corruption>/<severity>/<class>, such as fog/1/n01440764, "
            "and no labels.npy as CIFAR-10-C does"
        )
    return found


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and int(name) < len(synsets())


class NpyImages(ImageSet):
    """Some `rows` of a file of images `(N, H, W, 3)` uint8, read on request."""

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


def _cifar_c(root: Path, kinds: Iterable[Corruption], subject: Subject) -> dict[Corruption, NpyImages]:
    """The images by corruption and severity; label i is taken as the model's output i."""
    labels = _load(root / LABELS)
    count, left = divmod(len(labels) if labels.ndim == 1 else 0, len(SEVERITIES))
    parts = labels.reshape(len(SEVERITIES), -1) if count and not left else labels
    if left or not count or not np.issubdtype(labels.dtype, np.integer) or (parts != parts[0]).any():
        raise ValueError(
            f"{str(root / LABELS)!r} must hold the same labels once for each of {len(SEVERITIES)} severities, got "
            f"{labels.dtype} {labels.shape}; is it CIFAR-10-C's or CIFAR-100-C's?"
        )
    own, outputs = parts[0].astype(np.int64), subject.outputs
    classes = count_classes(own, str(root))
    if classes != outputs:
        raise ValueError(
            f"{str(root)!r} has {classes} classes, but {subject.weights} has {outputs} outputs; "
            "evaluate a model of the same classes"
        )
    names = list(subject.classes or map(str, range(outputs)))
    found: dict[Corruption, NpyImages] = {}
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
