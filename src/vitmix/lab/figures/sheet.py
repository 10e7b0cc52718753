"""Sheets of small panels: rows and columns of pictures with maps over them, sized for a printed page."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vitmix.lab.show.figure import FAINT, INK, SHARE, figure_bytes
from vitmix.lab.show.fonts import any_script
from vitmix.lab.show.words import broken, fitted

HEAT = matplotlib.colormaps["inferno"]
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8c8c8c")
DASHES = ("-", "--", "-.", ":")

PAGE = 7.2  # inches: the width of a printed page between its margins
LEAST, LEAST_ABOVE_CURVES, MOST = 0.62, 0.55, 1.35  # of a panel
GAP, MARGIN, LABEL = 0.05, 0.08, 1.0
HEAD, CAPTION, LINE = 0.15, 0.14, 0.13
HEAD_SIZE, CAPTION_SIZE = 7.5, 6.5  # points
MOST_CAPTION_LINES = 2  # of a picture's name
CURVES = 1.5
Scale = Literal["heat", "share"]


@dataclass(frozen=True)
class Panel:
    """Pixels `(H, W, 3)` in 0..1, and words below."""

    pixels: np.ndarray
    caption: str = ""


@dataclass(frozen=True)
class Row:
    panels: tuple[Panel, ...]
    label: str = ""


@dataclass(frozen=True)
class Curve:
    """Values over the columns of a band, with their spread; drawn below its rows."""

    name: str
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Band:
    """Rows with the same columns; where they are too many for a page, the band goes on below.

    There the first `lead` columns come again, and `unit` columns stay together.
    """

    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    lead: int = 0
    unit: int = 1
    curves: tuple[Curve, ...] = ()
    axes: tuple[str, str] = ("", "")  # what lies to the right, and upwards


@dataclass(frozen=True)
class Sheet:
    """Bands one below the other, and what is to be said about them; `scale` names the colors that are explained."""

    bands: tuple[Band, ...]
    footer: str = ""
    scale: Scale | None = None
    ends: tuple[str, str] = ("least", "most")


def as_pixels(picture: Tensor) -> np.ndarray:
    return picture.permute(1, 2, 0).clamp(0, 1).numpy()


def unit_scale(values: Tensor) -> Tensor:
    """From the least to the largest value, square roots: attention is a few bright places, and the rest shows too."""
    low, high = values.min(), values.max()
    return ((values - low) / (high - low).clamp_min(1e-12)).sqrt() if high > low else torch.zeros_like(values)


def overlay(picture: Tensor, values: Tensor, scale: Scale, *, strength: float = 0.74) -> np.ndarray:
    """Values `(h, w)` in 0..1 as colors over the gray picture `(3, H, W)`, each cell as a whole."""
    gray = (picture * picture.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(0)
    height, width = gray.shape
    rows = torch.arange(height) * values.shape[0] // height
    columns = torch.arange(width) * values.shape[1] // width
    cells = values[rows][:, columns].numpy()
    colors = (HEAT if scale == "heat" else SHARE)(cells)[..., :3]
    # Less contrast in the picture: what is bright there should not look like a large value.
    return np.clip(strength * colors + (1 - strength) * (0.15 + 0.7 * gray.numpy()[..., None]), 0, 1)


def folded(band: Band, fit: int) -> list[Band]:
    """A band as bands of at most `fit` columns each, as alike as can be."""
    lead, unit, count = band.lead, band.unit, len(band.heads)
    units = (count - lead) // unit
    per_page = max(1, (fit - lead) // unit)
    if count <= fit or band.curves or units <= per_page:
        return [band]
    pages = math.ceil(units / per_page)
    ends = [lead + unit * round(units * page / pages) for page in range(pages + 1)]
    found = []
    for start, end in pairwise(ends):
        rows = tuple(replace(row, panels=row.panels[:lead] + row.panels[start:end]) for row in band.rows)
        found.append(replace(band, heads=band.heads[:lead] + band.heads[start:end], rows=rows))
    return found


def draw_sheet(sheet: Sheet, *, suffix: str = ".png", dpi: int = 150) -> bytes:
    """The sheet as the bytes of a PNG, SVG or PDF file."""
    with any_script():
        return figure_bytes(_Page(sheet).figure, suffix=suffix, dpi=dpi)


class _Page:
    """Places panels by inches from the top left corner."""

    def __init__(self, sheet: Sheet) -> None:
        self.left = MARGIN + (LABEL if any(row.label for band in sheet.bands for row in band.rows) else 0)
        least = LEAST
        if any(band.curves for band in sheet.bands):
            self.left, least = MARGIN + 0.6, LEAST_ABOVE_CURVES
        fit = int((PAGE - self.left - MARGIN + GAP) / (least + GAP))
        sheet = replace(sheet, bands=tuple(part for band in sheet.bands for part in folded(band, fit)))
        self.sheet = sheet
        columns = max(len(band.heads) for band in sheet.bands)
        room = (PAGE - self.left - MARGIN - (columns - 1) * GAP) / columns
        self.panel = min(MOST, max(least, room))
        self.width = max(self.left + columns * self.panel + (columns - 1) * GAP + MARGIN, 3.4)
        self.footer = textwrap.wrap(sheet.footer, int((self.width - 2 * MARGIN) * 18))
        tops, place = [], MARGIN
        for band in sheet.bands:
            tops.append(place)
            place += self._head(band) + sum(self._row(row) for row in band.rows) + (CURVES if band.curves else 0) + 0.06
        self.scale_top = place
        place += (0.24 if sheet.scale else 0) + LINE * len(self.footer) + (0.06 if self.footer else 0)
        self.height = place + MARGIN / 2
        self.figure = Figure(figsize=(self.width, self.height), facecolor="white")
        for band, top in zip(sheet.bands, tops, strict=True):
            self._draw_band(band, top)
        self._draw_end()

    def _lines(self, head: str) -> list[str]:
        return broken(head, self.panel, size=HEAD_SIZE)

    def _caption(self, panel: Panel) -> list[str]:
        return [
            line
            for words in panel.caption.splitlines()
            for line in fitted(words, self.panel, size=CAPTION_SIZE, lines=MOST_CAPTION_LINES)
        ]

    def _head(self, band: Band) -> float:
        if band.curves:  # whose axis says the same
            return 0
        lines = max((len(self._lines(head)) for head in band.heads if head), default=0)
        return 0.05 + HEAD * lines if lines else 0

    def _tall(self, row: Row) -> float:
        height, width = row.panels[0].pixels.shape[:2]
        return self.panel * min(1.6, max(0.6, height / width))

    def _row(self, row: Row) -> float:
        lines = max(len(self._caption(panel)) for panel in row.panels)
        return self._tall(row) + GAP + (CAPTION * lines + 0.03 if lines else 0)

    def _draw_band(self, band: Band, top: float) -> None:
        head = self._head(band)
        for number, words in enumerate(band.heads if head else ()):
            lines = self._lines(words)
            for above, line in enumerate(reversed(lines)):
                self._text(self._middle(number), top + head - 0.06 - HEAD * above, line, size=HEAD_SIZE, ha="center")
        top += head
        for row in band.rows:
            tall = self._tall(row)
            if row.label:
                parts = (broken(part, LABEL - GAP, size=HEAD_SIZE) for part in row.label.splitlines())
                words = "\n".join(line for part in parts for line in part)
                self._text(MARGIN, top + tall / 2, words, size=HEAD_SIZE, va="center", linespacing=1.15)
            for number, panel in enumerate(row.panels):
                axes = self._axes(self._column(number), top, self.panel, tall)
                axes.imshow(panel.pixels, interpolation="nearest", aspect="auto")
                for below, line in enumerate(self._caption(panel)):
                    baseline = top + tall + 0.11 + CAPTION * below
                    self._text(self._middle(number), baseline, line, size=CAPTION_SIZE, color=FAINT, ha="center")
            top += self._row(row)
        if band.curves:
            self._draw_curves(band, top)

    def _draw_curves(self, band: Band, top: float) -> None:
        count = len(band.heads)
        wide = count * self.panel + (count - 1) * GAP
        axes = self._axes(self.left, top + 0.06, wide, CURVES - 0.5)
        places = (np.arange(count) * (self.panel + GAP) + self.panel / 2) / wide  # each below its picture
        for number, curve in enumerate(band.curves):
            color, dash = LINES[number % len(LINES)], DASHES[number // len(LINES) % len(DASHES)]
            axes.fill_between(places, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
            axes.plot(places, curve.values, dash, color=color, linewidth=1.4, marker="o", markersize=2.5)
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), xticks=places, yticks=[0, 0.5, 1])
        axes.set_xticklabels(band.heads, fontsize=7, color=INK)
        axes.set_yticklabels(["0", "50 %", "100 %"], fontsize=7, color=INK)
        axes.tick_params(length=2, width=0.5, color=FAINT)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("left", "bottom"):
            axes.spines[side].set(visible=True, color=FAINT, linewidth=0.5)
        axes.set_xlabel(band.axes[0], fontsize=HEAD_SIZE, color=INK, labelpad=2)
        said, *name = band.axes[1].split("“")  # the name alone is cut, so that it keeps its quotes
        short = ["“", *fitted(name[0], CURVES - 0.45, size=HEAD_SIZE, lines=1)] if name else []
        axes.set_ylabel("".join([said, *short]), fontsize=HEAD_SIZE, color=INK, labelpad=1)
        if len(band.curves) > 1:
            handles = [axes.get_lines()[number] for number in range(len(band.curves))]
            names = [curve.name for curve in band.curves]
            axes.legend(handles, names, loc="upper right", fontsize=7, frameon=False, ncols=min(3, len(names)))

    def _draw_end(self) -> None:
        top = self.scale_top
        if self.sheet.scale:
            first, last = self.sheet.ends
            left = MARGIN + 0.065 * len(first) + 0.08
            bar = self._axes(left, top + 0.03, 1.1, 0.09)
            colors = HEAT if self.sheet.scale == "heat" else SHARE
            bar.imshow(np.linspace(0, 1, 128)[None], cmap=colors, aspect="auto")
            self._text(MARGIN, top + 0.075, first, size=7, va="center")
            self._text(left + 1.16, top + 0.075, last, size=7, va="center")
            top += 0.24
        for number, line in enumerate(self.footer):
            self._text(MARGIN, top + LINE * number, line, size=6.8, color=FAINT, va="top")

    def _column(self, number: int) -> float:
        return self.left + number * (self.panel + GAP)

    def _axes(self, left: float, top: float, width: float, height: float) -> Any:
        box = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        axes = self.figure.add_axes(box)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
        return axes

    def _middle(self, column: int) -> float:
        return self._column(column) + self.panel / 2

    def _text(self, left: float, top: float, words: str, *, size: float, **settings: Any) -> None:
        settings = {"color": INK, "fontsize": size} | settings
        self.figure.text(left / self.width, 1 - top / self.height, words, **settings)
