"""The figures of the studies, drawn from their tables alone."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmix.lab.runs import Table

from .fluctuation import ACTIVATION, ALIGNED, AREA, ATTENTION, RULES, SIMILARITY, TRANSMIX

# Of Okabe and Ito's palette, which is told apart with any kind of color vision.
COLORS = {
    SIMILARITY: "#222222",
    AREA: "#0072B2",
    ATTENTION: "#56B4E9",
    TRANSMIX: "#009E73",
    ACTIVATION: "#CC79A7",
    ALIGNED: "#E69F00",
}


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


def draw_bars(tables: Sequence[Table]) -> Figure:
    """The first table: a panel for each column, a bar for each row, with its interval."""
    table = tables[0]
    names = [", ".join(map(_named, table.keys, each)) for each, _ in table.rows]
    figure, panels = _panels(len(table.columns), width=3.2, height=1.1 + 0.28 * len(names), beside=max(map(len, names)))
    for column, axes in zip(table.columns, panels, strict=True):
        factor = 100 if column in table.percent else 1
        for place, (_, values) in enumerate(table.rows):
            if (value := values.get(column)) is None:
                continue
            axes.barh(place, factor * value.mean, color=COLORS[AREA], height=0.6)
            if value.low is not None and value.high is not None:
                axes.hlines(place, factor * value.low, factor * value.high, color=COLORS[SIMILARITY], linewidth=1.2)
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_ylim(len(names) - 0.5, -0.5)  # the same everywhere: a panel may have no bar in some rows
        axes.set_title(f"{column} (%)" if factor == 100 else column, fontsize=10)
        _plain(axes)
    return figure


def draw_blocks(tables: Sequence[Table], *, measure: str) -> Figure:
    """The first table, whose rows are blocks: a panel for each method, a line for each column, with its interval."""
    table = tables[0]
    methods = list(dict.fromkeys(names[0] for names, _ in table.rows))
    figure, panels = _panels(len(methods), width=4.4, height=3.2, beside=24)
    for method, axes in zip(methods, panels, strict=True):
        blocks = [int(names[1]) for names, _ in table.rows if names[0] == method]
        for column, color in zip(table.columns, COLORS.values(), strict=False):
            values = [values[column] for names, values in table.rows if names[0] == method]
            means = [value.mean for value in values]
            lows = [value.mean if value.low is None else value.low for value in values]
            highs = [value.mean if value.high is None else value.high for value in values]
            axes.fill_between(blocks, lows, highs, color=color, alpha=0.2, linewidth=0)
            axes.plot(blocks, means, color=color, label=column, marker="o", markersize=4)
        axes.set_title(method, fontsize=10)
        axes.sharey(panels[0])
        _blocks(axes, 1 + max(blocks), "block")
    panels[0].set_ylabel(measure)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
    return figure


def draw_hidden(tables: Sequence[Table]) -> Figure:
    """What HTM mixed, epoch by epoch."""
    figure, panels = _panels(2, width=3.5, height=3, beside=0)
    table = tables[0]
    epochs = [int(names[0]) for names, _ in table.rows]
    columns = {"samples per batch": COLORS[AREA], "tokens per sample": COLORS[ALIGNED]}
    for axes, (column, color) in zip(panels, columns.items(), strict=True):
        axes.plot(epochs, table.column(column), color=color, marker="o", markersize=3)
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(column, fontsize=10)
        _plain(axes)
    return figure


def _panels(count: int, *, width: float, height: float, beside: int) -> tuple[Figure, list[Axes]]:
    """Panels next to each other, with room for so many letters beside them."""
    figure = Figure(figsize=(width * count + 0.075 * beside, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _named(key: str, name: str) -> str:
    return f"{key} {name}" if name.isdigit() else name


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _line(axes: Axes, rule: str, values: Sequence[float]) -> None:
    dashed = rule in (AREA, TRANSMIX, ACTIVATION)  # one number for all blocks
    style: dict[str, Any] = {"linestyle": "--"} if dashed else {"marker": "o", "markersize": 4}
    width = 2.4 if rule == SIMILARITY else 1.6
    axes.plot(range(len(values)), list(values), color=COLORS[rule], label=rule, linewidth=width, **style)


def _blocks(axes: Axes, depth: int, name: str = "after block") -> None:
    axes.set_xlabel(name)
    axes.set_xticks(range(0, depth, max(1, depth // 12)))
    _plain(axes)
