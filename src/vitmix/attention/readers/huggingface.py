"""Hugging Face transformers, read through its attention-function registry: no module is patched.

While a model is attached, its attention implementation is replaced by a tapped version ("vitmix_sdpa" for "sdpa"),
which reports queries and keys and then calls the original.
"""

import sys
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deit import modeling_deit
from transformers.models.dinov2 import modeling_dinov2
from transformers.models.dinov2_with_registers import modeling_dinov2_with_registers as modeling_dinov2_registers
from transformers.models.swin import modeling_swin
from transformers.models.vit import modeling_vit

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products, Windows, cut_windows
from vitmix.attention.readers.base import BlockReader, Handles, Reader, check_divides, check_size, one_head_each
from vitmix.attention.readers.pyramid import PyramidReader

__all__ = [
    "DEIT",
    "DINOV2",
    "DINOV2_REGISTERS",
    "Dinov2Reader",
    "HuggingFaceReader",
    "HuggingFaceSwinReader",
    "LISTENERS",
    "Listening",
    "PREFIX",
    "RegistryBlock",
    "RegistryWindowBlock",
    "SWIN",
    "SwitchedAttention",
    "TwoHeadedReader",
    "VIT",
    "read_deit",
    "read_deit_teacher",
    "read_dinov2",
    "read_dinov2_registers",
    "read_swin",
    "read_vit",
    "tapped",
]

if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"version 5 or later is needed, got {transformers.__version__}")

PREFIX = "vitmix_"  # of the names of tapped implementations
VIT = (modeling_vit.ViTLayer, modeling_vit.ViTAttention)
DEIT = (modeling_deit.DeiTLayer, modeling_deit.DeiTAttention)
DINOV2 = (modeling_dinov2.Dinov2Layer, modeling_dinov2.Dinov2Attention)
DINOV2_REGISTERS = (
    modeling_dinov2_registers.Dinov2WithRegistersLayer,
    modeling_dinov2_registers.Dinov2WithRegistersAttention,
)
SWIN = (modeling_swin.SwinLayer, modeling_swin.SwinAttention)
LISTENERS = "vitmix_listeners"  # an attribute of attention modules while they are read


def tapped(original: str) -> str:
    """The name of an attention implementation that reports to listeners and then calls `original`."""
    name = PREFIX + original
    if name not in ALL_ATTENTION_FUNCTIONS:

        def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any) -> Any:
            for block in getattr(module, LISTENERS, ()):
                if block.wanted():
                    block.receive(query, key, mask, settings.get("scaling"))
            default = sys.modules[type(module).__module__].eager_attention_forward
            function = default if original == "eager" else ALL_ATTENTION_FUNCTIONS[original]
            return function(module, query, key, value, mask, **settings)

        AttentionInterface.register(name, attention)
        if original in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[original])
    return name


# Pickled models contain the name, and another process must know it.
for _name in ("eager", *ALL_ATTENTION_FUNCTIONS):
    tapped(_name)


class SwitchedAttention:
    """Replaces a model's attention implementation by its tapped version until no listener is left.

    The name contains the original's, so nothing else has to be stored in the model or its configuration.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        current = model.config._attn_implementation
        if not current.startswith(PREFIX):
            model.set_attn_implementation(tapped(current))

    def remove(self) -> None:
        current = self.model.config._attn_implementation
        listening = any(LISTENERS in module.__dict__ for module in self.model.modules())
        if current.startswith(PREFIX) and not listening:
            self.model.set_attn_implementation(current.removeprefix(PREFIX))


class Listening:
    """Registers a block as a listener of its attention module."""

    def __init__(self, attention: nn.Module, block: "RegistryBlock") -> None:
        self.attention, self.block = attention, block
        attention.__dict__.setdefault(LISTENERS, []).append(block)

    def remove(self) -> None:
        listeners = self.attention.__dict__.get(LISTENERS, [])
        if self.block in listeners:
            listeners.remove(self.block)
        if not listeners:
            self.attention.__dict__.pop(LISTENERS, None)


class RegistryBlock(BlockReader):
    """A block whose attention goes through the registry."""

    def hooks(self) -> Handles:
        return [Listening(self.attention, self)]

    def receive(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> None:
        self.report(Products(query, key, prefix=self.prefix, bias=mask, scale=scale))

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        query, key = self.projected(self.norm.forward(tokens))
        return Products(query, key, prefix=self.prefix, scale=self.attention.scaling)

    def projected(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.attention
        heads = attention.num_attention_heads
        query, key = attention.q_proj.forward(normed), attention.k_proj.forward(normed)
        return one_head_each(query, heads), one_head_each(key, heads)


class HuggingFaceReader(Reader):
    body: Any

    def hooks(self) -> Handles:
        return [SwitchedAttention(self.model)]

    def embed_grid(self, size: Grid) -> Grid:
        embed = self.body.embeddings.patch_embeddings
        image, patch = _pair(embed.image_size), _pair(embed.patch_size)
        check_size(size, image)
        return size[0] // patch[0], size[1] // patch[1]

    def embed_stride(self, size: Grid) -> Grid:
        return _pair(self.body.embeddings.patch_embeddings.patch_size)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.classifier(pooled)

    def stop_after(self, block: int, images: Tensor) -> None:
        self.body(images)


class TwoHeadedReader(HuggingFaceReader):
    """DeiT with a distillation head."""

    def classify(self, pooled: Tensor) -> Tensor:
        return (self.model.cls_classifier(pooled) + self.model.distillation_classifier(pooled)) / 2


class Dinov2Reader(HuggingFaceReader):
    """The classifier reads the class token and the mean of the patches."""

    def embed_grid(self, size: Grid) -> Grid:  # positions are interpolated to any size
        patch = _pair(self.body.embeddings.patch_embeddings.patch_size)
        check_divides(size, patch)
        return size[0] // patch[0], size[1] // patch[1]

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.classifier(torch.cat([pooled, pooled], dim=1))


def _read(
    model: Any, body: Any, layers: Any, kinds: tuple[type, type], kind: type[HuggingFaceReader], **settings: Any
) -> Reader:
    prefix, blocks = settings["prefix"], []
    for layer in layers:
        _check_kinds(layer, kinds)
        norm = layer.layernorm_before if hasattr(layer, "layernorm_before") else layer.norm1
        blocks.append(
            RegistryBlock(
                layer, layer.attention, norm=norm, prefix=prefix, class_token=True, width=model.config.hidden_size
            )
        )
    reader = kind(model, blocks, final_module=body.layernorm, **settings)
    reader.body = body
    return reader


def read_vit(model: Any) -> Reader:
    return _read(model, model.vit, model.vit.layers, VIT, HuggingFaceReader, prefix=1, readout="class")


def read_deit(model: Any) -> Reader:
    return _read(model, model.deit, model.deit.layers, DEIT, HuggingFaceReader, prefix=2, readout="class")


def read_deit_teacher(model: Any) -> Reader:
    return _read(model, model.deit, model.deit.layers, DEIT, TwoHeadedReader, prefix=2, readout="class", read_tokens=2)


def read_dinov2(model: Any) -> Reader:
    return _read(
        model, model.dinov2, model.dinov2.encoder.layer, DINOV2, Dinov2Reader, prefix=1, readout="class and mean"
    )


def read_dinov2_registers(model: Any) -> Reader:
    body = model.dinov2_with_registers
    prefix = 1 + model.config.num_register_tokens
    return _read(
        model, body, body.encoder.layer, DINOV2_REGISTERS, Dinov2Reader, prefix=prefix, readout="class and mean"
    )


# Swin


class RegistryWindowBlock(RegistryBlock):
    """A Swin layer: the grid is padded, then rolled, then cut into windows."""

    no_bank = "a window cannot contain other tokens"
    grid: Grid | None = None

    def hooks(self) -> Handles:
        return [self.module.register_forward_pre_hook(self._on_block), *super().hooks()]

    def _on_block(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.grid = (args[1][0], args[1][1])

    def receive(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> None:
        assert self.grid is not None
        self.report(self._flow(query, key, mask, scale, self.grid))

    def _flow(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None, grid: Grid) -> Flow:
        side, shift = int(self.module.window_size), int(self.module.shift_size)
        windows = -(-grid[0] // side) * -(-grid[1] // side)
        # Shifted layers pass the mask of every window of every image; the masks of all images are equal.
        bias = mask if mask is None or len(mask) == 1 else mask[:windows]
        return Windows(Products(query, key, bias=bias, scale=scale), grid, (side, side), (shift, shift), pad_first=True)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        layer, grid = self.module, (arguments[0][0], arguments[0][1])
        layer.set_shift_and_window_size(grid)
        side, shift = int(layer.window_size), int(layer.shift_size)
        normed = self.norm.forward(tokens).unflatten(1, grid)
        query, key = self.projected(cut_windows(normed, (side, side), (shift, shift), pad_first=True))
        bias = self.attention.relative_position_bias.forward()
        padded = (grid[0] + -grid[0] % side, grid[1] + -grid[1] % side)
        mask = layer.get_attn_mask(*padded, dtype=tokens.dtype, device=tokens.device)
        bias = bias if mask is None else bias + mask.unsqueeze(1)
        return self._flow(query, key, bias, self.attention.scaling, grid)


class HuggingFaceSwinReader(PyramidReader):
    def hooks(self) -> Handles:
        return [SwitchedAttention(self.model)]

    def embed_grid(self, size: Grid) -> Grid:
        patch = _pair(self.model.config.patch_size)
        check_divides(size, patch)
        return size[0] // patch[0], size[1] // patch[1]

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.classifier(pooled)

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model.swin(images)


def read_swin(model: Any) -> Reader:
    blocks: list[BlockReader] = []
    for number, stage in enumerate(model.swin.encoder.layers):
        for layer in stage.blocks:
            _check_kinds(layer, SWIN)
            width = layer.layernorm_before.normalized_shape[0]
            settings: dict[str, Any] = dict(
                norm=layer.layernorm_before, prefix=0, class_token=False, width=width, stage=number
            )
            blocks.append(RegistryWindowBlock(layer, layer.attention, **settings))
    return HuggingFaceSwinReader(model, blocks, final_module=model.swin.layernorm, prefix=0, readout="mean")


def _check_kinds(layer: Any, kinds: tuple[type, type]) -> None:
    if (type(layer), type(layer.attention)) != kinds:
        found = f"{type(layer).__name__} with {type(layer.attention).__name__}"
        raise ValueError(f"a layer of {found} cannot be read, only {kinds[0].__name__} with {kinds[1].__name__}")


def _pair(side: Any) -> Grid:
    return (side, side) if isinstance(side, int) else (side[0], side[1])
