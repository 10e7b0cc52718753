"""The section of what `vitmix analyze` found: tables and curves of the runs side by side."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from vitmix.lab.evaluation.stored import checksums
from vitmix.lab.reading import fits, fits_where_given, is_count, is_number, read_json
from vitmix.lab.studies.studies import STUDIES

from . import html, svg
from .runs import Group, Run

FOLDER = "analysis"
FACTS = ("data", "images", "batch", "seed", "methods")  # what must agree for numbers to compare
SHAPE = {
    **{name: str for name in ("study", "weights", "weights_sha256", "data")},
    **{name: is_count for name in ("images", "batch", "seed")},
    "methods": (None, [str]),
    "tables": [{"title": str, "keys": [str], "columns": [str], "percent": [str], "rows": [dict], "notes": [str]}],
}
NUMBER = {"mean": is_number, "n": is_count}
INTERVAL = {"low": (None, is_number), "high": (None, is_number)}
COURSES = ("block", "epoch")  # of a table's keys: what its rows go along
SHORT, LONG = 12, 24  # rows; a longer table is folded away, sooner where charts show what it says


@dataclass(frozen=True)
class Found:
    """A study of a run, as its file holds it."""

    group: Group
    run: Run
    content: dict[str, Any]

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.content['study']}.json"

    def table(self, title: str) -> dict[str, Any] | None:
        return next((table for table in self.content["tables"] if table["title"] == title), None)

    def row(self, title: str, names: Sequence[str]) -> dict[str, Any] | None:
        table = self.table(title)
        rows = [] if table is None else table["rows"]
        return next((row for row in rows if table is not None and _names(table, row) == tuple(names)), None)


def analyses_section(groups: Sequence[Group]) -> str:
    """Every study that a run has in its folder; nothing where there is none."""
    found, notes = read_analyses(groups)
    parts = [html.note(each) for each in notes]
    alike = len({measured_how(each.content) for each in found}) == 1
    parts += [_facts(found)] if alike else []
    for name, study in STUDIES.items():
        members = [each for each in found if each.content["study"] == name]
        if members:
            title = study.about[0].upper() + study.about[1:]
            parts.append(f'<h3 id="analysis-{name}">{escape(title)}</h3>{"" if alike else _facts(members)}')
            parts += [_table(members, title) for title in _titles(members)]
    if not found:
        return "".join(parts)
    said = (
        "From <code>vitmix analyze</code>. A share is the partner's part. In brackets: the interval of 95 %, in "
        "which images that were mixed of the same two count as one; where a configuration has several runs, the mean ± "
        "the standard deviation over them."
    )
    return f'<p class="soft">{said}</p>{html.legend(groups)}{"".join(parts)}'


def read_analyses(groups: Sequence[Group]) -> tuple[list[Found], list[str]]:
    """The studies in the folders of the runs, and a sentence for each that cannot be shown."""
    found: list[Found] = []
    notes: list[str] = []
    keys: dict[tuple[str, str], list[str]] = {}
    every = [(group, run) for group in groups for run in group.runs]
    for group, run in every:
        paths = sorted((run.folder / FOLDER).glob("*.json"))
        known = checksums(run.folder, "best", "last") if paths else set()
        for path in paths:
            content = _read(path)
            if content is None:
                notes.append(f"{path} is no study of this version; 'vitmix analyze {run.folder}' writes it anew")
            elif known and content["weights_sha256"] not in known:
                notes.append(f"{path} is about other weights; 'vitmix analyze {run.folder}' measures those of the run")
            elif any(keys.setdefault(title, own) != own for title, own in _keys(content)):
                notes.append(f"{path} has tables of another form than those of other runs, and is left out")
            else:
                found.append(Found(group, run, content))
    return found, notes


def _keys(content: dict[str, Any]) -> list[tuple[tuple[str, str], list[str]]]:
    """Of what the rows of each table are named."""
    return [((content["study"], table["title"]), table["keys"]) for table in content["tables"]]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    if not fits(content, SHAPE) or content["study"] not in STUDIES or path.stem != content["study"]:
        return None
    return content if all(map(_fits_table, content["tables"])) else None


def _fits_table(table: dict[str, Any]) -> bool:
    """Whether every row has its names, and besides them numbers, at least one."""
    if not fits_where_given(table, {"example": (None, dict)}):
        return False
    for row in table["rows"]:
        numbers = {name: value for name, value in row.items() if name not in table["keys"]}
        if not fits(row, {key: str for key in table["keys"]}) or not numbers or numbers.keys() - set(table["columns"]):
            return False
        if not all(fits(number, NUMBER) and fits_where_given(number, INTERVAL) for number in numbers.values()):
            return False
    return True


def _facts(members: Sequence[Found]) -> str:
    """On what studies were measured; a warning where the runs differ in it."""
    every = {str(each.run.folder): measured_how(each.content) for each in members}
    if len(set(every.values())) == 1:
        return f'<p class="soft">{escape(next(iter(every.values())))}.</p>'
    listed = "; ".join(f"{folder}: {said}" for folder, said in every.items())
    return html.note(f"Not measured alike, so these numbers do not compare. {listed}")


def measured_how(content: dict[str, Any]) -> str:
    which = f"weights of the {'last' if Path(content['weights']).stem == 'last' else 'best'} epoch"
    methods = "" if content["methods"] is None else f", methods {', '.join(content['methods'])}"
    how = f"batch {content['batch']}, seed {content['seed']}{methods}"
    return f"{content['data']}: {content['images']} images, {how}, {which}"


def _titles(members: Sequence[Found]) -> list[str]:
    return list(dict.fromkeys(table["title"] for each in members for table in each.content["tables"]))


def _names(table: dict[str, Any], row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] for key in table["keys"])


def _table(members: Sequence[Found], title: str) -> str:
    tables = [table for each in members if (table := each.table(title)) is not None]
    like = tables[0]
    columns = list(dict.fromkeys(column for table in tables for column in table["columns"]))
    names = list(dict.fromkeys(_names(table, row) for table in tables for row in table["rows"]))
    groups = {each.group.number: each.group for each in members}
    rows = []
    for each in names:
        for group in groups.values():
            having = [one for one in members if one.group is group and one.row(title, each) is not None]
            if having:
                places = [Place(title, each, column, column in like["percent"]) for column in columns]
                cells = [_cell(having, place) for place in places]
                who = [html.key(group)] if len(groups) > 1 else []
                rows.append([*map(escape, each), *who, *cells, _counts(having, places)])
    head = [*like["keys"], *([""] if len(groups) > 1 else []), *columns, "n"]
    text = html.table([escape(cell) for cell in head], rows, caption=escape(" ".join(like["notes"])))
    along = next((key for key in COURSES if key in like["keys"]), None)
    charts = "" if along is None else "".join(_charts(members, title, like, columns, along))
    charts = f'<div class="charts small">{charts}</div>' if charts else ""
    if len(rows) > (SHORT if charts else LONG):
        text = f"<details><summary>{escape(title)}: table</summary>{text}</details>"
    else:
        text = f"<h4>{escape(title)}</h4>{text}"
    return charts + text


@dataclass(frozen=True)
class Place:
    """A number of a study: its table, the names of its row, its column."""

    title: str
    names: tuple[str, ...]
    column: str
    percent: bool

    def of(self, each: Found) -> dict[str, Any] | None:
        return (each.row(self.title, self.names) or {}).get(self.column)

    def source(self, each: Found, part: str) -> str:
        path = "/".join((self.title, *self.names, self.column, part))
        return f'data-from="{escape(f"{each.path}:{path}")}"'

    def shown(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"


def _cell(having: Sequence[Found], place: Place) -> str:
    having = [each for each in having if place.of(each) is not None]
    if not having:
        return html.NONE
    if len(having) == 1:
        mean, low, high = (_number(having[0], place, part) for part in ("mean", "low", "high"))
        return f'{mean} <span class="soft">[{low}, {high}]</span>' if low and high else mean
    values = [value["mean"] for each in having if (value := place.of(each)) is not None]
    where = f'data-group="{having[0].group.number}" {place.source(having[0], "mean")}'
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    return (
        f'<data value="{mean!r}" data-of="mean" {where}>{place.shown(mean)}</data>'
        f' ± <data value="{deviation!r}" data-of="deviation" {where}>{place.shown(deviation)}</data>'
    )


def _number(each: Found, place: Place, part: str) -> str:
    value = (place.of(each) or {}).get(part)
    if value is None:
        return ""
    return (
        f'<data value="{value!r}" data-run="{each.run.number}" {place.source(each, part)}>{place.shown(value)}</data>'
    )


def _counts(having: Sequence[Found], places: Sequence[Place]) -> str:
    """The smallest and the largest n of a row."""
    every = [(value["n"], each, place) for each in having for place in places if (value := place.of(each)) is not None]
    ends = {end[0]: end for end in (min(every, key=lambda one: one[0]), max(every, key=lambda one: one[0]))}
    return " to ".join(
        f'<data value="{n}" data-run="{each.run.number}" {place.source(each, "n")}>{n:,}</data>'
        for n, each, place in ends.values()
    )


def _charts(
    members: Sequence[Found], title: str, like: dict[str, Any], columns: Sequence[str], along: str
) -> Iterator[str]:
    """Curves along the blocks or epochs: a chart for each column and each of the other names, a line for each run.

    Rules of labels are compared with each other, as in TL-Align's figure 4: charts for each run, a line for each rule.
    """
    others = [key for key in like["keys"] if key != along]
    if others == ["rule"]:
        yield from _rule_charts(members, title, columns, along)
        return
    combinations = dict.fromkeys(tuple(row[key] for key in others) for row in like["rows"])
    for other in combinations:
        for column in columns:
            lines = [
                svg.Line(each.group.number, points, f"{each.group.name}, seed {each.run.config.seed}")
                for each in members
                if (points := _points(each, title, column, along, dict(zip(others, other, strict=True))))
            ]
            if lines:
                yield _chart(", ".join((*other, column)), lines, column in like["percent"], along)


def _rule_charts(members: Sequence[Found], title: str, columns: Sequence[str], along: str) -> Iterator[str]:
    for each in members:
        table = each.table(title)
        if table is None:
            continue
        rules = list(dict.fromkeys(row["rule"] for row in table["rows"]))
        keys = "".join(
            f'<li><span class="key {svg.look(n)}"><span>{escape(r)}</span></span></li>' for n, r in enumerate(rules)
        )
        who = f"{each.group.name}, seed {each.run.config.seed}"
        yield f'<ul class="legend wide"><li>{escape(who)}</li>{keys}</ul>'
        for column in columns:
            lines = [
                svg.Line(number, points, rule)
                for number, rule in enumerate(rules)
                if (points := _points(each, title, column, along, {"rule": rule}))
            ]
            if lines:
                said = f"{column}, mean over the pairs" if column != "correlation" else column
                yield _chart(said, lines, False, along)
        example = table.get("example") or {}
        lines = [svg.Line(n, list(enumerate(example[r])), r) for n, r in enumerate(rules) if _numbers(example.get(r))]
        if lines:
            yield _chart("share, one pair", lines, False, along)


def _numbers(values: Any) -> bool:
    return bool(values) and fits(values, [is_number])


def _points(each: Found, title: str, column: str, along: str, others: dict[str, str]) -> list[tuple[float, float]]:
    table = each.table(title)
    rows = [] if table is None else table["rows"]
    return [
        (float(row[along]), row[column]["mean"])
        for row in rows
        if column in row and row[along].isdecimal() and all(row[key] == value for key, value in others.items())
    ]


def _chart(title: str, lines: Sequence[svg.Line], percent: bool, along: str) -> str:
    chart = svg.line_chart(
        title,
        lines,
        shown=lambda value: f"{100 * value:.3g} %" if percent else f"{value:.4g}",
        x_name=along,
        percent=percent,
    )
    return f'<figure data-analysis="{escape(title)}"><h3>{escape(title)}</h3>{chart}</figure>'
