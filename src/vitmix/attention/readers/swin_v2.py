"""Swin V2: cosine attention within shifted windows, which timm and Hugging Face have in memory anyway."""

import math
from typing import Any, ClassVar

import torch
from timm.models import swin_transformer_v2
from torch import Tensor, nn
from torch.nn import functional as F

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Given, Windows, cut_windows
from vitmix.attention.readers.base import BlockReader, Handles, Reader, exactly
from vitmix.attention.readers.pyramid import SwinReader
from vitmix.attention.readers.sequence import projected_with_bias

__all__ = ["CosineBlock", "CosineWindowBlock", "cosine_attention", "cosine_heads", "position_bias", "read_swin2"]


def cosine_heads(query: Tensor, key: Tensor, logit_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose product is the cosine times the learned scale of each head."""
    return F.normalize(query, dim=-1) * logit_scale.clamp(max=math.log(100.0)).exp(), F.normalize(key, dim=-1)


def position_bias(layers: nn.Sequential, table: Tensor, index: Tensor) -> Tensor:
    """The continuous position bias `(H, n, n)`: a small network of the log-spaced offsets between two cells."""
    for layer in layers:
        table = layer.forward(table)
    return 16 * torch.sigmoid(table.flatten(0, 2)[index].permute(2, 0, 1))


def cosine_attention(query: Tensor, key: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """Attention `(B * windows, H, n, n)`; `mask` is `(windows, n, n)`."""
    scores = query @ key.transpose(-2, -1) + bias
    if mask is not None:
        scores = (scores.unflatten(0, (-1, len(mask))) + mask.unsqueeze(1)).flatten(0, 1)
    return scores.softmax(-1)


class CosineBlock(BlockReader):
    """Reads the softmax that `softmax_hook` finds. The norm comes after attention."""

    no_bank: ClassVar[str | None] = "a window cannot contain other tokens"
    pad_first: ClassVar[bool] = False
    grid: Grid | None = None

    def hooks(self) -> Handles:
        return [self.module.register_forward_pre_hook(self._on_block), self.softmax_hook()]

    def softmax_hook(self) -> Any:
        """Registers the hook that calls `found` with the attention of every window."""
        raise NotImplementedError

    def grid_of(self, args: tuple[Any, ...]) -> Grid:
        """The grid of tokens, from the arguments of the block."""
        return args[0].shape[1], args[0].shape[2]

    def window(self) -> tuple[Grid, Grid]:
        """Size and shift of the windows."""
        return tuple(self.module.window_size), tuple(self.module.shift_size)

    def _on_block(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.grid = self.grid_of(args)

    def found(self, attention: Tensor) -> None:
        if self.wanted():
            assert self.grid is not None
            self.report(self.flow(attention, self.grid))

    def flow(self, attention: Tensor, grid: Grid) -> Flow:
        return Windows(Given(attention), grid, *self.window(), pad_first=self.pad_first)

    def cut(self, tokens: Tensor) -> Tensor:
        return cut_windows(tokens, *self.window(), pad_first=self.pad_first)


class CosineWindowBlock(CosineBlock):
    """timm's block."""

    def softmax_hook(self) -> Any:
        return self.attention.softmax.register_forward_hook(self._on_softmax)

    def _on_softmax(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.found(output)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        block, attention, grid = self.module, self.attention, (tokens.shape[1], tokens.shape[2])
        query, key = projected_with_bias(attention, self.cut(tokens), kinds=2)
        query, key = cosine_heads(query, key, attention.logit_scale)
        bias = position_bias(attention.cpb_mlp, attention.relative_coords_table, attention.relative_position_index)
        mask = block.attn_mask
        if getattr(block, "dynamic_mask", False):
            rows, columns = (side + -side % cells for side, cells in zip(grid, block.window_size, strict=True))
            mask = block.get_attn_mask(tokens.new_empty(1, rows, columns, 1))
        return self.flow(cosine_attention(query, key, bias, mask), grid)


def read_swin2(model: Any) -> Reader:
    if model.head.global_pool.pool_type != "avg":
        raise ValueError("a SwinTransformerV2 can be read only with global_pool='avg'")
    blocks = [
        CosineWindowBlock(
            exactly(block, swin_transformer_v2.SwinTransformerV2Block),
            exactly(block.attn, swin_transformer_v2.WindowAttention),
            norm=None,
            prefix=0,
            class_token=False,
            width=block.dim,
            stage=number,
        )
        for number, stage in enumerate(model.layers)
        for block in stage.blocks
    ]
    return SwinReader(model, list(blocks), final_module=model.norm, prefix=0, readout="mean")
