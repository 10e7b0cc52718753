"""A teacher's labels for the cells of augmented images, and for the whole of them: token labeling and ReLabel."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vitmix._mix import Grid
from vitmix.lab.data.images import ImageSet
from vitmix.parts.maps import placed_logits

from .stored import read_top_maps


@dataclass(frozen=True)
class TeacherLabels:
    """The stored logits of all images.

    Args:
        values, classes: `(N, k, h, w)` the highest logits of each location and their labels; -1 for none.
        grid: the cells of an image that get a label.
        num_classes: of the labels.
    """

    values: Tensor
    classes: Tensor
    grid: Grid
    num_classes: int

    @classmethod
    def read(
        cls, folder: str | Path, images: ImageSet, grid: Grid, num_classes: int, device: torch.device | str = "cpu"
    ) -> Self:
        """The labels from a folder of maps, kept on a device."""
        values, classes = (each.to(device) for each in read_top_maps(folder, images))
        return cls(values, classes, grid, num_classes)

    def place_grid(self, size: Grid) -> Grid:
        """Where the maps are sampled: once per location, if they are finer than the cells, up to the pixels."""
        fine = [math.ceil(stored / cells) for stored, cells in zip(self.values.shape[2:], self.grid, strict=True)]
        rows, columns = (
            cells * max(1, min(count, side // cells)) for cells, count, side in zip(self.grid, fine, size, strict=True)
        )
        return rows, columns

    def of(self, places: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The labels `(B, K)` of augmented images and `(B, K, *grid)` of their cells, as probabilities.

        Args:
            places: `(B, 3, h, w)` where the cells come from, see `Batch.places`.
            rows: `(B,)` which images they are, on the device of `values`, or it would be waited for.
        """
        values, classes = (each[rows].to(places.device, non_blocking=True) for each in (self.values, self.classes))
        with torch.autocast(places.device.type, enabled=False):
            logits = placed_logits(values.float(), classes, places, self.grid, self.num_classes)
            return logits.mean((2, 3)).softmax(1), logits.softmax(1)
