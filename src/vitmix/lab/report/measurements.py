"""The section on changed images: what `vitmix eval RUN --suite ...` stored in RUN/robustness.json."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from vitmix.lab.runs import Facts, Measurement, Run

from .courses import Course, course_of, courses
from .groups import Group, advice, every_run, having, legend, several
from .html import Html, html, joined
from .quantities import counts, measurement, with_interval
from .svg import Points, band, course_lines, line_chart

TITLES = {"noise": "Gaussian noise", "occlusion": "Dropped patches", "attacks": "Attacks", "autoattack": "AutoAttack"}


def measured(run: Run) -> Mapping[str, Measurement]:
    return {} if run.robustness is None else run.robustness.by_name


def robustness(groups: Sequence[Group]) -> list[Html]:
    """Tables of all measurements and a chart for each course; empty if no run was measured."""
    seen = having(groups, measured)
    if not seen:
        return []
    every = {name: each for run in every_run(seen) for name, each in measured(run).items()}
    kinds: dict[str, list[str]] = {}
    for name, each in every.items():
        kinds.setdefault(_kind(each.of), []).append(name)
    charts: dict[bool, list[Html]] = {}  # by whether they have severities
    for course, names in courses(every.values()).items():
        of_severities = every[next(reversed(names.values()))].of.severity is not None
        charts.setdefault(of_severities, []).append(_chart(seen, course, names))
    many = "Mean ± sample standard deviation over the runs; thick: their mean, thin: each run. " * several(seen)
    parts: list[Html] = [html.paragraph(f"{many}In brackets and shaded: 95 % intervals over the images.")]
    parts += [*map(html.note, _reservations(groups)), legend(seen)]
    if "overview" in kinds:
        said = "Accuracy, unless an error is named. mCE: errors relative to those of a reference."
        parts.append(_table(seen, kinds.pop("overview"), said))
    if "errors" in kinds:
        parts += [html.heading("Errors under corruption, mean over severities"), _table(seen, kinds.pop("errors"))]
    if "severities" in kinds:
        content = joined(html.charts(charts.get(True, [])), _table(seen, kinds.pop("severities")))
        parts.append(html.details("Accuracy under each corruption, by severity", content))
    parts += [html.charts(charts[False])] if False in charts else []
    for kind, names in kinds.items():
        title, grids = TITLES.get(kind, kind[0].upper() + kind[1:]), _grids(seen, names)
        listed = " ".join(
            f"Grid of {grid}{': ' + ', '.join(of) if len(grids) > 1 else ''}." for grid, of in grids.items()
        )
        parts.append(html.details(f"{title}: numbers", _table(seen, names, listed)))
    return parts


def _kind(of: Facts) -> str:
    """The measurements of one table."""
    if of.severity is not None:
        return "severities"
    if of.corruption is not None:
        return "errors"
    return of.part if course_of(of) is not None or of.attack is not None else "overview"


def _chart(groups: Sequence[Group], course: Course, names: Mapping[float, str]) -> Html:
    def points(run: Run, part: str = "value") -> Points:
        found = ((round(course.scale * x, 9), measurement(name, part).read(run)) for x, name in names.items())
        return [(x, value) for x, value in found if value is not None]

    single = [group for group in groups if len(group.runs) == 1 and points(group.first, "low")]
    bands = [band(group.number, points(group.first, "low"), points(group.first, "high")) for group in single]
    lines = [*bands, *course_lines(groups, points)]
    chart = line_chart(course.title, lines, x_name=course.x_name, percent=True)
    return html.figure(course.title, chart, "robustness", course.title)


def _table(groups: Sequence[Group], names: Iterable[str], caption: str = "") -> Html:
    rows = []
    for name in names:
        numbers = (with_interval(group, partial(measurement, name)) for group in groups)
        rows.append([html.code(name), counts(groups, [measurement(name, "n")]), *numbers])
    return html.table(["", "images", *(group.key for group in groups)], rows, caption)


def _grids(groups: Sequence[Group], names: Iterable[str]) -> dict[str, list[str]]:
    """The grids that patches were dropped on, with the names of their groups."""
    found: dict[str, list[str]] = {}
    for group in groups:
        every = {each.of.grid for run in group.runs.values() for name, each in measured(run).items() if name in names}
        for grid in sorted(grid for grid in every if grid is not None):
            found.setdefault(" × ".join(map(str, grid)), []).append(group.name)
    return found


def _reservations(groups: Sequence[Group]) -> Iterator[str]:
    """What a reader must know before comparing."""
    sets: dict[str, set[str]] = {}
    references: set[str] = set()
    for run in every_run(groups):
        if run.robustness is None or not measured(run):
            repair = advice(run, "eval {} --suite robustness", "measures them")
            yield f"{run.path} has no results on changed images for its best weights{repair}"
            continue
        for each in run.robustness.measurements:
            protocol = run.robustness.parts[each.of.protocol]
            # An attack that succeeds within one bound also counts for larger ones.
            bounds = f" {protocol.suite.attack_limit} {protocol.suite.epsilons}" if each.of.attack is not None else ""
            sets.setdefault(each.of.protocol, set()).add(protocol.data + bounds)
            references |= {str(protocol.suite.reference)} if each.name == "mCE" else set()
    different = [part for part, data in sets.items() if len(data) > 1]
    if different:
        yield f"Measured on different images or bounds, so these cannot be compared: {', '.join(different)}"
    grids = _grids(groups, {name for run in every_run(groups) for name in measured(run)})
    if len(grids) > 1:
        yield f"Patches are dropped on different grids, so these accuracies cannot be compared: {', '.join(grids)}"
    if len(references) > 1:
        yield f"Relative to different references, so mCE cannot be compared: {', '.join(sorted(references))}"
