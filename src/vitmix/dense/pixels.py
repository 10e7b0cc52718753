"""Which pixels of which image a mixed image shows: what label maps, boxes and instance masks follow."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitmix._mix import Grid, Mix, Pixels, cell_pixels, expand_mask

__all__ = ["Seen", "is_separable", "move_pixels", "seen_pixels"]


class Seen(NamedTuple):
    """What the mixed images `(B, ..., H, W)` of a `Mix` show.

    Attributes:
        weight: `(B, H, W)` the partner's part of each pixel; bool if no pixel is blended.
        own, partner: which pixel of each image is shown; None means the same pixel.
        zoom: `(B,)` the area of what is pasted relative to its area in the partner; None means 1.
    """

    weight: Tensor
    own: Pixels | None
    partner: Pixels | None
    zoom: Tensor | None


def seen_pixels(mix: Mix, size: Grid) -> Seen:
    """What each pixel of mixed images of `size` shows."""
    if mix.rows is not None:
        raise ValueError(
            "this mask pastes other images than the partner, whose dense targets are not kept; use another mask, such "
            "as resized"
        )
    weight = expand_mask(mix.mask, size).expand(len(mix.partner), *size)
    if mix.moves is not None:
        own, partner = (each and _fitted(each, len(weight), size) for each in (mix.moves.own, mix.moves.partner))
        return Seen(weight, own, partner, mix.moves.zoom)
    grid = (mix.mask.shape[-2], mix.mask.shape[-1])
    return Seen(weight, None, None if mix.source is None else cell_pixels(mix.source, grid, size), None)


def move_pixels(maps: Tensor, pixels: Pixels | None, fill: float) -> Tensor:
    """Maps `(B, ..., H, W)` that show other `pixels` of themselves, and `fill` where there is none."""
    if pixels is None:
        return maps
    batch, size = len(maps), maps.shape[-2:]
    if batch == 1 and is_separable(pixels):
        there, column = pixels.row[0, :, 0].clamp_min(0), pixels.column[0, 0]
        moved = maps.index_select(-2, there).index_select(-1, column)
        return moved.masked_fill(pixels.row[0] < 0, fill)
    row, column = (each.expand(batch, *size) for each in pixels)
    channels = maps.reshape(batch, math.prod(maps.shape[1:-2]), size[0] * size[1])
    index = (row.clamp_min(0) * size[1] + column).flatten(1).unsqueeze(1)
    moved = channels.gather(2, index.expand_as(channels))
    return moved.masked_fill((row < 0).flatten(1).unsqueeze(1), fill).view(maps.shape)


def is_separable(pixels: Pixels) -> bool:
    """Whether the row that is shown depends on the row alone, and the column on the column alone."""
    return pixels.row.shape[2] == 1 and pixels.column.shape[1] == 1


def _fitted(pixels: Pixels, batch: int, size: Grid) -> Pixels:
    shape = torch.broadcast_shapes(pixels.row.shape, pixels.column.shape)
    if tuple(shape[1:]) != size or shape[0] not in (1, batch):
        raise ValueError(
            f"the mask moved pixels of {shape[1]}x{shape[2]} images, but the targets are {size[0]}x{size[1]}; give "
            "targets of the images' size"
        )
    return pixels
