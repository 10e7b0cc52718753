"""The section of studies: the tables that `vitmix analyze` stored, with the runs side by side, and their curves."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from vitmix.lab.runs import ANALYSIS, Analysis, Estimate, Run
from vitmix.lab.runs import Table as Stored
from vitmix.lab.studies.studies import STUDIES

from .groups import Group, advice, every_run, legend
from .html import Html, html
from .quantities import Quantity, counts, part_of, with_interval
from .svg import Line, line_chart

ALONG = ("block", "epoch")  # keys of tables whose rows are points of a curve
SHORT, LONG = 12, 24  # rows; a longer table is folded away, sooner where charts show the same
Studies = Mapping[Path, Analysis]  # one study of each run that has it, by the run's folder


def read_studies(runs: Sequence[Run]) -> tuple[dict[str, dict[Path, Analysis]], list[str]]:
    """The studies of the runs by name, those of this version first, and a sentence for each that cannot be shown."""
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
    """Every study that a run has in its folder; nothing where there is none."""
    found, notes = read_studies(every_run(groups))
    every = {(path, name): study for name, own in found.items() for path, study in own.items()}
    alike = len(set(map(measured_how, every.values()))) == 1
    parts = [html.note(each) for each in notes]
    parts += [_conditions({path: study for (path, _), study in every.items()})] if alike else []
    for name, own in found.items():
        about = STUDIES[name].about if name in STUDIES else name
        parts.append(html.heading(about[0].upper() + about[1:], anchor=f"analysis-{name}"))
        parts += [] if alike else [_conditions(own)]
        members = [group.only(n for n, run in group.runs.items() if run.path in own) for group in groups]
        for title in dict.fromkeys(table.title for study in own.values() for table in study.tables):
            parts += _table([group for group in members if group.runs], own, title)
    return [html.about_studies(), legend(groups), *parts] if found else parts


def _conditions(found: Studies) -> Html:
    """On what studies were measured; a warning where the runs differ in it."""
    every = {str(path): measured_how(study) for path, study in found.items()}
    if len(set(every.values())) == 1:
        return html.paragraph(f"{next(iter(every.values()))}.")
    listed = "; ".join(f"{folder}: {said}" for folder, said in every.items())
    return html.note(f"Not measured alike, so these numbers do not compare. {listed}")


def measured_how(study: Analysis) -> str:
    """Numbers compare where this is the same."""
    which = f"weights of the {'last' if study.weights.endswith('last.safetensors') else 'best'} epoch"
    methods = "" if study.methods is None else f", methods {', '.join(study.methods)}"
    return f"{study.data}: {study.images} images, batch {study.batch}, seed {study.seed}{methods}, {which}"


def _quantity(found: Studies, like: Stored, names: tuple[str, ...], column: str, part: str) -> Quantity:
    """A number of a study: of a row of a table, by the row's names, in a column."""

    def read(run: Run) -> float | None:
        estimate = _row(found, run, like.title, names).get(column)
        return None if estimate is None else part_of(estimate, part)

    study = next(iter(found.values())).study
    percent = column in like.percent and part != "n"
    shown = (lambda value: f"{100 * value:.1f} %") if percent else lambda value: f"{value:.4g}"
    place = "/".join((like.title, *names, column, "mean" if part == "value" else part))
    return Quantity(f"{ANALYSIS}/{study}.json:{place}", read, (lambda n: f"{n:,}") if part == "n" else shown)


def _row(found: Studies, run: Run, title: str, names: tuple[str, ...]) -> Mapping[str, Estimate]:
    table = found[run.path].table(title) if run.path in found else None
    return {} if table is None else table.row(names)


def _table(groups: Sequence[Group], found: Studies, title: str) -> list[Html]:
    tables = [table for study in found.values() if (table := study.table(title)) is not None]
    like = tables[0]
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    rows = []
    for names in dict.fromkeys(names for table in tables for names, _ in table.rows):
        quantities = [partial(_quantity, found, like, names, column) for column in columns]
        for group in groups:
            if any(_row(found, run, title, names) for run in group.runs.values()):
                who = [group.key] if len(groups) > 1 else []
                cells = [with_interval(group, quantity) for quantity in quantities]
                rows.append([*names, *who, *cells, counts([group], [quantity("n") for quantity in quantities])])
    table = html.table([*like.keys, *([""] if len(groups) > 1 else []), *columns, "n"], rows, " ".join(like.notes))
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

    Label rules are compared with each other, as in TL-Align's figure 4: charts for each run, a line for each rule.
    """
    if set(like.keys) == {along, "rule"}:
        for group in groups:
            for run in group.runs.values():
                table = found[run.path].table(like.title)
                yield from () if table is None else _rule_charts(group.label(run), table, columns, along)
        return
    for other in dict.fromkeys(_others(like, names, along) for names, _ in like.rows):
        for column in columns:
            lines = [
                Line(group.number, points, group.label(run))
                for group in groups
                for run in group.runs.values()
                if (points := _points(found[run.path].table(like.title), column, along, other))
            ]
            yield from _chart(", ".join((*other, column)), lines, column in like.percent, along)


def _rule_charts(label: str, table: Stored, columns: Sequence[str], along: str) -> Iterator[Html]:
    rules = list(dict.fromkeys(_others(table, names, along)[0] for names, _ in table.rows))
    yield html.legend([label, *(html.key(number, rule) for number, rule in enumerate(rules))], "legend wide")
    for column in columns:
        points = [(number, rule, _points(table, column, along, (rule,))) for number, rule in enumerate(rules)]
        said = "" if column == "correlation" else ", mean over the pairs"
        yield from _chart(f"{column}{said}", [Line(n, each, rule) for n, rule, each in points if each], False, along)
    lines = [Line(n, list(enumerate(table.example[r])), r) for n, r in enumerate(rules) if r in table.example]
    yield from _chart("share, one pair", lines, False, along)


def _others(table: Stored, names: tuple[str, ...], along: str) -> tuple[str, ...]:
    """The names of a row but for the one that it is along."""
    return tuple(name for key, name in zip(table.keys, names, strict=True) if key != along)


def _points(table: Stored | None, column: str, along: str, other: tuple[str, ...]) -> list[tuple[float, float]]:
    """The means of the rows with these other names."""
    if table is None:
        return []
    place = table.keys.index(along)
    return [
        (float(names[place]), values[column].mean)
        for names, values in table.rows
        if column in values and names[place].isdecimal() and _others(table, names, along) == other
    ]


def _chart(title: str, lines: Sequence[Line], percent: bool, along: str) -> Iterator[Html]:
    shown = lambda value: f"{100 * value:.3g} %" if percent else f"{value:.4g}"  # noqa: E731
    if lines:
        chart = line_chart(title, lines, shown=shown, x_name=along, percent=percent)
        yield html.figure(title, chart, "analysis", title)
