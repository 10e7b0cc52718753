"""Data sets of Hugging Face, from a folder or from the hub: `hfds:PLACE` or `hfds:PLACE(label=fine_label)`.

A folder is what `save_to_disk` wrote, or anything that `load_dataset` reads: parquet files, a folder of images. Other
places are names on the hub. Settings in parentheses: `image` and `label` name the columns where there are several, and
`config` one of the set's configurations. The rows stay on disk as Arrow and are read one by one, in any order.
"""

import io
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from PIL import Image

from vitmix._checks import unknown_name
from vitmix.lab.network import downloads
from vitmix.lab.reading import read_bytes

from .images import MAX_BYTES, ImageSet, check_pixels, count_classes, reason_of

SPLIT_NAMES = {"train": ("train", "training"), "val": ("validation", "val", "valid"), "test": ("test", "testing")}
SETTINGS = ("image", "label", "config")
LABEL_NAMES = ("label", "labels")


class ArrowImages(ImageSet):
    """The rows of a `datasets.Dataset` whose picture column is not decoded."""

    def __init__(
        self,
        dataset: Any,
        column: str,
        labels: np.ndarray,
        classes: list[str],
        description: str,
        *,
        rows: np.ndarray | None = None,
    ) -> None:
        super().__init__(labels, classes, description)
        self.dataset, self.column, self.rows = dataset, column, rows

    def name(self, index: int) -> str:
        return f"row {self._row(index)}"

    def read(self, index: int) -> Image.Image:
        stored = self.dataset[self._row(index)][self.column]
        content = stored["bytes"]
        if content is None:
            content = read_bytes(stored["path"], MAX_BYTES)
        image = Image.open(io.BytesIO(content))
        check_pixels(image)  # before the pixels are unpacked
        image.load()
        return image

    def subset(self, rows: np.ndarray, description: str) -> "ArrowImages":
        inner = rows if self.rows is None else self.rows[rows]
        return ArrowImages(self.dataset, self.column, self.labels[rows], self.classes, description, rows=inner)

    def _row(self, index: int) -> int:
        return index if self.rows is None else int(self.rows[index])


def hf_splits(argument: str) -> dict[str, Callable[[], ArrowImages]]:
    """For each split of the data set, a function that opens it."""
    place, settings = parse_place(argument)
    parts = _load(place, settings.get("config"))
    first = parts.get("train") or next(iter(parts.values()))
    image, label = _columns(first.features, settings, place)
    classes = _classes(first, label, f"hfds:{argument}")
    return {
        split: lambda part=part, split=split: _open(part, image, label, classes, f"hfds:{argument} ({split})")
        for split, part in parts.items()
    }


def parse_place(argument: str) -> tuple[str, dict[str, str]]:
    """Folder or name on the hub, and settings."""
    match = re.fullmatch(r"(.*?)(?:\(([^()]*)\))?", argument.strip())
    assert match is not None
    settings: dict[str, str] = {}
    for term in filter(None, (match[2] or "").split(",")):
        key, _, value = (word.strip() for word in term.partition("="))
        if key not in SETTINGS:
            raise unknown_name("setting of hfds", key, SETTINGS)
        settings[key] = value
    return match[1], settings


def _load(place: str, config: str | None) -> dict[str, Any]:
    """The splits by our names."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"hfds:{place} needs the package datasets; pip install 'vitmix[hf]'") from None
    try:
        if any(os.path.isfile(os.path.join(place, name)) for name in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(place)
        else:
            with nullcontext() if os.path.exists(place) else downloads():
                found = datasets.load_dataset(place, config)
    except Exception as problem:  # of the hub, the file system, or the data's own reader
        raise ValueError(
            f"hfds: {place!r} is neither a folder of a data set nor one that can be had from the hub "
            f"({reason_of(problem)[:300]})"
        ) from None
    if isinstance(found, datasets.Dataset):
        return {"train": found}
    parts = {
        split: found[next(name for name in names if name in found)]
        for split, names in SPLIT_NAMES.items()
        if set(names) & set(found)
    }
    if not parts:
        raise ValueError(f"hfds: {place!r} has the splits {', '.join(map(str, found))}; rename one to train")
    return parts


def _columns(features: Any, settings: dict[str, str], place: str) -> tuple[str, str]:
    import datasets

    pictures = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    usual = [name for name in LABEL_NAMES if name in features]
    return (
        _chosen("image", pictures, settings, list(features), place),
        _chosen("label", classes or usual, settings, list(features), place),
    )


def _chosen(what: str, found: list[str], settings: dict[str, str], every: list[str], place: str) -> str:
    if what in settings:
        if settings[what] not in every:
            raise unknown_name(f"column of hfds:{place}", settings[what], every)
        return settings[what]
    if len(found) != 1:
        raise ValueError(
            f"hfds:{place} has {len(found)} {what} columns ({', '.join(found or every)}); "
            f"choose with hfds:{place}({what}=COLUMN)"
        )
    return found[0]


def _values(dataset: Any, column: str) -> np.ndarray:
    """A column at once, without reading the others."""
    return np.asarray(dataset.select_columns([column]).with_format("numpy")[:][column])


def _classes(dataset: Any, label: str, description: str) -> list[str]:
    names = getattr(dataset.features[label], "names", None)
    if names:
        return list(names)
    values = _values(dataset, label)
    if values.dtype.kind in "iu":
        return [str(number) for number in range(count_classes(values, description))]
    return sorted({str(value) for value in values})


def _open(dataset: Any, image: str, label: str, classes: list[str], description: str) -> ArrowImages:
    import datasets

    values = _values(dataset, label)
    if values.dtype.kind not in "iu":
        number = {name: place for place, name in enumerate(classes)}
        unknown = [str(value) for value in values if str(value) not in number]
        if unknown:
            raise ValueError(f"{description} has a class {unknown[0]!r} that the training images have not")
        values = np.array([number[str(value)] for value in values])
    if not isinstance(dataset.features[image], datasets.Image):
        raise ValueError(f"column {image!r} of {description} holds no pictures but {dataset.features[image]}")
    pictures = dataset.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    return ArrowImages(pictures, image, values, classes, description)
