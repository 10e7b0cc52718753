"""The figure: one column for each method, rows for mask, mixed image, attention and target."""

import io
import re
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitmix.lab.show.fonts import any_script
from vitmix.lab.show.scene import Scene, View
from vitmix.lab.show.words import fitted
from vitmix.parts.base import Shown

# Of Okabe and Ito's palette, which is told apart with any kind of color vision; texts call them blue and orange.
OWN, PARTNER = "#0072B2", "#E69F00"
INK, FAINT, REST = "#222222", "#6b6b6b", "#d9d9d9"
ORIGIN = LinearSegmentedColormap.from_list("origin", ["#9fcbe6", "#d9cfae", "#f5c55e"])
SHARE = LinearSegmentedColormap.from_list("share", [OWN, "#f4f4f0", PARTNER])
ATTENTION = matplotlib.colormaps["magma"]
SUFFIXES = (".png", ".svg", ".pdf")
PER_BAND = 8  # methods side by side
SHORT_TITLE, LINE, MOST_TITLE_LINES = 13, 18, 5  # letters that fit, and lines
MOST_LINES = 32  # a finer grid is not drawn, nor one of pixels
PANEL, GAP, TITLE, CAPTION, BAR = 1.28, 0.13, 0.34, 0.24, 0.24  # inches
LEFT, MARGIN = 1.62, 0.16
TAG, TAG_SIZE = 1.08, 8.5  # inches of a picture's name inside it, and points


def check_suffix(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure is written as {', '.join(SUFFIXES)}, got {str(path)!r}; name the file so")
    return path


def draw_figure(scene: Scene, *, footer: str = "", suffix: str = ".png", dpi: int = 110) -> bytes:
    """The figure as the bytes of a PNG, SVG or PDF file."""
    with any_script():
        return figure_bytes(_Canvas(scene, footer).figure, suffix=suffix, dpi=dpi)


def figure_bytes(figure: Figure, *, suffix: str, dpi: int) -> bytes:
    """A file of a figure: the same bytes each time, letters as letters rather than outlines."""
    buffer = io.BytesIO()
    metadata: dict[str, Any] = (
        {"Date": None} if suffix == ".svg" else {"CreationDate": None} if suffix == ".pdf" else {}
    )
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vitmix", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=suffix.removeprefix("."), dpi=dpi, metadata=metadata)
    return buffer.getvalue()


class _Canvas:
    """Places panels by inches from the top left corner."""

    def __init__(self, scene: Scene, footer: str) -> None:
        self.scene = scene
        bands = [scene.views[start : start + PER_BAND] for start in range(0, len(scene.views), PER_BAND)]
        height, width = scene.pictures.shape[2:]
        self.tall = PANEL * min(1.6, max(0.6, height / width))
        self.notes = max([len(view.notes) for view in scene.views], default=0)
        lines = max([len(_title_lines(view.title)) for view in scene.views], default=1)
        self.title = TITLE + 0.14 * (lines - 1) + 0.16 * self.notes
        band = self.title + 3 * self.tall + 2 * GAP + CAPTION + BAR + 0.34
        columns = max([len(each) for each in bands], default=0)
        self.width = MARGIN + LEFT + columns * PANEL + (columns - 1) * GAP + MARGIN
        self.width = max(self.width, 5.2)
        legend = textwrap.wrap(_legend(scene, footer), int(self.width * 14.5))
        self.height = MARGIN + len(bands) * band + 0.06 + 0.16 * len(legend)
        self.figure = Figure(figsize=(self.width, self.height), facecolor="white")
        for number, views in enumerate(bands):
            self._draw_band(views, MARGIN + number * band)
        for number, line in enumerate(reversed(legend)):
            self._text(MARGIN, self.height - 0.12 - 0.16 * number, line, size=8.5, color=FAINT)

    def _draw_band(self, views: tuple[View, ...], top: float) -> None:
        self._draw_originals(top)
        for number, view in enumerate(views):
            self._draw_view(view, MARGIN + LEFT + number * (PANEL + GAP), top)

    def _draw_originals(self, top: float) -> None:
        first = top + self.title
        rows = [first + number * (self.tall + GAP) for number in range(2)]
        last = rows[1] + self.tall + GAP
        roles = ((OWN, "white", "own"), (PARTNER, INK, "partner"))
        for row, picture, name, (color, ink, role) in zip(
            rows, self.scene.pictures, self.scene.names, roles, strict=True
        ):
            panel = self._panel(MARGIN, row, PANEL, self.tall)
            panel.imshow(picture.permute(1, 2, 0).numpy(), interpolation="antialiased", aspect="auto")
            _frame(panel, color, 2.6)
            panel.text(
                0.04, 0.05, _tag(role, name), transform=panel.transAxes,
                fontsize=TAG_SIZE, color=ink, fontweight="bold",
                bbox={"boxstyle": "round,pad=0.25", "facecolor": color, "edgecolor": "none"},
            )  # fmt: skip
        side = MARGIN + PANEL + GAP + 0.06
        for row, word in zip((*rows, last), ("mask", "image", "attention"), strict=True):
            self._text(side, row + self.tall / 2, word, size=9, color=FAINT, rotation=90, va="center", ha="center")
        # The scale of the attention row, in the free corner under the originals.
        if any(each.kind == "attention" for view in self.scene.views for each in view.statistics):
            scale = self._panel(MARGIN, last + self.tall / 2 - 0.05, PANEL, 0.1)
            scale.imshow(np.linspace(0, 1, 128)[None], cmap=ATTENTION, aspect="auto")
            self._text(MARGIN, last + self.tall / 2 + 0.16, "least", size=8, color=FAINT)
            self._text(MARGIN + PANEL, last + self.tall / 2 + 0.16, "most", size=8, color=FAINT, ha="right")
        bar = last + self.tall + CAPTION + 0.06 + BAR / 2
        self._text(side + 0.06, bar, "target", size=9, color=FAINT, va="center", ha="right")

    def _draw_view(self, view: View, left: float, top: float) -> None:
        lines = _title_lines(view.title)
        baseline = top + self.title - 0.15 - 0.16 * self.notes
        size = 11 if len(view.title) <= SHORT_TITLE else 7.8
        self._text(left, baseline, "\n".join(lines), size=size, weight="bold")
        for number, note in enumerate(view.notes):
            self._text(left, baseline + 0.16 * (number + 1), note, size=8, color=FAINT)
        row = top + self.title
        self._draw_mask(view, self._panel(left, row, PANEL, self.tall))
        row += self.tall + GAP
        panel = self._panel(left, row, PANEL, self.tall)
        panel.imshow(view.mixed.permute(1, 2, 0).numpy(), interpolation="antialiased", aspect="auto")
        row += self.tall + GAP
        self._draw_statistics(view, left, row)
        self._draw_target(view, self._panel(left, row + self.tall + CAPTION + 0.06, PANEL, BAR))

    def _draw_mask(self, view: View, panel: Any) -> None:
        origin = view.origin.numpy()
        panel.imshow(origin, cmap=ORIGIN, vmin=0, vmax=1, extent=(0, 1, 1, 0), interpolation="nearest", aspect="auto")
        rows, columns = origin.shape if view.bank is None else view.bank.shape
        if max(rows, columns) <= MOST_LINES and (rows, columns) != tuple(view.mixed.shape[1:]):
            for edges, line in ((columns, panel.axvline), (rows, panel.axhline)):
                for number in range(1, edges):
                    line(number / edges, color="white", linewidth=0.5)
        if view.bank is not None:
            tall, wide = view.bank.shape
            row, column = np.nonzero(view.bank.numpy())
            count = view.bank.numpy()[row, column]
            size = (72 * PANEL / wide * 0.55) ** 2 * count / count.max()
            panel.scatter((column + 0.5) / wide, (row + 0.5) / tall, s=size, color=OWN, linewidths=0)
        if view.moved_from is not None:
            top, bottom, left, right = view.moved_from
            box = Rectangle(
                (left, top), right - left, bottom - top, fill=False, edgecolor=INK, linewidth=1.2, linestyle=(0, (3, 2))
            )
            panel.add_patch(box)
        panel.set(xlim=(0, 1), ylim=(1, 0))
        if origin.size == 1 and 0 < float(origin[0, 0]) < 1:
            panel.text(0.5, 0.5, f"{float(origin[0, 0]):.0%}", ha="center", va="center", fontsize=13, color=INK)

    def _draw_statistics(self, view: View, left: float, row: float) -> None:
        count = len(view.statistics)
        if not count:
            panel = self._panel(left, row, PANEL, self.tall)
            panel.set_facecolor("#f2f2f2")
            panel.text(0.5, 0.5, "none", ha="center", va="center", fontsize=9, color=FAINT, transform=panel.transAxes)
            return
        gap = 0.05
        wide, tall = (PANEL - gap * (count - 1)) / count, self.tall / count
        for number, statistic in enumerate(view.statistics):
            place = left + number * (wide + gap)
            panel = self._panel(place, row + (self.tall - tall) / 2, wide, tall)
            _draw_grid(panel, statistic)
            if count > 1:
                _frame(panel, (OWN, PARTNER)[number], 1.6)
        caption = view.statistics[0].caption if count == 1 else view.statistics[0].caption.split()[-1] + " of both"
        words = caption if view.used else f"({caption})"
        self._text(left, row + self.tall + 0.15, words, size=8.5, color=FAINT)

    def _draw_target(self, view: View, panel: Any) -> None:
        # Activation labels need not sum to one: what is missing stays gray, what is too much makes the bar longer.
        panel.set(xlim=(0, max(1.0, view.own + view.partner)), ylim=(0, 1))
        panel.set_facecolor(REST)
        start = 0.0
        for part, color, dark in ((view.own, OWN, False), (view.partner, PARTNER, True)):
            shown = max(0.0, part)
            panel.add_patch(Rectangle((start, 0), shown, 1, facecolor=color, linewidth=0))
            if shown >= 0.24:
                ink = INK if dark else "white"
                words = f"{part:.0%}"
                panel.text(
                    start + shown / 2, 0.46, words, ha="center", va="center", fontsize=9, color=ink, fontweight="bold"
                )
            start += shown

    def _panel(self, left: float, top: float, width: float, height: float) -> Any:
        box = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        panel = self.figure.add_axes(box)
        panel.set(xticks=[], yticks=[])
        for spine in panel.spines.values():
            spine.set_visible(False)
        return panel

    def _text(self, left: float, top: float, words: str, *, size: float, **settings: Any) -> None:
        settings = {"color": INK, "fontsize": size} | settings
        self.figure.text(left / self.width, 1 - top / self.height, words, **settings)


def _legend(scene: Scene, footer: str) -> str:
    """The footer, and a word on every sign that occurs."""
    said = [footer] if footer else []
    if any(view.statistics and not view.used for view in scene.views):
        said.append("In parentheses: not used by the method.")
    if any(view.moved_from is not None for view in scene.views):
        said.append("Dashed: where the pasted part lay.")
    if any(view.bank is not None for view in scene.views):
        said.append("Dots: tokens in the bank.")
    return "  ".join(said)


def _draw_grid(panel: Any, statistic: Shown) -> None:
    values = statistic.grid.numpy()
    if statistic.kind == "share":
        panel.imshow(values, cmap=SHARE, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        return
    # Attention of a trained model is a few bright places; the square root lets the others be seen too.
    norm = PowerNorm(0.5, vmin=float(values.min()), vmax=max(float(values.max()), float(values.min()) + 1e-12))
    panel.imshow(values, cmap=ATTENTION, norm=norm, interpolation="nearest", aspect="auto")


def _frame(panel: Any, color: str, width: float) -> None:
    for spine in panel.spines.values():
        spine.set(visible=True, color=color, linewidth=width)


def _title_lines(title: str) -> list[str]:
    """A method's text in lines that fit a column, broken after brackets, commas and signs."""
    if len(title) <= SHORT_TITLE:
        return [title]
    lines = [""]
    for piece in re.split(r"(?<=[(,+| ])", title):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > LINE:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    lines = [line.rstrip() for line in lines if line.strip()]
    return lines if len(lines) <= MOST_TITLE_LINES else [*lines[: MOST_TITLE_LINES - 1], "…"]


def _tag(role: str, name: str) -> str:
    """The role and the name, in a line of its own where both do not fit into one."""
    (together, *more), (alone,) = (
        fitted(words, TAG, size=TAG_SIZE, weight="bold", lines=lines)
        for words, lines in ((f"{role}: {name}", 2), (name, 1))
    )
    return f"{role}:\n{alone}" if more or together.startswith("…") else together
