"""VOLO: outlook attention within overlapping windows, then attention between all tokens, then class attention."""

from functools import partial
from typing import Any, ClassVar

from timm.models import volo
from torch import Tensor, nn

from vitmix._mix import Grid, initial_token_share
from vitmix.attention.flow import ClassOnly, Flow, Products
from vitmix.attention.groups import Overlapping
from vitmix.attention.readers.base import (
    BlockReader,
    Handles,
    ProjectedBlock,
    Reader,
    check_size,
    exactly,
    one_head_each,
    stacked_heads,
)
from vitmix.attention.readers.convolved import ConvolvedReader, Spatial
from vitmix.attention.readers.spatial import through_convs

__all__ = ["GridBlock", "OutlookBlock", "VoloClassBlock", "VoloReader", "read_volo"]


class OutlookBlock(BlockReader):
    """Attention weights come from a linear layer of pooled tokens, not from products."""

    no_bank: ClassVar[str | None] = "a window cannot contain other tokens"
    grid: Grid = (0, 0)

    def hooks(self) -> Handles:
        return [
            self.module.register_forward_pre_hook(self._on_block),
            self.attention.attn_drop.register_forward_pre_hook(self._on_attention),
        ]

    def _on_block(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.grid = (args[0].shape[1], args[0].shape[2])

    def _on_attention(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if self.wanted():
            self.report(self._flow(args[0]))

    def _flow(self, weights: Tensor) -> Flow:
        attention = self.attention
        kernel, padding, stride = attention.kernel_size, attention.padding, attention.stride
        return Overlapping(weights, self.grid, kernel=kernel, padding=padding, stride=stride)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention, self.grid = self.attention, (tokens.shape[1], tokens.shape[2])
        pooled = attention.pool.forward(self.norm.forward(tokens).permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
        cells = attention.kernel_size**2
        scores = attention.attn.forward(pooled).unflatten(2, (attention.num_heads, cells, cells)).transpose(1, 2)
        return self._flow((scores * attention.scale).softmax(-1))


class GridBlock(ProjectedBlock):
    """Attention between all tokens of a grid."""

    no_bank: ClassVar[str | None] = "its tokens form a grid, which cannot contain others"

    def flow(self, projected: Tensor) -> Flow:
        query, key, _ = stacked_heads(projected.flatten(1, 2), self.attention.num_heads, kinds=3)
        return Products(query, key)


class VoloClassBlock(BlockReader):
    no_bank: ClassVar[str | None] = "only its class token attends"
    patch_queries = False
    keys: Tensor | None = None

    def hooks(self) -> Handles:
        return [
            self.attention.kv.register_forward_hook(self._on_keys),
            self.attention.q.register_forward_hook(self._on_query),
        ]

    def _on_keys(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.keys = output if self.wanted() else None

    def _on_query(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.keys is not None:
            (key, _), heads = stacked_heads(self.keys, self.attention.num_heads, kinds=2), self.attention.num_heads
            self.keys = None
            self.report(ClassOnly(one_head_each(output, heads), key))


class VoloReader(ConvolvedReader):
    def embed_grid(self, size: Grid) -> Grid:
        _, rows, columns, _ = self.model.pos_embed.shape
        scale, (stride, _) = self.model.pooling_scale, self.embed_stride(size)
        check_size(size, (rows * scale * stride, columns * scale * stride))
        return rows * scale, columns * scale

    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        """The class token joins at the first class-attention block, with the image's share."""
        if index == self.patch_depth:
            return initial_token_share(share, image_share, prefix=1)
        return share if index > self.patch_depth else super().arrive(index, share, image_share, size)

    def final_tokens(self, output: Tensor) -> Tensor:
        return output

    def classify(self, pooled: Tensor) -> Tensor:
        return self.model.head(self.model.head_drop(pooled))

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model.forward_features(images)


def read_volo(model: Any) -> Reader:
    if model.aux_head is not None:
        raise ValueError(
            "a VOLO with an auxiliary head cannot be read: it adds the largest logit of any token, which has no share; "
            "create it with use_aux_head=False"
        )
    if model.global_pool != "token" or model.post_network is None:
        raise ValueError("a VOLO can be read only if its classifier reads the class token")
    blocks, before, stage, steps = list[BlockReader](), list[list[Spatial]](), 0, list[Spatial]()
    stride = model.patch_embed.conv[0].stride[0] * model.patch_embed.proj.stride[0]
    steps.append(Spatial(partial(through_convs, stem=model.patch_embed), stride))
    for part in model.network:
        if type(part) is volo.Downsample:
            stage, steps = stage + 1, [Spatial(partial(through_convs, stem=part), 2)]
            continue
        for block in part:
            blocks.append(_block(block, stage))
            before.append(steps)
            steps = []
    for block in model.post_network:
        attention = exactly(exactly(block, volo.ClassBlock).attn, volo.ClassAttention)
        settings: dict[str, Any] = dict(prefix=1, class_token=True, width=model.num_features, stage=stage)
        blocks.append(VoloClassBlock(block, attention, norm=block.norm1, **settings))
        before.append([])
    reader = VoloReader(model, blocks, final_module=model.norm, prefix=1, readout="class")
    reader.before = before
    return reader


def _block(block: Any, stage: int) -> BlockReader:
    outlooks = type(block) is volo.Outlooker
    exactly(block, volo.Outlooker if outlooks else volo.Transformer)
    exactly(block.attn, volo.OutlookAttention if outlooks else volo.Attention)
    width = block.norm1.normalized_shape[0]
    settings: dict[str, Any] = dict(prefix=0, class_token=False, width=width, stage=stage)
    return (OutlookBlock if outlooks else GridBlock)(block, block.attn, norm=block.norm1, **settings)
