"""Hugging Face's pyramids outside of the attention-function registry: Swin V2, PVT v2, ConvNeXt and ConvNeXt V2."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.convnext import modeling_convnext
from transformers.models.convnextv2 import modeling_convnextv2
from transformers.models.pvt_v2 import modeling_pvt_v2
from transformers.models.swinv2 import modeling_swinv2

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Given, Products, Reduced
from vitmix.attention.readers.base import (
    BlockReader,
    Handles,
    Reader,
    ReplacedForward,
    check_divides,
    exactly,
    one_head_each,
)
from vitmix.attention.readers.pyramid import PVT2Reader, PyramidReader, reduction
from vitmix.attention.readers.spatial import ConvNeXtReader, DepthwiseBlock
from vitmix.attention.readers.swin_v2 import CosineBlock, cosine_attention, cosine_heads, position_bias

__all__ = [
    "HuggingFaceConvNeXtReader",
    "HuggingFacePVT2Reader",
    "HuggingFaceSwin2Reader",
    "SpatialReductionBlock",
    "Swin2Block",
    "read_convnext",
    "read_convnext2",
    "read_pvt2",
    "read_swin2",
]


class Swin2Block(CosineBlock):
    """A layer of Swin V2; the grid is its second argument."""

    pad_first = True

    def softmax_hook(self) -> Any:
        return self.attention.dropout.register_forward_pre_hook(self._on_dropout)

    def _on_dropout(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.found(args[0])

    def grid_of(self, args: tuple[Any, ...]) -> Grid:
        return args[1][0], args[1][1]

    def window(self) -> tuple[Grid, Grid]:
        side, shift = int(self.module.window_size), int(self.module.shift_size)
        return (side, side), (shift, shift)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention, grid, (window, _) = self.attention, (arguments[0][0], arguments[0][1]), self.window()
        windows = self.cut(tokens.unflatten(1, grid))
        query, key = (
            one_head_each(projection.forward(windows), attention.num_attention_heads)
            for projection in (attention.query, attention.key)
        )
        layers, table = attention.continuous_position_bias_mlp, attention.relative_coords_table
        bias = position_bias(layers, table, attention.relative_position_index)
        rows, columns = (side + -side % cells for side, cells in zip(grid, window, strict=True))
        mask = self.module.get_attn_mask(rows, columns, dtype=tokens.dtype, device=tokens.device)
        query, key = cosine_heads(query, key, attention.logit_scale)
        return self.flow(cosine_attention(query, key, bias, mask), grid)


class HuggingFaceSwin2Reader(PyramidReader):
    def embed_grid(self, size: Grid) -> Grid:
        patch = self.model.swinv2.embeddings.patch_embeddings.patch_size
        check_divides(size, (patch[0], patch[1]))
        return size[0] // patch[0], size[1] // patch[1]

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.classifier(pooled)

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model.swinv2(images)


def read_swin2(model: Any) -> Reader:
    blocks: list[BlockReader] = []
    for number, stage in enumerate(model.swinv2.encoder.layers):
        for layer in stage.blocks:
            exactly(layer, modeling_swinv2.Swinv2Layer)
            exactly(layer.attention, modeling_swinv2.Swinv2Attention)
            attention = exactly(layer.attention.self, modeling_swinv2.Swinv2SelfAttention)
            width = layer.layernorm_before.normalized_shape[0]
            settings: dict[str, Any] = dict(norm=None, prefix=0, class_token=False, width=width, stage=number)
            blocks.append(Swin2Block(layer, attention, **settings))
    return HuggingFaceSwin2Reader(model, blocks, final_module=model.swinv2.layernorm, prefix=0, readout="mean")


# PVT v2


class SpatialReductionBlock(BlockReader):
    """A layer of PVT v2, whose attention to reduced keys is in memory anyway; rows and columns are its arguments."""

    grid: Grid | None = None

    def hooks(self) -> Handles:
        return [
            self.module.register_forward_pre_hook(self._on_block),
            self.attention.attn_drop.register_forward_pre_hook(self._on_attention),
        ]

    def _on_block(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.grid = (args[1], args[2])

    def _on_attention(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if self.wanted():
            assert self.grid is not None
            self.report(self._flow(Given(args[0]), self.grid))

    def _flow(self, inner: Products | Given, grid: Grid) -> Flow:
        attention = self.attention
        if attention.linear_attention:
            return Reduced(inner, *reduction(grid, inner.like, cells=attention.pool.output_size))
        ratio = attention.spatial_reduction_ratio
        return inner if ratio == 1 else Reduced(inner, *reduction(grid, inner.like, ratio=ratio))

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention, grid, heads = self.attention, (arguments[0], arguments[1]), self.attention.num_attention_heads
        normed = self.norm.forward(tokens)
        keys = self._reduced(normed, grid, lambda module, tokens: module.forward(tokens))
        query, key = attention.query.forward(normed), attention.key.forward(keys)
        return self._flow(Products(one_head_each(query, heads), one_head_each(key, heads)), grid)

    def _reduced(self, tokens: Tensor, grid: Grid, run: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """The tokens from which keys and values are projected; `run` calls a module."""
        attention = self.attention
        if not attention.linear_attention and attention.spatial_reduction_ratio == 1:
            return tokens
        image = tokens.transpose(1, 2).unflatten(2, grid)
        if attention.linear_attention:
            image = run(attention.pool, image)
        image = run(attention.spatial_reduction, image)
        keys = run(attention.layer_norm, image.flatten(2).transpose(1, 2))
        return run(attention.act, keys) if attention.linear_attention else keys

    def bank_hooks(self) -> Handles:
        return [ReplacedForward(self.attention, self)]

    def forward(
        self, hidden_states: Tensor, height: int, width: int, output_attentions: bool = False
    ) -> tuple[Tensor, ...]:
        """The attention with appended tokens, which become keys as they are: they are not on the grid."""
        attention, heads, own = self.attention, self.attention.num_attention_heads, height * width
        keys = self._reduced(hidden_states[:, :own], (height, width), lambda module, tokens: module(tokens))
        keys = torch.cat([keys, hidden_states[:, own:]], dim=1)
        query = one_head_each(attention.query(hidden_states), heads)
        key, value = (one_head_each(projection(keys), heads) for projection in (attention.key, attention.value))
        weights = (query @ key.transpose(-2, -1) / attention.attention_head_size**0.5).softmax(-1)
        mixed = (attention.attn_drop(weights) @ value).transpose(1, 2).flatten(2)
        mixed = attention.proj_drop(attention.proj(mixed))
        return (mixed, weights) if output_attentions else (mixed,)


class HuggingFacePVT2Reader(PVT2Reader):
    @property
    def embedding(self) -> nn.Conv2d:
        return self.model.pvt_v2.encoder.layers[0].patch_embedding.proj

    @property
    def merging(self) -> nn.Conv2d:
        return self.model.pvt_v2.encoder.layers[1].patch_embedding.proj

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.classifier(pooled)

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model.pvt_v2(images)


def read_pvt2(model: Any) -> Reader:
    stages = model.pvt_v2.encoder.layers
    convs = {(conv.kernel_size, conv.stride) for conv in (stage.patch_embedding.proj for stage in stages[1:])}
    if len(convs) > 1:
        raise ValueError("a PvtV2 whose stages merge tokens in different ways cannot be read; use equal patch sizes")
    blocks: list[BlockReader] = []
    for number, stage in enumerate(stages):
        for layer in stage.blocks:
            exactly(layer, modeling_pvt_v2.PvtV2BlockLayer)
            attention = exactly(layer.attention, modeling_pvt_v2.PvtV2SelfAttention)
            settings: dict[str, Any] = dict(prefix=0, class_token=False, width=attention.hidden_size, stage=number)
            blocks.append(SpatialReductionBlock(layer, attention, norm=layer.layer_norm_1, **settings))
    return HuggingFacePVT2Reader(model, blocks, final_module=stages[-1].layer_norm, prefix=0, readout="mean")


# ConvNeXt


class HuggingFaceConvNeXtReader(ConvNeXtReader):
    body: Any

    @property
    def stem(self) -> nn.Module:
        return self.body.embeddings

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.classifier(self.body.layernorm(pooled))


def read_convnext(model: Any) -> Reader:
    return _read_convnext(model, model.convnext, modeling_convnext.ConvNextLayer)


def read_convnext2(model: Any) -> Reader:
    return _read_convnext(model, model.convnextv2, modeling_convnextv2.ConvNextV2Layer)


def _read_convnext(model: Any, body: Any, kind: type) -> Reader:
    blocks: list[BlockReader] = []
    for number, stage in enumerate(body.encoder.stages):
        for layer in stage.layers:
            width = exactly(layer, kind).dwconv.out_channels
            settings: dict[str, Any] = dict(norm=None, prefix=0, class_token=False, width=width, stage=number)
            blocks.append(DepthwiseBlock(layer, layer.dwconv, **settings))
    reader = HuggingFaceConvNeXtReader(model, blocks, final_module=body.encoder.stages[-1], prefix=0, readout="mean")
    reader.body = body
    return reader
