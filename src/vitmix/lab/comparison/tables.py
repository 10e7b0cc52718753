"""What was measured on finished runs besides accuracy, as tables with a line for each row of the comparison.

All of them are made of the runs' records, whichever parts of the suite and studies there are.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vitmix.lab.report import dense
from vitmix.lab.report.courses import Course, course_of, courses
from vitmix.lab.report.measurements import measured
from vitmix.lab.report.quantities import POINTS, Quantity, Read, Shown, measurement, titled
from vitmix.lab.report.studies import ALONG, Studies, measured_how, other_names, read_studies
from vitmix.lab.runs import Estimate, Run

from .rows import Comparison, Row

MEAN = "mean"
MOST_NAMES = 20  # of rows; longer tables are only in the report
Names = tuple[str, ...]


class Conditions(NamedTuple):
    """On how many images a run was measured, and how: numbers can be compared if both are the same."""

    images: int
    how: str


@dataclass(frozen=True)
class SeedTable:
    """Numbers of runs by column. Rows are tested against the baseline by the column `MEAN`, if there is one."""

    title: str
    note: str
    columns: Mapping[str, Quantity]
    conditions: Callable[[Run], Conditions | None]

    def rows(self, comparison: Comparison) -> list[Row]:
        """The rows for which the table has numbers."""
        return [row for row in comparison.rows if any(map(self.conditions, row.runs.values()))]

    def conditions_of(self, rows: Sequence[Row]) -> list[Conditions]:
        found = (self.conditions(run) for row in rows for run in row.runs.values())
        return [each for each in found if each is not None]

    def images(self, rows: Sequence[Row]) -> list[int]:
        """The number of images measured on; a single number if all runs agree."""
        return sorted({each.images for each in self.conditions_of(rows)})


class Difference(NamedTuple):
    """The difference of a row from the baseline in the mean of a table."""

    row: Row
    of: str
    found: Estimate


def table_differences(comparison: Comparison, tables: Sequence[SeedTable]) -> list[Difference]:
    """Every row against the baseline in the means of tables, of runs that were measured in the same way."""
    found = []
    for row in comparison.rows:
        for table in (each for each in tables if MEAN in each.columns):
            alike = lambda own, other, how=table.conditions: how(own) == how(other)  # noqa: E731
            paired = comparison.difference(row, table.columns[MEAN].read, alike)
            found += [] if paired is None else [Difference(row, table.title, paired)]
    return found


def read_tables(runs: Sequence[Run]) -> tuple[list[SeedTable], list[str]]:
    """The tables of everything that at least one run has, and a message for each study that cannot be shown."""
    found, notes = read_studies(runs)
    return [
        *_dense(runs),
        *_changed_images(runs),
        *(table for studies in found.values() for table in _study(studies)),
    ], notes


def _columns(reads: Mapping[str, Read], shown: Shown, averaged: Sequence[Read] = ()) -> dict[str, Quantity]:
    """The columns, and the mean of some of them for runs that have all of these."""

    def mean(run: Run) -> float | None:
        values = [value for each in averaged if (value := each(run)) is not None]
        return statistics.fmean(values) if len(values) == len(averaged) else None

    every = {**reads, MEAN: mean} if averaged else reads
    return {name: Quantity("", read, shown) for name, read in every.items()}


# Transfers


def _dense(runs: Sequence[Run]) -> list[SeedTable]:
    """The other scores of transfers, and the first score of each class."""
    seen = [run.dense for run in runs if run.dense is not None]
    if not seen:
        return []
    scores = [name for name in seen[0].scores.values if not name.endswith("loss")]
    classes = seen[0].scores.by_class
    first = next(iter(classes[0].values), None)
    reads = {titled(name): dense.score(name).read for name in scores}
    tables = [SeedTable("Scores", "In %.", _columns(reads, POINTS), _dense_conditions)]
    if first is not None and len(classes) <= MOST_NAMES:
        reads = {each.name: dense.class_score(number, first).read for number, each in enumerate(classes)}
        tables.append(SeedTable(f"{titled(first)} of each class", "In %.", _columns(reads, POINTS), _dense_conditions))
    return tables


def _dense_conditions(run: Run) -> Conditions | None:
    return None if run.dense is None else Conditions(run.dense.scores.n, run.dense.data)


# Changed images


def _changed_images(runs: Sequence[Run]) -> list[SeedTable]:
    """A table for each kind of change, by its strength, and one for what else a part of the suite measured."""
    every = {name: each for run in runs for name, each in measured(run).items()}
    # The corruption error summarizes the severities in one number.
    found = courses(each for each in every.values() if each.of.severity is None)
    others: dict[str, list[str]] = {}
    for each in every.values():
        if course_of(each.of) is None and each.of.attack is None:
            others.setdefault(each.of.part, []).append(each.name)
    said = "Top-1 in %, unless an error is named."
    tables = [_measured(part.capitalize(), said, {name: name for name in names}) for part, names in others.items()]
    return [*tables, *(_course(course, names) for course, names in found.items())]


def _course(course: Course, names: Mapping[float, str]) -> SeedTable:
    note = f"Top-1 in %{f' {course.about}' if course.about else ''}."
    note += f" {MEAN.capitalize()}: without {course.label(0)}." if 0 in names else ""
    labeled = {course.label(strength): name for strength, name in names.items()}
    return _measured(course.title, note, labeled, [name for strength, name in names.items() if strength > 0])


def _measured(title: str, note: str, names: Mapping[str, str], averaged: Sequence[str] = ()) -> SeedTable:
    """A table of measurements by label; its mean is over the `averaged` ones."""
    reads = {label: measurement(name).read for label, name in names.items()}
    columns = _columns(reads, POINTS, [measurement(name).read for name in averaged])
    return SeedTable(title, note, columns, lambda run: _conditions(run, [*names.values()]))


def _conditions(run: Run, names: Sequence[str]) -> Conditions | None:
    own = [each for name, each in measured(run).items() if name in names]
    if run.robustness is None or not own:
        return None
    protocol, attack = run.robustness.parts[own[-1].of.protocol], ("attack_limit", "epsilons")
    which = ("limit", "seed", *(attack if own[-1].of.attack is not None else ()))
    settings = [getattr(protocol.suite, name) for name in which]
    return Conditions(own[-1].estimate.n, json.dumps([protocol.data, settings, own[-1].of.grid]))


# Studies


def _study(studies: Studies) -> list[SeedTable]:
    """Tables of the rows that a study's own tables have; of rows along the blocks or epochs, of the last.

    Columns stay columns, with a table for each row, or else the rows are columns, whichever makes fewer tables.
    """

    def conditions(run: Run) -> Conditions | None:
        study = studies.get(run.path)
        return None if study is None else Conditions(study.images, measured_how(study))

    found: list[SeedTable] = []
    for like in {table.title: table for study in studies.values() for table in study.tables}.values():
        rows = list(dict.fromkeys(other_names(like, names) for names, _ in like.rows))
        if len(rows) > MOST_NAMES:
            continue
        columns = [(column,) for column in like.columns]
        turned = len(rows) > len(columns)
        note = " ".join((*like.notes, *(f"Of the last {key}." for key in like.keys if key in ALONG)))
        for each in columns if turned else rows:
            reads = {
                ", ".join(other): _number(studies, like.title, *((other, each) if turned else (each, other)))
                for other in (rows if turned else columns)
            }
            percent = set(each if turned else like.columns) <= set(like.percent)
            # Several accuracies have a mean, which can be tested.
            averaged = list(reads.values()) if percent and turned else []
            quantities = _columns(reads, POINTS if percent else lambda value: f"{value:.3g}", averaged)
            found.append(SeedTable(", ".join((like.title, *each)), note, quantities, conditions))
    return found


def _number(studies: Studies, title: str, row: Names, column: Names) -> Read:
    """The mean in the last row with these names."""

    def number(run: Run) -> float | None:
        table = studies[run.path].table(title) if run.path in studies else None
        rows = [] if table is None else [values for names, values in table.rows if other_names(table, names) == row]
        found = [values[column[0]].mean for values in rows if column[0] in values]
        return found[-1] if found else None

    return number
