"""timm's NaFlexViT, given images: any size whose sides are multiples of the patch size."""

from typing import Any

from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention, EvaBlock
from timm.models.vision_transformer import Block
from torch import Tensor

from vitmix._mix import Grid
from vitmix.attention.readers.base import BlockReader, FusedBlock, Reader, check_divides
from vitmix.attention.readers.sequence import RotaryBlock, ViTReader, add_pooling, check_blocks

__all__ = ["NaFlexReader", "read_naflex"]


class NaFlexReader(ViTReader):
    def embed_grid(self, size: Grid) -> Grid:
        patch = self.embed_stride(size)
        check_divides(size, patch)
        return size[0] // patch[0], size[1] // patch[1]

    def embed_stride(self, size: Grid) -> Grid:
        return self.model.embeds.patch_size

    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        pooled_prefix = self.model.pool_include_prefix
        return share[:, self.prefix :] if index == self.depth and not pooled_prefix else share


def read_naflex(model: Any) -> Reader:
    check_blocks(model, (Block, EvaBlock), (Attention, AttentionRope, EvaAttention))
    if model.patch_drop is not None:
        raise ValueError("a model with patch dropout has no fixed token grid; create it with patch_drop_rate=0")
    if model.global_pool not in ("token", "avg", "map") or (model.pool_include_prefix and model.global_pool == "avg"):
        raise ValueError(
            f"a NaFlexVit with global_pool={model.global_pool!r} and pool_include_prefix={model.pool_include_prefix} "
            "cannot be read; create it with 'token', 'map', or 'avg' without the prefix"
        )
    reads_class, prefix = model.global_pool == "token", model.num_prefix_tokens
    settings: dict[str, Any] = dict(prefix=prefix, class_token=reads_class, width=model.embed_dim)
    blocks: list[BlockReader] = [
        (FusedBlock if type(block) is Block else RotaryBlock)(block, block.attn, norm=block.norm1, **settings)
        for block in model.blocks
    ]
    readout = "class" if reads_class else "mean"
    reader = NaFlexReader(model, blocks, final_module=model.norm, prefix=prefix, readout=readout)
    add_pooling(reader)
    return reader
