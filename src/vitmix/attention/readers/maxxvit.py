"""timm's MaxxVit: MaxViT (attention within windows and on a coarse grid) and CoAtNet (attention between all tokens)."""

from functools import partial
from typing import Any, ClassVar

import torch
from timm.layers.pos_embed_rel import RelPosMlp
from timm.models import maxxvit
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products, Reduced
from vitmix.attention.groups import Groups
from vitmix.attention.readers.base import (
    BlockReader,
    Handles,
    ProjectedBlock,
    Reader,
    check_size,
    exactly,
    stacked_heads,
)
from vitmix.attention.readers.convolved import (
    ConvolvedReader,
    Spatial,
    check_last,
    merged_flow,
    pooling_weights,
    residual_share,
)
from vitmix.attention.readers.relative import finished_bias, quiet_bias
from vitmix.attention.readers.spatial import check_mean_pooling, convolve_share

__all__ = ["ChannelsFirstBlock", "MaxxVitReader", "PartitionBlock", "WholeGridBlock", "partition", "read_maxxvit"]


def partition(grid: Grid, size: Grid, *, windows: bool, like: Tensor) -> Tensor:
    """The positions `(groups, cells)` of the tokens of each group: windows, or tokens at equal distances."""
    places = torch.arange(grid[0] * grid[1], device=like.device).view(grid)
    if windows:
        cut = places.view(grid[0] // size[0], size[0], grid[1] // size[1], size[1]).permute(0, 2, 1, 3)
    else:
        cut = places.view(size[0], grid[0] // size[0], size[1], grid[1] // size[1]).permute(1, 3, 0, 2)
    return cut.reshape(-1, size[0] * size[1])


class ChannelsFirstBlock(ProjectedBlock):
    """A block of features `(B, C, H, W)`, or `(B, H, W, C)` if `channels_last`."""

    channels_last: bool = False
    grid: Grid = (0, 0)
    bias: Tensor | None = None
    projected: Tensor | None = None

    def hooks(self) -> Handles:
        handles, positions = super().hooks(), self.attention.rel_pos
        if isinstance(positions, RelPosMlp):
            handles.append(positions.bias_act.register_forward_hook(self._on_bias))
        return [self.module.register_forward_pre_hook(self._on_block), *handles]

    def _on_projected(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        """A bias that a network with dropout computes comes later; a second run would draw another one."""
        if isinstance(self.attention.rel_pos, RelPosMlp):
            self.projected = output.detach() if self.wanted() else None
            return
        with torch.no_grad():
            self.bias = quiet_bias(self.attention.rel_pos) if self.wanted() else None
        super()._on_projected(module, args, output)

    def _on_bias(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if self.projected is not None:
            projected, self.projected = self.projected, None
            self.bias = finished_bias(self.attention.rel_pos, output.detach())
            self.report(self.flow(projected))

    def _on_block(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.grid = self.grid_of(args[0])

    def grid_of(self, features: Tensor) -> Grid:
        rows, columns = features.shape[1:3] if self.channels_last else features.shape[2:]
        return rows, columns

    def to_tokens(self, features: Tensor) -> Tensor:
        return features.flatten(1, 2) if self.channels_last else features.flatten(2).transpose(1, 2)

    def from_tokens(self, tokens: Tensor, features: Tensor) -> Tensor:
        return (tokens if self.channels_last else tokens.transpose(1, 2)).reshape(features.shape)

    def products(self, projected: Tensor) -> Products:
        """From the projection of channels-first or channels-last features."""
        attention = self.attention
        tokens = self.to_tokens(projected)
        if attention.head_first:
            query, key, _ = tokens.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2).chunk(3, dim=-1)
        else:
            query, key, _ = stacked_heads(tokens, attention.num_heads, kinds=3)
        return Products(query, key, bias=self.bias)


class PartitionBlock(ChannelsFirstBlock):
    """MaxViT's attention within windows or between tokens at equal distances."""

    no_bank: ClassVar[str | None] = "a window cannot contain other tokens"

    def flow(self, projected: Tensor) -> Flow:
        places = self._places(projected)
        return Groups(self.products(projected), places, places)

    def _places(self, like: Tensor) -> Tensor:
        return partition(self.grid, self.module.partition_size, windows=self.module.partition_block, like=like)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        self.grid, normed, self.bias = (
            self.grid_of(tokens),
            self.norm.forward(tokens),
            quiet_bias(self.attention.rel_pos),
        )
        groups = self.to_tokens(normed)[:, self._places(tokens)].flatten(0, 1)  # (B * groups, cells, C)
        groups = groups.unflatten(1, self.module.partition_size)
        groups = groups if self.channels_last else groups.permute(0, 3, 1, 2)
        return self.flow(self.attention.qkv.forward(groups))


class WholeGridBlock(ChannelsFirstBlock):
    """CoAtNet's attention between all tokens; with a stride, tokens are pooled before attention."""

    no_bank: ClassVar[str | None] = "its position bias is not defined for appended tokens"

    def flow(self, projected: Tensor) -> Flow:
        products, shortcut = self.products(projected), self.module.shortcut
        if not isinstance(shortcut, maxxvit.Downsample2d):
            return products
        inner = Reduced(products, *pooling_weights(self.grid, projected, shortcut.pool))
        return merged_flow(inner, self.grid, shortcut.pool)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        self.grid, self.bias = self.grid_of(tokens), quiet_bias(self.attention.rel_pos)
        return super().attend(tokens, arguments, settings)


class MaxxVitReader(ConvolvedReader):
    def embed_grid(self, size: Grid) -> Grid:
        check_size(size, tuple(self.model.img_size))
        return super().embed_grid(size)


def read_maxxvit(model: Any) -> Reader:
    check_mean_pooling(model, model.head.global_pool)
    stem, halvings, first = model.stem, 0, 0
    steps = [Spatial(partial(convolve_share, conv=stem.conv1), 2), Spatial(partial(convolve_share, conv=stem.conv2))]
    blocks, before = list[BlockReader](), list[list[Spatial]]()
    for stage in model.stages:
        for module in (part for block in stage.blocks for part in _parts(block)):
            if type(module) in _CONVOLUTIONS:
                steps.append(_convolution(module))
                halvings += steps[-1].stride - 1
                continue
            first = first if blocks else halvings
            reader = _block(module, halvings - first)
            merges = isinstance(getattr(module, "shortcut", None), maxxvit.Downsample2d)
            blocks.append(reader)
            before.append(steps)
            halvings, steps = halvings + merges, []
    if not blocks or steps:
        raise ValueError("a MaxxVit can be read only if its last block has attention")
    check_last(model, merges=isinstance(getattr(blocks[-1].module, "shortcut", None), maxxvit.Downsample2d))
    result = MaxxVitReader(model, blocks, final_module=model.norm, prefix=0, readout="mean")
    result.before = before
    return result


_CONVOLUTIONS = (maxxvit.MbConvBlock, maxxvit.ConvNeXtBlock)


def _parts(block: Any) -> list[Any]:
    """A block as convolutions and attention, in order."""
    if type(block) is maxxvit.MaxxVitBlock:
        return [each for each in (block.conv, block.attn_block, block.attn_grid) if each is not None]
    return [block]


def _convolution(block: Any) -> Spatial:
    mobile = type(block) is maxxvit.MbConvBlock
    parts = (block.down, *((block.conv1_1x1, block.conv2_kxk) if mobile else (block.conv_dw,)))
    stride = 2 if isinstance(block.shortcut, maxxvit.Downsample2d) else 1
    return Spatial(partial(residual_share, parts=parts, shortcut=block.shortcut), stride)


def _block(module: Any, stage: int) -> BlockReader:
    kinds: dict[type, tuple[type[ChannelsFirstBlock], type]] = {
        maxxvit.PartitionAttentionCl: (PartitionBlock, maxxvit.AttentionCl),
        maxxvit.PartitionAttention2d: (PartitionBlock, maxxvit.Attention2d),
        maxxvit.TransformerBlock2d: (WholeGridBlock, maxxvit.Attention2d),
    }
    if type(module) not in kinds:
        raise ValueError(f"a MaxxVit with {type(module).__name__} cannot be read")
    kind, attention = kinds[type(module)]
    exactly(module.attn, attention)
    width = module.attn.qkv.in_features if attention is maxxvit.AttentionCl else module.attn.qkv.in_channels
    reader = kind(module, module.attn, norm=module.norm1, prefix=0, class_token=False, width=width, stage=stage)
    reader.channels_last = attention is maxxvit.AttentionCl
    return reader
