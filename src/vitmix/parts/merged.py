"""The image's own salient tokens stay, the partner fills the rest: MergeMix. Tokens merge in the guide pass (ToMe)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from vitmix._checks import check_fraction, check_positive
from vitmix._mix import Frame
from vitmix._registry import register
from vitmix.attention.flow import Products
from vitmix.parts.base import Evidence, Mask, Needs, Observer, Paste, Shown, Unmixed, Values
from vitmix.parts.masks import beta_share
from vitmix.parts.top_cells import top_cells

if TYPE_CHECKING:
    from vitmix.attention.readers.base import Reader

__all__ = ["MergedMask", "match_tokens", "merge_schedule", "merge_tokens"]


def merge_schedule(blocks: int, total: int, rate: int | None = None) -> list[int]:
    """How many tokens each block merges, `total` in all: from 1.5 to 0.5 of `rate`, falling.

    The first block makes up for rounding; if the others merge too many, the last ones merge fewer.

    Args:
        rate: the mean of the falling line (default: `total / blocks`, rounded up).
    """
    rate = math.ceil(total / blocks) if rate is None else rate
    most = int(1.5 * rate)
    step = 2 * (rate - most) / max(blocks - 1, 1)
    counts = [int(most + step * block) for block in range(blocks)]
    counts[0] = total - sum(counts[1:])
    for block in reversed(range(1, blocks)):
        surplus = min(max(-counts[0], 0), counts[block])
        counts[block], counts[0] = counts[block] - surplus, counts[0] + surplus
    return counts


def match_tokens(keys: Tensor, count: int, *, prefix: int) -> Tensor:
    """The new positions `(B, n)` of patches, after `count` of them merged with the most similar others.

    Of all tokens, those at even positions are offered to those at odd positions, by the cosine of their keys. The order
    is then: even patches that did not merge, odd patches.

    Args:
        keys: `(B, n, d)` of the patches.
        prefix: number of tokens before the patches, which do not merge.
    """
    even, odd = keys[:, prefix % 2 :: 2], keys[:, 1 - prefix % 2 :: 2]
    even, odd = (functional.normalize(each, dim=2, eps=1e-12) for each in (even, odd))
    similarity, partner = (even @ odd.transpose(1, 2)).max(2)
    merges = torch.zeros_like(similarity, dtype=torch.bool).scatter(1, similarity.topk(count, dim=1).indices, True)
    kept = even.shape[1] - count
    places = torch.where(merges, kept + partner, (~merges).cumsum(1) - 1)
    found = torch.empty(keys.shape[:2], dtype=torch.long, device=keys.device)
    found[:, prefix % 2 :: 2] = places
    found[:, 1 - prefix % 2 :: 2] = kept + torch.arange(odd.shape[1], device=keys.device)
    return found


def merge_tokens(tokens: Tensor, sizes: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Tokens `(B, count, d)`, means weighted by size of the tokens `(B, n, d)` at their places, and sizes `(B, count)`.

    Args:
        sizes: `(B, n)` how many patches each token stands for.
        places: `(B, n)` the new position of each token.
    """
    merged = sizes.new_zeros(len(sizes), count).scatter_add(1, places, sizes)
    total = tokens.new_zeros(len(tokens), count, tokens.shape[2])
    total = total.scatter_add(1, places.unsqueeze(2).expand_as(tokens), tokens * sizes.unsqueeze(2).to(tokens.dtype))
    return total / merged.unsqueeze(2).to(tokens.dtype), merged


@dataclass(frozen=True)
class MergedPass(Observer):
    """A pass up to a block, with merging after the attention of the blocks before; the saliency of that block.

    Attributes:
        reader: of a ViT of timm.
        block: the block that is read.
        merged: the part of the patches that all blocks would merge.
    """

    reader: Any
    block: int
    merged: float

    def __call__(self, images: Tensor) -> Tensor:
        """Saliency `(B, rows, columns)`; merged tokens give theirs to every patch that they stand for."""
        reader, model = self.reader, self.reader.model
        tokens = model.norm_pre(model._pos_embed(model.patch_embed(images)))
        prefix = reader.blocks[0].prefix
        patches = tokens.shape[1] - prefix
        counts = merge_schedule(reader.depth, round(self.merged * patches))
        places = torch.arange(patches, device=tokens.device).expand(len(tokens), -1)
        sizes = tokens.new_ones(len(tokens), patches, dtype=torch.float32)
        for block, count in zip(reader.blocks[: self.block], counts, strict=False):
            tokens, sizes, places = self._run(block, tokens, sizes, places, count)
        block = reader.blocks[self.block]
        saliency = block.saliency(block.attend(tokens, (), {}))
        grid = reader.grids((images.shape[2], images.shape[3]))[self.block]
        return saliency.gather(1, places).unflatten(1, grid)

    def _run(
        self, block: Any, tokens: Tensor, sizes: Tensor, places: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        module, prefix = block.module, block.prefix
        flow = block.attend(tokens, (), {})
        assert isinstance(flow, Products)
        tokens = tokens + module.ls1(module.attn(module.norm1(tokens)))
        count = min(count, (tokens.shape[1] - prefix) // 2)
        if count:
            new = match_tokens(flow.key.mean(1)[:, prefix:], count, prefix=prefix)
            merged, sizes = merge_tokens(tokens[:, prefix:], sizes, new, tokens.shape[1] - prefix - count)
            tokens, places = torch.cat([tokens[:, :prefix], merged], dim=1), new.gather(1, places)
        return tokens + module.ls2(module.mlp(module.norm2(tokens))), sizes, places


@register
@dataclass(frozen=True)
class MergedMask(Mask):
    """Each image keeps its most salient tokens, and the partner fills the rest: MergeMix.

    Args:
        alpha: the part that is kept is drawn from Beta(alpha, alpha), once per batch.
        merged: the part of the tokens that all blocks together would merge in the guide pass; 0 merges none.
        block: whose attention is read (default: the one after three quarters of them).
    """

    name: ClassVar[str] = "merged"
    alpha: float = 1.0
    merged: float = 0.5
    block: int | None = None

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_fraction("merged", self.merged)
        if self.block is not None and (isinstance(self.block, bool) or not isinstance(self.block, int)):
            raise ValueError(f"block must be a block's number or none, got {self.block!r}")

    @property
    def needs(self) -> Needs:
        return Needs(model=True, guide_observer=True)

    def observer(self, reader: "Reader") -> MergedPass:
        from timm.models.vision_transformer import Block, VisionTransformer
        from torch.distributed.tensor import DTensor

        plain = all(type(block.module) is Block for block in reader.blocks)
        if not isinstance(reader.model, VisionTransformer) or not plain:
            raise ValueError(
                f"a {self.name} mask merges tokens inside the blocks of timm's plain vision transformers, which this "
                f"{reader.name} is not; use such a guide, attach(model, guide=...), or attentive_cutmix"
            )
        if any(isinstance(each, DTensor) for each in reader.model.parameters()):
            raise ValueError(f"a {self.name} mask merges tokens inside blocks, which FSDP spreads; train without fsdp")
        block = reader.patch_depth * 3 // 4 if self.block is None else self.block
        return MergedPass(reader, reader.resolve_patches(block), self.merged)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {"share": beta_share(1, self.alpha, generator=generator)}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        scores = batch.guidance.observed
        assert scores is not None
        count = ((1 - values["share"]) * (scores.shape[1] * scores.shape[2])).floor().long()
        return Paste(~top_cells(scores, count))

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        assert evidence.guidance.observed is not None
        return (Shown("own merged attention", evidence.guidance.observed[0].float()),)
