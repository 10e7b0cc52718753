"""Where images come from, as text: `open_images("imagefolder:photos?holdout=0.1", "train")`.

    shapes, shapes(size=32, length=10000)       the built-in data
    imagefolder:DIR                             DIR/train/<class>/<image> and DIR/val, or DIR/<class>/<image>
    torchvision:NAME:ROOT                       a data set of torchvision, downloaded where that is possible
    npz:DIR                                     arrays, see `vitmix.lab.data.npz`
    hfds:PLACE                                  a data set of Hugging Face, see `vitmix.lab.data.hf_sets`
    wds:PATTERN                                 WebDataset shards, see `vitmix.lab.data.tar_sets`

A data set without a validation split is validated on its test split; with `?holdout=0.1` a tenth of the training images
is kept for validation instead, of every class alike, and the test split stays untouched. Data without any split at all
is always divided so.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from vitmix._checks import check_choice, unknown_name
from vitmix._sampling import generator_for

from .hf_sets import hf_splits, parse_place
from .images import ArrayImages, DatasetImages, FileImages, ImageSet, image_files
from .npz import npz_splits
from .shapes import Shapes, shapes_batch
from .tar_sets import tar_splits
from .torchvision_sets import torchvision_splits

Split = Literal["train", "val", "test"]
Openers = Mapping[str, Callable[[], ImageSet]]  # split → a function that reads it

HOLDOUT = 0.1  # of data that comes without splits
HOLDOUT_SEED = 20_240_229  # fixed: the same images are held out in every run, whatever its seed
MOST_OF_SHAPES = {"size": 4096, "length": 10**7, "test_length": 10**7, "seed": 2**63 - 1}
SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "validation", "valid"), "test": ("test", "testing")}


def open_images(spec: str, split: Split) -> ImageSet:
    """The images that a text such as `"imagefolder:DIR"` names."""
    check_choice("split", split, get_args(Split))
    kind, argument, holdout = _parse(spec)
    splits = KINDS[kind](argument)
    has_test = "val" in splits or "test" in splits
    if "train" not in splits:
        if split == "train" or holdout is not None:
            raise ValueError(f"{spec!r} has no training images, only {' and '.join(splits)}; add a train part")
    elif holdout is None and not has_test:
        holdout = HOLDOUT
    if split == "train" and holdout is None:
        return splits["train"]()
    if split == "train" or (split == "val" and holdout is not None) or not has_test:
        assert holdout is not None
        return _share(splits["train"](), holdout, held_out=split != "train")
    order = ("val", "test") if split == "val" else ("test", "val")
    return splits[next(name for name in order if name in splits)]()


def without_folders(text: str, spec: str) -> str:
    """A text about the data that `spec` names, for others: of the path on this machine it keeps the last part."""
    kind, argument, _ = _parse(spec)
    place = argument
    if kind == "torchvision":
        place = argument.partition(":")[2]
    elif kind == "hfds":
        place = parse_place(argument)[0]
        if not os.path.isabs(place) and not os.path.exists(place):
            return text  # OWNER/NAME on the hub
    usual = os.path.normpath(place)
    for each in (usual, place):  # as written, and as a description has it
        text = text.replace(each, os.path.basename(usual)) if "/" in each or os.sep in each else text
    return text


def _parse(spec: str) -> tuple[str, str, float | None]:
    """Kind, argument and held-out fraction of a spec."""
    text, holdout = spec.strip(), None
    match = re.fullmatch(r"(.*)\?(\w+)=([^?]*)", text)
    if match:
        text, key, value = match.groups()
        if key != "holdout":
            raise unknown_name("data option", key, ["holdout"])
        try:
            holdout = float(value)
        except ValueError:
            holdout = float("nan")
        if not 0 < holdout < 1:
            raise ValueError(
                f"holdout must be a fraction between 0 and 1, got {value!r} in {spec!r}; write ?holdout=0.1"
            )
    kind, _, argument = text.partition(":")
    if text.startswith("shapes"):
        kind, argument = "shapes", text.removeprefix("shapes")
    if kind not in KINDS:
        if os.path.isdir(text):
            likely = "npz" if any(Path(text).glob("*.npz")) else "imagefolder"
            raise ValueError(
                f"unknown kind of data {kind!r}, but there is such a folder; did you mean {likely}:{spec}?"
            )
        raise unknown_name("kind of data", kind, KINDS)
    if not argument and kind != "shapes":
        raise ValueError(
            f"data {spec!r} names no place; write {kind}:{'NAME:ROOT' if kind == 'torchvision' else 'DIR'}"
        )
    return kind, argument, holdout


def _share(images: ImageSet, fraction: float, *, held_out: bool) -> ImageSet:
    """The held-out part of a training set, or the rest of it."""
    mask = held_out_mask(images.labels, fraction)
    if not held_out:
        return images.subset(np.flatnonzero(~mask), f"{images.description}, without the {fraction:.3g} held out")
    part = "the tenth" if fraction == HOLDOUT else f"the {fraction:.3g}"
    return images.subset(np.flatnonzero(mask), f"{part} of {images.description} that was held out")


def held_out_mask(labels: np.ndarray, fraction: float) -> np.ndarray:
    """True for the given fraction of each class: at least one image, and never all of them."""
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(1, round(len(rows) * fraction)), len(rows) - 1)
        order = torch.randperm(len(rows), generator=generator_for(HOLDOUT_SEED, int(label))).numpy()
        mask[rows[order[:count]]] = True
    if not mask.any():
        raise ValueError(f"cannot hold out images where every class has one image only ({len(labels)} images in all)")
    return mask


class ShapesImages(ArrayImages):
    """The built-in data in memory, which knows where its objects are."""

    def __init__(
        self, dataset: Shapes, rows: np.ndarray, pixels: np.ndarray, labels: np.ndarray, description: str
    ) -> None:
        super().__init__(pixels, labels, Shapes.classes, description)
        self.dataset, self.rows = dataset, rows

    def subset(self, rows: np.ndarray, description: str) -> "ShapesImages":
        return ShapesImages(self.dataset, self.rows[rows], self.pixels[rows], self.labels[rows], description)

    def name(self, index: int) -> str:
        return f"image {self.rows[index]}"

    def objects(self, indices: Sequence[int]) -> np.ndarray:
        return self.dataset.batch(self.rows[list(indices)].tolist()).masks.numpy()


def _shapes_splits(argument: str) -> Openers:
    settings = {"size": 32, "length": 10_000, "test_length": 2_000, "seed": 0}
    match = re.fullmatch(r"\((.*)\)|", argument.strip())
    if match is None:
        raise ValueError(f"data 'shapes{argument}' is not understood; write shapes or shapes(size=32, length=10000)")
    for term in filter(None, (match[1] or "").split(",")):
        key, _, value = (word.strip() for word in term.partition("="))
        if key not in settings:
            raise unknown_name("setting of shapes", key, settings)
        if not re.fullmatch(r"\d+", value):
            raise ValueError(f"shapes: {key} must be a whole number, got {value!r}; write {key}={settings[key]}")
        if int(value) > MOST_OF_SHAPES[key]:
            raise ValueError(f"shapes: {key} may be at most {MOST_OF_SHAPES[key]:,}, got {value}")
        settings[key] = int(value)
    size, seed = settings["size"], settings["seed"]

    def open_split(split: str, length: int) -> ImageSet:
        description = f"shapes, {length} images of {size} px ({split})"
        dataset = Shapes(size=size, length=length, split=split, seed=seed)
        if size * size * 3 * length > 2**31:  # bytes: draw each picture when it is asked for
            labels = [shapes_batch(rows, size=8, seed=seed, split=split).labels for rows in _runs(length)]
            return DatasetImages(dataset, torch.cat(labels).numpy(), Shapes.classes, description)
        pixels = np.empty((length, size, size, 3), dtype=np.uint8)
        labels = np.empty(length, dtype=np.int64)
        for rows in _runs(length):
            batch = shapes_batch(rows, size=size, seed=seed, split=split)
            pixels[rows[0] : rows[-1] + 1] = (batch.images * 255).round().byte().permute(0, 2, 3, 1).numpy()
            labels[rows[0] : rows[-1] + 1] = batch.labels.numpy()
        return ShapesImages(dataset, np.arange(length), pixels, labels, description)

    return {
        "train": lambda: open_split("train", settings["length"]),
        "test": lambda: open_split("test", settings["test_length"]),
    }


def _runs(length: int, size: int = 1000) -> list[range]:
    return [range(start, min(start + size, length)) for start in range(0, length, size)]


def _folder_splits(location: str) -> Openers:
    root = Path(location)
    if not root.is_dir():
        raise ValueError(f"imagefolder: {location!r} is not a folder; give one that holds train/<class>/<image>")
    inside = {entry.name.lower(): entry for entry in _subfolders(root)}
    folders = {
        split: next(inside[name] for name in names if name in inside)
        for split, names in SPLIT_FOLDERS.items()
        if inside.keys() & set(names)
    }
    if not folders:
        folders = {"train": root}
    known = folders.get("train") or next(iter(folders.values()))
    classes = [folder.name for folder in _subfolders(known)]
    if not classes:
        raise ValueError(f"imagefolder: {str(known)!r} holds no class folders; put images into {known.name}/<class>/")
    if len(classes) == 1:
        raise ValueError(
            f"imagefolder: {str(known)!r} holds one class folder only ({classes[0]!r}), at least two are needed; "
            "is this the folder above or below the right one?"
        )
    return {split: lambda split=split: _read_folder(folders[split], classes, split) for split in folders}


def _subfolders(folder: Path) -> list[Path]:
    hidden = (".", "__")  # such as .ipynb_checkpoints and __MACOSX
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(hidden))


def _read_folder(folder: Path, classes: list[str], split: str) -> FileImages:
    numbers = {name: label for label, name in enumerate(classes)}
    files: list[str] = []
    labels: list[int] = []
    for class_folder in _subfolders(folder):
        if class_folder.name not in numbers:
            raise ValueError(
                f"imagefolder: {str(folder)!r} has a class {class_folder.name!r} that the training folder has not; "
                "use the same class folders in every split"
            )
        found = image_files(class_folder, folder, f"imagefolder:{class_folder} ({split})")
        if not found and split == "train":
            raise ValueError(
                f"imagefolder: class folder {str(class_folder)!r} holds no images ({', '.join(IMG_EXTENSIONS)}); "
                "fill it or remove it"
            )
        files += found
        labels += [numbers[class_folder.name]] * len(found)
    return FileImages(folder, files, labels, classes, f"imagefolder:{folder} ({split})")


KINDS: dict[str, Callable[[str], Openers]] = {
    "shapes": _shapes_splits,
    "imagefolder": _folder_splits,
    "torchvision": torchvision_splits,
    "npz": npz_splits,
    "hfds": hf_splits,
    "wds": tar_splits,
}
