"""Where images come from, as text: `open_images("imagefolder:photos?holdout=0.1", "train")`.

    shapes, shapes(size=32, length=10000)       the built-in data
    imagefolder:DIR                             DIR/train/<class>/<image> and DIR/val, or DIR/<class>/<image>
    torchvision:NAME:ROOT                       a dataset of torchvision, downloaded where that is possible
    npz:DIR                                     arrays, see `vitmix.lab.data.npz`
    hfds:PLACE                                  a dataset of Hugging Face, see `vitmix.lab.data.hf_sets`
    wds:PATTERN                                 WebDataset shards, see `vitmix.lab.data.tar_sets`

A dataset without a validation split is validated on its test split. With `?holdout=0.1`, a tenth of the training
images of each class is held out for validation instead, and the test split stays untouched. Data without any split is
always divided this way.

To add a kind of data, write its module and add a line to `SOURCES`.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch

from vitmix._checks import check_choice, unknown_name
from vitmix._sampling import generator_for

from .folders import folder_splits
from .hf_sets import hf_path, hf_splits
from .images import ImageSet
from .npz import npz_splits
from .shapes_set import shapes_splits
from .splits import Openers, Split
from .tar_sets import tar_splits
from .torchvision_sets import torchvision_splits

HOLDOUT = 0.1  # of data without splits
HOLDOUT_SEED = 20_240_229  # fixed: every run holds out the same images, whatever its seed


class Source(NamedTuple):
    """A kind of data.

    Args:
        splits: for each split of the data that an argument names, a function that opens it.
        form: how the argument is written.
        path: the path in an argument.
    """

    splits: Callable[[str], Openers]
    form: str = "DIR"
    path: Callable[[str], str] = str


SOURCES = {
    "shapes": Source(shapes_splits, form=""),
    "imagefolder": Source(folder_splits),
    "torchvision": Source(torchvision_splits, "NAME:ROOT", lambda argument: argument.partition(":")[2]),
    "npz": Source(npz_splits),
    "hfds": Source(hf_splits, path=hf_path),
    "wds": Source(tar_splits),
}


def open_images(spec: str, split: Split) -> ImageSet:
    """The images that a text such as `"imagefolder:DIR"` names."""
    return open_from(SOURCES, spec, split)


def open_from(sources: Mapping[str, Source], spec: str, split: Split) -> ImageSet:
    """The images that a text names, by these kinds of data."""
    check_choice("split", split, get_args(Split))
    kind, argument, holdout = _parse(spec, sources)
    splits = sources[kind].splits(argument)
    evaluated = [name for name in ("val", "test") if name in splits]
    if "train" not in splits and (split == "train" or holdout is not None):
        raise ValueError(f"{spec!r} has no training images, only {' and '.join(splits)}; add a train part")
    if holdout is None and not evaluated:
        holdout = HOLDOUT
    if holdout is not None and (split != "test" or not evaluated):
        return _divided(splits["train"](), holdout, held_out=split != "train")
    return splits[split if split in splits else evaluated[0]]()


def without_folders(text: str, spec: str) -> str:
    """A text about the data that `spec` names, with only the last part of its path on this machine."""
    kind, argument, _ = _parse(spec)
    path = SOURCES[kind].path(argument)
    usual = os.path.normpath(path)
    for each in (usual, path):  # as written, and as a description has it
        text = text.replace(each, os.path.basename(usual)) if "/" in each or os.sep in each else text
    return text


def _parse(spec: str, sources: Mapping[str, Source] = SOURCES) -> tuple[str, str, float | None]:
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
    if kind not in sources:
        if os.path.isdir(text):
            usual = "imagefolder" if "imagefolder" in sources else next(iter(sources))
            likely = "npz" if "npz" in sources and any(Path(text).glob("*.npz")) else usual
            raise ValueError(
                f"unknown kind of data {kind!r}, but a folder of this name exists; did you mean {likely}:{spec}?"
            )
        raise unknown_name("kind of data", kind, sources)
    if not argument and sources[kind].form:
        raise ValueError(f"data {spec!r} does not say where it is; write {kind}:{sources[kind].form}")
    return kind, argument, holdout


def _divided(images: ImageSet, fraction: float, *, held_out: bool) -> ImageSet:
    """The held-out part of a training set, or the rest of it."""
    mask = held_out_mask(images.labels, fraction)
    if not held_out:
        return images.subset(np.flatnonzero(~mask), f"{images.description}, without the {fraction:.3g} held out")
    part = "the tenth" if fraction == HOLDOUT else f"the {fraction:.3g}"
    return images.subset(np.flatnonzero(mask), f"{part} of {images.description} that was held out")


def held_out_mask(labels: np.ndarray, fraction: float) -> np.ndarray:
    """True for this fraction of each class: at least one image, but never all of them."""
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(1, round(len(rows) * fraction)), len(rows) - 1)
        order = torch.randperm(len(rows), generator=generator_for(HOLDOUT_SEED, int(label))).numpy()
        mask[rows[order[:count]]] = True
    if not mask.any():
        raise ValueError(
            f"cannot hold out images where every class has a single image ({len(labels)} images in all); add images, "
            "or a folder val/ beside train/"
        )
    return mask
