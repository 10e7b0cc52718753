"""How one block mixes its tokens: attention of any kind, or fixed spatial weights.

A `Flow` acts on one number per token, `(B, N)` in the block's token order, prefix tokens first. It represents a matrix
A `(B, N, N)` whose rows sum to one and which is never built: `carry` is A times a column, `pull` a row times A.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vitmix._mix import Grid
from vitmix.attention import summaries

__all__ = [
    "ClassOnly",
    "Flow",
    "Given",
    "Matrix",
    "Pooled",
    "Products",
    "Reduced",
    "Steps",
    "Windows",
    "cut_windows",
    "join_windows",
    "rollout_saliency",
]


class Flow:
    """Base of all flows. Flows without attention only have `carry`.

    Attributes:
        prefix: number of tokens before the patches.
        tokens: number of tokens, N.
        like: any tensor of the block, for device and precision.
    """

    prefix: int = 0
    tokens: int
    like: Tensor

    def carry(self, share: Tensor) -> Tensor:
        """`A @ share`: what each token receives, `(B, N)`."""
        raise NotImplementedError

    def shortcut(self, share: Tensor) -> Tensor:
        """The shares that the residual connection carries, `(B, N)`."""
        return share

    def update(self, share: Tensor, *, residual: bool = True, rows: int | None = None) -> Tensor:
        """The shares after the block, of all tokens or the first `rows`: the mean of carried and residual shares."""
        carried = self.carry(share)
        return ((carried + self.shortcut(share)) / 2 if residual else carried)[:, :rows]

    def pull(self, weight: Tensor) -> Tensor:
        """`weight @ A`: moves weights on the output tokens back to the input tokens, `(B or 1, N) -> (B, N)`."""
        raise NotImplementedError

    def mass(self) -> Tensor:
        """The part `(B or 1, N)` of each row of A that is not on padding: 1 without padding."""
        return self.like.new_ones((1, self.tokens), dtype=torch.promote_types(self.like.dtype, torch.float32))

    def with_bank(self, length: int, share: Tensor | None) -> "Flow":
        """This flow without the last `length` tokens as queries: they are a bank of keys with these shares."""
        raise NotImplementedError

    def asked(self, *, class_token: bool) -> Tensor:
        """The weight `(1, N)` on the tokens whose attention is read: the class token, or all patches equally."""
        weight = self.like.new_zeros((1, self.tokens), dtype=torch.promote_types(self.like.dtype, torch.float32))
        if class_token:
            weight[:, 0] = 1
        else:
            weight[:, self.prefix :] = 1 / (self.tokens - self.prefix)
        return weight

    def class_row(self) -> Tensor:
        """Attention `(B, n)` of the class token to each of the n patches, not renormalized."""
        return self.pull(self.asked(class_token=True))[:, self.prefix :]

    def column_mean(self) -> Tensor:
        """Mean attention `(B, n)` that each patch receives from the patches."""
        return self.pull(self.asked(class_token=False))[:, self.prefix :]

    def saliency(self, *, class_token: bool) -> Tensor:
        """Saliency `(B, n)` of the patches: the class token's row if there is one, otherwise the column mean."""
        return self.class_row() if class_token else self.column_mean()

    def head_saliency(self, *, class_token: bool) -> Tensor:
        """The same for each head, `(B, H, n)`, from materialized attention, for analysis."""
        maps = self.maps()
        return (maps[:, :, 0] if class_token else maps[:, :, self.prefix :].mean(2))[..., self.prefix :]

    def maps(self) -> Tensor:
        """The attention matrix `(B, H, N, N)` after softmax, for analysis."""
        raise NotImplementedError


class Products(Flow):
    """Attention given as queries `(B, H, N, d)` and keys `(B, H, M, d)`; see `vitmix.attention.summaries`.

    Keys after the first N are tokens of a bank, with the shares `bank_share`.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        prefix: int = 0,
        bias: Tensor | None = None,
        scale: float | None = None,
        bank_share: Tensor | None = None,
    ) -> None:
        self.query, self.key, self.prefix = query.detach(), key.detach(), prefix
        self.bias = None if bias is None else bias.detach()
        self.scale, self.bank_share = scale, bank_share
        self.tokens, self.like = query.shape[2], self.query

    def with_bank(self, length: int, share: Tensor | None) -> "Products":
        rows = self.tokens - length
        query, bias = self.query[:, :, :rows], None if self.bias is None else self.bias[:, :, :rows]
        return Products(query, self.key, prefix=self.prefix, bias=bias, scale=self.scale, bank_share=share)

    def carry(self, share: Tensor) -> Tensor:
        keys = share if self.bank_share is None else torch.cat([share, self.bank_share], dim=1)
        carried = summaries.carried_share(self.query, self.key, keys, bias=self.bias, scale=self.scale)
        return carried.to(share.dtype)

    def update(self, share: Tensor, *, residual: bool = True, rows: int | None = None) -> Tensor:
        if rows is None:
            return super().update(share, residual=residual)
        query, bias = self.query[:, :, :rows], None if self.bias is None else self.bias[:, :, :rows]
        first = Products(query, self.key, bias=bias, scale=self.scale, bank_share=self.bank_share)
        carried = first.carry(share)
        return (carried + share[:, :rows]) / 2 if residual else carried

    def pull(self, weight: Tensor) -> Tensor:
        return self.pull_keys(weight)[:, : self.tokens]

    def pull_keys(self, weight: Tensor) -> Tensor:
        """The same for all keys, `(B or 1, N) -> (B, M)`."""
        return summaries.pulled_weight(self.query, self.key, weight, bias=self.bias, scale=self.scale)

    def class_row(self) -> Tensor:
        return summaries.class_row(self.query, self.key, prefix=self.prefix, bias=self.bias, scale=self.scale)

    def column_mean(self) -> Tensor:
        return summaries.column_mean(self.query, self.key, prefix=self.prefix, bias=self.bias, scale=self.scale)

    def maps(self) -> Tensor:
        return summaries.attention_maps(self.query, self.key, bias=self.bias, scale=self.scale)


class Given(Flow):
    """Attention that the model materializes anyway, `(B, H, N, M)` after softmax; see `Products` for M > N."""

    def __init__(self, attention: Tensor, *, prefix: int = 0, bank_share: Tensor | None = None) -> None:
        self.attention, self.prefix, self.bank_share = attention.detach(), prefix, bank_share
        self.tokens, self.like = attention.shape[2], self.attention

    def _mean(self) -> Tensor:
        with torch.autocast(self.attention.device.type, enabled=False):
            mean = self.attention.to(torch.promote_types(self.attention.dtype, torch.float32)).mean(1)
            return mean / mean.sum(-1, keepdim=True)  # rows rounded to half precision do not sum to one

    def with_bank(self, length: int, share: Tensor | None) -> "Given":
        return Given(self.attention[:, :, : self.tokens - length], prefix=self.prefix, bank_share=share)

    def carry(self, share: Tensor) -> Tensor:
        keys = share if self.bank_share is None else torch.cat([share, self.bank_share], dim=1)
        mean = self._mean()
        return (mean * keys.to(mean.dtype).unsqueeze(1)).sum(-1).to(share.dtype)

    def pull(self, weight: Tensor) -> Tensor:
        return self.pull_keys(weight)[:, : self.tokens]

    def pull_keys(self, weight: Tensor) -> Tensor:
        """The same for all keys, `(B or 1, N) -> (B, M)`."""
        mean = self._mean()
        return (mean * weight.to(mean.dtype).unsqueeze(-1)).sum(1)

    def maps(self) -> Tensor:
        return self.attention


class ClassOnly(Flow):
    """Class attention: the class token, the first of the N, is the only query; the patches do not change."""

    prefix = 1

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.query, self.key = query.detach(), key.detach()
        self.tokens, self.like = key.shape[2], self.query

    def carry(self, share: Tensor) -> Tensor:
        carried = summaries.carried_share(self.query, self.key, share).to(share.dtype)
        return torch.cat([carried, share[:, 1:]], dim=1)

    def pull(self, weight: Tensor) -> Tensor:
        patches = torch.cat([torch.zeros_like(weight[:, :1]), weight[:, 1:]], dim=1)
        return summaries.pulled_weight(self.query, self.key, weight[:, :1]) + patches

    def maps(self) -> Tensor:
        return summaries.attention_maps(self.query, self.key)


class Pooled(Flow):
    """Attention pooling: latent queries read the tokens and replace them; there is no residual."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.query, self.key = query.detach(), key.detach()
        self.tokens, self.like = key.shape[2], self.query

    def carry(self, share: Tensor) -> Tensor:
        return summaries.carried_share(self.query, self.key, share).to(share.dtype)

    def update(self, share: Tensor, *, residual: bool = True, rows: int | None = None) -> Tensor:
        return self.carry(share)


class Windows(Flow):
    """Attention within windows of a grid, cyclically shifted or not; `inner` has one batch row per window.

    Windows of an image are ordered row by row. If the grid does not divide, it is padded at the bottom and the right,
    before the shift (`pad_first`) or after it. Padding has no share and no weight.
    """

    def __init__(
        self, inner: Products | Given, grid: Grid, window: Grid, shift: Grid, *, pad_first: bool = False
    ) -> None:
        self.inner, self.grid, self.window, self.shift, self.pad_first = inner, grid, window, shift, pad_first
        self.pad = (-grid[0] % window[0], -grid[1] % window[1])
        self.tokens, self.like = grid[0] * grid[1], inner.like

    def carry(self, share: Tensor) -> Tensor:
        carried = self._join(self.inner.carry(self._split(share)))
        return carried if self.pad == (0, 0) else carried / self.mass().to(share.dtype)

    def mass(self) -> Tensor:
        dtype = torch.promote_types(self.like.dtype, torch.float32)
        ones = self.like.new_ones((self._images(), self.tokens), dtype=dtype)
        return ones if self.pad == (0, 0) else self._join(self.inner.carry(self._split(ones)))

    def pull(self, weight: Tensor) -> Tensor:
        return self._join(self.inner.pull(self._split(weight.expand(self._images(), -1))))

    def _images(self) -> int:
        count = (self.grid[0] + self.pad[0]) * (self.grid[1] + self.pad[1]) // (self.window[0] * self.window[1])
        return self.like.shape[0] // count

    def maps(self) -> Tensor:
        """Dense maps over the whole grid, zero between windows, without attention to padding."""
        tokens = self.tokens
        place = self._split(torch.arange(1, tokens + 1, device=self.like.device).view(1, -1)) - 1
        count = len(place)
        maps = self.inner.maps().unflatten(0, (-1, count))
        heads = maps.shape[2]
        dense = maps.new_zeros(len(maps), heads, tokens + 1, tokens + 1)  # index -1 collects the padding
        for index in range(count):
            rows = place[index]
            dense[:, :, rows.unsqueeze(1), rows.unsqueeze(0)] = maps[:, index]
        return dense[:, :, :tokens, :tokens]

    def _split(self, values: Tensor) -> Tensor:
        grid = values.view(len(values), *self.grid, 1)
        return cut_windows(grid, self.window, self.shift, pad_first=self.pad_first).squeeze(-1)

    def _join(self, values: Tensor) -> Tensor:
        joined = join_windows(values.unsqueeze(-1), self.grid, self.window, self.shift, pad_first=self.pad_first)
        return joined.flatten(1)


def cut_windows(tokens: Tensor, window: Grid, shift: Grid, *, pad_first: bool) -> Tensor:
    """Tokens `(B, H, W, C)` rolled, padded and cut into windows `(B * windows, cells, C)` as Swin does."""
    (height, width), shifts = window, (-shift[0], -shift[1])
    if not pad_first:
        tokens = torch.roll(tokens, shifts, (1, 2))
    tokens = torch.nn.functional.pad(tokens, (0, 0, 0, -tokens.shape[2] % width, 0, -tokens.shape[1] % height))
    if pad_first:
        tokens = torch.roll(tokens, shifts, (1, 2))
    _, rows, columns, channels = tokens.shape
    cut = tokens.reshape(-1, rows // height, height, columns // width, width, channels)
    return cut.transpose(2, 3).reshape(-1, height * width, channels)


def join_windows(windows: Tensor, grid: Grid, window: Grid, shift: Grid, *, pad_first: bool) -> Tensor:
    """The inverse of `cut_windows`: tokens `(B, H, W, C)` of a grid, without padding."""
    (height, width), channels = window, windows.shape[-1]
    rows, columns = grid[0] + -grid[0] % height, grid[1] + -grid[1] % width
    cut = windows.reshape(-1, rows // height, columns // width, height, width, channels)
    tokens = cut.transpose(2, 3).reshape(-1, rows, columns, channels)
    if pad_first:
        return torch.roll(tokens, shift, (1, 2))[:, : grid[0], : grid[1]]
    return torch.roll(tokens[:, : grid[0], : grid[1]], shift, (1, 2))


class Reduced(Flow):
    """Attention to spatially reduced keys: each key is the mean over a cell of tokens.

    `rows` `(m, H)` and `columns` `(k, W)` are the averaging weights of the cells along each side. The matrix is the
    attention to the m * k keys times these weights. Prefix tokens of `inner` are keys themselves.
    """

    def __init__(self, inner: Products | Given, rows: Tensor, columns: Tensor) -> None:
        self.inner, self.rows, self.columns, self.prefix = inner, rows, columns, inner.prefix
        self.tokens, self.like = self.prefix + rows.shape[1] * columns.shape[1], inner.like

    def with_bank(self, length: int, share: Tensor | None) -> Flow:
        return Reduced(self.inner.with_bank(length, share), self.rows, self.columns)

    def carry(self, share: Tensor) -> Tensor:
        rows, columns = self.rows.to(share.dtype), self.columns.to(share.dtype)
        grid = share[:, self.prefix :].reshape(len(share), rows.shape[1], columns.shape[1])
        with torch.autocast(share.device.type, enabled=False):
            keys = (rows @ grid @ columns.T).flatten(1)
        return self.inner.carry(torch.cat([share[:, : self.prefix], keys], dim=1) if self.prefix else keys)

    def pull(self, weight: Tensor) -> Tensor:
        pulled = self.inner.pull_keys(weight)
        rows, columns = self.rows.to(pulled.dtype), self.columns.to(pulled.dtype)
        keys = self.prefix + rows.shape[0] * columns.shape[0]  # those of a bank come after them
        grid = pulled[:, self.prefix : keys].reshape(-1, rows.shape[0], columns.shape[0])
        with torch.autocast(pulled.device.type, enabled=False):
            tokens = (rows.T @ grid @ columns).flatten(1)
        return torch.cat([pulled[:, : self.prefix], tokens], dim=1) if self.prefix else tokens

    def pull_keys(self, weight: Tensor) -> Tensor:
        """The same: its keys are the tokens."""
        return self.pull(weight)

    def maps(self) -> Tensor:
        maps = self.inner.maps()
        rows, columns = self.rows.to(maps.dtype), self.columns.to(maps.dtype)
        cells = torch.einsum("ah,bw->abhw", rows, columns).flatten(2).flatten(0, 1)
        patches = maps[..., self.prefix : self.prefix + len(cells)] @ cells
        return torch.cat([maps[..., : self.prefix], patches], dim=-1) if self.prefix else patches


class Matrix(Flow):
    """Fixed weights `(N, N)` between tokens, rows summing to one: a token-mixing layer."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights.detach()

    def carry(self, share: Tensor) -> Tensor:
        with torch.autocast(share.device.type, enabled=False):
            return share @ self.weights.to(share.dtype).T


class Steps(Flow):
    """A chain of spatial steps on the grid of shares, with a shortcut that is also a chain: a convolutional block."""

    def __init__(self, grid: Grid, steps: Sequence[Callable[[Tensor], Tensor]], shortcut: Callable[[Tensor], Tensor]):
        self.grid, self.steps, self.branch = grid, steps, shortcut

    def carry(self, share: Tensor) -> Tensor:
        grid = share.view(len(share), 1, *self.grid)
        for step in self.steps:
            grid = step(grid)
        return grid.flatten(1)

    def shortcut(self, share: Tensor) -> Tensor:
        return self.branch(share.view(len(share), 1, *self.grid)).flatten(1)


def rollout_saliency(flows: Sequence[Flow], *, class_token: bool) -> Tensor:
    """Saliency `(B, n)` of the patches: that of the last flow, rolled out through the earlier ones.

    Each earlier flow acts as `(A + I) / 2`.
    """
    last = flows[-1]
    if len(flows) == 1:
        return last.saliency(class_token=class_token)
    attention = last.pull(last.asked(class_token=class_token))
    for flow in reversed(flows[:-1]):
        attention = (flow.pull(attention) + attention) / 2
    return attention[:, last.prefix :]
