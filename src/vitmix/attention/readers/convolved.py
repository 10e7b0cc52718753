"""What pyramids of convolutions and attention share: MaxViT, CoAtNet, TinyViT, LeViT.

The blocks of such a reader are those with attention. The convolutions before a block move shares as in models without
attention (see `vitmix.attention.readers.spatial`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitmix._mix import Grid, resample_mask
from vitmix.attention.flow import Products, Reduced
from vitmix.attention.groups import Groups, Merging
from vitmix.attention.readers.pyramid import PyramidReader
from vitmix.attention.readers.spatial import Step, convolve_share, pool_share

__all__ = [
    "ConvolvedReader",
    "Spatial",
    "cells_of",
    "check_last",
    "merged_flow",
    "pooling_weights",
    "residual_share",
    "spatial_share",
]


class Spatial(NamedTuple):
    """A step on a grid of shares `(B, 1, H, W)`, and by how much it reduces the grid."""

    step: Step
    stride: int = 1


class ConvolvedReader(PyramidReader):
    """`before` are the convolutions before each block; those before the first block start at the pixels.

    A block that merges tokens itself has a larger grid than the next one, without a stride between them.
    """

    before: Sequence[Sequence[Spatial]]

    def embed_grid(self, size: Grid) -> Grid:
        return _strided(size, self.before[0])

    def embed_stride(self, size: Grid) -> Grid:
        stride = _stride(self.before[0])
        return stride, stride

    def grids(self, size: Grid) -> tuple[Grid, ...]:
        grids = [self.embed_grid(size)]
        for index in range(1, self.depth):
            grid = self.merged_grid(grids[-1]) if self._merges(index - 1) else grids[-1]
            grids.append(_strided(grid, self.before[index]))
        return tuple(grids)

    def stop_after(self, block: int, images: Tensor) -> None:
        # The model's own stages include convolutions, so their numbers are not those of `blocks`.
        self.model.forward_features(images)

    def _merges(self, index: int) -> bool:
        return self.blocks[index].stage != self.blocks[index + 1].stage and _stride(self.before[index + 1]) == 1

    def embed_share(self, mask: Tensor, size: Grid, dtype: torch.dtype) -> Tensor:
        grid = resample_mask(mask, size, rule="area", dtype=dtype).to(dtype).unsqueeze(1)
        return _through(grid, self.before[0]).squeeze(1)

    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        if index == 0:
            return share
        grid = share.view(len(share), 1, *self.grids(size)[index - 1])
        grid = self.merged_share(grid) if self._merges(index - 1) else grid
        return _through(grid, self.before[index]).flatten(1)

    def final_tokens(self, output: Tensor) -> Tensor:
        return output.flatten(2).transpose(1, 2)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.forward_head(pooled[:, :, None, None])


def _through(grid: Tensor, steps: Sequence[Spatial]) -> Tensor:
    for each in steps:
        grid = each.step(grid)
    return grid


def _stride(steps: Sequence[Spatial]) -> int:
    stride = 1
    for each in steps:  # torch.compile cannot trace math.prod of a generator
        stride *= each.stride
    return stride


def _strided(grid: Grid, steps: Sequence[Spatial]) -> Grid:
    for each in steps:
        grid = -(-grid[0] // each.stride), -(-grid[1] // each.stride)
    return grid


def spatial_share(grid: Tensor, module: nn.Module) -> Tensor:
    """Shares after a convolution, a pooling (or a module with one), or a module that moves nothing."""
    if isinstance(module, nn.Conv2d):
        return convolve_share(grid, module)
    pool = getattr(module, "pool", module)
    return pool_share(grid, pool) if isinstance(pool, nn.AvgPool2d | nn.MaxPool2d) else grid


def residual_share(grid: Tensor, parts: Sequence[nn.Module], shortcut: nn.Module) -> Tensor:
    """Shares after a residual block of convolutions: the mean of both branches."""
    path = grid
    for part in parts:
        path = spatial_share(path, part)
    return (path + spatial_share(grid, shortcut)) / 2


def cells_of(grid: Grid, like: Tensor) -> Tensor:
    """The 2 x 2 cell `(N,)` of each token of a grid, counted row by row."""
    rows, columns = (torch.arange(side, device=like.device) // 2 for side in grid)
    return (rows.unsqueeze(1) * ((grid[1] + 1) // 2) + columns).flatten()


def merged_flow(inner: Products | Reduced | Groups, grid: Grid, pool: Any, *, prefix: int = 0) -> Merging:
    """The flow of a block whose queries are 2 x 2 cells of tokens; `pool` is on its residual connection, if any."""
    cells, queries = cells_of(grid, inner.like), -(-grid[0] // 2) * -(-grid[1] // 2)
    if prefix:
        cells = torch.cat([torch.arange(prefix, device=cells.device), cells + prefix])

    def pooled(share: Tensor) -> Tensor:
        patches = pool_share(share[:, prefix:].reshape(len(share), 1, *grid), pool).flatten(1)
        return torch.cat([share[:, :prefix], patches], dim=1) if prefix else patches

    return Merging(inner, cells, prefix + queries, None if pool is None else pooled)


def check_last(model: Any, *, merges: bool) -> None:
    """Raises an error if the last block merges tokens: the classifier would not read the grid of the last block."""
    if merges:
        raise ValueError(
            f"a {type(model).__name__} whose last block merges tokens cannot be read; give its last stage two blocks"
        )


def pooling_weights(grid: Grid, like: Tensor, pool: Any) -> tuple[Tensor, Tensor]:
    """The averaging weights of a pooling along rows and columns, as in `Reduced`."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    weights = []
    for axis, side in enumerate(grid):
        kernel, stride, padding = (_along(axis, each) for each in (pool.kernel_size, pool.stride, pool.padding))
        eye = torch.eye(side, dtype=dtype, device=like.device).unsqueeze(0)
        weights.append(F.avg_pool1d(eye, kernel, stride, padding, count_include_pad=False).squeeze(0).T)
    return weights[0], weights[1]


def _along(axis: int, value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[axis]
