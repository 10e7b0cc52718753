"""Twins: attention within windows (SVT) and to reduced keys in turn; PCPVT has reduced keys only."""

from typing import Any

from timm.models import twins
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.flow import Flow, Products, Windows, cut_windows
from vitmix.attention.readers.base import BlockReader, Handles, Reader, check_divides, exactly, stacked_heads
from vitmix.attention.readers.pyramid import PyramidReader, ReducedBlock

__all__ = ["LocalBlock", "TwinsReader", "read_twins"]


class LocalBlock(BlockReader):
    """Locally grouped attention; the grid is the block's second argument."""

    no_bank = "a window cannot contain other tokens"
    grid: Grid | None = None

    def hooks(self) -> Handles:
        return [
            self.attention.register_forward_pre_hook(self._on_call),
            self.attention.qkv.register_forward_hook(self._on_projected),
        ]

    def _on_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.grid = (args[1][0], args[1][1])

    def _on_projected(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.wanted():
            assert self.grid is not None
            self.report(self._flow(output.flatten(3, 4).flatten(0, 2), self.grid))

    def _flow(self, projected: Tensor, grid: Grid) -> Flow:
        query, key, _ = stacked_heads(projected, self.attention.num_heads, kinds=3)
        return Windows(Products(query, key), grid, (self.attention.ws, self.attention.ws), (0, 0))

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        grid, side = (arguments[0][0], arguments[0][1]), self.attention.ws
        windows = cut_windows(self.norm.forward(tokens).unflatten(1, grid), (side, side), (0, 0), pad_first=False)
        return self._flow(self.attention.qkv.forward(windows), grid)


class TwinsReader(PyramidReader):
    def embed_grid(self, size: Grid) -> Grid:
        patch = self.embed_stride(size)
        factor = 2 ** (len(self.model.depths) - 1)  # the model drops what is left over when it merges
        check_divides(size, (patch[0] * factor, patch[1] * factor))
        return size[0] // patch[0], size[1] // patch[1]

    def embed_stride(self, size: Grid) -> Grid:
        return self.model.patch_embeds[0].patch_size


def read_twins(model: Any) -> Reader:
    if model.global_pool != "avg":
        raise ValueError("a Twins can be read only with global_pool='avg'")
    blocks: list[BlockReader] = []
    for number, stage in enumerate(model.blocks):
        for block in stage:
            attention = exactly(block, twins.Block).attn
            local = type(attention) is twins.LocallyGroupedAttn
            kind = LocalBlock if local else ReducedBlock
            exactly(attention, twins.LocallyGroupedAttn if local else twins.GlobalSubSampleAttn)
            settings: dict[str, Any] = dict(prefix=0, class_token=False, width=attention.dim, stage=number)
            blocks.append(kind(block, attention, norm=block.norm1, **settings))
    return TwinsReader(model, blocks, final_module=model.norm, prefix=0, readout="mean")
