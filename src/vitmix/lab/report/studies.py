"""The section of studies: the tables that `vitmix analyze` stored, with the runs side by side, and their curves."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitmix.lab.runs import ANALYSIS, Analysis, Estimate, Run
from vitmix.lab.runs import Table as Stored
from vitmix.lab.studies.studies import STUDIES

from .groups import Group, legend, numbered
from .html import NONE, Html, html
from .quantities import part_of
from .svg import Line, line_chart

ALONG = ("block", "epoch")  # keys of tables whose rows are points of a curve
SHORT, LONG = 12, 24  # rows; a longer table is folded away, sooner where charts show the same


@dataclass(frozen=True)
class Member:
    """A run's study, and where it stands on the page."""

    group: Group
    number: int
    run: Run
    study: Analysis

    def row(self, title: str, names: Sequence[str]) -> dict[str, Estimate]:
        table = self.study.table(title)
        return {} if table is None else dict(table.row(names))


def read_studies(groups: Sequence[Group]) -> tuple[list[Member], list[str]]:
    """The studies in the folders of the runs, and a sentence for each that cannot be shown."""
    found: list[Member] = []
    notes: list[str] = []
    keys: dict[tuple[str, str], tuple[str, ...]] = {}
    for number, (group, run) in numbered(groups).items():
        for study in run.analyses.values():
            if any(keys.setdefault((study.study, table.title), table.keys) != table.keys for table in study.tables):
                path = run.path / ANALYSIS / f"{study.study}.json"
                notes.append(f"{path} has tables of another form than those of other runs, and is left out")
            else:
                found.append(Member(group, number, run, study))
        problems = [text for file, text in run.problems.items() if file.startswith(f"{ANALYSIS}/")]
        notes += [f"{text}; 'vitmix analyze {run.path}' measures it" for text in problems]
    return found, notes


def studies(groups: Sequence[Group]) -> list[Html]:
    """Every study that a run has in its folder; nothing where there is none."""
    found, notes = read_studies(groups)
    parts: list[Html] = [html.note(each) for each in notes]
    alike = len({measured_how(each.study) for each in found}) == 1
    parts += [_conditions(found)] if alike else []
    for name in sorted({each.study.study for each in found}, key=_order):
        members = [each for each in found if each.study.study == name]
        about = STUDIES[name].about if name in STUDIES else members[0].study.about or name
        parts.append(html.heading(about[0].upper() + about[1:], anchor=f"analysis-{name}"))
        parts += [] if alike else [_conditions(members)]
        for title in dict.fromkeys(table.title for each in members for table in each.study.tables):
            parts += _table(members, title)
    return [html.about_studies(), legend(groups), *parts] if found else parts


def _order(name: str) -> tuple[int, str]:
    """The studies of this version first."""
    return (list(STUDIES).index(name) if name in STUDIES else len(STUDIES)), name


def _conditions(members: Sequence[Member]) -> Html:
    """On what studies were measured; a warning where the runs differ in it."""
    every = {str(each.run.path): measured_how(each.study) for each in members}
    if len(set(every.values())) == 1:
        return html.paragraph(f"{next(iter(every.values()))}.")
    listed = "; ".join(f"{folder}: {said}" for folder, said in every.items())
    return html.note(f"Not measured alike, so these numbers do not compare. {listed}")


def measured_how(study: Analysis) -> str:
    """Numbers compare where this is the same."""
    which = f"weights of the {'last' if study.weights.endswith('last.safetensors') else 'best'} epoch"
    methods = "" if study.methods is None else f", methods {', '.join(study.methods)}"
    return f"{study.data}: {study.images} images, batch {study.batch}, seed {study.seed}{methods}, {which}"


def _table(members: Sequence[Member], title: str) -> list[Html]:
    tables = [table for each in members if (table := each.study.table(title)) is not None]
    like = tables[0]
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    groups = {each.group.number: each.group for each in members}
    rows = []
    for names in dict.fromkeys(names for table in tables for names, _ in table.rows):
        for group in groups.values():
            having = [each for each in members if each.group is group and each.row(title, names)]
            if having:
                places = [Place(title, names, column, column in like.percent) for column in columns]
                who = [group.key] if len(groups) > 1 else []
                rows.append([*names, *who, *(place.cell(having) for place in places), _counts(having, places)])
    head = [*like.keys, *([""] if len(groups) > 1 else []), *columns, "n"]
    table = html.table(head, rows, " ".join(like.notes))
    along = next((key for key in ALONG if key in like.keys), None)
    charts = [] if along is None else list(_charts(members, like, columns, along))
    shown: list[Html] = [html.charts(charts)] if charts else []
    if len(rows) > (SHORT if charts else LONG):
        return [*shown, html.details(f"{title}: table", table)]
    return [*shown, html.heading(title, level=4), table]


@dataclass(frozen=True)
class Place:
    """A number of a study: its table, the names of its row, its column."""

    title: str
    names: tuple[str, ...]
    column: str
    percent: bool

    def of(self, member: Member) -> Estimate | None:
        return member.row(self.title, self.names).get(self.column)

    def source(self, member: Member, part: str) -> str:
        path = "/".join((self.title, *self.names, self.column, part))
        return f"{ANALYSIS}/{member.study.study}.json:{path}"

    def shown(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"

    def cell(self, members: Sequence[Member]) -> Html:
        having = [(each, value) for each in members if (value := self.of(each)) is not None]
        if not having:
            return NONE
        if len(having) == 1:
            mean, low, high = (self._number(*having[0], part) for part in ("mean", "low", "high"))
            return html.interval(mean, low, high) if low and high else mean
        values = [value.mean for _, value in having]
        found = {"mean": statistics.fmean(values), "deviation": statistics.stdev(values)}
        group, source = having[0][0].group.number, self.source(having[0][0], "mean")
        mean, deviation = (
            html.number(value, self.shown(value), source, group=group, of=of) for of, value in found.items()
        )
        return html.joined([mean, deviation], " ± ")

    def _number(self, member: Member, estimate: Estimate, part: str) -> Html:
        value = part_of(estimate, "value" if part == "mean" else part)
        return (
            "" if value is None else html.number(value, self.shown(value), self.source(member, part), run=member.number)
        )


def _counts(having: Sequence[Member], places: Sequence[Place]) -> Html:
    """The smallest and the largest n of a row."""
    every = [(value.n, each, place) for each in having for place in places if (value := place.of(each)) is not None]
    ends = {end[0]: end for end in (min(every, key=lambda one: one[0]), max(every, key=lambda one: one[0]))}
    numbers = [html.number(n, f"{n:,}", place.source(each, "n"), run=each.number) for n, each, place in ends.values()]
    return html.joined(numbers, " to ")


def _charts(members: Sequence[Member], like: Stored, columns: Sequence[str], along: str) -> Iterator[Html]:
    """Curves along the blocks or epochs: a chart for each column and each of the other names, a line for each run.

    Label rules are compared with each other, as in TL-Align's figure 4: charts for each run, a line for each rule.
    """
    others = [key for key in like.keys if key != along]
    if others == ["rule"]:
        yield from _rule_charts(members, like.title, columns, along)
        return
    place = like.keys.index(along)
    for other in dict.fromkeys((*names[:place], *names[place + 1 :]) for names, _ in like.rows):
        for column in columns:
            lines = [
                Line(each.group.number, points, each.group.label(each.run))
                for each in members
                if (points := _points(each, like.title, column, along, other))
            ]
            if lines:
                yield _chart(", ".join((*other, column)), lines, column in like.percent, along)


def _rule_charts(members: Sequence[Member], title: str, columns: Sequence[str], along: str) -> Iterator[Html]:
    for each in members:
        table = each.study.table(title)
        if table is None:
            continue
        place = table.keys.index("rule")
        rules = list(dict.fromkeys(names[place] for names, _ in table.rows))
        yield html.legend(
            [each.group.label(each.run), *(html.key(n, rule) for n, rule in enumerate(rules))], "legend wide"
        )
        for column in columns:
            lines = [
                Line(number, points, rule)
                for number, rule in enumerate(rules)
                if (points := _points(each, title, column, along, (rule,)))
            ]
            if lines:
                yield _chart(
                    column if column == "correlation" else f"{column}, mean over the pairs", lines, False, along
                )
        lines = [Line(n, list(enumerate(table.example[r])), r) for n, r in enumerate(rules) if r in table.example]
        if lines:
            yield _chart("share, one pair", lines, False, along)


def _points(each: Member, title: str, column: str, along: str, other: tuple[str, ...]) -> list[tuple[float, float]]:
    """Along a key the means of the rows whose other names are these."""
    table = each.study.table(title)
    if table is None:
        return []
    place = table.keys.index(along)
    return [
        (float(names[place]), values[column].mean)
        for names, values in table.rows
        if column in values and names[place].isdecimal() and (*names[:place], *names[place + 1 :]) == other
    ]


def _chart(title: str, lines: Sequence[Line], percent: bool, along: str) -> Html:
    shown = lambda value: f"{100 * value:.3g} %" if percent else f"{value:.4g}"  # noqa: E731
    chart = line_chart(title, lines, shown=shown, x_name=along, percent=percent)
    return html.figure(title, chart, "analysis", title)
