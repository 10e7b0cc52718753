"""The section of studies: the tables that `vitmix analyze` stored, with the runs side by side, and their curves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from vitmix.lab.runs import ANALYSIS, Analysis, Estimate, Run
from vitmix.lab.runs import Table as Stored
from vitmix.lab.studies.studies import STUDIES

from .groups import Group, advice, every_run, having, legend
from .html import Html, html
from .quantities import Quantity, counts, part_of, with_interval
from .svg import Line, Points, line_chart

ALONG = ("block", "epoch")  # keys of tables whose rows are points of a curve
SHORT, LONG = 12, 24  # rows; a longer table is folded away, sooner where charts show the same
Studies = Mapping[Path, Analysis]  # a study by run folder, for the runs that have it


def read_studies(runs: Sequence[Run]) -> tuple[dict[str, dict[Path, Analysis]], list[str]]:
    """The studies of the runs by name, those of this version first, and a message for each that cannot be shown."""
    found: dict[str, dict[Path, Analysis]] = {}
    notes: list[str] = []
    keys: dict[tuple[str, str], tuple[str, ...]] = {}
    for run in runs:
        for name, study in run.analyses.items():
            if any(keys.setdefault((name, table.title), table.keys) != table.keys for table in study.tables):
                path = run.path / ANALYSIS / f"{name}.json"
                notes.append(f"{path} has tables of another form than those of other runs, and is left out")
            else:
                found.setdefault(name, {})[run.path] = study
        problems = [text for file, text in run.problems.items() if file.startswith(f"{ANALYSIS}/")]
        notes += [f"{text}{advice(run, 'analyze {}')}" for text in problems]
    order = [*STUDIES, *sorted(found.keys() - STUDIES.keys())]
    return {name: found[name] for name in order if name in found}, notes


def studies(groups: Sequence[Group]) -> list[Html]:
    """Every study that a run has in its folder."""
    found, notes = read_studies(every_run(groups))
    every = [(path, study) for own in found.values() for path, study in own.items()]
    alike = len({measured_how(study) for _, study in every}) == 1
    parts: list[Html] = [*map(html.note, notes), *([_conditions(every)] if alike else [])]
    for name, own in found.items():
        about = STUDIES[name].about if name in STUDIES else name
        parts.append(html.heading(about[0].upper() + about[1:], anchor=f"analysis-{name}"))
        parts += [] if alike else [_conditions(own.items())]
        members = having(groups, lambda run, own=own: run.path in own)
        for title in dict.fromkeys(table.title for study in own.values() for table in study.tables):
            parts += _table(members, own, title)
    return [html.about_studies(), legend(groups), *parts] if found else parts


def _conditions(found: Iterable[tuple[Path, Analysis]]) -> Html:
    """How studies were measured; a warning if this differs between runs."""
    every = {str(path): measured_how(study) for path, study in found}
    if len(set(every.values())) == 1:
        return html.paragraph(f"{next(iter(every.values()))}.")
    listed = "; ".join(f"{folder}: {said}" for folder, said in every.items())
    return html.note(f"Measured in different ways, so these numbers cannot be compared. {listed}")


def measured_how(study: Analysis) -> str:
    """Numbers can be compared if this is the same."""
    which = f"weights of the {'last' if study.weights.endswith('last.safetensors') else 'best'} epoch"
    methods = "" if study.methods is None else f", methods {', '.join(study.methods)}"
    return f"{study.data}: {study.images} images, batch {study.batch}, seed {study.seed}{methods}, {which}"


def _quantity(found: Studies, like: Stored, names: tuple[str, ...], column: str, part: str) -> Quantity:
    """A number of a study: table, names of the row, and column."""

    def read(run: Run) -> float | None:
        estimate = _row(found, run, like.title, names).get(column)
        return None if estimate is None else part_of(estimate, part)

    def shown(value: float) -> str:
        return f"{value:,}" if part == "n" else f"{100 * value:.1f} %" if column in like.percent else f"{value:.4g}"

    study = next(iter(found.values())).study
    place = "/".join((like.title, *names, column, "mean" if part == "value" else part))
    return Quantity(f"{ANALYSIS}/{study}.json:{place}", read, shown)


def _row(found: Studies, run: Run, title: str, names: tuple[str, ...]) -> Mapping[str, Estimate]:
    table = found[run.path].table(title)
    return {} if table is None else table.row(names)


def _table(groups: Sequence[Group], found: Studies, title: str) -> list[Html]:
    tables = [table for study in found.values() if (table := study.table(title)) is not None]
    like, several = tables[0], len(groups) > 1
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    rows = []
    for names in dict.fromkeys(names for table in tables for names, _ in table.rows):
        quantities = [partial(_quantity, found, like, names, column) for column in columns]
        for group in having(groups, lambda run, names=names: _row(found, run, title, names)):
            cells = [with_interval(group, quantity) for quantity in quantities]
            n = counts([group], [quantity("n") for quantity in quantities])
            rows.append([*names, *([group.key] if several else []), *cells, n])
    table = html.table([*like.keys, *([""] if several else []), *columns, "n"], rows, " ".join(like.notes))
    along = next((key for key in ALONG if key in like.keys), None)
    figures = [] if along is None else list(_charts(groups, found, like, columns, along))
    shown = [html.charts(figures)] if figures else []
    if len(rows) > (SHORT if figures else LONG):
        return [*shown, html.details(f"{title}: table", table)]
    return [*shown, html.heading(title, level=4), table]


def _charts(
    groups: Sequence[Group], found: Studies, like: Stored, columns: Sequence[str], along: str
) -> Iterator[Html]:
    """Curves along the blocks or epochs: a chart for each column and each of the other names, a line for each run.

    Label rules are compared as in TL-Align's figure 4: a chart for each run, a line for each rule.
    """
    tables = [
        (group, run, table)
        for group in groups
        for run in group.runs.values()
        if (table := found[run.path].table(like.title)) is not None
    ]
    if set(like.keys) == {along, "rule"}:
        for group, run, table in tables:
            yield from _rule_charts(group.label(run), table, columns, along)
        return
    for names in dict.fromkeys(other_names(like, names) for names, _ in like.rows):
        for column in columns:
            lines = [
                Line(group.number, _points(table, column, along, names), group.label(run))
                for group, run, table in tables
            ]
            yield from _chart(", ".join((*names, column)), lines, column in like.percent, along)


def _rule_charts(label: str, table: Stored, columns: Sequence[str], along: str) -> Iterator[Html]:
    rules = list(enumerate(dict.fromkeys(other_names(table, names)[0] for names, _ in table.rows)))
    yield html.legend([label, *(html.key(number, rule) for number, rule in rules)], "legend wide")
    for column in columns:
        said = "" if column == "correlation" else ", mean over the pairs"
        lines = [Line(number, _points(table, column, along, (rule,)), rule) for number, rule in rules]
        yield from _chart(f"{column}{said}", lines, False, along)
    lines = [Line(number, list(enumerate(table.example.get(rule, ()))), rule) for number, rule in rules]
    yield from _chart("share, one pair", lines, False, along)


def other_names(table: Stored, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a row, without its block or epoch."""
    return tuple(name for key, name in zip(table.keys, names, strict=True) if key not in ALONG)


def _points(table: Stored, column: str, along: str, other: tuple[str, ...]) -> Points:
    """The means of the rows with these other names."""
    place = table.keys.index(along)
    return [
        (float(names[place]), values[column].mean)
        for names, values in table.rows
        if column in values and names[place].isdecimal() and other_names(table, names) == other
    ]


def _chart(title: str, lines: Iterable[Line], percent: bool, along: str) -> Iterator[Html]:
    shown = lambda value: f"{100 * value:.3g} %" if percent else f"{value:.4g}"  # noqa: E731
    there = [line for line in lines if line.points]
    if there:
        chart = line_chart(title, there, shown=shown, x_name=along, percent=percent)
        yield html.figure(title, chart, "analysis", title)
