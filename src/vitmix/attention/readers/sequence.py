"""timm's plain transformers (ViT, DeiT, BEiT, EVA) and the compact ones of this library: equal blocks, one grid."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.layers.attention_pool import AttentionPoolLatent
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models import beit, eva
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, ResPostBlock
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Pooled, Products
from vitmix.attention.readers.base import (
    FusedBlock,
    Handles,
    Reader,
    ReplacedBlock,
    ReplacedForward,
    check_divides,
    check_size,
    project_heads,
    split_heads,
    stacked_heads,
    with_places,
)
from vitmix.models.cct import CompactBlock

__all__ = [
    "BiasedBlock",
    "CompactReader",
    "DistilledReader",
    "EvaReader",
    "HybridReader",
    "PoolingBlock",
    "PostNormBlock",
    "RotaryBlock",
    "RotaryPostNormBlock",
    "ViTReader",
    "add_pooling",
    "check_blocks",
    "projected_with_bias",
    "read_beit",
    "read_compact",
    "read_eva",
    "read_vit",
]


class PoolingBlock(FusedBlock):
    """Attention pooling (SigLIP): latent queries replace the tokens."""

    no_bank = "attention pooling is not a block"
    patch_queries = False

    def flow(self, query: Tensor, key: Tensor) -> Flow:
        return Pooled(query, key)


class ViTReader(Reader):
    pooled_prefix = False  # whether attention pooling sees the prefix tokens

    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        return share[:, self.prefix :] if index == self.depth and not self.pooled_prefix else share

    def classify(self, pooled: Tensor) -> Tensor:
        model = self.model
        if self.pooling is not None:
            pooled = model.attn_pool(pooled.unsqueeze(1))  # a single token gets all of its attention
        return model.head(model.head_drop(model.fc_norm(pooled)))

    def read_share(self, share: Tensor, final: Tensor | None) -> Tensor:
        return share.mean(1) if self.pooling is not None else super().read_share(share, final)


class EvaReader(ViTReader):
    pooled_prefix = True


class HybridReader(ViTReader):
    """Patches after a convolutional stem, each of several cells of the stem."""

    def embed_grid(self, size: Grid) -> Grid:
        embed, stride = self.model.patch_embed, self.embed_stride(size)
        if size == tuple(embed.img_size):  # may leave a remainder that the stem rounds up
            return embed.grid_size
        if embed.strict_img_size:
            check_size(size, tuple(embed.img_size))
        check_divides(size, stride)
        return size[0] // stride[0], size[1] // stride[1]

    def embed_stride(self, size: Grid) -> Grid:
        embed = self.model.patch_embed
        rows, columns = (
            patch * 2 ** math.ceil(math.log2(side / cells))  # timm's ratio is too small if the stem rounds up
            for patch, side, cells in zip(embed.patch_size, embed.img_size, embed.feature_size, strict=True)
        )
        return rows, columns


class DistilledReader(ViTReader):
    def classify(self, pooled: Tensor) -> Tensor:
        return (self.model.head(pooled) + self.model.head_dist(pooled)) / 2


class CompactReader(Reader):
    def read_share(self, share: Tensor, final: Tensor | None) -> Tensor:
        if self.readout == "class":
            return super().read_share(share, final)
        assert final is not None
        with torch.no_grad():
            weight = self.model.sequence_pool_weights(final)
        return (weight.to(share.dtype) * share).sum(1)


class RotaryBlock(FusedBlock):
    """EVA and DINOv3: queries and keys are rotated by position after the norms that have the hooks."""

    no_bank: ClassVar[str | None] = None
    rope: Tensor | None = None

    def bank_hooks(self) -> Handles:
        return [self.attention.register_forward_pre_hook(self._widen, with_kwargs=True)]

    def _widen(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Rotates appended keys as at their old positions."""
        rope, places = kwargs.get("rope"), self.bank_places
        if rope is None or places is None:
            return None
        rope = rope.expand(1, 1, -1, -1) if rope.ndim == 2 else rope.unsqueeze(0)  # (1, heads or 1, N, 2 d)
        appended = rope[0][:, places - self.prefix].transpose(0, 1)
        return args, kwargs | {"rope": torch.cat([rope.expand(len(places), -1, -1, -1), appended], dim=2)}

    def hooks(self) -> Handles:
        return [self.attention.register_forward_pre_hook(self._on_call, with_kwargs=True), *super().hooks()]

    def _on_call(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.rope = kwargs.get("rope") if self.wanted() else None

    def flow(self, query: Tensor, key: Tensor) -> Flow:
        rope, self.rope = self.rope, None
        query, key = self._rotated(query, rope), self._rotated(key, rope)
        groups = query.shape[1] // key.shape[1]
        return Products(query, key.repeat_interleave(groups, dim=1) if groups > 1 else key, prefix=self.prefix)

    def _rotated(self, tokens: Tensor, rope: Tensor | None) -> Tensor:
        if rope is None:
            return tokens
        fixed, moved = tokens[:, :, : self.prefix], tokens[:, :, self.prefix :]
        half = getattr(self.attention, "rotate_half", False)
        with torch.no_grad():
            return torch.cat([fixed, apply_rot_embed_cat(moved, rope, half=half)], dim=2).type_as(tokens)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention = self.attention
        normed = tokens if self.norm is None else self.norm.forward(tokens)
        if attention.qkv is not None:
            query, key = projected_with_bias(attention, normed, kinds=2)
        else:
            query, key = (
                projection.forward(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for projection in (attention.q_proj, attention.k_proj)
            )
        self.rope = settings.get("rope")
        return self.flow(attention.q_norm.forward(query), attention.k_norm.forward(key))


class BiasedBlock(ReplacedBlock):
    """BEiT: a relative position bias, and queries and keys that no submodule exposes."""

    def bank_hooks(self) -> Handles:
        return [ReplacedForward(self.attention, self)]

    def forward(self, tokens: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        attention = self.attention
        query, key, value = projected_with_bias(attention, tokens, kinds=3, project=attention.qkv)
        bias = with_places(self._bias(shared_rel_pos_bias), self.appended())
        self.tell(Products(query, key, prefix=self.prefix, bias=bias))
        dropout = attention.attn_drop.p if attention.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        return attention.proj_drop(attention.proj(mixed.transpose(1, 2).flatten(2)))

    def _bias(self, shared: Tensor | None) -> Tensor | None:
        if self.attention.relative_position_bias_table is None:
            return shared
        own = self.attention._get_rel_pos_bias()
        return own if shared is None else own + shared

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        query, key = projected_with_bias(self.attention, self.norm.forward(tokens), kinds=2)
        return Products(query, key, prefix=self.prefix, bias=self._bias(settings.get("shared_rel_pos_bias")))


class PostNormBlock(FusedBlock):
    """Post-norm blocks: they have no norm between the tokens and attention."""

    no_bank: ClassVar[str | None] = "it has no norm before its attention, where tokens could be appended"


class RotaryPostNormBlock(RotaryBlock):
    no_bank = PostNormBlock.no_bank


def read_vit(model: Any) -> Reader:
    check_blocks(model, (Block, ResPostBlock), (Attention,))
    if not isinstance(model.patch_drop, nn.Identity):
        raise ValueError("a model with patch dropout has no fixed token grid; create it with patch_drop_rate=0")
    distilled = isinstance(model, VisionTransformerDistilled)
    if not distilled and model.pool_include_prefix:
        raise ValueError("a VisionTransformer with pool_include_prefix=True cannot be read; create it with False")
    if not distilled and model.global_pool not in ("token", "avg", "map"):
        raise ValueError(
            f"a VisionTransformer with global_pool={model.global_pool!r} cannot be read; create it with 'token' (class "
            "token), 'avg' (mean of the patches) or 'map' (attention pooling)"
        )
    reads_class = distilled or model.global_pool == "token"
    blocks = [
        (FusedBlock if type(block) is Block else PostNormBlock)(
            block,
            block.attn,
            norm=block.norm1 if type(block) is Block else None,
            prefix=model.num_prefix_tokens,
            class_token=reads_class,
            width=model.embed_dim,
        )
        for block in model.blocks
    ]
    hybrid = isinstance(model.patch_embed, HybridEmbed)
    reader = (DistilledReader if distilled else HybridReader if hybrid else ViTReader)(
        model,
        list(blocks),
        final_module=model.norm,
        prefix=model.num_prefix_tokens,
        readout="class" if reads_class else "mean",
        read_tokens=2 if distilled else 1,
    )
    add_pooling(reader)
    return reader


def read_eva(model: Any) -> Reader:
    kinds = (eva.EvaBlock, eva.EvaBlockPostNorm)
    check_blocks(model, kinds, (eva.EvaAttention, AttentionRope))
    if model.patch_drop is not None and not isinstance(model.patch_drop, nn.Identity):
        raise ValueError("a model with patch dropout has no fixed token grid; create it with patch_drop_rate=0")
    if model.global_pool not in ("token", "avg", "map"):
        raise ValueError(
            f"an Eva with global_pool={model.global_pool!r} cannot be read; create it with 'token', 'avg' or 'map'"
        )
    reads_class = model.global_pool == "token"
    blocks = [
        (RotaryBlock if type(block) is eva.EvaBlock else RotaryPostNormBlock)(
            block,
            block.attn,
            norm=block.norm1 if type(block) is eva.EvaBlock else None,
            prefix=model.num_prefix_tokens,
            class_token=reads_class,
            width=model.embed_dim,
        )
        for block in model.blocks
    ]
    readout = "class" if reads_class else "mean"
    reader = EvaReader(model, list(blocks), final_module=model.norm, prefix=model.num_prefix_tokens, readout=readout)
    add_pooling(reader)
    return reader


def read_beit(model: Any) -> Reader:
    check_blocks(model, (beit.Block,), (beit.Attention,))
    reads_class = model.global_pool == "token"
    if model.global_pool not in ("token", "avg"):
        raise ValueError(
            f"a Beit with global_pool={model.global_pool!r} cannot be read; create it with 'avg' or 'token'"
        )
    settings: dict[str, Any] = dict(prefix=1, class_token=reads_class, width=model.embed_dim)
    blocks = [BiasedBlock(block, block.attn, norm=block.norm1, **settings) for block in model.blocks]
    readout = "class" if reads_class else "mean"
    return ViTReader(model, list(blocks), final_module=model.norm, prefix=1, readout=readout)


def read_compact(model: Any) -> Reader:
    check_blocks(model, (CompactBlock,), (Attention,))
    settings: dict[str, Any] = dict(
        prefix=model.num_prefix_tokens, class_token=model.has_class_token, width=model.embed_dim
    )
    blocks = [FusedBlock(block, block.attn, norm=block.norm1, **settings) for block in model.blocks]
    readout = "class" if model.has_class_token else "sequence"
    return CompactReader(model, list(blocks), final_module=model.norm, prefix=model.num_prefix_tokens, readout=readout)


def check_blocks(model: Any, blocks: tuple[type, ...], attentions: tuple[type, ...]) -> None:
    """Raises an error for similar classes: terms that they add after the point that is read would be missed."""
    for index, block in enumerate(model.blocks):
        attention = getattr(block, "attn", block)
        if type(block) not in blocks or type(attention) not in attentions:
            raise ValueError(
                f"block {index} of this {type(model).__name__} is a {type(block).__name__} with "
                f"{type(attention).__name__}; only {' or '.join(kind.__name__ for kind in blocks)} with timm's "
                f"{' or '.join(kind.__name__ for kind in attentions)} can be read"
            )


def add_pooling(reader: Reader) -> None:
    """Adds the attention pooling of a model that has one."""
    pool = reader.model.attn_pool
    if pool is None:
        return
    if type(pool) is not AttentionPoolLatent:
        raise ValueError(f"pooling by {type(pool).__name__} cannot be read, only by timm's AttentionPoolLatent")
    reader.pooling = PoolingBlock(pool, pool, norm=None, prefix=0, class_token=False, width=reader.width)


def projected_with_bias(
    attention: Any, tokens: Tensor, *, kinds: int, project: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, ...]:
    """As the attention of EVA and BEiT; `project` is the projection to call, if its hooks are to run."""
    heads = attention.num_heads
    if getattr(attention, "q_bias", None) is None:
        if project is None:
            return project_heads(tokens, attention.qkv, heads, kinds=kinds)
        return stacked_heads(project(tokens), heads, kinds=3)[:kinds]
    bias = torch.cat([attention.q_bias, attention.k_bias, attention.v_bias])
    if attention.qkv_bias_separate:
        return stacked_heads((project or attention.qkv.forward)(tokens) + bias, heads, kinds=3)[:kinds]
    return split_heads(tokens, attention.qkv.weight, bias, heads, kinds=kinds)
