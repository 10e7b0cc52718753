"""timm's ViT with relative positions: a bias of each block, or one that all blocks share."""

from typing import Any, ClassVar

from timm.layers.pos_embed_rel import RelPosMlp
from timm.models.vision_transformer_relpos import RelPosAttention, RelPosBlock, ResPostRelPosBlock
from torch import Tensor, nn

from vitmix.attention.flow import Flow, Products
from vitmix.attention.readers.base import (
    Handles,
    Reader,
    ReplacedBlock,
    ReplacedForward,
    project_heads,
    stacked_heads,
    with_places,
)
from vitmix.attention.readers.sequence import PostNormBlock, ViTReader, check_blocks

__all__ = ["RelativeBlock", "RelativePostNormBlock", "finished_bias", "quiet_bias", "read_relative"]


def finished_bias(positions: Any, bias: Tensor) -> Tensor:
    """The bias `(1, H, N, N)` of timm's `RelPosMlp`, from the output `(H, n, n)` of its last activation."""
    bias = bias if positions.bias_gain is None else positions.bias_gain * bias
    prefix = positions.prefix_tokens
    return nn.functional.pad(bias, [prefix, 0, prefix, 0]).unsqueeze(0)


def quiet_bias(positions: Any) -> Tensor | None:
    """The bias `(1, H, N, N)` of relative positions without its dropout: a draw here would change the model's draws."""
    if positions is None:
        return None
    if not isinstance(positions, RelPosMlp):
        bias = positions.get_bias()
        return bias if bias.ndim == 4 else bias.unsqueeze(0)
    network: Any = positions.mlp
    coordinates: Any = positions.rel_coords_log
    index: Any = positions.relative_position_index
    hidden = network.norm.forward(network.act.forward(network.fc1.forward(coordinates)))
    table = network.fc2.forward(hidden).view(-1, positions.num_heads)[index]
    return finished_bias(positions, positions.bias_act.forward(table.view(positions.bias_shape).permute(2, 0, 1)))


class RelativeBlock(ReplacedBlock):
    """The bias is computed once: a hook would run its network a second time."""

    no_bank: ClassVar[str | None] = None

    def bank_hooks(self) -> Handles:
        return [ReplacedForward(self.attention, self)]

    def forward(self, tokens: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        attention = self.attention
        query, key, value = stacked_heads(attention.qkv(tokens), attention.num_heads, kinds=3)
        query, key = attention.q_norm(query), attention.k_norm(key)
        bias = with_places(self._bias(shared_rel_pos), self.appended())
        self.tell(Products(query, key, prefix=self.prefix, bias=bias))
        dropout = attention.attn_drop.p if attention.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        return attention.proj_drop(attention.proj(mixed.transpose(1, 2).flatten(2)))

    def _bias(self, shared: Tensor | None) -> Tensor | None:
        return shared if self.attention.rel_pos is None else self.attention.rel_pos.get_bias()

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention = self.attention
        normed = tokens if self.norm is None else self.norm.forward(tokens)
        query, key = project_heads(normed, attention.qkv, attention.num_heads, kinds=2)
        query, key = attention.q_norm.forward(query), attention.k_norm.forward(key)
        shared = settings.get("shared_rel_pos")
        bias = shared if attention.rel_pos is None else quiet_bias(attention.rel_pos)
        return Products(query, key, prefix=self.prefix, bias=bias)


class RelativePostNormBlock(RelativeBlock):
    no_bank = PostNormBlock.no_bank


def read_relative(model: Any) -> Reader:
    check_blocks(model, (RelPosBlock, ResPostRelPosBlock), (RelPosAttention,))
    if model.global_pool not in ("token", "avg"):
        raise ValueError("a VisionTransformerRelPos can be read only with global_pool='avg' or 'token'")
    reads_class, prefix = model.global_pool == "token", model.num_prefix_tokens
    blocks = [
        (RelativeBlock if type(block) is RelPosBlock else RelativePostNormBlock)(
            block,
            block.attn,
            norm=block.norm1 if type(block) is RelPosBlock else None,
            prefix=prefix,
            class_token=reads_class,
            width=model.embed_dim,
        )
        for block in model.blocks
    ]
    readout = "class" if reads_class else "mean"
    return ViTReader(model, list(blocks), final_module=model.norm, prefix=prefix, readout=readout)
