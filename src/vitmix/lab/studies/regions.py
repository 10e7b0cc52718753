"""Attention between the two regions of a mixed image (SMMix tables A1, A2), and what is left of each token
(TL-Align, equation 2)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitmix._mixing import MixedBatch, Mixing
from vitmix.attention.flow import Flow
from vitmix.attention.readers import read_model
from vitmix.attention.tap import AttentionTap

from .pairs import Found, ImageBatch, PairStudy

PAIRS = ("partner to partner", "partner to own", "own to partner", "own to own")  # query to key
FADED = 0.1  # a token with less presence counts as faded


def region_attention(flow: Flow, mask: Tensor) -> Tensor:
    """Mean attention `(B, 4)` between the patches of the two regions, in the order of `PAIRS`; NaN if one is empty.

    Args:
        flow: of a block; `vitmix.attention.flow.Given(attention)` where there is a matrix.
        mask: `(B, n)` bool, the partner's patches.
    """
    theirs = mask.to(torch.promote_types(flow.like.dtype, torch.float32))
    found = []
    for query in (theirs, 1 - theirs):
        seen = flow.pull(nn.functional.pad(query, (flow.prefix, 0)))[:, flow.prefix :]
        found += [(seen * key).sum(1) / (query.sum(1) * key.sum(1)) for key in (theirs, 1 - theirs)]
    return torch.stack(found, 1)


def presence(flow: Flow) -> Tensor:
    """The presence `(B, N)` of each token after a block's attention: the sum of what all tokens take from it.

    Every token takes a total of one, so the mean presence is one.
    """
    return flow.pull(1 / flow.mass())


def _regions(flow: Flow, mask: Tensor) -> dict[str, Tensor]:
    return dict(zip(PAIRS, region_attention(flow, mask).unbind(1), strict=True))


def _presence(flow: Flow, mask: Tensor) -> dict[str, Tensor]:
    """How unevenly the tokens of mixed images survive a block's attention."""
    left = presence(flow)[:, flow.prefix :]
    theirs = mask.to(left.dtype)
    own, partner = ((left * region).sum(1) / region.sum(1) for region in (1 - theirs, theirs))
    faded = (left < FADED).to(left.dtype).mean(1)
    spread = {"deviation": left.std(1, correction=0), "least": left.amin(1), "most": left.amax(1)}
    return {**spread, f"below {FADED}": faded, "own": own, "partner": partner}


def _by_block(
    study: str, title: str, values: Callable[[Flow, Tensor], dict[str, Tensor]], notes: tuple[str, ...]
) -> PairStudy:
    """A row for each method and block: the `values` of the block's flow and the partner's patches.

    A block whose grid is too small for both images, such as the last one of a pyramid, has no row.
    """

    def look(model: nn.Module, images: ImageBatch, mixing: Mixing, batch: MixedBatch) -> dict[tuple[str, ...], Found]:
        reader = read_model(model)
        reader.need_attention(study)
        blocks, found = range(reader.patch_depth), {}
        mixing.forget()
        with AttentionTap(model, attention=blocks) as tap:
            model(batch.images)
        for block in blocks:
            mask = reader.patch_mask(batch.mix.mask, block, batch.frame.size).bool().expand(batch.frame.batch, -1)
            found[(str(block),)] = values(tap.flow(block), mask), mask.any(1) & ~mask.all(1)
        return found

    nothing = "found no image with patches of both images; give more images"
    return PairStudy(study, title, ("method", "block"), look, notes, nothing, regions=True)


region_study = _by_block(
    "attention between regions",
    "Attention between the regions of a mixed image",
    _regions,
    (
        "Mean attention of a patch of the first region to a patch of the second; where attention is within windows, "
        "patches of other windows count as zero.",
    ),
)
presence_study = _by_block(
    "token presence",
    "Presence of tokens",
    _presence,
    (
        "Presence of a patch: the sum of what all tokens take from it in this block; 1 is neutral.",
        f"deviation, least, most: over the patches of an image; below {FADED}: the fraction of patches that nearly "
        "vanished; own, partner: mean over the patches of that region.",
    ),
)
