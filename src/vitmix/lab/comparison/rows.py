"""The rows of a comparison, read from its run folders, and the table of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitmix._checks import check_choice
from vitmix.lab.columns import aligned
from vitmix.lab.report import dense
from vitmix.lab.report.groups import Group, with_epoch
from vitmix.lab.report.html import NONE, Html, joined
from vitmix.lab.report.quantities import COUNT, POINTS, SECONDS, Quantity, Read, best, cell, evaluated, last, titled
from vitmix.lab.runs import Estimate, Run

from .matrix import RunMatrix, Training
from .runner import is_done

Alike = Callable[[Run, Run], bool]
MEASURES = {"last": last, "best": best}
PARAMETERS, FLOPS = evaluated("parameters", COUNT), evaluated("flops", lambda value: f"{value / 1e9:.4g}")
CLASSIFIER = "accuracy"  # the score of trainings; all others are those of transfers
GFLOPS = "GFLOPs of the forward pass of one image: two operations per multiply-add."


@dataclass(frozen=True, kw_only=True)
class Row(Group):
    """The finished runs of one row of the matrix, on one model and one dataset.

    Attributes:
        names: of the row, and of model and data if there are several.
        planned: how many runs there will be.
        column: the labels of model and data; rows are compared within one.
    """

    row: str
    model: str
    data: str
    names: tuple[str, ...]
    planned: int
    column: tuple[str, str]

    @property
    def by_seed(self) -> dict[int, Run]:
        return {run.config.seed: run for run in self.runs.values()}

    @property
    def about(self) -> dict[str, str]:
        return {"row": self.row, "model": self.model, "data": self.data}

    @property
    def seeds(self) -> str:
        return f"{len(self.runs)}" + (f" of {self.planned}" if len(self.runs) < self.planned else "")


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison found.

    Attributes:
        measure: of which epoch the score is taken by which rows are compared.
        score: its name.
        axes: those of model and data that have several values, so that a table must name them in each row.
    """

    rows: tuple[Row, ...]
    baseline: str
    measure: str
    axes: tuple[str, ...]
    score: str = CLASSIFIER

    @property
    def quantity(self) -> Quantity:
        return MEASURES[self.measure](self.score, POINTS)

    @property
    def costs(self) -> dict[str, Quantity]:
        """What a model costs, by the words in the table's head."""
        if self.score == CLASSIFIER:
            return {"parameters": PARAMETERS, "GFLOPs": FLOPS}
        return {"parameters": dense.PARAMETERS}

    @property
    def complete(self) -> bool:
        return all(len(row.runs) == row.planned for row in self.rows)

    def pairs(self, row: Row, read: Read, alike: Alike = lambda own, other: True) -> list[tuple[float, float]]:
        """A number of a row's runs and of the baseline's, on the same model and data and with the same seeds.

        Only for comparable runs that have the number; empty for the baseline itself.
        """
        fitting = [each for each in self.rows if each.row == self.baseline != row.row and each.column == row.column]
        others = fitting[0].by_seed if fitting else {}
        runs = [(run, others[seed]) for seed, run in row.by_seed.items() if seed in others]
        values = [(read(own), read(other)) for own, other in runs if alike(own, other)]
        return [(own, other) for own, other in values if own is not None and other is not None]

    def difference(self, row: Row, read: Read | None = None, alike: Alike = lambda own, other: True) -> Estimate | None:
        """A row minus the baseline, paired by seed: in the compared quantity, or in another number."""
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


def verdict(difference: Estimate) -> str:
    """`better` and `worse` only if the interval excludes zero."""
    if difference.n < 2:
        return "one seed, no test"
    if difference.low is None or difference.high is None:
        return "seeds do not differ, no test"
    return "better" if difference.low > 0 else "worse" if difference.high < 0 else "no difference shown"


def compare(matrix: RunMatrix, trainings: Sequence[Training], *, measure: str = "last") -> Comparison:
    """The comparison of the runs that are finished."""
    check_choice("measure", measure, MEASURES)
    axes = tuple(axis for axis in ("model", "data") if len({getattr(each, axis) for each in trainings}) > 1)
    rows: list[Row] = []
    done = 0
    for row, column in dict.fromkeys((each.row, each.column) for each in trainings):
        own = [each for each in trainings if (each.row, each.column) == (row, column)]
        runs = dict(enumerate((with_epoch(each.run) for each in own if is_done(each)), done))
        done += len(runs)
        about = {"row": row, "model": own[0].model, "data": own[0].data}
        names = (row, *(about[axis] for axis in axes))
        number = sum(bool(each.runs) for each in rows)  # rows without a run are not on the page
        rows.append(Row(runs, ", ".join(names), number, names=names, planned=len(own), column=column, **about))
    return Comparison(tuple(rows), matrix.reference, measure, axes, matrix.score)


# The table, whose cells are texts in a README and numbers with their sources in HTML


def heads(comparison: Comparison) -> list[str]:
    """Of `numbers`."""
    difference = (f"to {comparison.baseline}", "95 % interval", "p", "")
    return ["seeds", f"{titled(comparison.score)}, %", *difference, "time", "× time", *comparison.costs]


def numbers(row: Row, comparison: Comparison, time: Callable[[Row], Html] = SECONDS.mean) -> list[Html]:
    if not comparison.quantity.of(row):
        return [row.seeds, *["-"] * (len(heads(comparison)) - 1)]
    is_baseline, slowdown = row.row == comparison.baseline, comparison.slowdown(row)
    found = comparison.difference(row)
    difference = [NONE, NONE, NONE, "baseline" if is_baseline else NONE]
    return [
        row.seeds,
        comparison.quantity.spread(row),
        *(difference if found is None else _difference(found, row)),
        time(row),
        "1.00" if is_baseline else NONE if slowdown is None else f"{slowdown:.2f}",
        *(next((each.number(n, row.runs[n]) for n in each.of(row)), NONE) for each in comparison.costs.values()),
    ]


def _difference(found: Estimate, row: Row) -> list[Html]:
    """Difference, interval, p and verdict."""

    def points(value: float, of: str) -> Html:
        return cell(value, f"{100 * value:+.2f}", group=row.number, of=of)

    mean = points(found.mean, "difference")
    if found.low is None or found.high is None or found.p is None:
        return [mean, NONE, NONE, verdict(found)]
    interval = joined(points(found.low, "low"), " to ", points(found.high, "high"))
    return [mean, interval, cell(found.p, f"{found.p:.3f}", group=row.number, of="p"), verdict(found)]


def table(comparison: Comparison) -> list[list[Html]]:
    """Head and rows."""
    rows = ([*row.names, *numbers(row, comparison)] for row in comparison.rows)
    return [["", *comparison.axes, *heads(comparison)], *rows]


def text(comparison: Comparison) -> str:
    """The table for people."""
    return "\n".join([aligned(table(comparison)), *notes(comparison)])


def notes(comparison: Comparison) -> list[str]:
    """How to read the numbers."""
    which = "of the last epoch" if comparison.measure == "last" else "of the best epoch, selected on the same images"
    title = titled(comparison.score).replace("top", "Top")
    said = [f"{title} {which}, mean ± sample standard deviation over the seeds."]
    if comparison.tests:
        said.append(
            f"Differences are paired by seed; interval and p-value of the paired t-test. {warning(comparison.tests)}"
        )
    if not comparison.complete:
        said.append("Not all runs are finished; rerun the command to resume.")
    return [*said, GFLOPS] if "GFLOPs" in comparison.costs else said


def warning(tests: int) -> str:
    return f"{tests} test{'s' * (tests > 1)}: even if no method differs, about one test in twenty reports a difference."
