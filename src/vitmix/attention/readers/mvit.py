"""MViT v2: queries, keys and values are pooled by convolutions; queries with a stride merge tokens."""

from typing import Any

import torch
from timm.models import mvitv2
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products, Reduced
from vitmix.attention.readers.base import BlockReader, Handles, Reader, exactly, project_heads
from vitmix.attention.readers.convolved import check_last, merged_flow, pooling_weights
from vitmix.attention.readers.pyramid import PVT2Reader, PyramidReader

__all__ = ["MViTReader", "MultiScaleBlock", "read_mvit"]


class MultiScaleBlock(BlockReader):
    """The pooled query that the model adds to attention counts as a part of the residual connection."""

    no_bank = "its keys are cells of a grid, which cannot contain other tokens"
    grid: Grid = (0, 0)
    query: Tensor | None = None

    def hooks(self) -> Handles:
        return [
            self.module.register_forward_pre_hook(self._on_block),
            self.attention.norm_q.register_forward_hook(self._on_query),
            self.attention.norm_k.register_forward_hook(self._on_key),
        ]

    def _on_block(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.grid = (args[1][0], args[1][1])

    def _on_query(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.query = output if self.wanted() else None

    def _on_key(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.query is not None:
            query, self.query = self.query, None
            self.report(self._flow(query, output))

    def _flow(self, query: Tensor, key: Tensor) -> Flow:
        attention, grid = self.attention, self.grid
        products = Products(query, key, prefix=self.prefix, bias=self._bias(query, key))
        flow = Reduced(products, *pooling_weights(grid, query, attention.pool_k))
        pool = self.module.shortcut_pool_attn
        return flow if pool is None else merged_flow(flow, grid, pool, prefix=self.prefix)

    @torch.no_grad()
    def _bias(self, query: Tensor, key: Tensor) -> Tensor | None:
        """The terms of relative positions, which depend on the query."""
        attention = self.attention
        if attention.rel_pos_type != "spatial":
            return None
        queries, keys = (_pooled(self.grid, pool) for pool in (attention.pool_q, attention.pool_k))
        none = query.new_zeros(*query.shape[:3], key.shape[2])
        rows, columns = attention.rel_pos_h, attention.rel_pos_w
        return mvitv2.cal_rel_pos_type(none, query, bool(self.prefix), queries, keys, rows, columns)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention, self.grid = self.attention, (arguments[0][0], arguments[0][1])
        query, key = project_heads(self.norm.forward(tokens), attention.qkv, attention.num_heads, kinds=2)
        query = attention.norm_q.forward(self._pool(query, attention.pool_q))
        return self._flow(query, attention.norm_k.forward(self._pool(key, attention.pool_k)))

    def _pool(self, heads: Tensor, pool: Any) -> Tensor:
        image = heads[:, :, self.prefix :].transpose(2, 3).unflatten(3, self.grid).flatten(0, 1)
        patches = pool.forward(image).flatten(2).transpose(1, 2).unflatten(0, heads.shape[:2])
        return torch.cat([heads[:, :, : self.prefix], patches], dim=2)


def _pooled(grid: Grid, pool: Any) -> list[int]:
    return [-(-side // stride) for side, stride in zip(grid, pool.stride, strict=True)]


class MViTReader(PVT2Reader):
    merged_grid = PyramidReader.merged_grid
    merged_share = PyramidReader.merged_share

    @property
    def embedding(self) -> nn.Conv2d:
        return self.model.patch_embed.proj

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.head(pooled)


def read_mvit(model: Any) -> Reader:
    if model.global_pool not in ("avg", "token"):
        raise ValueError("a MultiScaleVit can be read only with global_pool='avg' or 'token'")
    reads_class, prefix, stage = model.global_pool == "token", model.num_prefix_tokens, 0
    blocks: list[BlockReader] = []
    for block in (block for stage in model.stages for block in stage.blocks):
        attention = exactly(exactly(block, mvitv2.MultiScaleBlock).attn, mvitv2.MultiScaleAttention)
        if attention.mode != "conv" or attention.norm_q is None or attention.norm_k is None:
            raise ValueError("a MultiScaleVit can be read only if convolutions pool its queries and keys (mode='conv')")
        settings: dict[str, Any] = dict(prefix=prefix, class_token=reads_class, width=block.dim, stage=stage)
        blocks.append(MultiScaleBlock(block, attention, norm=block.norm1, **settings))
        stage += block.shortcut_pool_attn is not None
    check_last(model, merges=model.stages[-1].blocks[-1].shortcut_pool_attn is not None)
    blocks[-1].width = model.num_features
    readout = "class" if reads_class else "mean"
    return MViTReader(model, blocks, final_module=model.norm, prefix=prefix, readout=readout)
