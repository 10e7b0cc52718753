"""Attention between the two regions of a mixed image (SMMix tables A1, A2), and what is left of each token
(TL-Align, equation 2)."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from vitmix.adapters import read_model
from vitmix.mixer import AnyMixer
from vitmix.tap import AttentionTap

from .pairs import Pictures, masks_alone, mixed_pairs, paired, repeatable, two_regions
from .results import Table, spread

REGIONS, PRESENCE = "attention between regions", "token presence"
PAIRS = ("partner to partner", "partner to own", "own to partner", "own to own")  # query to key
FADED = 0.1  # a token that is left with less than this is counted as gone


def region_attention(attention: Tensor, mask: Tensor) -> Tensor:
    """Mean attention `(B, 4)` between the patches of either region, in the order of `PAIRS`; NaN without a region.

    Args:
        attention: `(B, H, n, n)` of patches to patches.
        mask: `(B or 1, n)` bool, the partner's patches.
    """
    mean = attention.mean(1)
    theirs = mask.to(mean.dtype).expand(len(mean), -1)
    own = 1 - theirs
    sums = [
        torch.einsum("bq,bqk,bk->b", query, mean, key) / (query.sum(1) * key.sum(1))
        for query in (theirs, own)
        for key in (theirs, own)
    ]
    return torch.stack(sums, 1)


def presence(attention: Tensor) -> Tensor:
    """The presence `(B, M)` of each token after attention `(B, H, N, M)`: what all tokens took of it, added up.

    Every receiving token takes one in all, so the presences are one on average where there are as many of each.
    """
    mean = attention.mean(1).abs()
    return (mean / mean.sum(-1, keepdim=True).clamp_min(1e-12)).sum(1)


Seen = tuple[int, Tensor, Tensor, Tensor, int]


def _attended(
    model: nn.Module, method: AnyMixer, batches: Iterable[Pictures], *, seed: int, study: str
) -> Iterator[Seen]:
    """For each batch and block with patches as queries: block, attention, the partner's patches, who counts, prefix."""
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
            yield block, tap.attention(block), mask, both, reader.block(block).prefix


@torch.no_grad()
def region_study(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[Pictures], *, seed: int = 0
) -> Table:
    """Attention between regions in every block, for each method's mixed images."""
    batches, rows = repeatable(batches), []
    for name, method in methods.items():
        found: dict[int, list[Tensor]] = {}
        for block, attention, mask, both, prefix in _attended(model, method, batches, seed=seed, study=REGIONS):
            patches = attention[:, :, prefix:, prefix:]
            found.setdefault(block, []).append(region_attention(patches, mask).cpu()[both])
        for block, parts in found.items():
            columns = torch.cat(parts).unbind(1)
            _need_pairs(len(columns[0]), REGIONS)
            rows.append(((name, str(block)), {pair: spread(c) for pair, c in zip(PAIRS, columns, strict=True)}))
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
        found: dict[int, list[Tensor]] = {}
        for block, attention, mask, both, prefix in _attended(model, method, batches, seed=seed, study=PRESENCE):
            left = presence(attention)[:, prefix:]
            theirs = mask.to(left.dtype)
            of_region = [(left * region).sum(1) / region.sum(1) for region in (1 - theirs, theirs)]
            faded = (left < FADED).to(left.dtype).mean(1)
            values = [left.std(1), left.amin(1), left.amax(1), faded, *of_region]
            found.setdefault(block, []).append(torch.stack(values, 1).cpu()[both])
        names = ("deviation", "least", "most", f"below {FADED}", "own", "partner")
        for block, parts in found.items():
            columns = torch.cat(parts).unbind(1)
            _need_pairs(len(columns[0]), PRESENCE)
            rows.append(((name, str(block)), {each: spread(c) for each, c in zip(names, columns, strict=True)}))
    notes = (
        "Presence of a patch: what all tokens together took of it in this block; 1 would be as much as was there.",
        f"deviation, least, most: over the patches of an image; below {FADED}: the part of the patches that is nearly "
        "gone; own, partner: mean over the patches of that region.",
    )
    return Table("Presence of tokens", ("method", "block"), rows, notes)


def _need_pairs(count: int, study: str) -> None:
    if not count:
        raise ValueError(f"{study} found no image with patches of both pictures; give more images")
