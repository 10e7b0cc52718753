"""Datasets of torchvision under one interface: each names its splits, labels and classes differently."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import datasets

from vitmix._checks import unknown_name

from .classes import numbered
from .decoding import reason_of
from .images import ArrayImages, DatasetImages, ImageSet
from .splits import Openers

Arguments = dict[str, str | bool]

_TRAIN, _VAL, _TEST = (dict[str, Arguments]({split: {"split": split}}) for split in ("train", "val", "test"))

# Constructor arguments of each split.
SETS: dict[str, dict[str, Arguments]] = {
    **dict.fromkeys(
        ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "USPS"),
        {"train": Arguments(train=True), "test": Arguments(train=False)},
    ),
    **dict.fromkeys(("SVHN", "STL10", "GTSRB", "StanfordCars", "Food101"), _TRAIN | _TEST),
    **dict.fromkeys(("Flowers102", "DTD", "FGVCAircraft", "RenderedSST2"), _TRAIN | _VAL | _TEST),
    "OxfordIIITPet": {"train": Arguments(split="trainval")} | _TEST,
    "Country211": _TRAIN | {"val": Arguments(split="valid")} | _TEST,
    **dict.fromkeys(("Imagenette", "ImageNet"), _TRAIN | _VAL),
    **dict.fromkeys(("EuroSAT", "SUN397", "Caltech101", "Caltech256"), {"train": {}}),
}


def torchvision_splits(argument: str) -> Openers:
    """For each split of `NAME:ROOT`, a function that opens it."""
    name, _, root = argument.partition(":")
    if name not in SETS:
        raise unknown_name("torchvision dataset", name, SETS)
    if not root:
        raise ValueError(f"torchvision:{name} names no folder; write torchvision:{name}:ROOT, for example :data")
    return {split: lambda split=split: _open(name, root, split) for split in SETS[name]}


def _open(name: str, root: str, split: str) -> ImageSet:
    dataset = _construct(name, root, SETS[name][split])
    labels, pixels = _labels(dataset), _pixels(dataset)
    facts = (labels, _class_names(dataset, labels), f"torchvision:{name} ({split})")
    return DatasetImages(dataset, *facts) if pixels is None else ArrayImages(pixels, *facts)


def _construct(name: str, root: str, arguments: Arguments) -> Any:
    kind = getattr(datasets, name)
    try:
        return kind(root, **arguments)
    except (RuntimeError, FileNotFoundError) as problem:  # torchvision's way to say that files are missing
        missing = problem
    existed = os.path.isdir(root)
    try:
        if name == "ImageNet":  # no download for this dataset
            raise missing
        return kind(root, **arguments, download=True)
    except Exception as problem:  # no network, a moved address, a changed file
        if not existed:
            _remove_empty_folders(root)
        raise ValueError(
            f"torchvision:{name} is not complete in {root!r} and could not be downloaded ({reason_of(problem)}); "
            "put its files there, or give the folder that has them"
        ) from None


def _remove_empty_folders(root: str) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:  # holds files: leave them to the user
            return


def _labels(dataset: Any) -> np.ndarray:
    for name in ("targets", "labels", "_labels", "y"):
        if hasattr(dataset, name):
            return np.asarray(getattr(dataset, name), dtype=np.int64)
    for name in ("samples", "_samples"):
        if hasattr(dataset, name):
            return np.array([label for _, label in getattr(dataset, name)], dtype=np.int64)
    raise AssertionError(f"{type(dataset).__name__} has no labels that can be read at once")


def _class_names(dataset: Any, labels: np.ndarray) -> list[str]:
    for name in ("classes", "categories"):
        names = getattr(dataset, name, None)
        if names is not None:
            return [each if isinstance(each, str) else ", ".join(each) for each in names]
    return numbered(int(labels.max(initial=-1)) + 1)


def _pixels(dataset: Any) -> np.ndarray | None:
    """`(N, H, W, 3)` uint8 if torchvision keeps the pixels in memory anyway."""
    pixels = np.asarray(getattr(dataset, "data", None))
    if pixels.dtype != np.uint8:
        return None
    if pixels.ndim == 3:  # gray
        return np.repeat(pixels[..., None], 3, axis=3)
    if pixels.shape[1] == 3 and pixels.shape[3] != 3:  # channels first
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    return pixels
