"""The whole partner, reduced into a box: ResizeMix."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from vitmix._checks import check_choice, check_fraction
from vitmix._mix import Frame, Grid, Moves, Pixels
from vitmix._registry import register
from vitmix.parts.base import Composed, Mask, Unmixed, Values
from vitmix.parts.masks import box_mask

__all__ = ["ResizedMask", "inner_boxes", "paste_resized", "resize_weights", "resized_pixels"]

Interpolation = Literal["nearest", "bilinear"]


def inner_boxes(center: Tensor, size: Grid, sides: Grid) -> Tensor:
    """Boxes `(b, 4)` as (top, bottom, left, right) of `sides` around `center` `(b, 2)`, moved inside the image."""
    room = torch.tensor([size[0] - sides[0], size[1] - sides[1]])
    corner = torch.minimum((center - torch.tensor(sides) // 2).clamp_min(0), room)
    top, left = corner.unbind(1)
    return torch.stack([top, top + sides[0], left, left + sides[1]], dim=1)


def nearest_positions(count: int, side: int, step: float) -> Tensor:
    """Positions `(count,)` in 0..side - 1 of the pixels that nearest-neighbor reduction by `step` keeps."""
    # float32, as torch's interpolation by a scale factor computes it.
    position = torch.arange(count, dtype=torch.float32) * torch.tensor(step, dtype=torch.float32)
    return position.floor().long().clamp_max(side - 1)


def resize_weights(count: int, side: int, scale: float, interpolation: Interpolation) -> Tensor:
    """Weights `(side, side)` of a reduction to `count` pixels, float64; rows from `count` on are zero."""
    weights = torch.zeros(side, side, dtype=torch.float64)
    if interpolation == "nearest":
        weights[torch.arange(count), nearest_positions(count, side, 1 / scale)] = 1
        return weights
    # A triangle as wide as the reduction, so that no pixel is skipped.
    reach = max(side / count, 1.0)
    center = (torch.arange(count, dtype=torch.float64) + 0.5) * side / count - 0.5
    triangle = (1 - (torch.arange(side, dtype=torch.float64) - center.unsqueeze(1)).abs() / reach).clamp_min(0)
    weights[:count] = triangle / triangle.sum(1, keepdim=True)
    return weights


def paste_resized(
    images: Tensor, others: Tensor, boxes: Tensor, weights: tuple[Tensor, Tensor], *, nearest: bool = False
) -> Tensor:
    """Images in which `others`, reduced with the `resize_weights` of rows and columns, fill the `boxes` `(B, 4)`.

    No size is read from the device, so that a GPU does not wait and a compiled graph serves every size.

    Args:
        nearest: takes the pixel of the largest weight as it is, where a product could round it.
    """
    size = (images.shape[2], images.shape[3])
    if nearest:
        row, column = resized_pixels(boxes, weights).partner
        pixel = (row * size[1] + column).flatten(1).unsqueeze(1)  # one index per pixel: four are several times slower
        moved = others.flatten(2).gather(2, pixel.expand(-1, others.shape[1], -1)).view_as(others)
    else:
        rows, columns = (_shifted(each, boxes[:, 2 * n]) for n, each in enumerate(weights))
        exact = torch.promote_types(images.dtype, torch.float32)
        moved = torch.einsum("byh,bchw,bxw->bcyx", rows.to(exact), others.to(exact), columns.to(exact))
    return torch.where(box_mask(boxes, size).unsqueeze(1), moved.to(images.dtype), images)


def resized_pixels(boxes: Tensor, weights: tuple[Tensor, Tensor]) -> Moves:
    """Which of the partner's pixels `paste_resized` shows in `boxes` `(B, 4)`: those of the largest weight."""
    corner = (boxes[:, 0].unsqueeze(1), boxes[:, 2].unsqueeze(1))
    size = (len(weights[0]), len(weights[1]))
    place = [torch.arange(side, device=boxes.device) - start for side, start in zip(size, corner, strict=True)]
    row, column = (each.argmax(1)[at.clamp_min(0)] for each, at in zip(weights, place, strict=True))
    zoom = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2]) / (size[0] * size[1])
    return Moves(Pixels(row.unsqueeze(2), column.unsqueeze(1)), zoom=zoom)


def _shifted(weights: Tensor, start: Tensor) -> Tensor:
    """Weights `(B, side, side)` with the rows moved down by `start` `(B,)`."""
    row = torch.arange(len(weights), device=weights.device) - start.unsqueeze(1)
    return weights[row.clamp_min(0)]


def _paste_on_host(
    images: Tensor, partner: Tensor, boxes: Tensor, weights: tuple[Tensor, Tensor], interpolation: Interpolation
) -> Tensor:
    """`paste_resized` with sizes as integers, which is several times faster on a CPU."""
    mixed, corners = images.clone(), boxes.tolist()
    sides = (corners[0][1] - corners[0][0], corners[0][3] - corners[0][2])
    if interpolation == "nearest":
        rows, columns = (each[:side].argmax(1) for each, side in zip(weights, sides, strict=True))
        small = images.index_select(2, rows).index_select(3, columns)
    else:
        exact = images.to(torch.promote_types(images.dtype, torch.float32))
        small = functional.interpolate(exact, sides, mode="bilinear", antialias=True).to(images.dtype)
    for number, (other, (top, bottom, left, right)) in enumerate(zip(partner.tolist(), corners, strict=True)):
        mixed[number, :, top:bottom, left:right] = small[other]
    return mixed


@register
@dataclass(frozen=True)
class ResizedMask(Mask):
    """The whole partner, reduced by a uniform scale and pasted inside the image: ResizeMix.

    Args:
        low, high: range of the scale, one per batch; each image has its own position.
        interpolation: "nearest", as in the authors' code, or "bilinear" with a low-pass filter.
    """

    name: ClassVar[str] = "resized"
    moves_pixels: ClassVar[bool] = True
    low: float = 0.1
    high: float = 0.8
    interpolation: Interpolation = "nearest"

    def __post_init__(self) -> None:
        check_fraction("low", self.low)
        check_fraction("high", self.high)
        if self.low > self.high:
            raise ValueError(f"low must not exceed high, got {self.low} and {self.high}")
        check_choice("interpolation", self.interpolation, ("nearest", "bilinear"))

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        scale = self.low + (self.high - self.low) * torch.rand((), generator=generator, dtype=torch.float64)
        uniform = torch.rand(frame.batch, 2, generator=generator, dtype=torch.float64)
        return self.values(frame, float(scale), (uniform * torch.tensor(frame.size)).floor().long())

    def values(self, frame: Frame, scale: float, center: Tensor) -> dict[str, Tensor]:
        """The numbers of a batch from the scale and the centers `(B, 2)` of the boxes."""
        scale = max(scale, 1 / min(frame.size))  # at least one pixel
        sides = (max(math.floor(scale * frame.size[0]), 1), max(math.floor(scale * frame.size[1]), 1))
        return {
            "box": inner_boxes(center, frame.size, sides),
            "rows": resize_weights(sides[0], frame.size[0], scale, self.interpolation).float(),
            "columns": resize_weights(sides[1], frame.size[1], scale, self.interpolation).float(),
        }

    def where(self, values: Values, batch: Unmixed) -> Composed:
        boxes, images, weights = values["box"], batch.images, (values["rows"], values["columns"])
        if boxes.device.type == "cpu" and not torch.compiler.is_compiling():
            mixed = _paste_on_host(images, batch.partner, boxes, weights, self.interpolation)
        else:
            nearest = self.interpolation == "nearest"
            mixed = paste_resized(images, images[batch.partner], boxes, weights, nearest=nearest)
        return Composed(box_mask(boxes, batch.frame.size), mixed, moves=resized_pixels(boxes, weights))
