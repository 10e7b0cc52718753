"""What was measured of finished runs besides their accuracy, as tables with a line for each row of the comparison.

Every measurement and study in the runs' folders has tables; those with a question of a paper are written out here.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vitmix.lab.report.courses import Course, course_of, courses
from vitmix.lab.report.groups import Group, every_run
from vitmix.lab.report.measurements import measured
from vitmix.lab.report.quantities import measurement
from vitmix.lab.report.studies import ALONG, measured_how, read_studies
from vitmix.lab.runs import Analysis, Measurement, Run
from vitmix.lab.studies.fluctuation import ALIGNED, AREA, TRANSMIX
from vitmix.lab.studies.regions import PAIRS

Read = Callable[[Run], float | None]
Studies = Mapping[Path, Analysis]  # one study of each run, by the run's folder
MEAN = "mean"
MOST_TABLES = 6  # of a study that is not written out here


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
    group = Group(dict(enumerate(runs)))
    members, notes = read_studies([group])
    found: dict[str, dict[Path, Analysis]] = {}
    for member in members:
        found.setdefault(member.study.study, {})[member.run.path] = member.study
    tables = _changed_images(every_run([group]))
    for name in sorted(found, key=lambda name: (list(WRITTEN).index(name) if name in WRITTEN else len(WRITTEN), name)):
        tables += WRITTEN.get(name, _any_study)(found[name])
    return tables, notes


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


def _mixed_accuracy(studies: Studies) -> list[SeedTable]:
    tables = []
    for top, seen in (
        ("top-1", "the likeliest class is one of the pair's two"),
        ("top-2", "the two likeliest are the pair's two"),
    ):
        columns = {method: _number(studies, top, method=method) for method in _names(studies, "method")}
        note = f"Of the mixed images whose pair has two classes, in %: {seen}."
        with_mean = _with_mean(columns, list(columns.values()))
        tables.append(SeedTable(f"Mixed images, {top}", note, with_mean, _studied(studies)))
    return tables


def _regions(studies: Studies) -> list[SeedTable]:
    methods = _names(studies, "method")
    method = "smmix" if "smmix" in methods else methods[0]
    note = (
        f"Mean attention, × 1000, of a patch of one region to a patch of the other in the last block, on images mixed "
        f"by `{method}` (SMMix table A2, whose source region is the partner's). The study has every block."
    )
    columns = {pair: _number(studies, pair, method=method) for pair in PAIRS}
    return [SeedTable("Attention between regions", note, columns, _studied(studies), scale=1000)]


def _fluctuation(studies: Studies) -> list[SeedTable]:
    studies = {folder: study for folder, study in studies.items() if study.methods in (None, ("cutmix",))}
    note = (
        "On CutMix pairs: the root mean square of the difference between area and aligned labels (TL-Align figure 3), "
        "and how the shares by three rules correlate over the pairs with the share by similarity of the tokens after "
        "the last block (figure 4)."
    )
    columns = {f"RMSE {name}": _number(studies, name) for name in ("of shares", "of targets")}
    columns |= {
        f"correlation, {rule}": _number(studies, "correlation", rule=rule) for rule in (AREA, TRANSMIX, ALIGNED)
    }
    return [SeedTable("Token fluctuation", note, columns, _studied(studies), 1, ".3g")] if studies else []


def _labels(studies: Studies) -> list[SeedTable]:
    """A table for each mask, whose columns are label rules."""
    note = (
        "Mean distance between the partner's share by this rule and what the image shows of it: visible partner object "
        "over visible objects, in pixels. The study has the bias, and errors by how much is cut."
    )
    rules = [rule for rule in _names(studies, "rule") if ", " in rule]
    tables = []
    for mask in dict.fromkeys(rule.split(", ")[0] for rule in rules):
        own = {rule.removeprefix(f"{mask}, "): rule for rule in rules if rule.startswith(f"{mask}, ")}
        columns = {name: _number(studies, "error", rule=rule, cut=None) for name, rule in own.items()}
        tables.append(SeedTable(f"Label error, {mask}", note, columns, _studied(studies), 1, ".3f"))
    return tables


def _any_study(studies: Studies) -> list[SeedTable]:
    """A table for each stored one and each of its names, with the same columns; of a course the last row."""
    tables = []
    for table in next(iter(studies.values())).tables:
        others = [key for key in table.keys if key not in ALONG]
        named = [dict(zip(table.keys, names, strict=True)) for names, _ in table.rows]
        scale, form = (100, ".2f") if set(table.columns) <= set(table.percent) else (1, ".3g")
        for where in {tuple(names[key] for key in others): names for names in named}.values():
            where = {key: where[key] for key in others}
            columns = {column: _number(studies, column, title=table.title, **where) for column in table.columns}
            title = ": ".join(filter(None, (table.title, ", ".join(where.values()))))
            tables.append(SeedTable(title, " ".join(table.notes), columns, _studied(studies), scale, form))
    return tables[:MOST_TABLES]


WRITTEN: dict[str, Callable[[Studies], list[SeedTable]]] = {
    "accuracy": _mixed_accuracy,
    "regions": _regions,
    "fluctuation": _fluctuation,
    "labels": _labels,
}


def _names(studies: Studies, key: str) -> list[str]:
    tables = [table for study in studies.values() for table in study.tables if key in table.keys]
    return list(dict.fromkeys(names[table.keys.index(key)] for table in tables for names, _ in table.rows))


def _number(studies: Studies, column: str, title: str | None = None, **where: str | None) -> Read:
    """The mean in the last row that has the column and these names: where rows go along the blocks, the last block."""

    def number(run: Run) -> float | None:
        tables = studies[run.path].tables if run.path in studies else ()
        found = [
            values[column].mean
            for table in tables
            if title in (None, table.title)
            for names, values in table.rows
            if column in values
            and all(dict(zip(table.keys, names, strict=True)).get(key) == name for key, name in where.items())
        ]
        return found[-1] if found else None

    return number


def _studied(studies: Studies) -> Callable[[Run], Conditions | None]:
    def conditions(run: Run) -> Conditions | None:
        study = studies.get(run.path)
        return None if study is None else Conditions(study.images, measured_how(study))

    return conditions
