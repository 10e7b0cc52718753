"""PiT: a ViT whose patches are merged between stages by overlapping convolutions; class tokens go on as they are."""

from typing import Any

from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.readers.base import BlockReader, FusedBlock, Reader, check_size, exactly
from vitmix.attention.readers.pyramid import PVT2Reader

__all__ = ["PiTReader", "read_pit"]


class PiTReader(PVT2Reader):
    @property
    def embedding(self) -> nn.Conv2d:
        return self.model.patch_embed.conv

    @property
    def merging(self) -> nn.Conv2d:
        return self.model.transformers[1].pool.conv

    def embed_grid(self, size: Grid) -> Grid:
        check_size(size, self.model.patch_embed.img_size)
        return super().embed_grid(size)

    def classify(self, pooled: Tensor) -> Tensor:
        model = self.model
        pooled = model.head_drop(model.norm(pooled))  # the model norms what it reads alone
        logits = model.head(pooled)
        return logits if model.head_dist is None else (logits + model.head_dist(pooled)) / 2


def read_pit(model: Any) -> Reader:
    if model.global_pool != "token":
        raise ValueError("a PoolingVisionTransformer can be read only with global_pool='token'")
    prefix, blocks = model.num_tokens, list[BlockReader]()
    for number, stage in enumerate(model.transformers):
        for block in stage.blocks:
            attention, width = exactly(exactly(block, Block).attn, Attention), block.norm1.normalized_shape[0]
            settings: dict[str, Any] = dict(prefix=prefix, class_token=True, width=width, stage=number)
            blocks.append(FusedBlock(block, attention, norm=block.norm1, **settings))
    final = model.transformers[-1].blocks[-1]
    return PiTReader(model, blocks, final_module=final, prefix=prefix, readout="class", read_tokens=prefix)
