"""What was measured of finished runs besides their accuracy, as tables with a line for each row of the comparison.

All of them are made of the runs' records, whichever parts of the suite and studies there are.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vitmix.lab.report.courses import Course, course_of, courses
from vitmix.lab.report.measurements import measured
from vitmix.lab.report.quantities import measurement
from vitmix.lab.report.studies import ALONG, Studies, measured_how, read_studies
from vitmix.lab.runs import Measurement, Run, Table

from .rows import Read

MEAN = "mean"
MOST_NAMES = 16  # of rows; longer tables are for the report alone


class Conditions(NamedTuple):
    """On how many images a run was measured, and how: numbers compare where both are the same."""

    images: int
    how: str


@dataclass(frozen=True)
class SeedTable:
    """Numbers of runs by column, shown multiplied by `scale`.

    Rows are tested against the baseline by the column `MEAN`, where there is one.
    """

    title: str
    note: str
    columns: Mapping[str, Read]
    conditions: Callable[[Run], Conditions | None]
    scale: float = 100
    form: str = ".2f"


def read_tables(runs: Sequence[Run]) -> tuple[list[SeedTable], list[str]]:
    """The tables of everything that at least one run has, and a sentence for each study that cannot be shown."""
    found, notes = read_studies(runs)
    return [*_changed_images(runs), *(table for studies in found.values() for table in _study(studies))], notes


def _with_mean(columns: Mapping[str, Read], parts: Sequence[Read]) -> dict[str, Read]:
    """With their mean, for runs that have them all."""

    def mean(run: Run) -> float | None:
        values = [value for part in parts if (value := part(run)) is not None]
        return statistics.fmean(values) if values and len(values) == len(parts) else None

    return {**columns, MEAN: mean} if parts else dict(columns)


# Changed images


def _changed_images(runs: Sequence[Run]) -> list[SeedTable]:
    """A table for each kind of change, by its strength, and one for what else a part of the suite measured."""
    every = {name: each for run in runs for name, each in measured(run).items()}
    # The error under a corruption says in one number what its severities say.
    found = courses(each for each in every.values() if each.of.severity is None)
    others: dict[str, list[Measurement]] = {}
    for each in every.values():
        if course_of(each.of) is None and each.of.attack is None:
            others.setdefault(each.of.part, []).append(each)
    tables = [_others(part, own) for part, own in others.items()]
    return [*tables, *(_course(course, names) for course, names in found.items())]


def _others(part: str, own: Sequence[Measurement]) -> SeedTable:
    names = [each.name for each in own]
    note = "Top-1 in %, unless an error is named."
    columns = {name: measurement(name).read for name in names}
    return SeedTable(part.capitalize(), note, columns, lambda run: _conditions(run, names))


def _course(course: Course, names: Mapping[float, str]) -> SeedTable:
    columns = {course.label(strength): measurement(name).read for strength, name in names.items()}
    note = f"Top-1 in %{f' {course.about}' if course.about else ''}."
    if 0 in names:
        note += f" {MEAN.capitalize()}: without {course.label(0)}."
    changed = [measurement(name).read for strength, name in names.items() if strength > 0]
    own = list(names.values())
    return SeedTable(course.title, note, _with_mean(columns, changed), lambda run: _conditions(run, own))


def _conditions(run: Run, names: Sequence[str]) -> Conditions | None:
    own = [each for name, each in measured(run).items() if name in names]
    if run.robustness is None or not own:
        return None
    protocol = run.robustness.parts[own[-1].of.protocol]
    settings = {name: protocol.settings.get(name) for name in ("limit", "seed")}
    if own[-1].of.attack is not None:
        settings |= {name: protocol.settings.get(name) for name in ("attack_limit", "epsilons")}
    return Conditions(own[-1].estimate.n, json.dumps([protocol.data, settings, own[-1].of.grid]))


# Studies


def _study(studies: Studies) -> list[SeedTable]:
    """Tables of the rows that a study's own tables have; of rows along the blocks or epochs, of the last.

    Columns stay columns, with a table for each row, or else the rows are columns, whichever makes fewer tables.
    """
    found: list[SeedTable] = []
    for like in {table.title: table for study in studies.values() for table in study.tables}.values():
        rows = list(dict.fromkeys(_names(like, names) for names, _ in like.rows))
        if len(rows) > MOST_NAMES:
            continue
        columns = [(column,) for column in like.columns]
        turned = len(rows) > len(columns)
        last = [f"Of the last {key}." for key in like.keys if key in ALONG]
        for each in columns if turned else rows:
            reads = {
                ", ".join(other): _number(studies, like.title, *((other, each) if turned else (each, other)))
                for other in (rows if turned else columns)
            }
            percent = set(each if turned else like.columns) <= set(like.percent)
            if percent and turned:  # accuracies under several names, whose mean can be tested
                reads = _with_mean(reads, list(reads.values()))
            scale, form = (100, ".2f") if percent else (1, ".3g")
            note = " ".join((*like.notes, *last))
            found.append(SeedTable(", ".join((like.title, *each)), note, reads, _studied(studies), scale, form))
    return found


def _names(table: Table, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a row, without its block or epoch."""
    return tuple(name for key, name in zip(table.keys, names, strict=True) if key not in ALONG)


def _number(studies: Studies, title: str, row: tuple[str, ...], column: tuple[str, ...]) -> Read:
    """The mean in the last row with these names."""

    def number(run: Run) -> float | None:
        table = studies[run.path].table(title) if run.path in studies else None
        rows = [] if table is None else [values for names, values in table.rows if _names(table, names) == row]
        found = [values[column[0]].mean for values in rows if column[0] in values]
        return found[-1] if found else None

    return number


def _studied(studies: Studies) -> Callable[[Run], Conditions | None]:
    def conditions(run: Run) -> Conditions | None:
        study = studies.get(run.path)
        return None if study is None else Conditions(study.images, measured_how(study))

    return conditions
