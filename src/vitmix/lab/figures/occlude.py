"""Confidence under growing occlusion: cells of a picture go black, the same ones for every model."""

import torch
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.readers import logits_of

PARTS = tuple(number / 10 for number in range(10))


def occluded(pixels: Tensor, order: Tensor, part: float, grid: Grid) -> Tensor:
    """A picture `(3, H, W)` without the first cells of an order that make up `part` of it; sets of cells are nested."""
    hidden = torch.zeros(grid[0] * grid[1])
    hidden[order[: round(part * len(order))]] = 1
    mask = nn.functional.interpolate(hidden.view(1, 1, *grid), pixels.shape[1:], mode="nearest")
    return pixels.masked_fill(mask[0] > 0, 0)


def cell_orders(grid: Grid, count: int, seed: int) -> Tensor:
    """Random orders `(count, cells)` in which the cells of a grid go."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(grid[0] * grid[1], generator=generator) for _ in range(count)])


@torch.no_grad()
def confidence(model: nn.Module, images: Tensor, label: int, *, batch: int = 32) -> Tensor:
    """The softmax value `(B,)` of a class."""
    logits = torch.cat([logits_of(model(part)) for part in images.split(batch)])
    return logits.float().softmax(1)[:, label]
