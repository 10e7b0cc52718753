"""The section on changed images: what `vitmix eval RUN --suite ...` stored in RUN/robustness.json."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from vitmix.lab.runs import Facts, Measurement, Run

from .courses import Course, course_of, courses
from .groups import Group, every_run, legend, numbered
from .html import NONE, Html, html
from .quantities import COUNT, measurement
from .svg import Band, Line, line_chart

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
        parts.append(html.details(f"{title}: numbers", _table(seen, names, _grid_caption(seen, names))))
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
    lines: list[Line] = []
    bands: list[Band] = []
    for group in groups:
        runs = list(group.runs.values())
        points = [_points(run, course, names, "value") for run in runs]
        kind = "seed" if len(runs) > 1 else "mean"
        lines += [Line(group.number, p, group.label(run), kind) for p, run in zip(points, runs, strict=True) if p]
        if len(runs) > 1:
            tables = [dict(each) for each in points]
            shared = sorted(set.intersection(*map(set, tables)))
            mean = [(x, statistics.fmean(each[x] for each in tables)) for x in shared]
            lines += [Line(group.number, mean, f"{group.name}, mean")] if mean else []
        elif low := _points(runs[0], course, names, "low"):
            bands.append(Band(group.number, low, _points(runs[0], course, names, "high")))
    shown = lambda share: f"{100 * share:.3g} %"  # noqa: E731
    chart = line_chart(course.title, lines, bands, shown=shown, x_name=course.x_name, percent=True)
    return html.figure(course.title, chart, "robustness", course.title)


def _points(run: Run, course: Course, names: Mapping[float, str], part: str) -> list[tuple[float, float]]:
    found = ((round(course.scale * x, 9), measurement(name, part).read(run)) for x, name in names.items())
    return [(x, value) for x, value in found if value is not None]


def _table(groups: Sequence[Group], names: Iterable[str], caption: str = "") -> Html:
    rows = []
    for name in names:
        counts: dict[int, Html] = {}
        for number, (_, run) in numbered(groups).items():
            if name in measured(run):
                counts.setdefault(measured(run)[name].estimate.n, measurement(name, "n", COUNT).number(number, run))
        images = html.joined(list(counts.values()), " or ")
        rows.append([html.code(name), images, *(_cell(group, name) for group in groups)])
    return html.table(["", "images", *(group.key for group in groups)], rows, caption)


def _cell(group: Group, name: str) -> Html:
    having = {number: run for number, run in group.runs.items() if name in measured(run)}
    if not having:
        return NONE
    shown = measurement(name).spread(group)
    (number, run), *others = having.items()
    if others or measured(run)[name].estimate.interval is None:
        return shown
    ends = (measurement(name, end, lambda value: f"{100 * value:.1f}").number(number, run) for end in ("low", "high"))
    return html.interval(shown, *ends)


def _grids(runs: Iterable[Run], names: Iterable[str] | None = None) -> dict[str, list[Run]]:
    """The grids that patches were dropped on, with their runs."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        every = [each.of.grid for name, each in measured(run).items() if names is None or name in names]
        for grid in sorted({grid for grid in every if grid is not None}):
            found.setdefault(" × ".join(map(str, grid)), []).append(run)
    return found


def _grid_caption(groups: Sequence[Group], names: Iterable[str]) -> str:
    names = set(names)
    grids = {group.name: " and ".join(_grids(group.runs.values(), names)) for group in groups}
    different = set(filter(None, grids.values()))
    if len(different) == 1:
        return f"Grid of {different.pop()}."
    return " ".join(f"Grid of {grid}: {name}." for name, grid in grids.items() if grid)


def _reservations(groups: Sequence[Group]) -> list[str]:
    """What a reader must know before comparing."""
    runs = every_run(groups)
    found = [
        f"{run.path} has no results on changed images for its best weights; "
        f"'vitmix eval {run.path} --suite robustness' measures them"
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
    grids = _grids(runs)
    if len(grids) > 1:
        found.append(f"Patches are dropped on different grids, so these accuracies do not compare: {', '.join(grids)}")
    if len(references) > 1:
        found.append(f"Relative to different references, so mCE does not compare: {', '.join(sorted(references))}")
    return found
