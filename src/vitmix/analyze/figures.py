"""The figures of the studies, drawn from their tables alone."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .fluctuation import ACTIVATION, ALIGNED, AREA, ATTENTION, RULES, SIMILARITY, TRANSMIX
from .results import Table

# Of Okabe and Ito's palette, which is told apart with any kind of color vision.
COLORS = {
    SIMILARITY: "#222222",
    AREA: "#0072B2",
    ATTENTION: "#56B4E9",
    TRANSMIX: "#009E73",
    ACTIVATION: "#CC79A7",
    ALIGNED: "#E69F00",
}
SUFFIXES = ("png", "svg", "pdf")


def figure_bytes(figure: Figure, suffix: str, dpi: int = 150) -> bytes:
    """A figure as the bytes of a file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vitmix"}):
        figure.savefig(buffer, format=suffix, dpi=dpi, metadata=dates.get(suffix, {}))
    return buffer.getvalue()


def draw_fluctuation(tables: Sequence[Table]) -> Figure:
    """TL-Align's figure 4 for each method: shares per block of one pair, on average, and how well rules follow."""
    tables = [table for table in tables if table.example]
    figure = Figure(figsize=(12, 3.4 * len(tables)), layout="constrained")
    grid = figure.subplots(len(tables), 3, squeeze=False)
    for table, (one, mean, follow) in zip(tables, grid, strict=True):
        count = table.rows[0][1]["share"].n
        for rule in RULES:
            _line(one, rule, table.example[rule])
            _line(mean, rule, table.column("share", rule=rule))
            if rule != SIMILARITY:
                _line(follow, rule, table.column("correlation", rule=rule))
        one.set_title(f"{table.title.partition(': ')[2]}: one pair", fontsize=10)
        mean.set_title(f"mean over {count:,} pairs", fontsize=10)
        follow.set_title("correlation with similarity", fontsize=10)
        for axes in (one, mean):
            axes.set_ylabel("the partner's share")
        for axes in (one, mean, follow):
            _blocks(axes, len(table.example[AREA]))
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
    return figure


def draw_hidden(tables: Sequence[Table]) -> Figure:
    """What HTM mixed, epoch by epoch."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    table = tables[0]
    epochs = [int(names[0]) for names, _ in table.rows]
    for axes, column, color in (
        (left, "samples per batch", COLORS[AREA]),
        (right, "tokens per sample", COLORS[ALIGNED]),
    ):
        axes.plot(epochs, table.column(column), color=color, marker="o", markersize=3)
        axes.set(title=column, xlabel="epoch", ylim=(0, None))
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _line(axes: Axes, rule: str, values: Sequence[float]) -> None:
    dashed = rule in (AREA, TRANSMIX, ACTIVATION)  # one number for all blocks
    style: dict[str, Any] = {"linestyle": "--"} if dashed else {"marker": "o", "markersize": 4}
    width = 2.4 if rule == SIMILARITY else 1.6
    axes.plot(range(len(values)), list(values), color=COLORS[rule], label=rule, linewidth=width, **style)


def _blocks(axes: Axes, depth: int) -> None:
    axes.set_xlabel("after block")
    axes.set_xticks(range(0, depth, max(1, depth // 12)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
