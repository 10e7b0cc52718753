"""The section on changed images: what `vitmix eval RUN --suite ...` stored in RUN/robustness.json."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from vitmix.lab.runs import Facts, Measurement, Run

from .courses import Course, course_of, courses
from .groups import Group, advice, course_lines, every_run, legend
from .html import Html, html
from .quantities import counts, measurement, with_interval
from .svg import Band, line_chart

FOLDED = {"severities": "Accuracy under each corruption, by severity"}  # kinds of which charts are folded away, too
TITLES = {"noise": "Gaussian noise", "occlusion": "Dropped patches", "attacks": "Attacks", "autoattack": "AutoAttack"}


def measured(run: Run) -> Mapping[str, Measurement]:
    return {} if run.robustness is None else run.robustness.by_name


def robustness(groups: Sequence[Group]) -> list[Html]:
    """Tables of all measurements and a chart for each course; nothing where no run was measured."""
    seen = [group.only(number for number, run in group.runs.items() if measured(run)) for group in groups]
    seen = [group for group in seen if group.runs]
    if not seen:
        return []
    every = {name: each for run in every_run(seen) for name, each in measured(run).items()}
    kinds: dict[str, list[str]] = {}
    for name, each in every.items():
        kinds.setdefault(_kind(each.of), []).append(name)
    charts: dict[str, list[Html]] = {}
    for course, names in courses(every.values()).items():
        kind = _kind(every[next(reversed(names.values()))].of)
        charts.setdefault(kind, []).append(_chart(seen, course, names))
    parts: list[Html] = [*map(html.note, _reservations(groups)), legend(seen)]
    if "overview" in kinds:
        said = "Accuracy, unless an error is named. mCE: errors relative to those of a reference."
        parts.append(_table(seen, kinds.pop("overview"), said))
    if "errors" in kinds:
        parts += [html.heading("Errors under corruption, mean over severities"), _table(seen, kinds.pop("errors"))]
    for kind, title in FOLDED.items():
        if kind in kinds:
            content = html.text(html.charts(charts.pop(kind, [])), _table(seen, kinds.pop(kind)))
            parts.append(html.details(title, content))
    parts.append(html.charts([figure for figures in charts.values() for figure in figures]) if charts else "")
    for kind, names in kinds.items():
        title = TITLES.get(kind, kind[0].upper() + kind[1:])
        parts.append(html.details(f"{title}: numbers", _table(seen, names, _caption(_grids(seen, names)))))
    single = all(len(group.runs) == 1 for group in seen)
    many = "" if single else "Mean ± sample standard deviation over the runs; thick: their mean, thin: each run. "
    return [html.paragraph(f"{many}In brackets and shaded: 95 % intervals over the images."), *parts]


def _kind(of: Facts) -> str:
    """Which measurements stand in one table."""
    if of.severity is not None:
        return "severities"
    if of.corruption is not None:
        return "errors"
    return of.part if course_of(of) is not None or of.attack is not None else "overview"


def _chart(groups: Sequence[Group], course: Course, names: Mapping[float, str]) -> Html:
    lines = course_lines(groups, lambda run: _points(run, course, names, "value"))
    bands = []
    for group in groups:
        low, high = (_points(group.first, course, names, end) for end in ("low", "high"))
        bands += [Band(group.number, low, high)] if len(group.runs) == 1 and low else []
    shown = lambda share: f"{100 * share:.3g} %"  # noqa: E731
    chart = line_chart(course.title, lines, bands, shown=shown, x_name=course.x_name, percent=True)
    return html.figure(course.title, chart, "robustness", course.title)


def _points(run: Run, course: Course, names: Mapping[float, str], part: str) -> list[tuple[float, float]]:
    found = ((round(course.scale * x, 9), measurement(name, part).read(run)) for x, name in names.items())
    return [(x, value) for x, value in found if value is not None]


def _table(groups: Sequence[Group], names: Iterable[str], caption: str = "") -> Html:
    rows = [
        [
            html.code(name),
            counts(groups, [measurement(name, "n")]),
            *(with_interval(group, partial(measurement, name)) for group in groups),
        ]
        for name in names
    ]
    return html.table(["", "images", *(group.key for group in groups)], rows, caption)


def _grids(groups: Sequence[Group], names: Iterable[str]) -> dict[str, list[str]]:
    """The grids that patches were dropped on, with the names of their groups."""
    found: dict[str, list[str]] = {}
    for group in groups:
        every = {each.of.grid for run in group.runs.values() for name, each in measured(run).items() if name in names}
        for grid in sorted(grid for grid in every if grid is not None):
            found.setdefault(" × ".join(map(str, grid)), []).append(group.name)
    return found


def _caption(grids: Mapping[str, Sequence[str]]) -> str:
    if len(grids) == 1:
        return f"Grid of {next(iter(grids))}."
    return " ".join(f"Grid of {grid}: {', '.join(names)}." for grid, names in grids.items())


def _reservations(groups: Sequence[Group]) -> list[str]:
    """What a reader must know before comparing."""
    runs = every_run(groups)
    found = [
        f"{run.path} has no results on changed images for its best weights"
        f"{advice(run, 'eval {} --suite robustness', 'measures them')}"
        for run in runs
        if not measured(run)
    ]
    sets: dict[str, set[str]] = {}
    references: set[str] = set()
    for run in runs:
        for each in measured(run).values():
            assert run.robustness is not None
            protocol = run.robustness.parts[each.of.protocol]
            settings = protocol.settings
            # What succeeded within one bound counts within those after it.
            bounds = f" {settings['attack_limit']} {settings['epsilons']}" if each.of.attack is not None else ""
            sets.setdefault(each.of.protocol, set()).add(protocol.data + bounds)
            if each.name == "mCE":
                references.add(str(settings["reference"]))
    different = [part for part, data in sets.items() if len(data) > 1]
    if different:
        found.append(f"Measured on different images or bounds, so these do not compare: {', '.join(different)}")
    grids = _grids(groups, {name for run in runs for name in measured(run)})
    if len(grids) > 1:
        found.append(f"Patches are dropped on different grids, so these accuracies do not compare: {', '.join(grids)}")
    if len(references) > 1:
        found.append(f"Relative to different references, so mCE does not compare: {', '.join(sorted(references))}")
    return found
