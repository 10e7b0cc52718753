"""The measurements as a figure."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

from vitmix.lab.bench.growth import StatisticRow
from vitmix.lab.bench.report import base_of, ratios
from vitmix.lab.bench.steps import StepRow
from vitmix.lab.plotting.canvas import COLORS, INK, Plot, chart_panels, figure_bytes, plain_axes


def plot(path: Path, steps: Sequence[StepRow], tables: dict[str, Sequence[StatisticRow]], title: str) -> None:
    """One figure: step times relative to the base, and the growth of time and memory."""
    plots: list[Plot] = [partial(_plot_bars, steps=steps)] if steps else []
    for name, rows in tables.items():
        if len({row.shape for row in rows}) > 1:
            for label, value in (("milliseconds", "time"), ("MiB above the inputs", "mebibytes")):
                if any(getattr(row, value) is not None for row in rows):
                    plots.append(partial(_plot_growth, rows=rows, along=name, label=label, value=value))
    if not plots:
        return
    figure, panels = chart_panels(len(plots), width=5, height=4.6)
    figure.suptitle(title, fontsize=10)
    for axes, fill in zip(panels, plots, strict=True):
        fill(axes)
    path.write_bytes(figure_bytes(figure, suffix=path.suffix, dpi=130))


def _plot_bars(axes: Axes, steps: Sequence[StepRow]) -> None:
    methods, modes = list(dict.fromkeys(row.method for row in steps)), list(dict.fromkeys(row.mode for row in steps))
    height = 0.8 / len(modes)
    for number, mode in enumerate(modes):
        rows = [row for row in steps if row.mode == mode]
        relative = [ratios(row, base_of(steps, mode))[0] for row in rows]
        places = [methods.index(row.method) + number * height for row in rows]
        bars = axes.barh(places, relative, height, label=mode, color=COLORS[number])
        axes.bar_label(bars, [f"{each:.2f}" for each in relative], padding=2, fontsize=7)
    plain_axes(axes)
    axes.set_yticks([number + 0.4 - height / 2 for number in range(len(methods))], methods)
    axes.invert_yaxis()
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xlabel(f"step time relative to {steps[0].method}")
    axes.margins(x=0.12)
    axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(modes), frameon=False)


def _plot_growth(axes: Axes, rows: Sequence[StatisticRow], along: str, label: str, value: str) -> None:
    place = 2 if along == "tokens" else 0
    for number, name in enumerate(dict.fromkeys(row.name for row in rows)):
        points = [(row.shape[place], getattr(row, value)) for row in rows if row.name == name and getattr(row, value)]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name, color=COLORS[number])
    plain_axes(axes)
    axes.set(xlabel=along, ylabel=label, yscale="log")
    axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=7, frameon=False)
