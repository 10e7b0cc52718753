"""The measurements as tables, as JSON and as a figure."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from vitmix.lab.bench.growth import StatisticRow
from vitmix.lab.bench.steps import StepRow
from vitmix.lab.plotting.canvas import COLORS, INK, Plot, chart_panels, figure_bytes, plain_axes


def base_of(rows: Sequence[StepRow], mode: str) -> StepRow:
    """The row that a mode's ratios refer to: its first method; for the materialized path, that of the fastest mode."""
    if mode == "materialized":
        mode = next((row.mode for row in reversed(rows) if row.mode != "materialized"), mode)
    return next(row for row in rows if row.mode == mode)


def step_table(rows: Sequence[StepRow], batch: int) -> str:
    names = [row.method if row.easy is None else f"{row.method}, {100 * row.easy:.1f} % easy" for row in rows]
    width = max(30, *(len(name) + 1 for name in names))
    lines = [f"{'':14}{'':{width}}{'ms':>9}{'images/s':>11}{'ratio':>8}{'GiB':>8}{'ratio':>8}"]
    for row, name in zip(rows, names, strict=True):
        base = base_of(rows, row.mode)
        memory = "" if row.memory is None else f"{row.memory:8.2f}{row.memory / (base.memory or 1):8.3f}"
        rate, ratio = batch / row.median * 1e3, row.median / base.median
        lines.append(f"{row.mode:14}{name:{width}}{row.median:9.2f}{rate:11,.0f}{ratio:8.3f}{memory}")
    return "\n".join(lines)


def statistic_table(rows: Sequence[StatisticRow]) -> str:
    """A line for each statistic, a column for each shape: milliseconds, and MiB on a GPU."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    lines = [f"{'batch x heads x tokens x depth':30}" + "".join(f"{'x'.join(map(str, shape)):>18}" for shape in shapes)]
    for name in dict.fromkeys(row.name for row in rows):
        cells = [_cell(next(row for row in rows if row.name == name and row.shape == shape)) for shape in shapes]
        lines.append(f"{name:30}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def _cell(row: StatisticRow) -> str:
    if row.time is None:
        return "out of memory"
    return f"{row.time:.3f}" + ("" if row.mebibytes is None else f" {row.mebibytes:8,.0f}")


def as_json(settings: dict[str, Any], steps: Sequence[StepRow], tables: dict[str, Sequence[StatisticRow]]) -> str:
    found = {
        "settings": settings,
        "steps": [asdict(row) | {"median": row.median} for row in steps],
        **{name: [asdict(row) for row in rows] for name, rows in tables.items()},
    }
    return json.dumps(found, indent=1)


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
        ratios = [row.median / base_of(steps, mode).median for row in rows]
        places = [methods.index(row.method) + number * height for row in rows]
        bars = axes.barh(places, ratios, height, label=mode, color=COLORS[number])
        axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=2, fontsize=7)
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
