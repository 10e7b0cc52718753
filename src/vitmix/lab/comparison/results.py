"""The results of a matrix, from its run folders alone."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitmix._checks import check_choice
from vitmix.lab.evaluation.stored import read_evaluation
from vitmix.lab.report.runs import Run, read_run
from vitmix.lab.training.progress import duration

from .matrix import Cell, Matrix
from .runner import is_done
from .statistics import Paired, paired_difference

MEASURES = {"last": "metrics.jsonl:last.accuracy", "best": "metrics.jsonl:best.accuracy"}
SECONDS = "summary.json:training_seconds"
GFLOPS = "GFLOPs of one image's forward pass: two operations for each multiply-add."
COLUMNS = (
    *("row", "model", "data", "seeds", "planned", "mean", "std"),
    *(f"difference_{name}" for name in (*Paired._fields, "verdict")),
    *("training_seconds", "slowdown", "parameters", "flops"),
)


@dataclass(frozen=True)
class Entry:
    """A row of a matrix on one model and one data set: finished runs by seed, and the distance from the baseline."""

    row: str
    model: str
    data: str
    runs: dict[int, Run]
    planned: int
    difference: Paired | None = None
    slowdown: float | None = None
    column: tuple[str, str] = ("", "")  # of its cells: rows are compared within one

    def values(self, source: str) -> list[float]:
        return [value for run in self.runs.values() if (value := run.value(source)) is not None]


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison found; `measure` is the number that rows are compared by."""

    entries: tuple[Entry, ...]
    reference: str
    measure: str

    @property
    def source(self) -> str:
        return MEASURES[self.measure]

    @property
    def complete(self) -> bool:
        return all(len(entry.runs) == entry.planned for entry in self.entries)

    def beside(self, entry: Entry) -> Entry | None:
        """The baseline's entry of the same model and data; None for the baseline itself."""
        fitting = [each for each in self.entries if each.row == self.reference and each.column == entry.column]
        return None if entry.row == self.reference or not fitting else fitting[0]

    @property
    def tests(self) -> int:
        """How many paired tests there are."""
        return sum(entry.difference is not None and entry.difference.p is not None for entry in self.entries)


def compare_cells(matrix: Matrix, cells: Sequence[Cell], *, measure: str = "last") -> Comparison:
    """The comparison of the cells that are finished."""
    check_choice("measure", measure, MEASURES)
    found: dict[tuple[str, tuple[str, str]], Entry] = {}
    for place in dict.fromkeys((cell.row, cell.column) for cell in cells):
        own = [cell for cell in cells if (cell.row, cell.column) == place]
        runs = {cell.seed: _read(cell) for cell in own if is_done(cell)}
        found[place] = Entry(own[0].row, own[0].model, own[0].data, runs, len(own), column=own[0].column)
    entries = [
        entry if row == matrix.reference else _beside(entry, found[matrix.reference, column], MEASURES[measure])
        for (row, column), entry in found.items()
    ]
    return Comparison(tuple(entries), matrix.reference, measure)


def _read(cell: Cell) -> Run:
    run = read_run(cell.folder.path)
    run.evaluation = read_evaluation(run.folder)
    return run


def _beside(entry: Entry, reference: Entry, source: str) -> Entry:
    seeds = [seed for seed in entry.runs if seed in reference.runs]
    if not seeds:
        return entry
    sides = [[float(each.runs[seed].value(source) or 0) for seed in seeds] for each in (entry, reference)]
    times = [[float(each.runs[seed].value(SECONDS) or 0) for seed in seeds] for each in (entry, reference)]
    slowdown = sum(times[0]) / sum(times[1]) if sum(times[1]) else None
    return replace(entry, difference=paired_difference(*sides), slowdown=slowdown)


# Text and JSON


def plain(comparison: Comparison) -> dict[str, Any]:
    """As JSON holds it; accuracies and differences are fractions."""
    rows = []
    for entry in comparison.entries:
        accuracy, seconds = entry.values(comparison.source), entry.values(SECONDS)
        rows.append(
            {
                "row": entry.row,
                "model": entry.model,
                "data": entry.data,
                "seeds": sorted(entry.runs),
                "planned": entry.planned,
                "accuracy": dict(zip(map(str, entry.runs), accuracy, strict=True)),
                "mean": statistics.fmean(accuracy) if accuracy else None,
                "std": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
                "difference": None
                if entry.difference is None
                else entry.difference._asdict() | {"verdict": entry.difference.verdict},
                "training_seconds": seconds,
                "slowdown": entry.slowdown,
                "parameters": _one(entry, "evaluation.json:parameters"),
                "flops": _one(entry, "evaluation.json:flops"),
                "runs": [str(run.folder) for run in entry.runs.values()],
            }
        )
    return {"baseline": comparison.reference, "measure": comparison.measure, "tests": comparison.tests, "rows": rows}


def csv_cell(value: Any) -> Any:
    """A value as a cell that spreadsheets show: a text that they would compute is marked as text, as they do it."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\n")  # which the csv module would not quote
    if not value.startswith(("=", "+", "-", "@", "\t", "\n")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `plain` as a table: one number in each cell, empty where there is none."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        found = {f"difference_{name}": value for name, value in (row["difference"] or {}).items()}
        seconds = row["training_seconds"]
        found |= {name: row[name] for name in row if name in COLUMNS}
        found |= {"seeds": " ".join(map(str, row["seeds"]))}
        found |= {"training_seconds": statistics.fmean(seconds) if seconds else None}
        writer.writerow({name: csv_cell(found.get(name)) for name in COLUMNS})
    return file.getvalue()


def text(comparison: Comparison) -> str:
    """The table for people."""
    lines = table_rows(comparison)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*shown, *notes(comparison), GFLOPS])


def table_rows(comparison: Comparison) -> list[list[str]]:
    """The table as texts, its head first."""
    axes = several(comparison)
    head = ["", *axes, "seeds", "top-1, %"]
    head += [f"to {comparison.reference}", "95 % interval", "p", "", "time", "× time", "parameters", "GFLOPs"]
    rows = [head]
    for entry in comparison.entries:
        names = [entry.row, *(getattr(entry, axis) for axis in axes)]
        seeds = f"{len(entry.runs)}" + (f" of {entry.planned}" if len(entry.runs) < entry.planned else "")
        rows.append([*names, seeds, *_numbers(entry, comparison)])
    return rows


def several(comparison: Comparison) -> list[str]:
    """Of model and data, what a table must name in each row, since there is more than one."""
    return [axis for axis in ("model", "data") if len({getattr(entry, axis) for entry in comparison.entries}) > 1]


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know to read the numbers."""
    which = "of the last epoch" if comparison.measure == "last" else "of the best epoch, chosen on the same images"
    said = [f"Top-1 {which}, mean ± sample standard deviation over the seeds."]
    if comparison.tests:
        said.append(f"Differences are paired by seed; interval and p of the paired t-test. {warning(comparison.tests)}")
    if not comparison.complete:
        said.append("Not all trainings are finished; the same command goes on.")
    return said


def warning(tests: int) -> str:
    return f"{tests} test{'s' * (tests > 1)}: at 95 % one in twenty calls a difference that is none."


def _numbers(entry: Entry, comparison: Comparison) -> list[str]:
    accuracy, seconds, found = entry.values(comparison.source), entry.values(SECONDS), entry.difference
    if not accuracy:
        return ["-"] * 9
    shown = f"{100 * statistics.fmean(accuracy):.2f}"
    shown += f" ± {100 * statistics.stdev(accuracy):.2f}" if len(accuracy) > 1 else ""
    flops, parameters = _one(entry, "evaluation.json:flops"), _one(entry, "evaluation.json:parameters")
    interval = "-"
    if found is not None and found.low is not None and found.high is not None:
        interval = f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"
    return [
        shown,
        "-" if found is None else f"{100 * found.mean:+.2f}",
        interval,
        "-" if found is None or found.p is None else f"{found.p:.3f}",
        ("baseline" if entry.row == comparison.reference else "-") if found is None else found.verdict,
        duration(statistics.fmean(seconds)) if seconds else "-",
        "1.00" if entry.row == comparison.reference else "-" if entry.slowdown is None else f"{entry.slowdown:.2f}",
        "-" if parameters is None else f"{parameters:,.0f}",
        "-" if flops is None else f"{flops / 1e9:.4g}",
    ]


def _one(entry: Entry, source: str) -> float | None:
    """A number that is the same for every seed."""
    values = entry.values(source)
    return values[0] if values else None
