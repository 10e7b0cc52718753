"""Attention between the two regions of a mixed image (SMMix tables A1, A2), and what is left of each token
(TL-Align, equation 2)."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from vitmix._mixer import AnyMixer
from vitmix.attention.flow import Flow
from vitmix.attention.readers import read_model
from vitmix.attention.tap import AttentionTap
from vitmix.lab.runs import Row, Table

from .estimates import Gathered
from .pairs import ImageBatch, masks_alone, mixed_pairs, repeatable, two_regions

REGIONS, PRESENCE = "attention between regions", "token presence"
PAIRS = ("partner to partner", "partner to own", "own to partner", "own to own")  # query to key
FADED = 0.1  # a token that is left with less than this is counted as gone


def region_attention(flow: Flow, mask: Tensor) -> Tensor:
    """Mean attention `(B, 4)` between the patches of either region, in the order of `PAIRS`; NaN without a region.

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
    """The presence `(B, N)` of each token after a block's attention: what all tokens took of it, added up.

    Every token takes one in all, so the presences are one on average.
    """
    return flow.pull(1 / flow.mass())


@torch.no_grad()
def region_study(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[ImageBatch], *, seed: int = 0
) -> Table:
    """Attention between regions in every block, for each method's mixed images."""

    def values(flow: Flow, mask: Tensor) -> dict[str, Tensor]:
        return dict(zip(PAIRS, region_attention(flow, mask).unbind(1), strict=True))

    notes = (
        "Mean attention of a patch of the first region to a patch of the second; where attention is within windows, "
        "patches of other windows count as zero.",
    )
    rows = _rows(model, methods, batches, values, seed=seed, study=REGIONS)
    return Table("Attention between the regions of a mixed image", ("method", "block"), rows, notes)


@torch.no_grad()
def presence_study(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[ImageBatch], *, seed: int = 0
) -> Table:
    """How unevenly the tokens of mixed images survive each block's attention; n counts images."""

    def values(flow: Flow, mask: Tensor) -> dict[str, Tensor]:
        left = presence(flow)[:, flow.prefix :]
        theirs = mask.to(left.dtype)
        own, partner = ((left * region).sum(1) / region.sum(1) for region in (1 - theirs, theirs))
        faded = (left < FADED).to(left.dtype).mean(1)
        spread = {"deviation": left.std(1, correction=0), "least": left.amin(1), "most": left.amax(1)}
        return {**spread, f"below {FADED}": faded, "own": own, "partner": partner}

    notes = (
        "Presence of a patch: what all tokens together took of it in this block; 1 would be as much as was there.",
        f"deviation, least, most: over the patches of an image; below {FADED}: the part of the patches that is nearly "
        "gone; own, partner: mean over the patches of that region.",
    )
    rows = _rows(model, methods, batches, values, seed=seed, study=PRESENCE)
    return Table("Presence of tokens", ("method", "block"), rows, notes)


def _rows(
    model: nn.Module,
    methods: Mapping[str, AnyMixer],
    batches: Iterable[ImageBatch],
    values: Callable[[Flow, Tensor], dict[str, Tensor]],
    *,
    seed: int,
    study: str,
) -> list[Row]:
    """A row for each method and block, of what `values` finds in the block's flow and the partner's patches.

    A block whose grid is too small to show both images, as the last of a pyramid, has no row.
    """
    reader = read_model(model)
    reader.need_attention(study)
    batches, rows, blocks = repeatable(batches), list[Row](), range(reader.patch_depth)
    for name, method in methods.items():
        two_regions(method, study=study)
        found = {block: Gathered() for block in blocks}
        for _, mixing, batch in mixed_pairs(model, masks_alone(method, study=study), batches, seed=seed):
            mixing.forget()
            with AttentionTap(model, attention=blocks) as tap:
                model(batch.images)
            for block in blocks:
                mask = reader.patch_mask(batch.mix.mask, block, batch.frame.size).bool()
                mask = mask.expand(batch.frame.batch, -1)
                found[block].add(values(tap.flow(block), mask), batch, mask.any(1) & ~mask.all(1))
        own = [((name, str(block)), found[block].estimates()) for block in blocks if len(found[block])]
        if not own:
            raise ValueError(f"{study} found no image with patches of both images; give more images")
        rows += own
    return rows
