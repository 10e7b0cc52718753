"""The measurements as tables, as JSON and as a picture."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vitmix.lab.bench.growth import StatisticRow
from vitmix.lab.bench.steps import StepRow


def base_of(rows: Sequence[StepRow], mode: str) -> StepRow:
    """What a mode's ratios refer to: the first method of the mode; for the materialized path of the fastest mode."""
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
        rate = batch / row.median * 1e3
        ratio = row.median / base.median
        lines.append(f"{row.mode:14}{name:{width}}{row.median:9.2f}{rate:11,.0f}{ratio:8.3f}{memory}")
    return "\n".join(lines)


def statistic_table(rows: Sequence[StatisticRow]) -> str:
    """A line for each statistic, a column for each shape: milliseconds, and MiB where they are counted."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    lines = [f"{'batch x heads x tokens x depth':30}" + "".join(f"{'x'.join(map(str, shape)):>18}" for shape in shapes)]
    for name in dict.fromkeys(row.name for row in rows):
        cells = [_cell(next(row for row in rows if row.name == name and row.shape == shape)) for shape in shapes]
        lines.append(f"{name:30}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def _cell(row: StatisticRow) -> str:
    if row.time is None:
        return "out of memory"
    memory = "" if row.memory is None else f" {row.memory * 1024:8,.0f}"
    return f"{row.time:.3f}{memory}"


def as_json(settings: dict[str, Any], steps: Sequence[StepRow], tables: dict[str, Sequence[StatisticRow]]) -> str:
    found = {
        "settings": settings,
        "steps": [asdict(row) | {"median": row.median} for row in steps],
        **{name: [asdict(row) for row in rows] for name, rows in tables.items()},
    }
    return json.dumps(found, indent=1)


def plot(path: Path, steps: Sequence[StepRow], tables: dict[str, Sequence[StatisticRow]], title: str) -> None:
    """One picture: step times relative to the base, and the growth of time and memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[Callable[[Any], None]] = [partial(_bars, steps=steps)] if steps else []
    for name, rows in tables.items():
        if len({row.shape for row in rows}) > 1:
            panels.append(partial(_curves, rows=rows, along=name, label="milliseconds", value=lambda row: row.time))
            if any(row.memory is not None for row in rows):
                label = "MiB above the inputs"
                panels.append(partial(_curves, rows=rows, along=name, label=label, value=_mebibytes))
    if not panels:
        return
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4.6), squeeze=False, layout="constrained")
    figure.suptitle(title, fontsize=10)
    for axis, draw in zip(axes[0], panels, strict=True):
        draw(axis)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _mebibytes(row: StatisticRow) -> float | None:
    return None if row.memory is None else row.memory * 1024


def _bars(axis: Any, steps: Sequence[StepRow]) -> None:
    methods, modes = list(dict.fromkeys(row.method for row in steps)), list(dict.fromkeys(row.mode for row in steps))
    height = 0.8 / len(modes)
    for number, mode in enumerate(modes):
        rows = [row for row in steps if row.mode == mode]
        ratios = [row.median / base_of(steps, mode).median for row in rows]
        at = [methods.index(row.method) + number * height for row in rows]
        bars = axis.barh(at, ratios, height, label=mode)
        axis.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=2, fontsize=7)
    axis.set_yticks([number + 0.4 - height / 2 for number in range(len(methods))], methods, fontsize=8)
    axis.invert_yaxis()
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlabel(f"step time relative to {steps[0].method}")
    axis.margins(x=0.12)
    axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(modes), frameon=False)


def _curves(axis: Any, rows: Sequence[StatisticRow], along: str, label: str, value: Any) -> None:
    place = 2 if along == "tokens" else 0
    for each in dict.fromkeys(row.name for row in rows):
        points = [(row.shape[place], value(row)) for row in rows if row.name == each and value(row)]
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=each)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel(along)
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend(fontsize=7)
