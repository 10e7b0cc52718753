"""TinyViT: a stage of convolutions, then attention within windows, each block followed by a depth-wise convolution."""

from functools import partial
from typing import Any

import torch
from timm.models import tiny_vit
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products, Windows, cut_windows
from vitmix.attention.groups import Followed
from vitmix.attention.readers.base import BlockReader, Handles, ProjectedBlock, Reader, exactly
from vitmix.attention.readers.convolved import ConvolvedReader, Spatial, residual_share
from vitmix.attention.readers.spatial import check_mean_pooling, convolve_share

__all__ = ["TinyViTBlock", "read_tiny_vit"]


class TinyViTBlock(ProjectedBlock):
    """The norm is part of attention. The convolution after attention has no residual connection."""

    no_bank = "a window cannot contain other tokens"
    grid: Grid = (0, 0)

    def hooks(self) -> Handles:
        return [self.module.register_forward_pre_hook(self._on_block), *super().hooks()]

    def _on_block(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.grid = (args[0].shape[1], args[0].shape[2])

    def flow(self, projected: Tensor) -> Flow:
        attention, side, grid = self.attention, self.module.window_size, self.grid
        heads = projected.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        query, key, _ = heads.split([attention.key_dim, attention.key_dim, attention.val_dim], dim=-1)
        with torch.no_grad():
            bias = attention.attention_biases[:, attention.attention_bias_idxs].unsqueeze(0)
        windows = Windows(Products(query, key, bias=bias), grid, (side, side), (0, 0))
        return Followed(windows, partial(self.convolved, grid=grid))

    def convolved(self, share: Tensor, grid: Grid) -> Tensor:
        return convolve_share(share.view(len(share), 1, *grid), self.module.local_conv.conv).flatten(1)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        side, self.grid = self.module.window_size, (tokens.shape[1], tokens.shape[2])
        windows = cut_windows(tokens, (side, side), (0, 0), pad_first=False)
        return self.flow(self.attention.qkv.forward(self.norm.forward(windows)))


def read_tiny_vit(model: Any) -> Reader:
    check_mean_pooling(model, model.head.global_pool)
    embed, first = model.patch_embed, exactly(model.stages[0], tiny_vit.ConvLayer)
    steps = [Spatial(partial(convolve_share, conv=conv.conv), 2) for conv in (embed.conv1, embed.conv2)]
    steps += [
        Spatial(partial(residual_share, parts=(exactly(block, tiny_vit.MBConv).conv2.conv,), shortcut=nn.Identity()))
        for block in first.blocks
    ]
    blocks, before = list[BlockReader](), []
    for number, stage in enumerate(model.stages[1:]):
        exactly(stage.downsample, tiny_vit.PatchMerging)
        steps.append(Spatial(partial(convolve_share, conv=stage.downsample.conv2.conv), 2))
        for block in stage.blocks:
            attention = exactly(exactly(block, tiny_vit.TinyVitBlock).attn, tiny_vit.Attention)
            settings: dict[str, Any] = dict(prefix=0, class_token=False, width=block.dim, stage=number)
            blocks.append(TinyViTBlock(block, attention, norm=attention.norm, **settings))
            before.append(steps)
            steps = []
    reader = ConvolvedReader(model, blocks, final_module=model.stages[-1], prefix=0, readout="mean")
    reader.before = before
    return reader
