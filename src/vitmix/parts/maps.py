"""A teacher's maps: the label's activation for TokenMix, labels of all classes for token labeling and ReLabel."""

import torch
from torch import Tensor

from vitmix._mix import Grid

__all__ = ["class_maps", "crop_label_maps", "crop_maps", "dense_maps", "placed_logits", "pooled_boxes"]


def class_maps(values: Tensor, indices: Tensor, labels: Tensor) -> Tensor:
    """The label's map `(B, h, w)` from the top k classes of each location `(B, k, h, w)`; 0 if the label is missing."""
    return (values * (indices == labels.view(-1, 1, 1, 1))).sum(1)


def dense_maps(values: Tensor, indices: Tensor, num_classes: int) -> Tensor:
    """Logits `(B, K, h, w)` of all classes from the top k of each location `(B, k, h, w)`; 0 for the other classes."""
    batch, _, rows, columns = values.shape
    return values.new_zeros(batch, num_classes, rows, columns).scatter(1, indices.long(), values)


def crop_maps(maps: Tensor, crops: Tensor, grid: Grid) -> Tensor:
    """Maps `(B, h, w)` of whole images, cropped with each image and resampled to `grid`.

    Args:
        crops: `(B, 4)` fractions of the image: top, left, height, width.
    """
    return _cropped(maps.unsqueeze(1), crops, grid).squeeze(1)


def crop_label_maps(maps: Tensor, crops: Tensor, flips: Tensor, grid: Grid) -> Tensor:
    """Probabilities `(B, K, *grid)` of each cell of a crop, from logits `(B, K, h, w)` of the whole image.

    With the grid (1, 1), this is the label of the whole crop: ReLabel.

    Args:
        crops: `(B, 4)` fractions of the image: top, left, height, width; counted after flipping.
        flips: `(B,)` bool, whether the image is mirrored.
    """
    maps = torch.where(flips.view(-1, 1, 1, 1), maps.flip(3), maps)
    return _cropped(maps, crops, grid).softmax(1)


def placed_logits(values: Tensor, indices: Tensor, places: Tensor, grid: Grid, num_classes: int) -> Tensor:
    """Logits `(B, K, *grid)` of an augmented image's cells, from the top k of each location `(B, k, h, w)`.

    Classes that are not among the top k have the logit 0, and so has what comes from outside the image.

    Args:
        indices: the classes of `values`; negative ones are left out.
        places: `(B, 3, H, W)` for a grid as fine as `grid` or a multiple of it: where each cell comes from, as row and
            column from 0 to 1 of the whole image, and the part of it that is inside. Samples of a cell are averaged.
    """
    row, column, inside = places.to(torch.promote_types(values.dtype, torch.float32)).unbind(1)
    found, whose = [], []
    for weight, location in _corners(row, column, (values.shape[2], values.shape[3])):
        location = location.flatten(1).unsqueeze(1).expand(-1, values.shape[1], -1)
        picked = values.flatten(2).gather(2, location).unflatten(2, row.shape[1:])
        found.append(picked * (weight * inside).unsqueeze(1))
        whose.append(indices.flatten(2).gather(2, location).unflatten(2, row.shape[1:]))
    samples, classes = (_by_cell(torch.cat(each, dim=1), grid) for each in (found, whose))
    count = places.shape[2] * places.shape[3] / (grid[0] * grid[1])
    logits = samples.new_zeros(len(values), 1 + num_classes, *grid)
    return logits.scatter_add_(1, classes.long() + 1, samples / count)[:, 1:]


def _corners(row: Tensor, column: Tensor, size: Grid) -> list[tuple[Tensor, Tensor]]:
    """The weights and the locations of the four neighbors between which a map is interpolated."""
    y, x = ((each * side - 0.5).clamp(0, side - 1) for each, side in zip((row, column), size, strict=True))
    top, left = y.floor(), x.floor()
    vertical = [(1 - (y - top), top), (y - top, (top + 1).clamp_max(size[0] - 1))]
    horizontal = [(1 - (x - left), left), (x - left, (left + 1).clamp_max(size[1] - 1))]
    return [(v * h, (r * size[1] + c).long()) for v, r in vertical for h, c in horizontal]


def _by_cell(samples: Tensor, grid: Grid) -> Tensor:
    """Samples `(B, k, H, W)` as `(B, k * samples per cell, *grid)`."""
    cells = samples.unflatten(3, (grid[1], -1)).unflatten(2, (grid[0], -1))
    return cells.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)


def pooled_boxes(maps: Tensor, boxes: Tensor, grid: Grid, *, aligned: bool) -> Tensor:
    """Means `(B, K, *grid)` of maps `(B, K, h, w)` over the cells of one box each: torchvision's RoI align.

    Args:
        boxes: `(B, 4)` left, top, right, bottom, in cells of the maps.
        aligned: whether a cell's center is half a cell after its edge, not on it.
    """
    from torchvision.ops import roi_align

    # Boxes carry the number of their image, which half precision would round.
    exact = maps if maps.dtype == torch.float64 else maps.float()
    number = torch.arange(len(maps), device=maps.device, dtype=exact.dtype).unsqueeze(1)
    return roi_align(exact, torch.cat([number, boxes.to(exact.dtype)], dim=1), grid, aligned=aligned).to(maps.dtype)


def _cropped(maps: Tensor, crops: Tensor, grid: Grid) -> Tensor:
    rows, columns = maps.shape[-2:]
    top, left, height, width = crops.to(maps.dtype).unbind(1)
    # Half a cell back, because unaligned coordinates put the center of the first cell at 0.
    corners = [left * columns, top * rows, (left + width) * columns, (top + height) * rows]
    return pooled_boxes(maps, torch.stack(corners, dim=1) - 0.5, grid, aligned=False)
