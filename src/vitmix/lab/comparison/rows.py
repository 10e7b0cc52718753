"""The rows of a comparison, from the runs of its trainings alone."""

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitmix._checks import check_choice
from vitmix.lab.report.groups import started
from vitmix.lab.report.quantities import COUNT, SECONDS, Quantity, best, evaluated, last
from vitmix.lab.runs import Estimate, Run
from vitmix.lab.training.progress import duration

from .matrix import Matrix, Training
from .runner import is_done

Read = Callable[[Run], float | None]
Alike = Callable[[Run, Run], bool]
MEASURES = {"last": last("accuracy"), "best": best("accuracy")}
PARAMETERS, FLOPS = evaluated("parameters", COUNT), evaluated("flops", COUNT)
GFLOPS = "GFLOPs of one image's forward pass: two operations for each multiply-add."
DIFFERENCE = ("mean", "std", "n", "low", "high", "p")
COLUMNS = (
    *("row", "model", "data", "seeds", "planned", "mean", "std"),
    *(f"difference_{name}" for name in (*DIFFERENCE, "verdict")),
    *("training_seconds", "slowdown", "parameters", "flops"),
)


@dataclass(frozen=True)
class Row:
    """A row of the matrix on one model and one data set.

    Attributes:
        runs: the finished runs by seed; `planned` are how many there will be.
        column: of its trainings; rows are compared within one.
    """

    name: str
    model: str
    data: str
    runs: Mapping[int, Run]
    planned: int
    column: tuple[str, str]

    def values(self, quantity: Quantity) -> list[float]:
        return [value for run in self.runs.values() if (value := quantity.read(run)) is not None]

    def any(self, quantity: Quantity) -> float | None:
        """A number that is the same for every seed."""
        return next(iter(self.values(quantity)), None)

    def names(self, axes: Sequence[str]) -> list[str]:
        return [self.name, *(getattr(self, axis) for axis in axes)]

    @property
    def seeds(self) -> str:
        return f"{len(self.runs)}" + (f" of {self.planned}" if len(self.runs) < self.planned else "")


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison found; `measure` names the quantity that rows are compared by."""

    rows: tuple[Row, ...]
    baseline: str
    measure: str

    @property
    def quantity(self) -> Quantity:
        return MEASURES[self.measure]

    @property
    def complete(self) -> bool:
        return all(len(row.runs) == row.planned for row in self.rows)

    def beside(self, row: Row) -> Row | None:
        """The baseline on the same model and data; None for the baseline itself."""
        fitting = [each for each in self.rows if each.name == self.baseline and each.column == row.column]
        return None if row.name == self.baseline or not fitting else fitting[0]

    def pairs(self, row: Row, read: Read, alike: Alike = lambda own, other: True) -> list[tuple[float, float]]:
        """A number of a row's runs and of the baseline's with the same seeds, where both have it and are alike."""
        baseline = self.beside(row)
        runs = [] if baseline is None else [(run, baseline.runs.get(seed)) for seed, run in row.runs.items()]
        values = [(read(own), read(other)) for own, other in runs if other is not None and alike(own, other)]
        return [(own, other) for own, other in values if own is not None and other is not None]

    def difference(self, row: Row, read: Read | None = None, alike: Alike = lambda own, other: True) -> Estimate | None:
        """A row less the baseline, paired by seed: in the compared quantity, or in another number."""
        pairs = self.pairs(row, read or self.quantity.read, alike)
        return Estimate.paired([own for own, _ in pairs], [other for _, other in pairs]) if pairs else None

    def slowdown(self, row: Row) -> float | None:
        """The training time of a row over the baseline's."""
        own, other = (sum(side) for side in zip((0.0, 0.0), *self.pairs(row, SECONDS.read), strict=True))
        return own / other if other else None

    @property
    def tests(self) -> int:
        """How many paired tests there are."""
        return sum(found is not None and found.p is not None for found in map(self.difference, self.rows))

    @property
    def axes(self) -> list[str]:
        """Of model and data, those that a table must name in each row, since there is more than one."""
        return [axis for axis in ("model", "data") if len({getattr(row, axis) for row in self.rows}) > 1]


def verdict(difference: Estimate) -> str:
    """`better` and `worse` only where the interval excludes zero."""
    if difference.n < 2:
        return "one seed, no test"
    if difference.low is None or difference.high is None:
        return "seeds do not differ, no test"
    return "better" if difference.low > 0 else "worse" if difference.high < 0 else "no difference shown"


def compare(matrix: Matrix, trainings: Sequence[Training], *, measure: str = "last") -> Comparison:
    """The comparison of the trainings that are finished."""
    check_choice("measure", measure, MEASURES)
    rows = []
    for name, column in dict.fromkeys((each.row, each.column) for each in trainings):
        own = [each for each in trainings if (each.row, each.column) == (name, column)]
        runs = {each.seed: started(each.run) for each in own if is_done(each)}
        rows.append(Row(name, own[0].model, own[0].data, runs, len(own), column))
    return Comparison(tuple(rows), matrix.reference, measure)


# Files


def plain(comparison: Comparison) -> dict[str, Any]:
    """As JSON holds it; accuracies and differences are fractions."""
    rows = []
    for row in comparison.rows:
        accuracy, difference = row.values(comparison.quantity), comparison.difference(row)
        rows.append(
            {
                "row": row.name,
                "model": row.model,
                "data": row.data,
                "seeds": sorted(row.runs),
                "planned": row.planned,
                "accuracy": dict(zip(map(str, row.runs), accuracy, strict=True)),
                "mean": statistics.fmean(accuracy) if accuracy else None,
                "std": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
                "difference": None if difference is None else plain_difference(difference),
                "training_seconds": row.values(SECONDS),
                "slowdown": comparison.slowdown(row),
                "parameters": row.any(PARAMETERS),
                "flops": row.any(FLOPS),
                "runs": [str(run.path) for run in row.runs.values()],
            }
        )
    return {"baseline": comparison.baseline, "measure": comparison.measure, "tests": comparison.tests, "rows": rows}


def plain_difference(found: Estimate) -> dict[str, Any]:
    return {name: getattr(found, name) for name in DIFFERENCE} | {"verdict": verdict(found)}


def csv_cell(value: Any) -> Any:
    """A value as a spreadsheet shows it: a text that it would compute is marked as text."""
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


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
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


# Text


def text(comparison: Comparison) -> str:
    """The table for people."""
    lines = table(comparison)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*shown, *notes(comparison), GFLOPS])


def table(comparison: Comparison) -> list[list[str]]:
    """The table as texts, its head first."""
    head = ["", *comparison.axes, "seeds", "top-1, %"]
    head += [f"to {comparison.baseline}", "95 % interval", "p", "", "time", "× time", "parameters", "GFLOPs"]
    return [head, *([*row.names(comparison.axes), row.seeds, *_numbers(row, comparison)] for row in comparison.rows)]


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know to read the numbers."""
    which = "of the last epoch" if comparison.measure == "last" else "of the best epoch, chosen on the same images"
    said = [f"Top-1 {which}, mean ± sample standard deviation over the seeds."]
    if comparison.tests:
        said.append(f"Differences are paired by seed; interval and p of the paired t-test. {warning(comparison.tests)}")
    if not comparison.complete:
        said.append("Not all trainings are finished; the same command resumes.")
    return said


def warning(tests: int) -> str:
    return f"{tests} test{'s' * (tests > 1)}: at 95 %, one in twenty finds a difference where there is none."


def mean_and_deviation(values: Sequence[float], scale: float = 100, form: str = ".2f") -> str:
    shown = f"{scale * statistics.fmean(values):{form}}"
    return f"{shown} ± {scale * statistics.stdev(values):{form}}" if len(values) > 1 else shown


def _numbers(row: Row, comparison: Comparison) -> list[str]:
    accuracy, seconds, found = row.values(comparison.quantity), row.values(SECONDS), comparison.difference(row)
    if not accuracy:
        return ["-"] * 9
    is_baseline, slowdown = row.name == comparison.baseline, comparison.slowdown(row)
    flops, parameters, interval = row.any(FLOPS), row.any(PARAMETERS), None if found is None else found.interval
    return [
        mean_and_deviation(accuracy),
        "-" if found is None else f"{100 * found.mean:+.2f}",
        "-" if interval is None else f"{100 * interval[0]:+.2f} to {100 * interval[1]:+.2f}",
        "-" if found is None or found.p is None else f"{found.p:.3f}",
        ("baseline" if is_baseline else "-") if found is None else verdict(found),
        duration(statistics.fmean(seconds)) if seconds else "-",
        "1.00" if is_baseline else "-" if slowdown is None else f"{slowdown:.2f}",
        "-" if parameters is None else f"{parameters:,.0f}",
        "-" if flops is None else f"{flops / 1e9:.4g}",
    ]
