"""The page of a comparison: the table, accuracy against training time, and then what every report has."""

from collections.abc import Sequence

from vitmix.lab.report.groups import Group, legend
from vitmix.lab.report.html import NONE, Html, html
from vitmix.lab.report.page import Section, render
from vitmix.lab.report.quantities import SECONDS
from vitmix.lab.report.svg import Line, line_chart
from vitmix.lab.runs import Estimate

from .rows import Comparison, Row, notes, verdict


def comparison_page(comparison: Comparison, about: str) -> str:
    """The whole page; rows without a finished run are named and otherwise left out."""
    shown = [row for row in comparison.rows if row.runs]
    groups: list[Group] = []
    for row in shown:
        first = sum(len(group.runs) for group in groups)
        runs = dict(enumerate(row.runs.values(), first))
        groups.append(Group(runs, ", ".join(row.names(comparison.axes)), len(groups)))
    sections = [
        Section("comparison", "Comparison", _table(comparison, shown, groups)),
        Section("time", "Accuracy against training time", _time(comparison, groups)),
    ]
    return render(groups, heading=about or "Comparison", first=sections)


def _table(comparison: Comparison, shown: Sequence[Row], groups: Sequence[Group]) -> list[Html]:
    head = ["", "seeds", "top-1", f"difference to {comparison.baseline}", "95 % interval", "p", "", "time", "× time"]
    rows = []
    for row, group in zip(shown, groups, strict=True):
        is_baseline = row.name == comparison.baseline
        ratio, found = comparison.slowdown(row), comparison.difference(row)
        slowdown = "1.00" if is_baseline else NONE if ratio is None else f"{ratio:.2f}"
        no_difference = [NONE, NONE, NONE, "baseline" if is_baseline else NONE]
        difference = no_difference if found is None else _difference(found, group.number)
        accuracy = comparison.quantity.spread(group)
        rows.append([group.key, row.seeds, accuracy, *difference, SECONDS.spread(group), slowdown])
    missing = [", ".join(row.names(comparison.axes)) for row in comparison.rows if not row.runs]
    warning = [html.note(f"Not finished, and left out: {', '.join(missing)}")] if missing else []
    return [*warning, html.table(head, rows, " ".join(notes(comparison)))]


def _difference(found: Estimate, group: int) -> list[Html]:
    values = {"difference": found.mean, "low": found.low, "high": found.high}
    mean, low, high = (
        NONE if value is None else html.number(value, f"{100 * value:+.2f}", group=group, of=of)
        for of, value in values.items()
    )
    if found.interval is None or found.p is None:
        return [mean, NONE, NONE, verdict(found)]
    p = html.number(found.p, f"{found.p:.3f}", group=group, of="p")
    return [mean, html.joined([low, high], " to "), p, verdict(found)]


def _time(comparison: Comparison, groups: Sequence[Group]) -> list[Html]:
    ends: list[Line] = []
    courses: list[Line] = []
    for group in groups:
        for run in group.runs.values():
            accuracy, seconds = comparison.quantity.read(run), SECONDS.read(run)
            if accuracy is not None and seconds is not None:
                ends.append(Line(group.number, [(seconds / 60, accuracy)], group.label(run)))
            points, passed = [], 0.0
            for epoch in run.epochs:
                passed += epoch.get("seconds") or 0
                if (accuracy := epoch.get("accuracy")) is not None:
                    points.append((passed / 60, accuracy))
            if points:
                courses.append(Line(group.number, points, group.label(run), "seed"))
    longest = max(x for line in courses for x, _ in line.points)
    charts = ("At the end", "Accuracy and training time", ends), ("On the way", "Accuracy over training time", courses)
    x_range = (0.0, 1.05 * longest)
    figures = [
        html.figure(title, line_chart(about, lines, shown=_percent, x_name="minutes", x_range=x_range, percent=True))
        for title, about, lines in charts
        if lines
    ]
    said = "Time of training alone, without evaluation; trainings that run side by side slow each other down."
    return [legend(groups), html.paragraph(said), html.charts(figures, "charts")]


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
