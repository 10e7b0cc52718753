"""Folders of ImageNet's other test sets, with classes by WordNet id, matched to the classes of a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from vitmix.lab.data.folders import image_files
from vitmix.lab.data.images import FileImages

from .corruptions import COMMON, EXTRA
from .subject import Subject

# Test sets whose folders cover some of ImageNet's classes only: the model chooses among those, as published.
SUBSETS = {"a": "imagenet_a_synsets.txt", "r": "imagenet_r_synsets.txt"}
NAMES = {"a": "ImageNet-A", "r": "ImageNet-R", "sketch": "ImageNet-Sketch", "stylized": "ImageNet-Stylized"}
NAMES |= {"v2": "ImageNet-V2"}


@dataclass(frozen=True)
class FolderImages:
    """Images in class folders, labeled by the model's outputs; `outputs` are those of the set, if not all.

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
    """The output of each class folder's name that the model knows."""
    if subject.classes is not None:
        return {name: number for number, name in enumerate(subject.classes)}
    outputs = subject.settings["num_classes"]
    if outputs != len(synsets()):
        raise ValueError(
            f"{subject.weights} has {outputs} classes without names, so ImageNet's folders cannot be "
            "matched; evaluate a model of ImageNet's 1000 classes or a run that was trained on such folders"
        )
    return {name: number for number, name in enumerate(synsets())}


def open_shift(kind: str, folder: Path, subject: Subject) -> FolderImages:
    """One of the sets of `NAMES`."""
    allowed = set(synsets(SUBSETS[kind])) if kind in SUBSETS else None
    return open_class_folders(folder, class_numbers(subject), NAMES[kind], allowed=allowed, numbered=kind == "v2")


def open_class_folders(
    root: Path, numbers: dict[str, int], name: str, *, allowed: set[str] | None = None, numbered: bool = False
) -> FolderImages:
    """Images of the class folders that the model knows.

    Args:
        allowed: the classes of the set; other folders are not meant to be there.
        numbered: folders may be ImageNet's class numbers instead of WordNet ids.
    """
    if not root.is_dir():
        raise ValueError(f"there is no folder {str(root)!r} of {name}; give the one that holds its class folders")
    found: list[str] = []
    labels: list[int] = []
    left_out, seen = 0, set()
    for folder in sorted(
        entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__"))
    ):
        own = synsets()[int(folder.name)] if numbered and _is_number(folder.name) else folder.name
        if allowed is not None and own not in allowed:
            raise ValueError(
                f"{str(folder)!r} is not one of the {len(allowed)} classes of {name}; is it another set's?"
            )
        if own not in numbers:
            left_out += 1
            continue
        inside = image_files(folder, root, f"{name} in {folder}")
        found += inside
        labels += [numbers[own]] * len(inside)
        seen |= {numbers[own]} if inside else set()
    if len(seen) < 2:
        raise ValueError(
            f"{str(root)!r} has images of {len(seen)} classes that the model knows, at least two are needed to measure "
            f"{name}; class folders are WordNet ids such as n01440764, or the classes of the model's training data"
        )
    # All classes of the set, were some folders missing: the choice must not get easier for that.
    outputs = None if allowed is None else tuple(sorted(numbers[each] for each in allowed if each in numbers))
    names = [""] * (max(numbers.values()) + 1)
    for each, number in numbers.items():
        names[number] = each
    images = FileImages(root, found, labels, names, f"{name} in {root}")
    return FolderImages(images, outputs, left_out)


def stored_corruptions(
    root: Path, kinds: Iterable[tuple[str, int]], subject: Subject
) -> dict[tuple[str, int], FileImages]:
    """The images of a downloaded ImageNet-C, by corruption and severity; the same ones everywhere."""
    folders, numbers = _corruption_folders(root), class_numbers(subject)
    found: dict[tuple[str, int], FileImages] = {}
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
    """Folders by corruption, whether or not the archives kept their group's folder, as blur/glass_blur."""
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
