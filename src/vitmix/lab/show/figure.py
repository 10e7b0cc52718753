"""The figure of `vitmix show`: one column for each method; mask, mixed image, attention and target in rows."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Ellipse, Rectangle

from vitmix.lab.plotting.canvas import FAINT, HEAT, INK, OWN, PARTNER, SHARE
from vitmix.lab.plotting.grid import ImageGrid, Row, Section, Tile, as_pixels, unit_scale
from vitmix.lab.plotting.render import render_grid
from vitmix.lab.plotting.text import fitted
from vitmix.parts.base import Shown

from .methods import MethodResult, PairResults

ORIGIN = LinearSegmentedColormap.from_list("origin", ["#9fcbe6", "#d9cfae", "#f5c55e"])
FINEST = 32  # lines of a token grid; a finer one is left out
NAME, NAME_SIZE = 0.52, 6  # inches of an image's name inside it, and points
BAR = 0.18  # height of the target's bar, as a fraction of its width
BLANK = Tile(np.ones((1, 1, 3)))


def render_methods(pair: PairResults, *, footer: str = "", suffix: str = ".png", dpi: int = 200) -> bytes:
    """The figure as the bytes of a PNG, SVG or PDF file."""
    return render_grid(methods_grid(pair, footer), suffix=suffix, dpi=dpi)


def methods_grid(pair: PairResults, footer: str = "") -> ImageGrid:
    own, partner = (_original(pair, number) for number in range(2))
    results = pair.results
    rows = (
        Row((own, *map(_mask, results)), "mask", aspect=_aspect(pair)),
        Row((partner, *(Tile(as_pixels(result.mixed)) for result in results)), "image", aspect=_aspect(pair)),
        Row((BLANK, *map(_statistics, results)), "attention", aspect=_aspect(pair)),
        Row((BLANK, *map(_target, results)), "", aspect=BAR),
    )
    heads = ("", *("\n".join((result.title, *result.notes)) for result in results))
    attention = any(each.kind == "attention" for result in results for each in result.statistics)
    section = Section(heads, rows, lead=1, turned=True)
    return ImageGrid((section,), _legend(results, footer), "heat" if attention else None)


def _aspect(pair: PairResults) -> float:
    height, width = pair.pixels.shape[2:]
    return min(1.6, max(0.6, height / width))


def _legend(results: tuple[MethodResult, ...], footer: str) -> str:
    """The footer, and an explanation of every sign that occurs."""
    words = [footer, "Bars: the target."]
    if any(result.statistics and not result.used for result in results):
        words.append("In parentheses: not used by the method.")
    if any(result.moved_from is not None for result in results):
        words.append("Dashed: where the pasted part was.")
    if any(result.bank is not None for result in results):
        words.append("Dots: tokens in the bank.")
    return "  ".join(filter(None, words))


def _original(pair: PairResults, number: int) -> Tile:
    role, color, ink = (("own", OWN, "white"), ("partner", PARTNER, INK))[number]

    def marks(axes: Axes) -> None:
        axes.spines[:].set(visible=True, color=color, linewidth=2)
        frame = {"boxstyle": "square,pad=0.2", "facecolor": color, "edgecolor": "none"}
        name = fitted(pair.names[number], NAME, size=NAME_SIZE, weight="bold", lines=1)
        words = "\n".join([f"{role}:", *name])
        axes.text(0.05, 0.95, words, fontsize=NAME_SIZE, color=ink, fontweight="bold", bbox=frame)

    return Tile(as_pixels(pair.pixels[number]), marks=marks)


def _mask(result: MethodResult) -> Tile:
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


def _statistics(result: MethodResult) -> Tile:
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

    return Tile(np.ones((1, 1, 3)), caption, marks)


def _colors(statistic: Shown) -> np.ndarray:
    if statistic.kind == "share":
        return SHARE(statistic.grid.clamp(0, 1).numpy())[..., :3]
    return HEAT(unit_scale(statistic.grid.float()).numpy())[..., :3]


def _target(result: MethodResult) -> Tile:
    """A bar. Activation labels need not sum to one: what is missing stays gray, what exceeds one makes it longer."""
    whole = max(1.0, result.own + result.partner)

    def marks(axes: Axes) -> None:
        start = 0.0
        for part, color, ink in ((result.own, OWN, "white"), (result.partner, PARTNER, INK)):
            shown = max(0.0, part) / whole
            axes.add_patch(Rectangle((start, 0), shown, 1, facecolor=color, linewidth=0))
            if shown >= 0.25:
                style = {"ha": "center", "va": "center", "fontsize": 6, "fontweight": "bold", "color": ink}
                axes.text(start + shown / 2, 0.54, f"{part:.0%}", **style)
            start += shown

    return Tile(np.full((1, 1, 3), 0.85), marks=marks)
