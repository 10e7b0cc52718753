"""Pyramids: Swin (attention within shifted windows) and PVT (attention to spatially reduced keys)."""

from collections.abc import Callable
from typing import Any

import torch
from timm.models import pvt_v2, swin_transformer
from torch import Tensor, nn
from torch.nn import functional as F

from vitmix._mix import Grid, initial_token_share, resample_mask
from vitmix.attention.flow import Flow, Given, Products, Reduced, Windows, cut_windows
from vitmix.attention.readers.base import (
    BlockReader,
    Handles,
    Reader,
    ReplacedForward,
    check_divides,
    exactly,
    one_head_each,
    project_heads,
    stacked_heads,
)
from vitmix.models import pvt

__all__ = [
    "PVT1Reader",
    "PVT2Reader",
    "PyramidReader",
    "ReducedBlock",
    "SwinReader",
    "WindowBlock",
    "read_pvt1",
    "read_pvt2",
    "read_swin",
    "reduction",
]


class PyramidReader(Reader):
    """A model with stages, each of which starts by merging patches; prefix tokens stay, and more may join."""

    def grids(self, size: Grid) -> tuple[Grid, ...]:
        grids = [self.embed_grid(size)]
        for before, block in zip(self.blocks[:-1], self.blocks[1:], strict=True):
            grids.append(self.merged_grid(grids[-1]) if block.stage != before.stage else grids[-1])
        return tuple(grids)

    def merged_grid(self, grid: Grid) -> Grid:
        """The grid after merging 2 x 2 tokens, padded if odd."""
        return -(-grid[0] // 2), -(-grid[1] // 2)

    def merged_share(self, share: Tensor) -> Tensor:
        """The mean over each 2 x 2 cell of a grid of shares `(B, 1, H, W)`; padding does not count."""
        return F.avg_pool2d(share, 2, 2, ceil_mode=True, count_include_pad=False)

    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        if index == 0 or self.blocks[index].stage == self.blocks[index - 1].stage:
            return share
        grid, kept = self.grids(size)[index - 1], self.blocks[index - 1].prefix
        merged = self.merged_share(share[:, kept:].reshape(-1, 1, *grid)).flatten(1)
        joined = initial_token_share(merged, image_share, prefix=self.blocks[index].prefix - kept)
        return torch.cat([share[:, :kept], joined], dim=1) if kept else joined

    def stop_after(self, block: int, images: Tensor) -> None:
        stage = self.blocks[block].stage
        self.model.forward_intermediates(images, indices=[stage], stop_early=True, intermediates_only=True)


# Swin


class WindowBlock(BlockReader):
    """timm's Swin block: the grid is rolled, then padded, then cut into windows.

    Without fused attention, timm's default for windows, the block has its attention in memory; it is read there.
    """

    no_bank = "a window cannot contain other tokens"
    grid: Grid | None = None
    mask: Tensor | None = None

    def hooks(self) -> Handles:
        return [
            self.module.register_forward_pre_hook(self._on_block),
            self.attention.register_forward_pre_hook(self._on_call, with_kwargs=True),
            self.attention.qkv.register_forward_hook(self._on_projected),
            self.attention.softmax.register_forward_hook(self._on_softmax),
        ]

    def _on_block(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.grid = (args[0].shape[1], args[0].shape[2])

    def _on_call(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.mask = kwargs.get("mask") if len(args) < 2 else args[1]

    def _on_projected(self, module: nn.Module, args: Any, output: Tensor) -> None:
        mask, self.mask = self.mask, None
        if self.attention.fused_attn and self.wanted():
            assert self.grid is not None
            query, key, _ = stacked_heads(output, self.attention.num_heads, kinds=3)
            self.report(self._flow(query, key, mask, self.grid))

    def _on_softmax(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.wanted():
            assert self.grid is not None
            self.report(self._windows(Given(output), self.grid))

    def _flow(self, query: Tensor, key: Tensor, mask: Tensor | None, grid: Grid) -> Flow:
        with torch.no_grad():  # must not save tensors for backward: activation checkpointing counts them
            bias = self.attention._get_rel_pos_bias()
            bias = bias if mask is None else bias + mask.unsqueeze(1)
        return self._windows(Products(query, key, bias=bias), grid)

    def _windows(self, inner: Products | Given, grid: Grid) -> Flow:
        return Windows(inner, grid, tuple(self.module.window_size), tuple(self.module.shift_size))

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        block, grid = self.module, (tokens.shape[1], tokens.shape[2])
        windows = cut_windows(self.norm.forward(tokens), block.window_size, block.shift_size, pad_first=False)
        mask = block.get_attn_mask(tokens) if getattr(block, "dynamic_mask", False) else block.attn_mask
        query, key = project_heads(windows, self.attention.qkv, self.attention.num_heads, kinds=2)
        return self._flow(query, key, mask, grid)


class SwinReader(PyramidReader):
    def classify(self, pooled: Tensor) -> Tensor:
        head = self.model.head
        return head.fc(head.drop(pooled))


def read_swin(model: Any) -> Reader:
    if model.head.global_pool.pool_type != "avg":
        raise ValueError("a SwinTransformer can be read only with global_pool='avg'")
    blocks = [
        WindowBlock(
            block,
            exactly(block.attn, swin_transformer.WindowAttention),
            norm=block.norm1,
            prefix=0,
            class_token=False,
            width=block.dim,
            stage=number,
        )
        for number, stage in enumerate(model.layers)
        for block in (exactly(each, swin_transformer.SwinTransformerBlock) for each in stage.blocks)
    ]
    return SwinReader(model, list(blocks), final_module=model.norm, prefix=0, readout="mean")


# PVT


class ReducedBlock(BlockReader):
    """PVT's block: keys are means over r x r cells (or, in the linear form, over a fixed 7 x 7 grid of cells)."""

    grid: Grid | None = None
    query: Tensor | None = None

    def hooks(self) -> Handles:
        return [
            self.attention.register_forward_pre_hook(self._on_call),
            self.attention.q.register_forward_hook(self._on_query),
            self.attention.kv.register_forward_hook(self._on_keys),
        ]

    def _on_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.grid = (args[1][0], args[1][1])

    def _on_query(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.query = output if self.wanted() else None

    def _on_keys(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.query is not None:
            query, self.query = self.query, None
            assert self.grid is not None
            self.report(self._flow(query, output, self.grid))

    def _flow(self, query: Tensor, keys_values: Tensor, grid: Grid) -> Flow:
        heads = self.attention.num_heads
        key, _ = stacked_heads(keys_values, heads, kinds=2)
        products = Products(one_head_each(query, heads), key, prefix=self.prefix)
        if self.attention.sr is None:
            return products
        pool = getattr(self.attention, "pool", None)
        cells = None if pool is None else pool.output_size
        return Reduced(products, *reduction(grid, query, ratio=self.attention.sr.stride[0], cells=cells))

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention, grid = self.attention, (arguments[0][0], arguments[0][1])
        normed = self.norm.forward(tokens)
        keys = self._reduced(normed, grid, lambda module, tokens: module.forward(tokens))
        return self._flow(attention.q.forward(normed), attention.kv.forward(keys), grid)

    def _reduced(self, tokens: Tensor, grid: Grid, run: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """The tokens from which keys and values are projected; `run` calls a module."""
        attention = self.attention
        if attention.sr is None:
            return tokens
        image = tokens.transpose(1, 2).unflatten(2, grid)
        if getattr(attention, "pool", None) is not None:
            image = run(attention.pool, image)
        keys = run(attention.norm, run(attention.sr, image).flatten(2).transpose(1, 2))
        return keys if getattr(attention, "act", None) is None else run(attention.act, keys)

    def bank_hooks(self) -> Handles:
        return [ReplacedForward(self.attention, self)]

    def forward(self, tokens: Tensor, feat_size: Grid) -> Tensor:
        """The attention with appended tokens, which become keys as they are: they are not on the grid."""
        attention, heads = self.attention, self.attention.num_heads
        own = self.prefix + feat_size[0] * feat_size[1]
        query = one_head_each(attention.q(tokens), heads)
        keys = self._reduced(tokens[:, :own], (feat_size[0], feat_size[1]), lambda module, tokens: module(tokens))
        key, value = stacked_heads(attention.kv(torch.cat([keys, tokens[:, own:]], dim=1)), heads, kinds=2)
        dropout = attention.attn_drop.p if attention.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return attention.proj_drop(attention.proj(mixed.transpose(1, 2).flatten(2)))


def reduction(grid: Grid, like: Tensor, *, ratio: int = 1, cells: int | None = None) -> tuple[Tensor, Tensor]:
    """The averaging weights of the keys' cells, along rows and columns: cells of a side, or a number of cells."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    eyes = [torch.eye(side, dtype=dtype, device=like.device) for side in grid]
    if cells is not None:
        rows, columns = (F.adaptive_avg_pool1d(eye, cells).T for eye in eyes)
    else:
        rows, columns = (F.avg_pool1d(eye, ratio, ratio).T for eye in eyes)
    return rows, columns


class PVT2Reader(PyramidReader):
    """PVT v2: overlapping patches, whose shares average over the pixels or tokens under the kernel."""

    @property
    def embedding(self) -> nn.Conv2d:
        """The convolution that embeds patches."""
        return self.model.patch_embed.proj

    @property
    def merging(self) -> nn.Conv2d:
        """The convolution between stages."""
        return self.model.stages[1].downsample.proj

    def embed_grid(self, size: Grid) -> Grid:
        return self._strided(size, self.embedding)

    def embed_stride(self, size: Grid) -> Grid:
        return self.embedding.stride[0], self.embedding.stride[1]

    def merged_grid(self, grid: Grid) -> Grid:
        return self._strided(grid, self.merging)

    def _strided(self, size: Grid, conv: nn.Conv2d) -> Grid:
        rows, columns = (
            (side + 2 * int(conv.padding[axis]) - conv.kernel_size[axis]) // conv.stride[axis] + 1
            for axis, side in enumerate(size)
        )
        return rows, columns

    def embed_share(self, mask: Tensor, size: Grid, dtype: torch.dtype) -> Tensor:
        pixels = resample_mask(mask, size, rule="area", dtype=dtype).to(dtype)
        return _under_kernel(pixels.unsqueeze(1), self.embedding).squeeze(1)

    def merged_share(self, share: Tensor) -> Tensor:
        return _under_kernel(share, self.merging)


def _under_kernel(grid: Tensor, conv: nn.Conv2d) -> Tensor:
    padding = tuple(int(side) for side in conv.padding)
    return F.avg_pool2d(grid, conv.kernel_size, conv.stride, padding, count_include_pad=False)


def read_pvt2(model: Any) -> Reader:
    if model.global_pool != "avg":
        raise ValueError("a PyramidVisionTransformerV2 can be read only with global_pool='avg'")
    blocks = [
        ReducedBlock(
            exactly(block, pvt_v2.Block),
            exactly(block.attn, pvt_v2.Attention),
            norm=block.norm1,
            prefix=0,
            class_token=False,
            width=block.attn.dim,
            stage=number,
        )
        for number, stage in enumerate(model.stages)
        for block in stage.blocks
    ]
    return PVT2Reader(model, list(blocks), final_module=model.stages[-1].norm, prefix=0, readout="mean")


class PVT1Reader(PyramidReader):
    """PVT v1: the class token joins at the last stage."""

    def embed_grid(self, size: Grid) -> Grid:
        check_divides(size, (self.model.size_multiple, self.model.size_multiple))
        return size[0] // 4, size[1] // 4

    def merged_grid(self, grid: Grid) -> Grid:
        return grid[0] // 2, grid[1] // 2


def read_pvt1(model: Any) -> Reader:
    if model.global_pool != "token":
        raise ValueError("a PyramidVisionTransformer can be read only if its classifier reads the class token")
    last = len(model.stages) - 1
    blocks = [
        ReducedBlock(
            exactly(block, pvt.PvtBlock),
            exactly(block.attn, pvt.PvtAttention),
            norm=block.norm1,
            prefix=int(number == last),
            class_token=number == last,
            width=block.attn.q.in_features,
            stage=number,
        )
        for number, stage in enumerate(model.stages)
        for block in stage.blocks
    ]
    return PVT1Reader(model, list(blocks), final_module=model.norm, prefix=1, readout="class")
