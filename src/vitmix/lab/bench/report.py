"""The measurements as tables and as JSON."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from vitmix.lab.bench.growth import StatisticRow
from vitmix.lab.bench.steps import StepRow


def base_of(rows: Sequence[StepRow], mode: str) -> StepRow:
    """The row that a mode's ratios refer to: its first method; for the materialized path, that of the fastest mode."""
    if mode == "materialized":
        mode = next((row.mode for row in reversed(rows) if row.mode != "materialized"), mode)
    return next(row for row in rows if row.mode == mode)


def ratios(row: StepRow, base: StepRow) -> tuple[float, float | None, float | None]:
    """The median ratio of a row's times to the base's, with the lowest and highest ratio of one round.

    Times of one round were measured one after the other. Rows of different runs have no rounds in common.
    """
    if len(row.times) != len(base.times) or row.mode != base.mode:
        return row.median / base.median, None, None
    found = [time / other for time, other in zip(row.times, base.times, strict=True)]
    return statistics.median(found), min(found), max(found)


def step_table(rows: Sequence[StepRow], batch: int) -> str:
    names = [row.method if row.easy is None else f"{row.method}, {100 * row.easy:.1f} % easy" for row in rows]
    width = max(30, *(len(name) + 1 for name in names))
    lines = [
        f"{'':14}{'':{width}}{'ms':>9}{'images/s':>11}{'ratio':>8}{'lowest':>8}{'highest':>8}{'GiB':>8}{'ratio':>8}"
    ]
    for row, name in zip(rows, names, strict=True):
        base = base_of(rows, row.mode)
        memory = "" if row.memory is None else f"{row.memory:8.2f}{row.memory / (base.memory or 1):8.3f}"
        ratio = "".join(f"{'' if each is None else format(each, '.3f'):>8}" for each in ratios(row, base))
        lines.append(f"{row.mode:14}{name:{width}}{row.median:9.2f}{batch / row.median * 1e3:11,.0f}{ratio}{memory}")
    before = [f"{row.method}: {row.ahead:.2f}" for row in rows if row.ahead is not None]
    if before:
        lines.append(f"computed before the step, in ms of one CPU core per image: {', '.join(dict.fromkeys(before))}")
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


def as_json(
    settings: Mapping[str, object], steps: Sequence[StepRow], tables: Mapping[str, Sequence[StatisticRow]]
) -> str:
    found = {
        "settings": settings,
        "steps": [asdict(row) | {"median": row.median} | _relative(row, base_of(steps, row.mode)) for row in steps],
        **{name: [asdict(row) for row in rows] for name, rows in tables.items()},
    }
    return json.dumps(found, indent=1)


def _relative(row: StepRow, base: StepRow) -> dict[str, object]:
    ratio, lowest, highest = ratios(row, base)
    return {"relative_to": [base.method, base.mode], "ratio": ratio, "lowest": lowest, "highest": highest}
