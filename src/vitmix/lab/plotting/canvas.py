"""Colors, charts, a canvas measured in inches, and figure files."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with any kind of color vision can distinguish; texts say blue and orange.
OWN, PARTNER = "#0072B2", "#E69F00"
COLORS = (OWN, "#D55E00", "#009E73", "#CC79A7", "#56B4E9", PARTNER, "#000000", "#8c8c8c")
INK, FAINT = "#222222", "#6b6b6b"
HEAT = matplotlib.colormaps["inferno"]
SHARE = LinearSegmentedColormap.from_list("share", [OWN, "#f4f4f0", PARTNER])
SUFFIXES = (".png", ".svg", ".pdf")
Plot = Callable[[Axes], object]


def check_suffix(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure is written as {', '.join(SUFFIXES)}, got {str(path)!r}; change the file's suffix")
    return path


def figure_bytes(figure: Figure, *, suffix: str, dpi: int) -> bytes:
    """A figure as a file: the same bytes each time, with text stored as text."""
    buffer = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vitmix", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=suffix.removeprefix("."), dpi=dpi, metadata=metadata)
    return buffer.getvalue()


class Canvas:
    """Collects axes and text, positioned in inches from the top left corner; the height is set at the end."""

    def __init__(self, width: float) -> None:
        self.width = width
        self._axes: list[tuple[tuple[float, float, float, float], Plot]] = []
        self._texts: list[Callable[[Figure, float], object]] = []

    def axes(self, left: float, top: float, width: float, height: float, plot: Plot) -> None:
        """Axes without ticks and lines, filled by `plot`."""
        self._axes.append(((left, top, width, height), plot))

    def text(self, left: float, top: float, words: str, *, size: float, **settings: Any) -> None:
        style = {"color": INK, "fontsize": size} | settings
        self._texts.append(lambda figure, height: figure.text(left / self.width, 1 - top / height, words, **style))

    def figure(self, height: float) -> Figure:
        figure = Figure(figsize=(self.width, height), facecolor="white")
        for (left, top, wide, tall), plot in self._axes:
            box = (left / self.width, 1 - (top + tall) / height, wide / self.width, tall / height)
            axes = figure.add_axes(box)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            plot(axes)
        for write in self._texts:
            write(figure, height)
        return figure


# Charts


def chart_panels(count: int, *, width: float, height: float, beside: float = 0) -> tuple[Figure, list[Axes]]:
    """Panels of a chart next to each other, with `beside` inches of room for labels or a legend."""
    figure = Figure(figsize=(width * count + beside, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def plain_axes(axes: Axes, title: str = "") -> None:
    """Left and bottom lines only, and small numbers."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(visible=True, color=FAINT, linewidth=0.5)
    axes.tick_params(labelsize=8, length=2, width=0.5, color=FAINT, labelcolor=INK)
    axes.set_title(title, fontsize=10)


def plot_interval(
    axes: Axes, places: Sequence[float], means: Sequence[float], lows: Any, highs: Any, *, color: str, **style: Any
) -> None:
    """A line with its interval as a shade."""
    axes.fill_between(places, lows, highs, color=color, alpha=0.18, linewidth=0)
    axes.plot(places, means, color=color, marker="o", **style)
