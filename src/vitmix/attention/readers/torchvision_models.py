"""torchvision's VisionTransformer and SwinTransformer (V1 and V2), in which no submodule exposes queries and keys."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import swin_transformer, vision_transformer
from torchvision.ops.misc import Permute

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products, Windows, cut_windows, join_windows
from vitmix.attention.readers.base import (
    BlockReader,
    Reader,
    ReplacedBlock,
    check_divides,
    check_size,
    split_heads,
)
from vitmix.attention.readers.pyramid import PyramidReader
from vitmix.attention.readers.swin_v2 import cosine_heads

__all__ = [
    "CosineShiftedBlock",
    "MultiheadBlock",
    "ShiftedBlock",
    "TorchvisionSwinReader",
    "TorchvisionViTReader",
    "read_swin",
    "read_vit",
]


class MultiheadBlock(ReplacedBlock):
    """A block with `nn.MultiheadAttention`."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        attention = self.attention
        query, key, value = self._projected(query, kinds=3)
        self.tell(Products(query, key, prefix=self.prefix))
        dropout = attention.dropout if attention.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return F.linear(mixed.transpose(1, 2).flatten(2), attention.out_proj.weight, attention.out_proj.bias), None

    def _projected(self, tokens: Tensor, kinds: int) -> tuple[Tensor, ...]:
        attention = self.attention
        return split_heads(tokens, attention.in_proj_weight, attention.in_proj_bias, attention.num_heads, kinds=kinds)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        query, key = self._projected(self.norm.forward(tokens), kinds=2)
        return Products(query, key, prefix=self.prefix)


class TorchvisionViTReader(Reader):
    def embed_grid(self, size: Grid) -> Grid:
        check_size(size, (self.model.image_size, self.model.image_size))
        side = self.model.image_size // self.model.patch_size
        return side, side

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.heads(pooled)

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model(images)


def read_vit(model: Any) -> Reader:
    settings: dict[str, Any] = dict(prefix=1, class_token=True, width=model.hidden_dim)
    blocks = []
    for block in model.encoder.layers:
        if (
            type(block) is not vision_transformer.EncoderBlock
            or type(block.self_attention) is not nn.MultiheadAttention
        ):
            raise ValueError("only torchvision's EncoderBlock with nn.MultiheadAttention can be read")
        blocks.append(MultiheadBlock(block, block.self_attention, norm=block.ln_1, **settings))
    return TorchvisionViTReader(model, blocks, final_module=model.encoder.ln, prefix=1, readout="class")


class ShiftedBlock(ReplacedBlock):
    """torchvision's Swin block: the grid is padded, then rolled, then cut into windows."""

    no_bank = "a window cannot contain other tokens"
    scale: ClassVar[float | None] = None

    def forward(self, tokens: Tensor) -> Tensor:
        attention = self.attention
        (query, key, value), bias, grid, shift = self._projected(tokens, kinds=3)
        self.tell(self._flow(query, key, bias, grid, shift))
        images = len(query) // len(bias)
        dropout = attention.attention_dropout if attention.training else 0.0
        mask = bias if len(bias) == 1 else bias.repeat(images, 1, 1, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=self.scale)
        windows = F.linear(mixed.transpose(1, 2).flatten(2), attention.proj.weight, attention.proj.bias)
        windows = F.dropout(windows, attention.dropout, attention.training)
        window = (attention.window_size[0], attention.window_size[1])
        return join_windows(windows, grid, window, shift, pad_first=True).contiguous()

    def _projected(self, tokens: Tensor, kinds: int) -> tuple[tuple[Tensor, ...], Tensor, Grid, Grid]:
        attention, grid = self.attention, (tokens.shape[1], tokens.shape[2])
        window = (attention.window_size[0], attention.window_size[1])
        padded = (grid[0] + -grid[0] % window[0], grid[1] + -grid[1] % window[1])
        # A window that covers the grid is not shifted.
        shift = tuple(0 if window[axis] >= padded[axis] else attention.shift_size[axis] for axis in (0, 1))
        windows = cut_windows(tokens, window, (shift[0], shift[1]), pad_first=True)
        bias = attention.get_relative_position_bias()
        if shift != (0, 0):
            bias = bias + _shift_mask(padded, window, (shift[0], shift[1]), bias).unsqueeze(1)
        return self._heads(windows, kinds), bias, grid, (shift[0], shift[1])

    def _heads(self, windows: Tensor, kinds: int) -> tuple[Tensor, ...]:
        qkv = self.attention.qkv
        return split_heads(windows, qkv.weight, qkv.bias, self.attention.num_heads, kinds=kinds)

    def _flow(self, query: Tensor, key: Tensor, bias: Tensor, grid: Grid, shift: Grid) -> Flow:
        window = (self.attention.window_size[0], self.attention.window_size[1])
        return Windows(Products(query, key, bias=bias, scale=self.scale), grid, window, shift, pad_first=True)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        normed = tokens if self.norm is None else self.norm.forward(tokens)
        (query, key), bias, grid, shift = self._projected(normed, kinds=2)
        return self._flow(query, key, bias, grid, shift)


class CosineShiftedBlock(ShiftedBlock):
    """Swin V2: cosine attention, keys without a bias, and the norm after attention."""

    scale = 1.0

    def _heads(self, windows: Tensor, kinds: int) -> tuple[Tensor, ...]:
        attention, bias = self.attention, self.attention.qkv.bias
        if bias is not None:
            query_bias, key_bias, value_bias = bias.chunk(3)
            bias = torch.cat([query_bias, torch.zeros_like(key_bias), value_bias])
        query, key, *value = split_heads(windows, attention.qkv.weight, bias, attention.num_heads, kinds=kinds)
        return *cosine_heads(query, key, attention.logit_scale), *value


def _shift_mask(size: Grid, window: Grid, shift: Grid, like: Tensor) -> Tensor:
    """The mask `(windows, cells, cells)` that separates the parts of a rolled grid: -100 between them."""
    parts = []
    for side, cells, moved in zip(size, window, shift, strict=True):
        place = torch.arange(side, device=like.device)
        parts.append((place >= side - cells).int() + (place >= side - moved).int() if moved else 0 * place)
    region = (3 * parts[0].unsqueeze(1) + parts[1].unsqueeze(0)).to(like.dtype)
    cut = cut_windows(region[None, :, :, None], window, (0, 0), pad_first=True).squeeze(-1)
    return (cut.unsqueeze(1) != cut.unsqueeze(2)).to(like.dtype) * -100.0


class TorchvisionSwinReader(PyramidReader):
    def embed_grid(self, size: Grid) -> Grid:
        patch = self.model.features[0][0].stride
        check_divides(size, (patch[0], patch[1]))
        return size[0] // patch[0], size[1] // patch[1]

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model(images)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.head(pooled)


def read_swin(model: Any) -> Reader:
    kinds: dict[tuple[type, type], type[ShiftedBlock]] = {
        (swin_transformer.SwinTransformerBlock, swin_transformer.ShiftedWindowAttention): ShiftedBlock,
        (swin_transformer.SwinTransformerBlockV2, swin_transformer.ShiftedWindowAttentionV2): CosineShiftedBlock,
    }
    blocks: list[BlockReader] = []
    stages: list[Any] = [part for part in model.features[1:] if isinstance(part, nn.Sequential)]
    for number, stage in enumerate(stages):
        for block in stage:
            kind = kinds.get((type(block), type(block.attn)))
            if kind is None:
                raise ValueError("only torchvision's SwinTransformerBlock and SwinTransformerBlockV2 can be read")
            norm = block.norm1 if kind is ShiftedBlock else None  # V2 has its norms after attention and MLP
            settings: dict[str, Any] = dict(prefix=0, class_token=False, width=block.attn.qkv.in_features, stage=number)
            blocks.append(kind(block, block.attn, norm=norm, **settings))
    assert isinstance(model.features[0][1], Permute)
    return TorchvisionSwinReader(model, blocks, final_module=model.norm, prefix=0, readout="mean")
