"""The figures of the studies, plotted from their tables alone."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmix.lab.plotting.canvas import COLORS as PALETTE
from vitmix.lab.plotting.canvas import chart_panels, plain_axes, plot_interval
from vitmix.lab.runs import Table

from . import labels
from .fluctuation import ACTIVATION, ALIGNED, AREA, ATTENTION, RULES, SIMILARITY, TRANSMIX

COLORS = {
    SIMILARITY: "#222222",
    AREA: "#0072B2",
    ATTENTION: "#56B4E9",
    TRANSMIX: "#009E73",
    ACTIVATION: "#CC79A7",
    ALIGNED: "#E69F00",
}


def plot_fluctuation(tables: Sequence[Table]) -> Figure:
    """TL-Align's figure 4 for each method: shares per block, for one pair and on average, and correlations."""
    tables = [table for table in tables if table.example]
    figure = Figure(figsize=(12, 3.4 * len(tables)), layout="constrained")
    grid = figure.subplots(len(tables), 3, squeeze=False)
    for table, (one, mean, follow) in zip(tables, grid, strict=True):
        count = table.rows[0][1]["share"].n
        for rule in RULES:
            _plot_rule(one, rule, table.example[rule])
            _plot_rule(mean, rule, table.column("share", rule=rule))
            if rule != SIMILARITY:
                _plot_rule(follow, rule, table.column("correlation", rule=rule))
        depth = len(table.example[AREA])
        _style_blocks(one, depth, "after block", f"{table.title.partition(': ')[2]}: one pair")
        _style_blocks(mean, depth, "after block", f"mean over {count:,} pairs")
        _style_blocks(follow, depth, "after block", "correlation with similarity")
        for axes in (one, mean):
            axes.set_ylabel("the partner's share")
    _add_legend(figure, grid[0][0])
    return figure


def plot_bars(tables: Sequence[Table]) -> Figure:
    """The first table: a panel for each column, a bar for each row, with its interval."""
    table = tables[0]
    named = [zip(table.keys, each, strict=True) for each, _ in table.rows]
    names = [", ".join(f"{key} {name}" if name.isdigit() else name for key, name in each) for each in named]
    beside = 0.075 * max(map(len, names))
    figure, panels = chart_panels(len(table.columns), width=3.2, height=1.1 + 0.28 * len(names), beside=beside)
    for column, axes in zip(table.columns, panels, strict=True):
        factor = 100 if column in table.percent else 1
        for place, (_, values) in enumerate(table.rows):
            if (value := values.get(column)) is None:
                continue
            axes.barh(place, factor * value.mean, color=COLORS[AREA], height=0.6)
            if value.interval is not None:
                low, high = (factor * end for end in value.interval)
                axes.hlines(place, low, high, color=COLORS[SIMILARITY], linewidth=1.2)
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_ylim(len(names) - 0.5, -0.5)  # the same in every panel, even if a panel has no bar in some rows
        plain_axes(axes, f"{column} (%)" if factor == 100 else column)
    return figure


def plot_label_error(tables: Sequence[Table]) -> Figure:
    """Error by the partner's area and by the size of the objects: a panel for each mask, a line for each label rule."""
    tables = [table for table in tables if table.keys[-1] in ("area", "size")]
    masks = list(dict.fromkeys(_mask_and_rule(names[0])[0] for table in tables for names, _ in table.rows))
    figure = Figure(figsize=(3.6 * len(masks) + 2.2, 3.1 * len(tables)), layout="constrained")
    grid = figure.subplots(len(tables), len(masks), squeeze=False, sharex="row", sharey=True)
    colors = dict[str, str]()
    for table, panels in zip(tables, grid, strict=True):
        for mask, axes in zip(masks, panels, strict=True):
            names = dict.fromkeys(names[0] for names, _ in table.rows if _mask_and_rule(names[0])[0] == mask)
            for name in names:
                rule = _mask_and_rule(name)[1]
                color = colors.setdefault(rule, PALETTE[len(colors) % len(PALETTE)])
                _plot_classes(axes, table, name, color=color, label=rule)
            axes.set_xlabel(table.title.partition(" by ")[2])
            plain_axes(axes, mask)
        panels[0].set(ylabel="label error", ylim=(0, None))
    handles = {text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend([*handles.values()], [*handles], loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _mask_and_rule(name: str) -> tuple[str, str]:
    """`CutMix box` and `area` of "CutMix box, area (...)". Methods given by the user share one panel."""
    mask, _, rule = name.partition(", ")
    return (mask, rule.partition(" (")[0]) if name in labels.RULES else ("methods", name)


def _plot_classes(axes: Axes, table: Table, name: str, *, color: str, label: str) -> None:
    rows = [(names[1], values["error"]) for names, values in table.rows if names[0] == name]
    middles = [sum(float(edge.rstrip("%")) for edge in group.split(" to ")) / 200 for group, _ in rows]
    lows, highs = zip(*(value.interval or (value.mean, value.mean) for _, value in rows), strict=True)
    plot_interval(axes, middles, [value.mean for _, value in rows], lows, highs, color=color, label=label, markersize=4)


def plot_blocks(tables: Sequence[Table], *, measure: str) -> Figure:
    """The first table, whose rows are blocks: a panel for each method, a line for each column, with its interval."""
    table = tables[0]
    methods = list(dict.fromkeys(names[0] for names, _ in table.rows))
    figure, panels = chart_panels(len(methods), width=4.4, height=3.2, beside=1.8)
    for method, axes in zip(methods, panels, strict=True):
        blocks = [int(names[1]) for names, _ in table.rows if names[0] == method]
        for column, color in zip(table.columns, COLORS.values(), strict=False):
            values = [values[column] for names, values in table.rows if names[0] == method]
            lows, highs = zip(*(value.interval or (value.mean, value.mean) for value in values), strict=True)
            means = [value.mean for value in values]
            plot_interval(axes, blocks, means, lows, highs, color=color, label=column, markersize=4)
        axes.sharey(panels[0])
        _style_blocks(axes, 1 + max(blocks), "block", method)
    panels[0].set_ylabel(measure)
    _add_legend(figure, panels[0])
    return figure


def plot_hidden(tables: Sequence[Table]) -> Figure:
    """What HTM mixed, epoch by epoch."""
    figure, panels = chart_panels(2, width=3.5, height=3)
    epochs = [int(names[0]) for names, _ in tables[0].rows]
    columns = {"samples per batch": COLORS[AREA], "tokens per sample": COLORS[ALIGNED]}
    for axes, (column, color) in zip(panels, columns.items(), strict=True):
        axes.plot(epochs, tables[0].column(column), color=color, marker="o", markersize=3)
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain_axes(axes, column)
    return figure


def _plot_rule(axes: Axes, rule: str, values: Sequence[float]) -> None:
    constant = rule in (AREA, TRANSMIX, ACTIVATION)  # one number for all blocks
    style = "--" if constant else "-o"
    width = 2.4 if rule == SIMILARITY else 1.6
    axes.plot(range(len(values)), list(values), style, color=COLORS[rule], label=rule, linewidth=width, markersize=4)


def _style_blocks(axes: Axes, depth: int, name: str, title: str) -> None:
    axes.set_xlabel(name)
    axes.set_xticks(range(0, depth, max(1, depth // 12)))
    plain_axes(axes, title)


def _add_legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
