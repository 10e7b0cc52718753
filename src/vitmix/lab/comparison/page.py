"""The page of a comparison: the table, accuracy against training time, and then what every report has."""

from collections.abc import Sequence
from html import escape
from typing import Any

from vitmix.lab.report import html, svg
from vitmix.lab.report.html import NONE, PERCENT, TIME, spread, table
from vitmix.lab.report.page import Section, render
from vitmix.lab.report.runs import Group

from .results import SECONDS, Comparison, Entry, notes, several


def _points(value: float) -> str:
    return f"{100 * value:+.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def comparison_page(comparison: Comparison, about: str) -> str:
    """The whole page; rows without a finished run are named and otherwise left out."""
    shown = [entry for entry in comparison.entries if entry.runs]
    groups = [Group(list(entry.runs.values()), _name(entry, comparison), number) for number, entry in enumerate(shown)]
    for number, run in enumerate(run for group in groups for run in group.runs):
        run.number = number
    sections: list[Section] = [
        ("comparison", "Comparison", _table(comparison, shown, groups)),
        ("time", "Accuracy against training time", _time(comparison, groups)),
    ]
    return render(groups, [], heading=about or "Comparison", first=sections)


def _name(entry: Entry, comparison: Comparison) -> str:
    return ", ".join([entry.row, *(getattr(entry, axis) for axis in several(comparison))])


def _table(comparison: Comparison, shown: Sequence[Entry], groups: Sequence[Group]) -> str:
    head = [
        "",
        "seeds",
        "top-1",
        f"difference to {escape(comparison.reference)}",
        "95 % interval",
        "p",
        "",
        "time",
        "× time",
    ]
    rows = []
    for entry, group in zip(shown, groups, strict=True):
        seeds = str(len(entry.runs)) + (f" of {entry.planned}" if len(entry.runs) < entry.planned else "")
        slowdown = NONE if entry.slowdown is None else f"{entry.slowdown:.2f}"
        cost = [spread(group, SECONDS, TIME), "1.00" if entry.row == comparison.reference else slowdown]
        accuracy = spread(group, comparison.source, PERCENT)
        rows.append([html.key(group), seeds, accuracy, *_difference(entry, comparison, group.number), *cost])
    missing = [_name(entry, comparison) for entry in comparison.entries if not entry.runs]
    warning = html.note(f"Not finished, and left out: {', '.join(missing)}") if missing else ""
    return warning + table(head, rows, caption=" ".join(map(escape, notes(comparison))))


def _difference(entry: Entry, comparison: Comparison, group: int) -> list[str]:
    found = entry.difference
    if found is None:
        return [NONE, NONE, NONE, "baseline" if entry.row == comparison.reference else NONE]

    def number(value: float | None, of: str, how: str) -> str:
        return NONE if value is None else f'<data value="{value!r}" data-of="{of}" data-group="{group}">{how}</data>'

    mean = number(found.mean, "difference", _points(found.mean))
    if found.low is None or found.high is None or found.p is None:
        return [mean, NONE, NONE, found.verdict]
    interval = f"{number(found.low, 'low', _points(found.low))} to {number(found.high, 'high', _points(found.high))}"
    return [mean, interval, number(found.p, "p", f"{found.p:.3f}"), found.verdict]


def _time(comparison: Comparison, groups: Sequence[Group]) -> str:
    ends: list[svg.Line] = []
    courses: list[svg.Line] = []
    for group in groups:
        for run in group.runs:
            label = f"{group.name}, seed {run.config.seed}"
            accuracy, seconds = run.value(comparison.source), run.value(SECONDS)
            if accuracy is not None and seconds is not None:
                ends.append(svg.Line(group.number, [(seconds / 60, accuracy)], label))
            points, passed = [], 0.0
            for row in run.rows:
                passed += row["seconds"]
                if row.get("accuracy") is not None:
                    points.append((passed / 60, row["accuracy"]))
            if points:
                courses.append(svg.Line(group.number, points, label, "seed"))
    longest = max(x for line in courses for x, _ in line.points)
    axes: dict[str, Any] = {"shown": _percent, "percent": True, "x_name": "minutes", "x_range": (0.0, 1.05 * longest)}
    charts = [
        ("At the end", svg.line_chart("Accuracy and training time", ends, **axes)),
        ("On the way", svg.line_chart("Accuracy over training time", courses, **axes)),
    ]
    figures = "".join(f"<figure><h3>{title}</h3>{chart}</figure>" for title, chart in charts)
    said = "Time of training alone, without evaluation; trainings that run side by side slow each other down."
    return f'{html.legend(groups)}<p class="soft">{said}</p><div class="charts">{figures}</div>'
