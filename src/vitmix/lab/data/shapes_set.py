"""The built-in data as a set of images: `shapes`, `shapes(size=32, length=10000, test_length=2000, seed=0)`."""

import re
from collections.abc import Sequence

import numpy as np
import torch

from .images import ArrayImages, DatasetImages, ImageSet
from .shapes import Shapes, shapes_batch
from .splits import Openers, parse_settings

SETTINGS = {"size": 32, "length": 10_000, "test_length": 2_000, "seed": 0}
MOST = {"size": 4096, "length": 10**7, "test_length": 10**7, "seed": 2**63 - 1}
MOST_BYTES = 2**31  # kept in memory; larger sets render each image on request
RUN = 1000  # images rendered at once


class ShapesImages(ArrayImages):
    """The built-in data in memory, with the positions of its objects."""

    def __init__(self, dataset: Shapes, pixels: np.ndarray, labels: np.ndarray, description: str) -> None:
        super().__init__(pixels, labels, Shapes.classes, description)
        self.dataset = dataset

    def objects(self, indices: Sequence[int]) -> np.ndarray:
        return self.dataset.batch(self.rows[list(indices)].tolist()).masks.numpy()


def shapes_splits(argument: str) -> Openers:
    """For each split, a function that renders it."""
    rest, given = parse_settings(argument, "shapes", SETTINGS)
    if rest:
        raise ValueError(f"data 'shapes{argument}' is not understood; write shapes or shapes(size=32, length=10000)")
    settings = dict(SETTINGS)
    for key, value in given.items():
        if not re.fullmatch(r"\d+", value):
            raise ValueError(f"shapes: {key} must be a whole number, got {value!r}; write {key}={SETTINGS[key]}")
        if int(value) > MOST[key]:
            raise ValueError(f"shapes: {key} may be at most {MOST[key]:,}, got {value}")
        settings[key] = int(value)
    size, seed = settings["size"], settings["seed"]
    lengths = {"train": settings["length"], "test": settings["test_length"]}
    return {split: lambda split=split: _open(split, lengths[split], size, seed) for split in lengths}


def _open(split: str, length: int, size: int, seed: int) -> ImageSet:
    description = f"shapes, {length} images of {size} px ({split})"
    dataset = Shapes(size=size, length=length, split=split, seed=seed)
    runs = [range(start, min(start + RUN, length)) for start in range(0, length, RUN)]
    if size * size * 3 * length > MOST_BYTES:
        found = torch.cat([shapes_batch(rows, size=8, seed=seed, split=split).labels for rows in runs])
        return DatasetImages(dataset, found.numpy(), Shapes.classes, description)
    pixels = np.empty((length, size, size, 3), dtype=np.uint8)
    labels = np.empty(length, dtype=np.int64)
    for rows in runs:
        batch = dataset.batch(rows)
        pixels[rows.start : rows.stop] = batch.pixels()
        labels[rows.start : rows.stop] = batch.labels.numpy()
    return ShapesImages(dataset, pixels, labels, description)
