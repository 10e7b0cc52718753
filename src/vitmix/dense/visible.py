"""How much of each object a mixed image shows, and the box around it."""

from typing import NamedTuple

import torch
from torch import Tensor

from vitmix._mix import Pixels
from vitmix.dense.pixels import is_separable, move_pixels

__all__ = ["Visible", "visible_boxes", "visible_masks"]

ROUNDING = 1e-5  # of a fraction of float32 areas


class Visible(NamedTuple):
    """The visible parts of n objects.

    Attributes:
        fraction: `(n,)` the part of each object's area that is visible; a blended pixel counts by its weight.
        extent: `(n,)` the same with blended pixels as whole pixels.
        boxes: `(n, 4)` the box around the visible part, (left, top, right, bottom); not defined if there is none.
        masks: `(n, H, W)` bool, the visible pixels, if the objects have masks.
    """

    fraction: Tensor
    extent: Tensor
    boxes: Tensor
    masks: Tensor | None = None


def visible_boxes(boxes: Tensor, opacity: Tensor, pixels: Pixels | None = None) -> Visible:
    """What is visible of `boxes` `(n, 4)` in one image.

    A pixel is a square with sides of 1. A box that ends inside of it covers a part of it.

    Args:
        opacity: `(H, W)` the weight of the boxes' image in each pixel of the mixed image.
        pixels: which pixel of it each pixel shows, `(1, H, W)`; None means the same pixel.
    """
    exact = torch.promote_types(boxes.dtype, torch.float32)
    left, top, right, bottom = boxes.to(exact).unbind(1)
    rows, columns = _Edges.of(top, bottom, opacity.shape[0]), _Edges.of(left, right, opacity.shape[1])
    area = rows.covered.sum(1) * columns.covered.sum(1)
    opacity = opacity.to(exact)
    if pixels is None:
        return _separable(rows, columns, opacity, area)
    if is_separable(pixels):
        row, column = pixels.row[0, :, 0], pixels.column[0, 0]
        return _separable(rows.taken(row), columns.taken(column), opacity, area)
    found = [_moved(rows.at(each), columns.at(each), opacity, pixels) for each in range(len(boxes))]
    if not found:
        return Visible(area, area, boxes.to(exact))
    sums, extents, around = (torch.stack(each) for each in zip(*found, strict=True))
    return Visible(sums / area, extents / area, around)


def visible_masks(masks: Tensor, opacity: Tensor, pixels: Pixels | None = None) -> Visible:
    """What is visible of objects with instance masks `(n, H, W)` bool in one image, see `visible_boxes`."""
    area = masks.sum((1, 2)).clamp_min(1)
    if pixels is not None:
        masks = move_pixels(masks.unsqueeze(0), pixels, 0).squeeze(0)
    shown = masks & (opacity > 0)
    in_rows = shown.sum(2)
    extent = in_rows.sum(1) / area
    fraction = (
        extent if opacity.dtype == torch.bool else (shown.flatten(1).to(opacity.dtype) @ opacity.flatten()) / area
    )
    row, column = (torch.arange(side, device=masks.device, dtype=fraction.dtype) for side in masks.shape[1:])
    x, y = _span(shown.any(1), column, column + 1), _span(in_rows > 0, row, row + 1)
    return Visible(fraction, extent, torch.stack([x[0], y[0], x[1], y[1]], dim=1), shown)


class _Edges(NamedTuple):
    """Of intervals on one axis: where they begin and end inside each pixel, `(n, side)`, as a part of it."""

    begin: Tensor
    end: Tensor

    @classmethod
    def of(cls, low: Tensor, high: Tensor, side: int) -> "_Edges":
        position = torch.arange(side, device=low.device, dtype=low.dtype)
        return cls(*((edge.unsqueeze(1) - position).clamp(0, 1) for edge in (low, high)))

    @property
    def covered(self) -> Tensor:
        """The covered part of each pixel."""
        return self.end - self.begin

    def taken(self, pixels: Tensor) -> "_Edges":
        """The same if each pixel shows another one, `(side,)`, of the axis, or none where it is -1."""
        return _Edges(*(each[:, pixels.clamp_min(0)] * (pixels >= 0) for each in self))

    def at(self, index: int) -> "_Edges":
        return _Edges(self.begin[index], self.end[index])


def _separable(rows: _Edges, columns: _Edges, opacity: Tensor, area: Tensor) -> Visible:
    """If rows and columns are shown independently, sums over a box are two matrix products."""
    shown = (opacity > 0).to(opacity.dtype)
    fraction, extent = (((rows.covered @ each) * columns.covered).sum(1) / area for each in (opacity, shown))
    in_rows, in_columns = rows.covered > 0, columns.covered > 0
    across = in_columns & (in_rows.to(shown.dtype) @ shown > 0)
    down = in_rows & (in_columns.to(shown.dtype) @ shown.T > 0)
    row, column = (torch.arange(side, device=opacity.device, dtype=opacity.dtype) for side in opacity.shape)
    x = _span(across, column + columns.begin, column + columns.end)
    y = _span(down, row + rows.begin, row + rows.end)
    return Visible(fraction, extent, torch.stack([x[0], y[0], x[1], y[1]], dim=1))


def _span(hit: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The first `begin` and the last `end` `(n,)` of the positions that are `hit` `(n, side)`."""
    low = torch.where(hit, begin, float("inf")).amin(1)
    return low, torch.where(hit, end, float("-inf")).amax(1)


def _moved(rows: _Edges, columns: _Edges, opacity: Tensor, pixels: Pixels) -> tuple[Tensor, Tensor, Tensor]:
    """Of one box whose pixels moved: visible area, the same with blended pixels as whole ones, the box around it."""
    row, column = pixels.row[0], pixels.column[0]
    there = row.clamp_min(0)
    covered = rows.covered[there] * columns.covered[column] * ((row >= 0) & (opacity > 0))
    hit = covered > 0
    down = torch.arange(opacity.shape[0], device=opacity.device, dtype=opacity.dtype).unsqueeze(1)
    across = torch.arange(opacity.shape[1], device=opacity.device, dtype=opacity.dtype)
    ends = [
        torch.where(hit, across + columns.begin[column], float("inf")).amin(),
        torch.where(hit, down + rows.begin[there], float("inf")).amin(),
        torch.where(hit, across + columns.end[column], float("-inf")).amax(),
        torch.where(hit, down + rows.end[there], float("-inf")).amax(),
    ]
    return (covered * opacity).sum(), covered.sum(), torch.stack(ends)
