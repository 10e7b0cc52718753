"""Attention between the two regions of a mixed image (SMMix tables A1, A2), and what is left of each token
(TL-Align, equation 2)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from vitmix._mixer import AnyMixer
from vitmix.attention.flow import Flow
from vitmix.attention.readers import read_model
from vitmix.attention.tap import AttentionTap

from .pairs import Pictures, couples, joined, masks_alone, mixed_pairs, paired, repeatable, two_regions
from .results import Row, Table, spread

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


Seen = tuple[int, Flow, Tensor, Tensor, Tensor]
Found = dict[int, list[tuple[Tensor, Tensor]]]  # by block: values (n, columns) and couples (n,) of each batch


def _attended(
    model: nn.Module, method: AnyMixer, batches: Iterable[Pictures], *, seed: int, study: str
) -> Iterator[Seen]:
    """For each batch and block with patches as queries: block, its flow, the partner's patches, who counts, couples."""
    reader = read_model(model)
    reader.need_attention(study)
    two_regions(method, study=study)
    blocks = range(reader.patch_depth)
    for _, mixing, batch in mixed_pairs(model, masks_alone(method, study=study), batches, seed=seed):
        mixing.forget()
        with AttentionTap(model, attention=blocks) as tap:
            model(batch.images)
        for block in blocks:
            mask = reader.patch_mask(batch.mix.mask, block, batch.frame.size).bool()
            mask = mask.expand(batch.frame.batch, -1)
            both = (mask.any(1) & ~mask.all(1)).cpu() & paired(batch)
            yield block, tap.flow(block), mask, both, couples(batch.mix.partner)


@torch.no_grad()
def region_study(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[Pictures], *, seed: int = 0
) -> Table:
    """Attention between regions in every block, for each method's mixed images."""
    batches, rows = repeatable(batches), []
    for name, method in methods.items():
        found: Found = {}
        for block, flow, mask, both, shared in _attended(model, method, batches, seed=seed, study=REGIONS):
            found.setdefault(block, []).append((region_attention(flow, mask).cpu()[both], shared[both]))
        rows += _rows(name, found, PAIRS, REGIONS)
    notes = (
        "Mean attention of a patch of the first region to a patch of the second; where attention is within windows, "
        "patches of other windows count as zero.",
    )
    return Table("Attention between the regions of a mixed image", ("method", "block"), rows, notes)


@torch.no_grad()
def presence_study(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[Pictures], *, seed: int = 0
) -> Table:
    """How unevenly the tokens of mixed images survive each block's attention; n counts images."""
    batches, rows = repeatable(batches), []
    for name, method in methods.items():
        found: Found = {}
        for block, flow, mask, both, shared in _attended(model, method, batches, seed=seed, study=PRESENCE):
            left = presence(flow)[:, flow.prefix :]
            theirs = mask.to(left.dtype)
            of_region = [(left * region).sum(1) / region.sum(1) for region in (1 - theirs, theirs)]
            faded = (left < FADED).to(left.dtype).mean(1)
            values = [left.std(1, correction=0), left.amin(1), left.amax(1), faded, *of_region]
            found.setdefault(block, []).append((torch.stack(values, 1).cpu()[both], shared[both]))
        names = ("deviation", "least", "most", f"below {FADED}", "own", "partner")
        rows += _rows(name, found, names, PRESENCE)
    notes = (
        "Presence of a patch: what all tokens together took of it in this block; 1 would be as much as was there.",
        f"deviation, least, most: over the patches of an image; below {FADED}: the part of the patches that is nearly "
        "gone; own, partner: mean over the patches of that region.",
    )
    return Table("Presence of tokens", ("method", "block"), rows, notes)


def _rows(method: str, found: Found, names: Sequence[str], study: str) -> list[Row]:
    """A row for each block; none for one whose grid is too small to show both pictures, as the last of a pyramid."""
    rows: list[Row] = []
    for block, parts in found.items():
        values, shared = torch.cat([part for part, _ in parts]), joined([part for _, part in parts])
        if len(values):
            columns = zip(names, values.unbind(1), strict=True)
            rows.append(((method, str(block)), {name: spread(column, shared) for name, column in columns}))
    if not rows:
        raise ValueError(f"{study} found no image with patches of both pictures; give more images")
    return rows
