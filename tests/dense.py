"""Attention of any model as dense matrices, found without the library: an independent twin of its readers.

Torch's own calls are watched while the model runs: fused attention is computed again in plain steps, softmax is taken
as it comes. Windows and reduced keys are then spread over the whole grid token by token.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Grid = tuple[int, int]


class Watch(TorchFunctionMode):
    """Collects every attention map `(B, H, N, M)` that is computed while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is nn.functional.scaled_dot_product_attention:
            query, key = args[0], args[1]
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            scale = kwargs.get("scale") or query.shape[-1] ** -0.5
            scores = query @ key.transpose(-2, -1) * scale
            self.maps.append((scores if mask is None else scores + mask).softmax(-1))
        elif func in (nn.functional.softmax, torch.softmax, torch.Tensor.softmax) and result.ndim in (4, 5):
            self.maps.append(result)
        return result


@torch.no_grad()
def watched_maps(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The attention maps of a model's blocks as they are computed, windows and reduced keys included."""
    taken: list[Tensor] = []
    handles = []
    for module in model.modules():  # torch's own module runs where no call can be watched
        if isinstance(module, nn.MultiheadAttention):
            handles.append(module.register_forward_pre_hook(lambda m, args: taken.append(multihead_map(m, args[0]))))
    with Watch() as watch:
        model(images)
    for handle in handles:
        handle.remove()
    return watch.maps or taken


def multihead_map(module: nn.MultiheadAttention, tokens: Tensor) -> Tensor:
    width = module.embed_dim
    query = tokens @ module.in_proj_weight[:width].T + module.in_proj_bias[:width]
    key = tokens @ module.in_proj_weight[width : 2 * width].T + module.in_proj_bias[width : 2 * width]
    split = (len(tokens), -1, module.num_heads, width // module.num_heads)
    query, key = query.view(split).transpose(1, 2), key.view(split).transpose(1, 2)
    return (query @ key.transpose(-2, -1) / (width // module.num_heads) ** 0.5).softmax(-1)


def spread_windows(maps: Tensor, grid: Grid, window: Grid, shift: Grid, pad_first: bool) -> Tensor:
    """Windows' attention `(B * windows, H, n, n)` as one `(B, H, N, N)`; padding is left out."""
    rows, columns = (-(-side // cells) * cells for side, cells in zip(grid, window, strict=True))
    down, across = rows // window[0], columns // window[1]
    maps = maps.view(-1, down * across, *maps.shape[1:])
    dense = maps.new_zeros(len(maps), maps.shape[2], grid[0] * grid[1], grid[0] * grid[1])
    for number in range(down * across):
        tokens = []
        for cell in range(window[0] * window[1]):
            row = number // across * window[0] + cell // window[1]
            column = number % across * window[1] + cell % window[1]
            if pad_first:
                row, column = (row + shift[0]) % rows, (column + shift[1]) % columns
                inside = row < grid[0] and column < grid[1]
            else:
                inside = row < grid[0] and column < grid[1]
                row, column = (row + shift[0]) % grid[0], (column + shift[1]) % grid[1]
            tokens.append(row * grid[1] + column if inside else None)
        for i, query in enumerate(tokens):
            for j, key in enumerate(tokens):
                if query is not None and key is not None:
                    dense[:, :, query, key] = maps[:, number, :, i, j]
    return dense


def spread_cells(maps: Tensor, grid: Grid, bounds: tuple[list[range], list[range]]) -> Tensor:
    """Attention to reduced keys `(B, H, N, M)` as `(B, H, N, N)`: a key's attention is shared out over its cell."""
    dense = maps.new_zeros(*maps.shape[:3], grid[0] * grid[1])
    for number in range(maps.shape[-1]):
        rows, columns = bounds[0][number // len(bounds[1])], bounds[1][number % len(bounds[1])]
        for row in rows:
            for column in columns:
                dense[..., row * grid[1] + column] += maps[..., number] / (len(rows) * len(columns))
    return dense


def even_cells(side: int, ratio: int) -> list[range]:
    return [range(cell * ratio, (cell + 1) * ratio) for cell in range(side // ratio)]


def adaptive_cells(side: int, count: int) -> list[range]:
    return [range(cell * side // count, -(-(cell + 1) * side // count)) for cell in range(count)]


def under_kernel(grid: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Means under a square kernel, cell by cell; what lies outside does not count."""
    side = grid.shape[-1]
    count = (side + 2 * padding - kernel) // stride + 1
    out = grid.new_zeros(len(grid), count, count)
    for i in range(count):
        for j in range(count):
            rows = slice(max(i * stride - padding, 0), i * stride - padding + kernel)
            columns = slice(max(j * stride - padding, 0), j * stride - padding + kernel)
            out[:, i, j] = grid[:, rows, columns].mean((1, 2))
    return out


def merge_cells(grid: Tensor) -> Tensor:
    """The mean over each 2 x 2 cell; cells at the border count what they have."""
    side = -(-grid.shape[-1] // 2)
    out = grid.new_zeros(len(grid), side, side)
    for i in range(side):
        for j in range(side):
            out[:, i, j] = grid[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2))
    return out
