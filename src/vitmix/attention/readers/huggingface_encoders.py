"""Hugging Face's CLIP, SigLIP and BEiT: plain encoders read through the attention-function registry."""

from typing import Any

from torch import Tensor, nn
from transformers.models.beit import modeling_beit
from transformers.models.clip import modeling_clip
from transformers.models.siglip import modeling_siglip

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products
from vitmix.attention.readers.base import (
    BlockReader,
    Handles,
    Reader,
    check_divides,
    check_size,
    exactly,
    one_head_each,
    with_places,
)
from vitmix.attention.readers.huggingface import HuggingFaceReader, RegistryBlock, SwitchedAttention

__all__ = ["BeitReader", "BiasedRegistryBlock", "ClipBlock", "ClipReader", "read_beit", "read_clip", "read_siglip"]


class ClipBlock(RegistryBlock):
    """A layer of CLIP or SigLIP, whose attention has names of its own."""

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention, normed = self.attention, self.norm.forward(tokens)
        query, key = (
            one_head_each(projection.forward(normed), attention.num_heads)
            for projection in (attention.q_proj, attention.k_proj)
        )
        return Products(query, key, prefix=self.prefix, scale=attention.scale)


class ClipReader(HuggingFaceReader):
    """The classifier reads the mean of the patches."""

    def hooks(self) -> Handles:
        return [SwitchedAttention(self.body)]  # the model's configuration also has a text tower, which is not there

    def embed_grid(self, size: Grid) -> Grid:
        embed = self.body.embeddings
        check_size(size, (embed.image_size, embed.image_size))
        return size[0] // embed.patch_size, size[1] // embed.patch_size

    def embed_stride(self, size: Grid) -> Grid:
        return self.body.embeddings.patch_size, self.body.embeddings.patch_size


def _read_clip(model: Any, kinds: tuple[type, type], *, final: nn.Module, prefix: int) -> Reader:
    blocks: list[BlockReader] = []
    for layer in model.vision_model.encoder.layers:
        exactly(layer, kinds[0])
        settings: dict[str, Any] = dict(prefix=prefix, class_token=False, width=layer.embed_dim)
        blocks.append(ClipBlock(layer, exactly(layer.self_attn, kinds[1]), norm=layer.layer_norm1, **settings))
    reader = ClipReader(model, blocks, final_module=final, prefix=prefix, readout="mean")
    reader.body = model.vision_model
    return reader


def read_clip(model: Any) -> Reader:
    kinds = (modeling_clip.CLIPEncoderLayer, modeling_clip.CLIPAttention)
    return _read_clip(model, kinds, final=model.vision_model.encoder.layers[-1], prefix=1)


def read_siglip(model: Any) -> Reader:
    kinds = (modeling_siglip.SiglipEncoderLayer, modeling_siglip.SiglipAttention)
    return _read_clip(model, kinds, final=model.vision_model.post_layernorm, prefix=0)


# BEiT


class BiasedRegistryBlock(RegistryBlock):
    """A layer of BEiT, which adds a relative position bias."""

    def bank_hooks(self) -> Handles:
        return [self.attention.register_forward_pre_hook(self._widen, with_kwargs=True)]

    def _widen(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": with_places(kwargs.get("attention_mask"), self.bank_places)}

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        query, key = self.projected(self.norm.forward(tokens))
        bias, own = settings.get("attention_mask"), self.module.relative_position_bias
        if own is not None:
            height, width = settings["resolution"]
            patch, interpolate = self.module.patch_size, settings.get("interpolate_pos_encoding", False)
            relative = own.forward((height // patch, width // patch), interpolate, dim_size=tokens.shape[1])
            bias = relative if bias is None else relative + bias
        return Products(query, key, prefix=self.prefix, bias=bias, scale=self.attention.scaling)


class BeitReader(HuggingFaceReader):
    def embed_grid(self, size: Grid) -> Grid:  # positions are interpolated to any size
        patch = self.embed_stride(size)
        check_divides(size, patch)
        return size[0] // patch[0], size[1] // patch[1]

    def classify(self, pooled: Tensor) -> Tensor:
        norm = self.body.pooler.layernorm
        return self.model.classifier(pooled if norm is None else norm(pooled))


def read_beit(model: Any) -> Reader:
    reads_class = not model.config.use_mean_pooling
    blocks: list[BlockReader] = []
    for layer in model.beit.layers:
        exactly(layer, modeling_beit.BeitLayer)
        attention = exactly(layer.attention, modeling_beit.BeitAttention)
        settings: dict[str, Any] = dict(prefix=1, class_token=reads_class, width=model.config.hidden_size)
        blocks.append(BiasedRegistryBlock(layer, attention, norm=layer.layernorm_before, **settings))
    readout = "class" if reads_class else "mean"
    reader = BeitReader(model, blocks, final_module=model.beit.layernorm, prefix=1, readout=readout)
    reader.body = model.beit
    return reader
