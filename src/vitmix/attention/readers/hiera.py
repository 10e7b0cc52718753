"""Hiera: attention within units of tokens or between all; the first block of a stage merges 2 x 2 tokens.

The model keeps its tokens in an order in which units and cells are apart by equal distances. Here they are row by row.
"""

from typing import Any

import torch
from timm.models import hiera
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products
from vitmix.attention.groups import Groups
from vitmix.attention.readers.base import BlockReader, ProjectedBlock, Reader, check_size, exactly
from vitmix.attention.readers.convolved import check_last, merged_flow
from vitmix.attention.readers.pyramid import PVT2Reader, PyramidReader

__all__ = ["HieraReader", "UnitBlock", "read_hiera"]


class UnitBlock(ProjectedBlock):
    """`before` and `after` are the positions in the model's order of the tokens, row by row."""

    no_bank = "its units cannot contain other tokens"
    pool = nn.AvgPool2d(2)
    before: Tensor
    after: Tensor
    grid: Grid

    def to_tokens(self, features: Tensor) -> Tensor:
        return features[:, self.before.to(features.device)]

    def from_tokens(self, tokens: Tensor, features: Tensor) -> Tensor:
        return tokens[:, self.before.to(tokens.device).argsort()]

    def flow(self, projected: Tensor) -> Flow:
        attention, tokens = self.attention, projected.shape[1]
        units = tokens // (attention.q_stride * attention.window_size) if attention.use_mask_unit_attn else 1
        heads = projected.unflatten(2, (3, attention.heads, -1)).unflatten(1, (-1, units))  # (B, cells, units, 3, H, d)
        query, key, _ = heads.permute(3, 0, 2, 4, 1, 5).flatten(1, 2).unbind(0)  # (B * units, H, cells, d)
        query = query.unflatten(2, (attention.q_stride, -1)).amax(2)
        groups = Groups(
            Products(query, key),
            self.after.to(projected.device).argsort().view(-1, units).T,
            self.before.to(projected.device).argsort().view(-1, units).T,
        )
        return groups if attention.q_stride == 1 else merged_flow(groups, self.grid, self.pool)


class HieraReader(PVT2Reader):
    merged_grid = PyramidReader.merged_grid
    merged_share = PyramidReader.merged_share

    def embed_grid(self, size: Grid) -> Grid:
        (rows, columns), stride = self.model.tokens_spatial_shape, self.model.patch_stride
        check_size(size, (rows * stride[0], columns * stride[1]))
        return rows, columns

    @property
    def embedding(self) -> nn.Conv2d:
        return self.model.patch_embed.proj

    def final_tokens(self, output: Tensor) -> Tensor:
        return output[:, _order(self.model, self.depth - 1).to(output.device)]

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.forward_head(pooled.unsqueeze(1))

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model.forward_features(images)


def _order(model: Any, block: int) -> Tensor:
    """The positions in the model's order of the tokens that leave a block, row by row."""
    _, size = model.reroll.schedule[block]
    places = torch.arange(size[0] * size[1]).view(1, -1, 1)
    return model.reroll.forward(places, block).flatten()


def read_hiera(model: Any) -> Reader:
    if model.head.pool_type != "avg" or model.patch_drop_rate:
        raise ValueError("a Hiera can be read only with global_pool='avg' and patch_drop_rate=0")
    if tuple(model.q_stride) != (2, 2):
        raise ValueError(f"a Hiera that merges {model.q_stride} tokens cannot be read; create it with q_stride=(2, 2)")
    blocks, stage = list[BlockReader](), 0
    for index, block in enumerate(model.blocks):
        attention = exactly(exactly(block, hiera.HieraBlock).attn, hiera.MaskUnitAttention)
        settings: dict[str, Any] = dict(prefix=0, class_token=False, width=block.dim, stage=stage)
        reader = UnitBlock(block, attention, norm=block.norm1, **settings)
        before = max(index - 1, 0)
        reader.before, reader.after = _order(model, before), _order(model, index)
        reader.grid = tuple(model.reroll.schedule[before][1])
        blocks.append(reader)
        stage += attention.q_stride > 1
    check_last(model, merges=model.blocks[-1].attn.q_stride > 1)
    return HieraReader(model, blocks, final_module=model.blocks[-1], prefix=0, readout="mean")
