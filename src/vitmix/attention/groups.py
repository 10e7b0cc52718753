"""Flows of attention within groups of tokens, of blocks that merge tokens, and of windows that overlap."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Given, Products, Reduced

__all__ = ["Followed", "Groups", "Merging", "Overlapping"]


class Groups(Flow):
    """Attention within groups of tokens; `inner` has one batch row per group, those of an image together.

    `queries` `(groups, q)` and `keys` `(groups, k)` are the positions of each group's tokens among all queries and all
    tokens. Each position occurs once.
    """

    def __init__(self, inner: Products | Given, queries: Tensor, keys: Tensor) -> None:
        self.inner, self.queries, self.keys = inner, queries, keys
        self.tokens, self.like = keys.numel(), inner.like

    def carry(self, share: Tensor) -> Tensor:
        carried = self.inner.carry(share[:, self.keys].flatten(0, 1))
        return carried.view(len(share), -1)[:, self.queries.flatten().argsort()]

    def pull(self, weight: Tensor) -> Tensor:
        return self.pull_keys(weight)

    def pull_keys(self, weight: Tensor) -> Tensor:
        """The same: every token is a key."""
        images = self.like.shape[0] // len(self.queries)
        pulled = self.inner.pull_keys(weight.expand(images, -1)[:, self.queries].flatten(0, 1))
        return pulled.view(images, -1)[:, self.keys.flatten().argsort()]

    def maps(self) -> Tensor:
        maps = self.inner.maps().unflatten(0, (-1, len(self.queries)))
        dense = maps.new_zeros(len(maps), maps.shape[2], self.queries.numel(), self.keys.numel())
        for group, (rows, columns) in enumerate(zip(self.queries, self.keys, strict=True)):
            dense[:, :, rows.unsqueeze(1), columns.unsqueeze(0)] = maps[:, group]
        return dense


class Merging(Flow):
    """Attention with fewer queries than tokens, each of which stands for a cell of tokens: a block that merges them.

    A token receives what the query of its cell receives, so the number of tokens stays. The next stage averages the
    tokens of a cell, which gives back the query's share. `cells` `(N,)` is the query of each token among `queries`, and
    `residual` what the residual connection carries to the queries, None if there is none.
    """

    def __init__(
        self,
        inner: Products | Reduced | Groups,
        cells: Tensor,
        queries: int,
        residual: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.inner, self.cells, self.queries, self.residual = inner, cells, queries, residual
        self.prefix, self.tokens, self.like = inner.prefix, len(cells), inner.like

    def carry(self, share: Tensor) -> Tensor:
        return self.inner.carry(share)[:, self.cells]

    def shortcut(self, share: Tensor) -> Tensor:
        assert self.residual is not None
        return self.residual(share)[:, self.cells]

    def update(self, share: Tensor, *, residual: bool = True, rows: int | None = None) -> Tensor:
        return super().update(share, residual=residual and self.residual is not None, rows=rows)

    def pull(self, weight: Tensor) -> Tensor:
        summed = weight.new_zeros(len(weight), self.queries).index_add_(1, self.cells, weight)
        return self.inner.pull_keys(summed)

    def maps(self) -> Tensor:
        return self.inner.maps()[:, :, self.cells]


class Followed(Flow):
    """A flow followed by a spatial step that replaces the tokens, such as a convolution without a residual."""

    def __init__(self, inner: Flow, step: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.step, self.prefix = inner, step, inner.prefix
        self.tokens, self.like = inner.tokens, inner.like

    def carry(self, share: Tensor) -> Tensor:
        return self.inner.carry(share)

    def update(self, share: Tensor, *, residual: bool = True, rows: int | None = None) -> Tensor:
        return self.step(self.inner.update(share, residual=residual))[:, :rows]

    def mass(self) -> Tensor:
        return self.inner.mass()

    def pull(self, weight: Tensor) -> Tensor:
        return self.inner.pull(weight)

    def maps(self) -> Tensor:
        return self.inner.maps()


class Overlapping(Flow):
    """Attention `(B, H, windows, n, n)` within overlapping windows, whose results are added up (VOLO's outlooker).

    Windows lie as those of a convolution. Each row of the matrix is divided by its sum, so it is the mean over the
    windows of a token; padding does not count.
    """

    def __init__(self, attention: Tensor, grid: Grid, *, kernel: int, padding: int, stride: int) -> None:
        self.attention, self.grid = attention.detach(), grid
        self.layout: dict[str, int] = dict(kernel_size=kernel, padding=padding, stride=stride)
        self.tokens, self.like = grid[0] * grid[1], self.attention

    def carry(self, share: Tensor) -> Tensor:
        mean = self._mean()
        return (self._added(mean, share.to(mean.dtype)) / self._sums(mean)).to(share.dtype)

    def pull(self, weight: Tensor) -> Tensor:
        mean = self._mean()
        return self._added(mean.transpose(2, 3), weight.to(mean.dtype) / self._sums(mean))

    def maps(self) -> Tensor:
        """Dense maps over the whole grid; the mean over heads has rows that sum to one."""
        places = self._unfolded(torch.arange(1.0, self.tokens + 1, device=self.like.device).unsqueeze(0))[0].long() - 1
        dense = self.attention.new_zeros(*self.attention.shape[:2], self.tokens + 1, self.tokens + 1)
        for index, rows in enumerate(places):  # index -1 collects the padding
            dense[:, :, rows.unsqueeze(1), rows.unsqueeze(0)] += self.attention[:, :, index]
        return dense[:, :, :-1, :-1] / self._sums(self._mean())[:, None, :, None]

    def _mean(self) -> Tensor:
        with torch.autocast(self.attention.device.type, enabled=False):
            return self.attention.to(torch.promote_types(self.attention.dtype, torch.float32)).mean(1)

    def _sums(self, mean: Tensor) -> Tensor:
        return self._added(mean, mean.new_ones(len(mean), self.tokens))

    def _unfolded(self, values: Tensor) -> Tensor:
        return F.unfold(values.view(len(values), 1, *self.grid), **self.layout).transpose(1, 2)

    def _added(self, matrix: Tensor, values: Tensor) -> Tensor:
        """The products of each window's matrix with its values, added up over windows."""
        with torch.autocast(matrix.device.type, enabled=False):
            windows = (matrix @ self._unfolded(values.expand(len(matrix), -1)).unsqueeze(-1)).squeeze(-1)
            return F.fold(windows.transpose(1, 2), self.grid, **self.layout).flatten(1)
