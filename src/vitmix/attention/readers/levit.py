"""LeViT: patches from a stem of convolutions; between stages, attention itself merges tokens, without a residual."""

from functools import partial
from typing import Any, ClassVar

import torch
from timm.models import levit
from torch import Tensor, nn
from torch.nn import functional as F

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products
from vitmix.attention.readers.base import (
    BlockReader,
    FrozenStatistics,
    Handles,
    ProjectedBlock,
    Reader,
    check_size,
    exactly,
    one_head_each,
)
from vitmix.attention.readers.convolved import ConvolvedReader, Spatial, check_last, merged_flow
from vitmix.attention.readers.spatial import convolve_share

__all__ = ["LevitBlock", "LevitMergingBlock", "LevitReader", "projected_norm", "read_levit"]


def projected_norm(layer: Any, tokens: Tensor) -> Tensor:
    """The output of a linear layer with batch norm, without a second update of its running statistics."""
    norm, tokens = layer.bn, layer.linear.forward(tokens)
    running = (None, None) if norm.training else (norm.running_mean, norm.running_var)
    flat = F.batch_norm(tokens.flatten(0, 1), *running, norm.weight, norm.bias, norm.training, eps=norm.eps)
    return flat.view_as(tokens)


def _bias(attention: Any) -> Tensor:
    with torch.no_grad():  # not from the model's cache, which would then have no gradient
        return attention.attention_biases[:, attention.attention_bias_idxs].unsqueeze(0)


class LevitBlock(ProjectedBlock):
    no_bank: ClassVar[str | None] = "its position bias is not defined for appended tokens"

    def flow(self, projected: Tensor) -> Flow:
        attention = self.attention
        heads = one_head_each(projected, attention.num_heads)
        query, key, _ = heads.split([attention.key_dim, attention.key_dim, attention.val_dim], dim=-1)
        return Products(query, key, bias=_bias(attention))

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        return self.flow(projected_norm(self.attention.qkv, tokens))


class LevitMergingBlock(BlockReader):
    """Every other token of every other row is a query."""

    no_bank: ClassVar[str | None] = "its position bias is not defined for appended tokens"
    keys: Tensor | None = None

    def hooks(self) -> Handles:
        return [
            self.attention.kv.register_forward_hook(self._on_keys),
            self.attention.q.register_forward_hook(self._on_query),
        ]

    def _on_keys(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.keys = output if self.wanted() else None

    def _on_query(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.keys is not None:
            keys, self.keys = self.keys, None
            self.report(self._flow(output, keys))

    def _flow(self, query: Tensor, keys_values: Tensor) -> Flow:
        attention = self.attention
        key = one_head_each(keys_values, attention.num_heads)[..., : attention.key_dim]
        products = Products(one_head_each(query, attention.num_heads), key, bias=_bias(attention))
        return merged_flow(products, attention.resolution, None)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        query = projected_norm(self.attention.q.ln, self.attention.q.down.forward(tokens))
        return self._flow(query, projected_norm(self.attention.kv, tokens))


class LevitReader(ConvolvedReader):
    def embed_grid(self, size: Grid) -> Grid:
        rows, columns = self.blocks[0].attention.resolution
        stride = self.model.stem.stride
        check_size(size, (rows * stride, columns * stride))
        return rows, columns

    def final_tokens(self, output: Tensor) -> Tensor:
        return output

    def classify(self, pooled: Tensor) -> Tensor:
        with FrozenStatistics(self.model):
            return self.model.forward_head(pooled.unsqueeze(1))


def read_levit(model: Any) -> Reader:
    if model.use_conv or type(model.stem) not in (levit.Stem8, levit.Stem16):
        raise ValueError(
            "a Levit can be read only with linear layers and its own stem; create levit_*, not levit_conv_*"
        )
    if model.global_pool != "avg":
        raise ValueError("a Levit can be read only with global_pool='avg'")
    blocks: list[BlockReader] = []
    for number, stage in enumerate(model.stages):
        settings: dict[str, Any] = dict(norm=None, prefix=0, class_token=False)
        if number:
            down = exactly(stage.downsample, levit.LevitDownsample)
            attention = exactly(down.attn_downsample, levit.AttentionDownsample)
            width = attention.kv.linear.in_features
            blocks.append(LevitMergingBlock(down, attention, width=width, stage=number - 1, **settings))
        for block in stage.blocks:
            attention = exactly(exactly(block, levit.LevitBlock).attn, levit.Attention)
            width = attention.qkv.linear.in_features
            blocks.append(LevitBlock(block, attention, width=width, stage=number, **settings))
    check_last(model, merges=isinstance(blocks[-1], LevitMergingBlock))
    reader = LevitReader(model, blocks, final_module=model.stages[-1], prefix=0, readout="mean")
    convs = [each for each in model.stem.modules() if isinstance(each, nn.Conv2d)]
    stem = [Spatial(partial(convolve_share, conv=conv), conv.stride[0]) for conv in convs]
    reader.before = [stem, *([] for _ in blocks[1:])]
    return reader
