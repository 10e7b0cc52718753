"""What methods do to one pair of images, as values that can be plotted."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitmix._mixing import MixedBatch, Mixing
from vitmix._text import create
from vitmix.attention.tap import AttentionTap
from vitmix.lab.figures.images import NamedImage
from vitmix.lab.figures.models import NamedModel, without_dropout
from vitmix.lab.figures.samples import Sample, method_choices, mixed_origin, observe_mixed
from vitmix.parts.base import Shown, on_grid


@dataclass(frozen=True)
class MethodResult:
    """One method on one pair.

    Attributes:
        origin: `(h, w)` the partner's part of each cell.
        mixed: `(3, H, W)` in 0..1.
        statistics: attention, or what else the method reads of the model.
        used: whether the method itself reads `statistics`.
        own, partner: their parts of the target.
        bank: `(h, w)` in how many earlier blocks VTM took this token.
        moved_from: (top, bottom, left, right) of the pasted part in the partner, as fractions of its sides.
    """

    title: str
    origin: Tensor
    mixed: Tensor
    statistics: tuple[Shown, ...]
    used: bool
    own: float
    partner: float
    bank: Tensor | None = None
    moved_from: tuple[float, float, float, float] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairResults:
    """The pair as the model sees it, `(2, 3, H, W)` in 0..1, and every method on it."""

    pixels: Tensor
    names: tuple[str, str]
    results: tuple[MethodResult, ...]


def run_methods(
    model: NamedModel, images: Sequence[NamedImage], methods: Sequence[str], *, seed: int = 0
) -> PairResults:
    """Each method, and each choice of a switch, on the same pair with the same random numbers.

    HTM's score net is trained with the model but not stored with its weights, so every sample counts as easy.
    """
    if len(images) != 2:
        raise ValueError(f"methods mix two images, got {len(images)}; give two")
    without_dropout(model.model)
    pair = (images[0], images[1])
    results = []
    for method in methods:
        weights = getattr(create(method, 2), "weights", (1.0,))
        for title, weight in zip(method_choices(method), weights, strict=True):
            odds = f"{weight / sum(weights):.0%} of batches" if len(weights) > 1 else ""
            results.append(_run(model, Sample(pair, title), odds, seed))
    return PairResults(model.pixels(pair), (pair[0].name, pair[1].name), tuple(results))


@torch.no_grad()
def _run(model: NamedModel, sample: Sample, odds: str, seed: int) -> MethodResult:
    def find(mixing: Mixing, batch: MixedBatch) -> tuple[MixedBatch, tuple[Shown, ...], bool]:
        model.model(batch.images)
        mixing.targets(batch)  # after which the method does not listen to other passes
        return batch, *_statistics(model.model, mixing, batch)

    seen = observe_mixed(model, sample, seed, find)
    batch, statistics, used = seen.found
    return MethodResult(
        title=sample.method or "",
        origin=mixed_origin(batch)[0],
        mixed=seen.pixels,
        statistics=statistics,
        used=used,
        own=seen.own,
        partner=seen.partner,
        bank=_bank(batch),
        moved_from=_moved_from(batch),
        notes=tuple(filter(None, (odds, _unchanged(batch)))),
    )


def _statistics(model: nn.Module, mixing: Mixing, batch: MixedBatch) -> tuple[tuple[Shown, ...], bool]:
    """What the method read, and True; or attention that it did not read, and False."""
    evidence, mixer = mixing.evidence(batch), batch.mixer
    for part in (*batch.tape.actors, mixer.mask, mixer.share, *mixer.extra):
        if found := part.shown(evidence):
            return found, True
    reader = mixing.reader
    if reader is None or not reader.has_attention:
        return (), False
    last = reader.resolve(-1)
    with AttentionTap(model, saliency=[last]) as tap:
        model(batch.images)
    grid = reader.grids(batch.frame.size)[last]
    return (Shown(reader.block(last).saliency_name, on_grid(tap.saliency(last)[0], grid)),), False


def _unchanged(batch: MixedBatch) -> str:
    """A note if hidden mixing found no token of the partner worth taking."""
    exchanges = {actor.settings.name: actor.exchange for actor in batch.tape.actors if actor.exchange is not None}
    if any(int(each.partner[0]) == 1 and bool(each.take[0].any()) for each in exchanges.values()):
        return ""
    return f"{next(iter(exchanges)).upper()} exchanged nothing" if exchanges else ""


def _bank(batch: MixedBatch) -> Tensor | None:
    for actor in batch.tape.actors:
        if actor.borrowed is not None:
            return actor.borrowed[0].view(batch.frame.grids[actor.block])
    return None


def _moved_from(batch: MixedBatch) -> tuple[float, float, float, float] | None:
    source, mask = batch.mix.source, batch.mix.mask
    if source is None:
        return None
    rows, columns = mask.shape[-2:]
    cells = source[0][mask[0].flatten().bool()]
    if not len(cells):
        return None
    row, column = cells // columns, cells % columns
    edges = (row.min() / rows, (row.max() + 1) / rows, column.min() / columns, (column.max() + 1) / columns)
    top, bottom, left, right = map(float, edges)
    return top, bottom, left, right
