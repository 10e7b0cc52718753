"""Datasets of Hugging Face, from a folder or from the hub: `hfds:PLACE` or `hfds:PLACE(label=fine_label)`.

A folder is what `save_to_disk` wrote, or anything that `load_dataset` reads: parquet files, a folder of images. Other
places are names on the hub. Settings in parentheses: `image` and `label` name the columns where there are several, and
`config` one of the set's configurations. The rows stay on disk as Arrow and are read one by one, in any order.
"""

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from vitmix._checks import unknown_name
from vitmix.lab.extras import need
from vitmix.lab.network import downloads
from vitmix.lab.reading import read_bytes

from .classes import count_classes, match_names, numbered
from .decoding import MAX_BYTES, decode, reason_of
from .images import ImageSet
from .splits import Openers, by_split, parse_settings

if TYPE_CHECKING:
    from datasets import Dataset

SETTINGS = ("image", "label", "config")
LABEL_NAMES = ("label", "labels")


class ArrowImages(ImageSet):
    """The rows of a `datasets.Dataset` whose image column is not decoded."""

    def __init__(
        self, dataset: "Dataset", column: str, labels: np.ndarray, classes: list[str], description: str
    ) -> None:
        super().__init__(labels, classes, description)
        self.dataset, self.column = dataset, column

    def name(self, index: int) -> str:
        return f"row {self.rows[index]}"

    def read(self, index: int) -> Image.Image:
        row: Any = self.dataset[int(self.rows[index])]
        stored = row[self.column]
        content = stored["bytes"]
        return decode(read_bytes(stored["path"], MAX_BYTES) if content is None else content)


def hf_splits(argument: str) -> Openers:
    """For each split of the dataset, a function that opens it."""
    place, settings = parse_settings(argument, "hfds", SETTINGS)
    parts = _load(place, settings.get("config"))
    first = parts.get("train") or next(iter(parts.values()))
    image, label = _columns(first, settings, place)
    classes = _classes(first, label, f"hfds:{argument}")
    return {
        split: lambda part=part, split=split: _open(part, image, label, classes, f"hfds:{argument} ({split})")
        for split, part in parts.items()
    }


def hf_path(argument: str) -> str:
    """The folder in an argument; empty for OWNER/NAME on the hub."""
    place, _ = parse_settings(argument, "hfds", SETTINGS)
    return place if os.path.isabs(place) or os.path.exists(place) else ""


def _load(place: str, config: str | None) -> dict[str, "Dataset"]:
    """The splits by their usual names."""
    datasets = need("datasets")
    try:
        if any(os.path.isfile(os.path.join(place, name)) for name in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(place)
        else:
            with nullcontext() if os.path.exists(place) else downloads():
                found = datasets.load_dataset(place, config)
    except Exception as problem:  # from the hub, the file system or the data's reader
        raise ValueError(
            f"hfds: {place!r} is neither a dataset folder nor available from the hub ({reason_of(problem)[:300]})"
        ) from None
    if isinstance(found, datasets.Dataset):
        return {"train": found}
    parts = by_split(cast(dict[str, "Dataset"], found))
    if not parts:
        raise ValueError(f"hfds: {place!r} has no split train, only {', '.join(map(str, found))}; rename one to train")
    return parts


def _columns(dataset: "Dataset", settings: dict[str, str], place: str) -> tuple[str, str]:
    """The names of the image column and the label column."""
    import datasets

    features = dataset.features
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    labels = classes or [name for name in LABEL_NAMES if name in features]

    def chosen(what: str, found: list[str]) -> str:
        if what in settings:
            if settings[what] not in features:
                raise unknown_name(f"column of hfds:{place}", settings[what], list(features))
            return settings[what]
        if len(found) != 1:
            raise ValueError(
                f"hfds:{place} has {len(found)} {what} columns ({', '.join(found or features)}); "
                f"choose with hfds:{place}({what}=COLUMN)"
            )
        return found[0]

    return chosen("image", images), chosen("label", labels)


def _values(dataset: "Dataset", column: str) -> np.ndarray:
    """A column at once, without reading the others."""
    return np.asarray(dataset.select_columns([column]).with_format("numpy")[:][column])


def _classes(dataset: "Dataset", label: str, description: str) -> list[str]:
    names = getattr(dataset.features[label], "names", None)
    if names:
        return list(names)
    values = _values(dataset, label)
    if values.dtype.kind in "iu":
        return numbered(count_classes(values, description))
    return sorted({str(value) for value in values})


def _open(dataset: "Dataset", image: str, label: str, classes: list[str], description: str) -> ArrowImages:
    import datasets

    labels = _values(dataset, label)
    if labels.dtype.kind not in "iu":
        names = [str(value) for value in labels]
        labels = np.array(match_names(names, classes, description=description, whose="the training split"))
    if not isinstance(dataset.features[image], datasets.Image):
        raise ValueError(f"column {image!r} of {description} holds no images but {dataset.features[image]}")
    stored = dataset.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    return ArrowImages(stored, image, labels, classes, description)
