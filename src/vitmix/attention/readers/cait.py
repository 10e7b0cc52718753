"""CaiT: talking heads in self-attention blocks without a class token, then class-attention blocks with one."""

from typing import Any

from timm.models import cait
from torch import Tensor, nn

from vitmix._mix import Grid, initial_token_share
from vitmix.attention.flow import ClassOnly, Flow, Given
from vitmix.attention.readers.base import BlockReader, Handles, Reader, one_head_each, project_heads
from vitmix.attention.readers.sequence import check_blocks

__all__ = ["CaitReader", "ClassAttentionBlock", "TalkingHeadsBlock", "read_cait"]


class TalkingHeadsBlock(BlockReader):
    """Reads the softmax before the second head projection, which the model has in memory anyway."""

    def hooks(self) -> Handles:
        return [self.attention.proj_w.register_forward_pre_hook(self._on_attention)]

    def _on_attention(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if self.wanted():
            self.report(Given(args[0].permute(0, 3, 1, 2), prefix=self.prefix))

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention = self.attention
        normed = self.norm.forward(tokens)
        query, key = project_heads(normed, attention.qkv, attention.num_heads, kinds=2)
        scores = (query * attention.scale) @ key.transpose(-2, -1)
        talked = attention.proj_l.forward(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return Given(talked.softmax(-1), prefix=self.prefix)


class ClassAttentionBlock(BlockReader):
    no_bank = "only its class token attends"
    patch_queries = False
    query: Tensor | None = None

    def hooks(self) -> Handles:
        return [
            self.attention.q.register_forward_hook(self._on_query),
            self.attention.k.register_forward_hook(self._on_key),
        ]

    def _on_query(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.query = output.unsqueeze(1) if self.wanted() else None

    def _on_key(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.query is not None:
            query, self.query = self.query, None
            heads = self.attention.num_heads
            self.report(ClassOnly(one_head_each(query, heads), one_head_each(output, heads)))


class CaitReader(Reader):
    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        """The class token joins at the first class-attention block, with the image's share."""
        return initial_token_share(share, image_share, prefix=1) if index == self.patch_depth else share

    def stop_after(self, block: int, images: Tensor) -> None:
        if block >= self.patch_depth:
            self.model.forward_features(images)
        else:
            super().stop_after(block, images)


def read_cait(model: Any) -> Reader:
    if model.global_pool != "token":
        raise ValueError(f"a Cait with global_pool={model.global_pool!r} cannot be read; create it with 'token'")
    check_blocks(model, (cait.LayerScaleBlock,), (cait.TalkingHeadAttn,))
    for block in model.blocks_token_only:
        if type(block) is not cait.LayerScaleBlockClassAttn or type(block.attn) is not cait.ClassAttn:
            raise ValueError("only timm's LayerScaleBlockClassAttn with ClassAttn can be read after CaiT's blocks")
    width = model.embed_dim
    blocks: list[BlockReader] = [
        TalkingHeadsBlock(block, block.attn, norm=block.norm1, prefix=0, class_token=False, width=width)
        for block in model.blocks
    ]
    blocks += [
        ClassAttentionBlock(block, block.attn, norm=block.norm1, prefix=1, class_token=True, width=width)
        for block in model.blocks_token_only
    ]
    return CaitReader(model, blocks, final_module=model.norm, prefix=1, readout="class")
