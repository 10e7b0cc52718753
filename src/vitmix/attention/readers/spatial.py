"""Models without attention, for aligned shares: MLP-Mixer and ResMLP, ConvNeXt, ResNet (TL-Align, appendix D).

Five operations cover them. Spatial mixing is a weighted mean with the absolute weights, averaged over channels and
normalized over the positions inside the image. Channel mixing and pointwise layers change nothing. A residual
connection is the mean of both branches. A stride or a pooling is the mean over its cell.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.mlp import Mlp
from timm.layers.padding import pad_same
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from timm.models import convnext, mlp_mixer, resnet
from torch import Tensor, nn
from torch.nn import functional as F

from vitmix._mix import Grid, resample_mask
from vitmix.attention.flow import Flow, Matrix, Steps
from vitmix.attention.readers.base import BlockReader, Handles, Reader, check_size
from vitmix.attention.readers.pyramid import PyramidReader

__all__ = [
    "ConvNeXtReader",
    "DepthwiseBlock",
    "MixerReader",
    "ResNetReader",
    "ResidualBlock",
    "SpatialBlock",
    "SpatialReader",
    "Step",
    "TokenMixingBlock",
    "after_convs",
    "aggregate_share",
    "check_mean_pooling",
    "convolve_share",
    "pool_share",
    "read_convnext",
    "read_mixer",
    "read_resnet",
    "same_share",
    "through_convs",
    "token_mixing_weights",
]

Step = Callable[[Tensor], Tensor]


# Operations on a grid of shares (B, 1, H, W)


def token_mixing_weights(*layers: Tensor) -> Tensor:
    """Row-normalized weights `(N, N)` of consecutive linear layers over tokens."""
    exact = [layer.detach().abs().to(torch.promote_types(layer.dtype, torch.float32)) for layer in layers]
    with torch.autocast(exact[0].device.type, enabled=False):
        product = exact[0]
        for layer in exact[1:]:
            product = layer @ product
    return product / product.sum(1, keepdim=True).clamp_min(torch.finfo(product.dtype).tiny)


def convolve_share(grid: Tensor, conv: nn.Conv2d) -> Tensor:
    """Shares after a convolution: means under its kernel, weighted by absolute weights averaged over channels."""
    kernel = conv.weight.detach().abs().mean((0, 1), dtype=grid.dtype)[None, None]
    assert not isinstance(conv.padding, str)
    settings: dict[str, Any] = dict(stride=conv.stride, padding=conv.padding, dilation=conv.dilation)
    grid, ones = _same_padding(grid, conv), _same_padding(torch.ones_like(grid[:1]), conv)
    with torch.autocast(grid.device.type, enabled=False):
        inside = F.conv2d(ones, kernel, **settings)
        return F.conv2d(grid, kernel, **settings) / inside.clamp_min(torch.finfo(grid.dtype).tiny)


def _same_padding(grid: Tensor, layer: Any) -> Tensor:
    """The grid with the padding that layers with weights from TensorFlow add themselves."""
    if not isinstance(layer, Conv2dSame | AvgPool2dSame | MaxPool2dSame):
        return grid
    settings: Any = (layer.kernel_size, layer.stride, getattr(layer, "dilation", (1, 1)))
    return pad_same(grid, *settings)


def aggregate_share(grid: Tensor, stride: Grid) -> Tensor:
    """The mean over each cell; at the border, over the part inside the image."""
    if stride == (1, 1):
        return grid
    return F.avg_pool2d(grid, stride, stride, ceil_mode=True, count_include_pad=False)


def pool_share(grid: Tensor, pool: Any) -> Tensor:
    """The mean under a pooling window, for any kind of pooling."""
    kernel, stride = pool.kernel_size, pool.stride
    if isinstance(pool, AvgPool2dSame | MaxPool2dSame):
        ones = _same_padding(torch.ones_like(grid[:1]), pool)
        return F.avg_pool2d(_same_padding(grid, pool), kernel, stride) / F.avg_pool2d(ones, kernel, stride)
    return F.avg_pool2d(grid, kernel, stride, pool.padding, pool.ceil_mode, count_include_pad=False)


def same_share(grid: Tensor) -> Tensor:
    return grid


class SpatialBlock(BlockReader):
    no_bank = "it has no attention"

    def hooks(self) -> Handles:
        return [self.module.register_forward_pre_hook(self._on_block)]

    def _on_block(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if self.wanted():
            self.report(self.flow(args[0]))

    def flow(self, features: Tensor) -> Flow:
        raise NotImplementedError


class SpatialReader(PyramidReader):
    @property
    def has_attention(self) -> bool:
        return False

    def final_tokens(self, output: Tensor) -> Tensor:
        return output.flatten(2).transpose(1, 2)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.forward_head(pooled[:, :, None, None])


# MLP-Mixer, ResMLP


class TokenMixingBlock(SpatialBlock):
    def flow(self, features: Tensor) -> Flow:
        if isinstance(self.module, mlp_mixer.MixerBlock):
            mlp: Any = self.module.mlp_tokens
            return Matrix(token_mixing_weights(mlp.fc1.weight, mlp.fc2.weight))
        return Matrix(token_mixing_weights(self.attention.weight))


class MixerReader(Reader):
    @property
    def has_attention(self) -> bool:
        return False

    def embed_grid(self, size: Grid) -> Grid:
        check_size(size, tuple(self.model.stem.img_size))
        return self.model.stem.grid_size

    def embed_stride(self, size: Grid) -> Grid:
        return self.model.stem.patch_size


def read_mixer(model: Any) -> Reader:
    blocks = []
    for block in model.blocks:
        if type(block) not in (mlp_mixer.MixerBlock, mlp_mixer.ResBlock):
            raise ValueError(
                f"an MlpMixer of {type(block).__name__} cannot be read: its weights between tokens depend on the tokens"
            )
        if type(block) is mlp_mixer.MixerBlock and type(block.mlp_tokens) is not Mlp:
            raise ValueError(
                f"an MlpMixer with {type(block.mlp_tokens).__name__} cannot be read: its weights between tokens depend "
                "on the tokens"
            )
        mixing = block.mlp_tokens if type(block) is mlp_mixer.MixerBlock else block.linear_tokens
        settings: dict[str, Any] = dict(norm=block.norm1, prefix=0, class_token=False, width=model.embed_dim)
        blocks.append(TokenMixingBlock(block, mixing, **settings))
    if model.global_pool != "avg":
        raise ValueError("an MlpMixer can be read only with global_pool='avg'")
    return MixerReader(model, blocks, final_module=model.norm, prefix=0, readout="mean")


# ConvNeXt


class DepthwiseBlock(SpatialBlock):
    def flow(self, features: Tensor) -> Flow:
        grid = (features.shape[2], features.shape[3])
        return Steps(grid, [partial(convolve_share, conv=self.attention)], same_share)


class ConvNeXtReader(SpatialReader):
    @property
    def stem(self) -> nn.Module:
        return self.model.stem

    def embed_grid(self, size: Grid) -> Grid:
        return after_convs(size, self.stem)

    def embed_share(self, mask: Tensor, size: Grid, dtype: torch.dtype) -> Tensor:
        grid = resample_mask(mask, size, rule="area", dtype=dtype).to(dtype).unsqueeze(1)
        return through_convs(grid, self.stem).squeeze(1)

    def merged_grid(self, grid: Grid) -> Grid:
        return grid[0] // 2, grid[1] // 2

    def merged_share(self, share: Tensor) -> Tensor:
        return F.avg_pool2d(share, 2, 2)


def read_convnext(model: Any) -> Reader:
    check_mean_pooling(model, model.head.global_pool)
    blocks: list[BlockReader] = []
    for number, stage in enumerate(model.stages):
        if number and _convs(stage.downsample)[0].stride != (2, 2):
            raise ValueError("a dilated ConvNeXt cannot be read; create it with output_stride=32")
        for block in stage.blocks:
            if type(block) is not convnext.ConvNeXtBlock or not isinstance(block.shortcut, nn.Identity):
                raise ValueError("only a ConvNeXt with plain ConvNeXtBlocks can be read")
            settings: dict[str, Any] = dict(
                norm=None, prefix=0, class_token=False, width=block.conv_dw.out_channels, stage=number
            )
            blocks.append(DepthwiseBlock(block, block.conv_dw, **settings))
    return ConvNeXtReader(model, blocks, final_module=model.norm_pre, prefix=0, readout="mean")


# ResNet


class ResidualBlock(SpatialBlock):
    def flow(self, features: Tensor) -> Flow:
        block: Any = self.module
        convs = (block.conv1, block.conv2, getattr(block, "conv3", None))
        steps: list[Step] = [
            partial(convolve_share, conv=conv) for conv in convs if conv is not None and conv.kernel_size != (1, 1)
        ]
        return Steps((features.shape[2], features.shape[3]), steps, _shortcut(block))


def _shortcut(block: Any) -> Step:
    if block.downsample is None:
        return same_share
    return partial(aggregate_share, stride=(block.stride, block.stride))


class ResNetReader(SpatialReader):
    def grids(self, size: Grid) -> tuple[Grid, ...]:
        grid, grids = self.embed_grid(size), []
        for block in self.blocks:
            stride = block.module.stride
            grid = -(-grid[0] // stride), -(-grid[1] // stride)
            grids.append(grid)
        return tuple(grids)

    def embed_grid(self, size: Grid) -> Grid:
        grid, pool = after_convs(size, self.model.conv1), self.model.maxpool
        rows, columns = ((side + 2 * pool.padding - pool.kernel_size) // pool.stride + 1 for side in grid)
        return rows, columns

    def embed_share(self, mask: Tensor, size: Grid, dtype: torch.dtype) -> Tensor:
        grid = resample_mask(mask, size, rule="area", dtype=dtype).to(dtype).unsqueeze(1)
        return pool_share(through_convs(grid, self.model.conv1), self.model.maxpool).squeeze(1)

    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        return share  # strides are inside the blocks

    def pass_by(self, index: int, share: Tensor, size: Grid) -> Tensor:
        stride = self.blocks[index].module.stride
        grid = self.embed_grid(size) if index == 0 else self.grids(size)[index - 1]
        return aggregate_share(share.view(len(share), 1, *grid), (stride, stride)).flatten(1)

    def embed_stride(self, size: Grid) -> Grid:
        strides = [conv.stride for conv in _convs(self.model.conv1)]
        rows, columns = (math.prod(each) * self.model.maxpool.stride for each in zip(*strides, strict=True))
        return rows, columns


def read_resnet(model: Any) -> Reader:
    check_mean_pooling(model, model.global_pool)
    if type(model.maxpool) is not nn.MaxPool2d:
        raise ValueError(f"a ResNet whose stem pools with {type(model.maxpool).__name__} cannot be read")
    blocks: list[BlockReader] = []
    for number, stage in enumerate((model.layer1, model.layer2, model.layer3, model.layer4)):
        for block in stage:
            smooth = getattr(block, "aa", None)
            if type(block) not in (resnet.BasicBlock, resnet.Bottleneck) or not isinstance(
                smooth, nn.Identity | type(None)
            ):
                raise ValueError("only a ResNet with plain BasicBlocks or Bottlenecks and no blur pooling can be read")
            if block.dilation != 1:
                raise ValueError("a dilated ResNet cannot be read; create it with output_stride=32")
            last = block.conv3 if type(block) is resnet.Bottleneck else block.conv2
            settings: dict[str, Any] = dict(
                norm=None, prefix=0, class_token=False, width=last.out_channels, stage=number
            )
            blocks.append(ResidualBlock(block, block.conv2, **settings))
    return ResNetReader(model, blocks, final_module=model.layer4[-1], prefix=0, readout="mean")


def check_mean_pooling(model: nn.Module, pool: Any) -> None:
    """Raises an error if the head pools otherwise than by the mean."""
    if pool.pool_type != "avg":
        raise ValueError(f"{type(model).__name__} with {pool.pool_type!r} pooling cannot be read; create it with 'avg'")


def _convs(module: nn.Module) -> list[nn.Conv2d]:
    return [each for each in module.modules() if isinstance(each, nn.Conv2d)]


def after_convs(size: Grid, stem: nn.Module) -> Grid:
    """The size after the convolutions of a stem."""
    rows, columns = size
    for conv in _convs(stem):
        assert not isinstance(conv.padding, str)
        rows = (rows + 2 * conv.padding[0] - conv.kernel_size[0]) // conv.stride[0] + 1
        columns = (columns + 2 * conv.padding[1] - conv.kernel_size[1]) // conv.stride[1] + 1
    return rows, columns


def through_convs(grid: Tensor, stem: nn.Module) -> Tensor:
    """Shares after the convolutions of a stem; patches that do not overlap count their pixels equally."""
    for conv in _convs(stem):
        patches = conv.kernel_size == conv.stride
        grid = F.avg_pool2d(grid, conv.kernel_size, conv.stride) if patches else convolve_share(grid, conv)
    return grid
