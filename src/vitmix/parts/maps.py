"""A teacher's maps: the label's activation for TokenMix, labels of all classes for token labeling and ReLabel."""

import torch
from torch import Tensor

from vitmix._mix import Grid

__all__ = ["class_maps", "crop_label_maps", "crop_maps", "dense_maps", "pooled_boxes"]


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


def pooled_boxes(maps: Tensor, boxes: Tensor, grid: Grid, *, aligned: bool) -> Tensor:
    """Means `(B, K, *grid)` of maps `(B, K, h, w)` over the cells of one box each: torchvision's RoI align.

    Args:
        boxes: `(B, 4)` left, top, right, bottom, in cells of the maps.
        aligned: whether a cell's center is half a cell after its edge, not on it.
    """
    from torchvision.ops import roi_align

    number = torch.arange(len(maps), device=maps.device, dtype=maps.dtype).unsqueeze(1)
    return roi_align(maps, torch.cat([number, boxes.to(maps.dtype)], dim=1), grid, aligned=aligned)


def _cropped(maps: Tensor, crops: Tensor, grid: Grid) -> Tensor:
    rows, columns = maps.shape[-2:]
    top, left, height, width = crops.to(maps.dtype).unbind(1)
    # Half a cell back, because unaligned coordinates put the center of the first cell at 0.
    corners = [left * columns, top * rows, (left + width) * columns, (top + height) * rows]
    return pooled_boxes(maps, torch.stack(corners, dim=1) - 0.5, grid, aligned=False)
