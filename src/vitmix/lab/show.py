"""What methods do to two images: mask, mixed image, attention and target, as values and as a figure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Ellipse, Rectangle
from torch import Tensor, nn

from vitmix._mixing import MixedBatch, Mixing
from vitmix._text import create
from vitmix.lab.figures.attention import block_attention
from vitmix.lab.figures.images import NamedImage
from vitmix.lab.figures.models import NamedModel, without_dropout
from vitmix.lab.figures.samples import Sample, in_pixels, method_choices, mixed_origin, observe_mixed
from vitmix.lab.plotting.canvas import FAINT, HEAT, INK, OWN, PARTNER, SHARE
from vitmix.lab.plotting.grid import ImageGrid, Section, Tile, TileRow, as_pixels, unit_scale
from vitmix.lab.plotting.render import render_grid
from vitmix.lab.plotting.text import fitted
from vitmix.parts.base import Shown

ORIGIN = LinearSegmentedColormap.from_list("origin", ["#9fcbe6", "#d9cfae", "#f5c55e"])
FINEST = 32  # lines of a token grid; a finer one is left out
NAME, NAME_SIZE = 0.52, 6  # inches of an image's name inside it, and points
BAR = 0.18  # height of the target's bar, as a fraction of its width
BLANK = Tile(np.ones((1, 1, 3)))


@dataclass(frozen=True)
class MethodResult:
    """One method on one pair.

    Attributes:
        origin: `(h, w)` the partner's part of each cell.
        mixed: `(3, H, W)` in 0..1.
        statistics: attention, or what else the method reads from the model.
        used: whether the method itself reads `statistics`.
        own, partner: the two parts of the target.
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
    def find(mixing: Mixing, batch: MixedBatch) -> MethodResult:
        model.model(batch.images)
        return method_result(model, mixing, batch, title=sample.method or "", note=odds)

    return observe_mixed(model, sample, seed, find).found


def method_result(
    model: NamedModel,
    mixing: Mixing,
    batch: MixedBatch,
    *,
    title: str,
    note: str = "",
    classes: tuple[int, int] = (0, 1),
    attention: tuple[Shown, ...] | None = None,
) -> MethodResult:
    """What a method did to a pair, after the model ran on the batch.

    Args:
        classes: of the two images in the batch.
        attention: shown if the method reads nothing from the model (default: from another pass of the model).
    """
    # After `targets`, the method does not record other passes.
    own, partner = mixing.targets(batch)[0, list(classes)].tolist()
    read = _read(mixing, batch)
    otherwise = attention if attention is not None or read else _last_attention(model.model, mixing, batch)
    return MethodResult(
        title=title,
        origin=mixed_origin(batch)[0],
        mixed=in_pixels(mixed_origin(batch)[1], model.augmentation),
        statistics=read or otherwise or (),
        used=bool(read),
        own=own,
        partner=partner,
        bank=_bank(batch),
        moved_from=_moved_from(batch),
        notes=tuple(filter(None, (note, _unseen(batch)))),
    )


def _read(mixing: Mixing, batch: MixedBatch) -> tuple[Shown, ...]:
    """What the method read from the model."""
    evidence, mixer = mixing.evidence(batch), batch.mixer
    for part in (*batch.tape.actors, mixer.mask, mixer.share, *mixer.extra):
        if found := part.shown(evidence):
            return found
    return ()


def _last_attention(model: nn.Module, mixing: Mixing, batch: MixedBatch) -> tuple[Shown, ...]:
    reader = mixing.reader
    if reader is None or not reader.has_attention:
        return ()
    last = reader.resolve(-1)
    return (Shown(reader.block(last).saliency_name, block_attention(model, batch.images, [last])[last][0]),)


def _unseen(batch: MixedBatch) -> str:
    """A note if the image does not show what the method does."""
    exchanges = {actor.settings.name: actor.exchange for actor in batch.tape.actors if actor.exchange is not None}
    if exchanges:
        taken = any(int(each.partner[0]) == 1 and bool(each.take[0].any()) for each in exchanges.values())
        return "" if taken else f"{next(iter(exchanges)).upper()} exchanged nothing"
    if batch.mixer.mask.mixes and not mixed_origin(batch)[0].any():
        return "nothing pasted"
    return "mixed in the network" if any(actor.settings.sets_targets for actor in batch.tape.actors) else ""


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


# The figure: one column for each method


def render_methods(pair: PairResults, *, footer: str = "", suffix: str = ".png", dpi: int = 200) -> bytes:
    """The figure as the bytes of a PNG, SVG or PDF file."""
    return render_grid(methods_grid(pair, footer), suffix=suffix, dpi=dpi)


def methods_grid(pair: PairResults, footer: str = "") -> ImageGrid:
    results, (height, width) = pair.results, pair.pixels.shape[2:]
    aspect = min(1.6, max(0.6, height / width))
    rows = (
        TileRow((_original_tile(pair, 0), *map(_mask_tile, results)), "mask", aspect),
        TileRow((_original_tile(pair, 1), *(Tile(as_pixels(result.mixed)) for result in results)), "image", aspect),
        TileRow((BLANK, *map(_statistics_tile, results)), "attention", aspect),
        TileRow((BLANK, *map(_target_tile, results)), "", BAR),
    )
    heads = ("", *("\n".join((result.title, *result.notes)) for result in results))
    attention = any(each.kind == "attention" for result in results for each in result.statistics)
    section = Section(heads, rows, lead=1, turned=True)
    return ImageGrid((section,), _legend(results, footer), "heat" if attention else None)


def _legend(results: tuple[MethodResult, ...], footer: str) -> str:
    """The footer, with an explanation of every mark in the figure."""
    words = [footer, "Bars: the target."]
    if any(result.statistics and not result.used for result in results):
        words.append("In parentheses: not used by the method.")
    if any(result.moved_from is not None for result in results):
        words.append("Dashed: where the pasted part was.")
    if any(result.bank is not None for result in results):
        words.append("Dots: tokens in the bank.")
    return "  ".join(filter(None, words))


def _original_tile(pair: PairResults, number: int) -> Tile:
    role, color, ink = (("original", OWN, "white"), ("partner", PARTNER, INK))[number]

    def marks(axes: Axes) -> None:
        axes.spines[:].set(visible=True, color=color, linewidth=2)
        frame = {"boxstyle": "square,pad=0.2", "facecolor": color, "edgecolor": "none"}
        name = fitted(pair.names[number], NAME, size=NAME_SIZE, weight="bold", lines=1)
        words = "\n".join([f"{role}:", *name])
        axes.text(0.05, 0.95, words, fontsize=NAME_SIZE, color=ink, fontweight="bold", bbox=frame)

    return Tile(as_pixels(pair.pixels[number]), marks=marks)


def _mask_tile(result: MethodResult) -> Tile:
    origin, bank = result.origin.numpy(), None if result.bank is None else result.bank.numpy()
    rows, columns = origin.shape if bank is None else bank.shape

    def marks(axes: Axes) -> None:
        if max(rows, columns) <= FINEST and (rows, columns) != tuple(result.mixed.shape[1:]):
            for count, line in ((columns, axes.axvline), (rows, axes.axhline)):
                for number in range(1, count):
                    line(number / count, color="white", linewidth=0.4)
        if bank is not None:
            for row, column in np.argwhere(bank):
                size = 0.62 * np.sqrt(bank[row, column] / bank.max())
                place = ((column + 0.5) / columns, (row + 0.5) / rows)
                axes.add_patch(Ellipse(place, size / columns, size / rows, color=OWN, linewidth=0))
        if result.moved_from is not None:
            top, bottom, left, right = result.moved_from
            style = {"fill": False, "edgecolor": INK, "linewidth": 0.9, "linestyle": (0, (3, 2)), "zorder": 3}
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, **style))
        if origin.size == 1 and 0 < float(origin[0, 0]) < 1:
            axes.text(0.5, 0.5, f"{float(origin[0, 0]):.0%}", ha="center", va="center", fontsize=8, color=INK)

    return Tile(ORIGIN(origin)[..., :3], marks=marks)


def _statistics_tile(result: MethodResult) -> Tile:
    """One map; or two side by side, framed in the colors of own and partner."""
    if not result.statistics:
        words = {"ha": "center", "va": "center", "fontsize": 7, "color": FAINT}
        return Tile(np.full((1, 1, 3), 0.95), marks=lambda axes: axes.text(0.5, 0.5, "none", **words))
    first, *others = result.statistics
    caption = f"{first.caption.split()[-1]} of both" if others else first.caption
    caption = caption if result.used else f"({caption})"
    if not others:
        return Tile(_colors(first), caption)

    def marks(axes: Axes) -> None:
        for left, statistic, color in zip((0.01, 0.52), result.statistics, (OWN, PARTNER), strict=False):
            half = axes.inset_axes((left, 0.26, 0.47, 0.48), xticks=[], yticks=[])
            half.imshow(_colors(statistic), aspect="auto")
            half.spines[:].set(color=color, linewidth=1.2)

    return Tile(BLANK.pixels, caption, marks)


def _colors(statistic: Shown) -> np.ndarray:
    if statistic.kind == "share":
        return SHARE(statistic.grid.clamp(0, 1).numpy())[..., :3]
    return HEAT(unit_scale(statistic.grid.float()).numpy())[..., :3]


def _target_tile(result: MethodResult) -> Tile:
    """A bar. Activation labels need not sum to one: what is missing stays gray, what exceeds one makes it longer."""
    whole = max(1.0, result.own + result.partner)

    def marks(axes: Axes) -> None:
        start = 0.0
        for part, color, ink in ((result.own, OWN, "white"), (result.partner, PARTNER, INK)):
            shown = max(0.0, part) / whole
            axes.add_patch(Rectangle((start, 0), shown, 1, facecolor=color, linewidth=0))
            if shown >= 0.27:
                style = {"ha": "center", "va": "center", "fontsize": 6, "fontweight": "bold", "color": ink}
                axes.text(start + shown / 2, 0.54, f"{part:.0%}", **style)
            start += shown

    return Tile(np.full((1, 1, 3), 0.85), marks=marks)
