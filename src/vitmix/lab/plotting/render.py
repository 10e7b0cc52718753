"""Renders images in rows and columns with captions, sized for a printed page."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .canvas import COLORS, FAINT, HEAT, INK, SHARE, Canvas, figure_bytes, plain_axes, plot_interval
from .grid import ImageGrid, Section, Tile, TileRow, folded
from .text import BREAKS, any_script, broken, fitted, text_width

PAGE = 7.2  # inches: the width of a printed page between its margins
LEAST, MOST = 0.59, 1.35  # of a tile
GAP, MARGIN, LABEL, TURNED, AXIS = 0.05, 0.08, 1.0, 0.17, 0.6
HEAD, CAPTION, LINE = 0.15, 0.14, 0.13
HEAD_SIZE, CAPTION_SIZE, LEAST_SIZE = 7.5, 6.5, 5.5  # points
CAPTION_LINES = 2  # of a name, at most
CHART = 1.5
DASHES = ("-", "--", "-.", ":")


def render_grid(grid: ImageGrid, *, suffix: str = ".png", dpi: int = 150) -> bytes:
    """The bytes of a PNG, SVG or PDF file."""
    with any_script():
        return figure_bytes(grid_figure(grid), suffix=suffix, dpi=dpi)


def grid_figure(grid: ImageGrid) -> Figure:
    """A figure in the current fonts, see `any_script`."""
    return _Layout(grid).figure


class _Layout:
    """Sizes the tiles, and places section after section; methods return where the next one begins."""

    def __init__(self, grid: ImageGrid) -> None:
        self.left = MARGIN + (AXIS if any(section.curves for section in grid.sections) else _label_room(grid))
        turned = TURNED * any(section.turned for section in grid.sections)
        room = PAGE - self.left - turned - MARGIN + GAP
        sections = [part for section in grid.sections for part in folded(section, int(room / (LEAST + GAP)))]
        columns = max(len(section.heads) for section in sections)
        self.tile = min(MOST, max(LEAST, room / columns - GAP))
        self.canvas = Canvas(max(self.left + turned + columns * (self.tile + GAP) - GAP + MARGIN, 3.4))
        top = MARGIN
        for section in sections:
            top = self._place_section(section, top) + 0.06
        self.figure = self.canvas.figure(self._place_end(grid, top) + MARGIN / 2)

    def _place_section(self, section: Section, top: float) -> float:
        columns = [
            self.left + number * (self.tile + GAP) + TURNED * (section.turned and number >= section.lead)
            for number in range(len(section.heads))
        ]
        if not section.curves:  # whose axis has the same words
            top = self._place_heads(section.heads, columns, top)
        for row in section.rows:
            top = self._place_row(row, section, columns, top)
        return self._place_curves(section, columns, top) if section.curves else top

    def _place_heads(self, heads: Sequence[str], columns: Sequence[float], top: float) -> float:
        size = head_size(heads, self.tile)
        lines = [_lines(head, self.tile, size) for head in heads]
        most = max(map(len, lines))
        for left, words in zip(columns, lines, strict=True):
            for number, line in enumerate(reversed(words)):
                self._text_below(left, top + HEAD * (most - number) - 0.01, line, size=size)
        return top + 0.05 + HEAD * most if most else top

    def _place_row(self, row: TileRow, section: Section, columns: Sequence[float], top: float) -> float:
        height, width = row.tiles[-1].pixels.shape[:2]
        tall = self.tile * (row.aspect or min(1.6, max(0.6, height / width)))
        if section.turned:
            place = columns[section.lead] - TURNED / 2 - GAP / 2
            self.canvas.text(place, top + tall / 2, row.label, size=HEAD_SIZE, rotation=90, va="center", ha="center")
        else:
            words = "\n".join(_lines(row.label, LABEL - GAP))
            self.canvas.text(MARGIN, top + tall / 2, words, size=HEAD_SIZE, va="center", linespacing=1.15)
        most = 0
        for left, tile in zip(columns, row.tiles, strict=True):
            self.canvas.axes(left, top, self.tile, tall, lambda axes, tile=tile: _show(axes, tile))
            captions = [
                line
                for words in tile.caption.splitlines()
                for line in fitted(words, self.tile, size=CAPTION_SIZE, lines=CAPTION_LINES)
            ]
            most = max(most, len(captions))
            for number, line in enumerate(captions):
                self._text_below(left, top + tall + 0.11 + CAPTION * number, line, size=CAPTION_SIZE, color=FAINT)
        return top + tall + GAP + (CAPTION * most + 0.03 if most else 0)

    def _text_below(self, left: float, top: float, words: str, *, size: float, color: str = INK) -> None:
        self.canvas.text(left + self.tile / 2, top, words, size=size, color=color, ha="center")

    def _place_curves(self, section: Section, columns: Sequence[float], top: float) -> float:
        wide = columns[-1] + self.tile - columns[0]
        places = (np.array(columns) - columns[0] + self.tile / 2) / wide  # each below its image
        self.canvas.axes(self.left, top + 0.06, wide, CHART - 0.5, lambda axes: _plot_curves(axes, section, places))
        return top + CHART

    def _place_end(self, grid: ImageGrid, top: float) -> float:
        if grid.scale:
            colors, (first, last) = HEAT if grid.scale == "heat" else SHARE, grid.ends
            left = MARGIN + text_width(first, 7) + 0.06
            ramp = np.linspace(0, 1, 128)[None]
            self.canvas.axes(left, top + 0.03, 1.1, 0.09, lambda axes: axes.imshow(ramp, cmap=colors, aspect="auto"))
            self.canvas.text(MARGIN, top + 0.075, first, size=7, va="center")
            self.canvas.text(left + 1.16, top + 0.075, last, size=7, va="center")
            top += 0.24
        footer = textwrap.wrap(grid.footer, int((self.canvas.width - 2 * MARGIN) * 18))
        for number, line in enumerate(footer):
            self.canvas.text(MARGIN, top + LINE * number, line, size=6.8, color=FAINT, va="top")
        return top + LINE * len(footer) + (0.06 if footer else 0)


def _label_room(grid: ImageGrid) -> float:
    """Inches to the left of the rows for their labels."""
    labels = [row.label for section in grid.sections if not section.turned for row in section.rows]
    lines = [line for label in labels for line in _lines(label, LABEL - GAP)]
    return max((text_width(line, HEAD_SIZE) + 2 * GAP for line in lines), default=0)


def head_size(heads: Sequence[str], width: float) -> float:
    """The size at which no word of the heads is broken between letters, if it is not too small to be read."""
    words = [word.strip() for head in heads for part in head.splitlines() for word in BREAKS.split(part)]
    widest = max((text_width(word, HEAD_SIZE) for word in words), default=0)
    return HEAD_SIZE if widest <= width else max(HEAD_SIZE * width / widest, LEAST_SIZE)


def _lines(words: str, width: float, size: float | None = None) -> list[str]:
    return [line for part in words.splitlines() for line in broken(part, width, size=size or HEAD_SIZE)]


def _show(axes: Axes, tile: Tile) -> None:
    axes.imshow(tile.pixels, extent=(0, 1, 1, 0), interpolation="antialiased", aspect="auto")
    if tile.marks is not None:
        tile.marks(axes)
        axes.set(xlim=(0, 1), ylim=(1, 0))


def _plot_curves(axes: Axes, section: Section, places: np.ndarray) -> None:
    for number, curve in enumerate(section.curves):
        color, dash = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
        style = {"linestyle": dash, "linewidth": 1.4, "markersize": 2.5, "label": curve.name}
        plot_interval(axes, places.tolist(), curve.values, curve.low, curve.high, color=color, **style)
    plain_axes(axes)
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    axes.set_xticks(places, section.heads, fontsize=7)
    axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"], fontsize=7)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(section.axes[0], fontsize=HEAD_SIZE, color=INK, labelpad=2)
    words, *name = section.axes[1].split("“")  # only the name is cut, so that it keeps its quotes
    short = ["“", *fitted(name[0], CHART - 0.45, size=HEAD_SIZE, lines=1)] if name else []
    axes.set_ylabel("".join([words, *short]), fontsize=HEAD_SIZE, color=INK, labelpad=1)
    if len(section.curves) > 1:
        axes.legend(loc="upper right", fontsize=7, frameon=False, ncols=min(3, len(section.curves)))
