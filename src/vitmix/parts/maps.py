"""A teacher's activation maps, for TokenMix's targets: selecting the label's channel and cropping."""

import torch
from torch import Tensor

from vitmix._mix import Grid

__all__ = ["class_maps", "crop_maps"]


def class_maps(values: Tensor, indices: Tensor, labels: Tensor) -> Tensor:
    """The label's map `(B, h, w)` from the top k classes of each location `(B, k, h, w)`; 0 if the label is missing."""
    return (values * (indices == labels.view(-1, 1, 1, 1))).sum(1)


def crop_maps(maps: Tensor, crops: Tensor, grid: Grid) -> Tensor:
    """Maps `(B, h, w)` of whole images, cropped with each image and resampled to `grid`.

    Args:
        crops: `(B, 4)` fractions of the image: top, left, height, width.
    """
    from torchvision.ops import roi_align

    rows, columns = maps.shape[-2:]
    top, left, height, width = crops.to(maps.dtype).unbind(1)
    # Half a cell back, because the coordinates of roi_align put the center of the first cell at 0.
    corners = [left * columns, top * rows, (left + width) * columns, (top + height) * rows]
    boxes = torch.stack(corners, dim=1) - 0.5
    number = torch.arange(len(maps), device=maps.device, dtype=maps.dtype).unsqueeze(1)
    return roi_align(maps.unsqueeze(1), torch.cat([number, boxes], dim=1), grid, aligned=False).squeeze(1)
