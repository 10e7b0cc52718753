"""A figure of images in rows and columns as values: tiles, rows, sections; `render.py` writes the file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .canvas import HEAT, SHARE, Plot

Scale = Literal["heat", "share"]


@dataclass(frozen=True)
class Tile:
    """An image `(H, W, 3)` in 0..1 and its caption; `marks` plots over it, from (0, 0) top left to (1, 1)."""

    pixels: np.ndarray
    caption: str = ""
    marks: Plot | None = None


@dataclass(frozen=True)
class TileRow:
    """Tiles with the height of the last tile's image, or `aspect` times their width."""

    tiles: tuple[Tile, ...]
    label: str = ""
    aspect: float | None = None


@dataclass(frozen=True)
class Curve:
    """A value for each column of a section, with its interval."""

    name: str
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Section:
    """Rows with the same columns. If there are too many columns for a page, the section continues below.

    Attributes:
        lead: the first columns, which are repeated there.
        unit: columns that stay together.
        turned: whether labels are vertical and follow the lead, instead of being left of the row.
        curves: probabilities below the rows.
        axes: what the curves' axes say.
    """

    heads: tuple[str, ...]
    rows: tuple[TileRow, ...]
    lead: int = 0
    unit: int = 1
    turned: bool = False
    curves: tuple[Curve, ...] = ()
    axes: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class ImageGrid:
    """Sections one below the other, and a footer; `scale` names the colors to explain, from one end to the other."""

    sections: tuple[Section, ...]
    footer: str = ""
    scale: Scale | None = None
    ends: tuple[str, str] = ("least", "most")


def as_pixels(image: Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).clamp(0, 1).numpy()


def unit_scale(values: Tensor) -> Tensor:
    """Square roots, scaled from minimum to maximum: attention peaks in few places, and the rest should show."""
    low, high = values.min(), values.max()
    return ((values - low) / (high - low).clamp_min(1e-12)).sqrt() if high > low else torch.zeros_like(values)


def overlay(image: Tensor, values: Tensor, scale: Scale, *, strength: float = 0.74) -> np.ndarray:
    """Values `(h, w)` in 0..1 as colors over the gray image `(3, H, W)`, one color per cell."""
    gray = (image * image.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(0)
    height, width = gray.shape
    rows = torch.arange(height) * values.shape[0] // height
    columns = torch.arange(width) * values.shape[1] // width
    cells = values[rows][:, columns].numpy()
    colors = (HEAT if scale == "heat" else SHARE)(cells)[..., :3]
    # With less contrast in the image, its bright places do not look like large values.
    return np.clip(strength * colors + (1 - strength) * (0.15 + 0.7 * gray.numpy()[..., None]), 0, 1)


def folded(section: Section, fit: int) -> list[Section]:
    """A section as sections of at most `fit` columns, as equal as possible."""
    lead, unit, count = section.lead, section.unit, len(section.heads)
    units = (count - lead) // unit
    per_part = max(1, (fit - lead) // unit)
    if count <= fit or section.curves or units <= per_part:
        return [section]
    parts = math.ceil(units / per_part)
    ends = [lead + unit * round(units * part / parts) for part in range(parts + 1)]
    found = []
    for start, end in pairwise(ends):
        rows = tuple(replace(row, tiles=row.tiles[:lead] + row.tiles[start:end]) for row in section.rows)
        found.append(replace(section, heads=section.heads[:lead] + section.heads[start:end], rows=rows))
    return found
