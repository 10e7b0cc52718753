"""The section of a report on changed images: what `vitmix eval RUN --suite ...` kept in RUN/robustness.json."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from vitmix.lab.evaluation.results import FILE, part_of
from vitmix.lab.evaluation.text import pixels_text

from . import html, svg
from .html import COUNT, NONE, PERCENT, note, number, spread, table
from .runs import Group, Run

ATTACKS = {"fgsm": "FGSM", "pgd": "PGD", "autoattack": "AutoAttack"}
NORMS = {"linf": "largest change", "l2": "Euclidean length"}
Rows = dict[str, Mapping[str, Any]]  # measurements by name
Grids = dict[str, list[str]]


class Curve(NamedTuple):
    """Accuracy against the strength of a change; `kind` is that of its measurements."""

    title: str
    x_name: str
    kind: str


def robustness_section(groups: Sequence[Group]) -> str:
    """Nothing where no run was measured."""
    seen = [group.only([run for run in group.runs if run.measured]) for group in groups]
    seen = [group for group in seen if group.runs]
    if not seen:
        return ""
    rows: Rows = {name: row for group in seen for run in group.runs for name, row in run.measured.items()}
    kinds: dict[str, list[str]] = {}
    for name, row in rows.items():
        kinds.setdefault(_kind(row["of"]), []).append(name)
    grids = _grids(seen)
    courses = _courses(rows, grids)

    def charts(*chosen: str) -> str:
        drawn = [_chart(seen, curve, course) for curve, course in courses.items() if curve.kind in chosen]
        return f'<div class="charts small">{"".join(drawn)}</div>' if drawn else ""

    parts = [*map(note, _reservations(groups, grids)), html.legend(seen)]
    if "overview" in kinds:
        said = "Accuracy, where no error is named. mCE: errors relative to those of a reference."
        parts.append(_table(seen, kinds["overview"], said))
    if "errors" in kinds:
        parts.append("<h3>Errors under corruption, mean over severities</h3>" + _table(seen, kinds["errors"]))
    if "severities" in kinds:
        inside = charts("severities") + _table(seen, kinds["severities"])
        parts.append(_details("Accuracy under each corruption, by severity", inside))
    parts.append(charts("noise", "occlusion", "attacks"))
    for kind, title in (("noise", "Gaussian noise"), ("occlusion", "Dropped patches"), ("attacks", "Attacks")):
        if kind in kinds:
            said = _said_of(grids) if kind == "occlusion" else ""
            parts.append(_details(f"{title}: numbers", _table(seen, kinds[kind], said)))
    single = all(len(group.runs) == 1 for group in seen)
    words = "In brackets and shaded: intervals of 95 % over the images."
    many = "Mean ± sample standard deviation over the runs; thick: their mean, thin: each run. "
    return f'<p class="soft">{"" if single else many}{words}</p>' + "".join(parts)


def _kind(of: Mapping[str, Any]) -> str:
    """Which measurements stand in one table."""
    part: str = of["part"]
    if part == "corruptions":
        return "severities" if "severity" in of else "errors" if "corruption" in of else "overview"
    return {"clean": "overview", "shifts": "overview", "autoattack": "attacks"}.get(part, part)


def _grids(groups: Sequence[Group]) -> Grids:
    """Of each grid that patches were dropped on, the groups."""
    found: Grids = {}
    for group in groups:
        rows = (row["of"] for run in group.runs for row in run.measured.values())
        for rows_columns in sorted({tuple(of["grid"]) for of in rows if "grid" in of}):
            found.setdefault(" × ".join(map(str, rows_columns)), []).append(group.name)
    return found


def _said_of(grids: Grids) -> str:
    if len(grids) == 1:
        return f"Grid of {next(iter(grids))}."
    return " ".join(f"Grid of {grid}: {', '.join(names)}." for grid, names in grids.items())


def _courses(rows: Rows, grids: Grids) -> dict[Curve, dict[float, str]]:
    """Of each curve, which measurement stands at which strength."""
    patches = f"patches of a {next(iter(grids))} grid" if len(grids) == 1 else "patches"
    found: dict[Curve, dict[float, str]] = {}
    for name, row in rows.items():
        of = row["of"]
        if "sigma" in of:
            found.setdefault(Curve("Accuracy under Gaussian noise", "σ", "noise"), {})[of["sigma"]] = name
        elif "share" in of:
            curve = Curve(f"Accuracy without patches, {of['order']}", f"{patches} dropped, %", "occlusion")
            found.setdefault(curve, {})[100 * of["share"]] = name
        elif "severity" in of:
            found.setdefault(Curve(of["corruption"], "severity", "severities"), {})[of["severity"]] = name
        elif of.get("attack") in ATTACKS:
            steps = f", {of['steps']} steps of {pixels_text(of['alpha'])}" if "alpha" in of else ""
            scale, unit = (255, "ε × 255") if of["norm"] == "linf" else (1, "ε")
            curve = Curve(f"{ATTACKS[of['attack']]}{steps}", f"{unit}, {NORMS[of['norm']]}", "attacks")
            course = found.setdefault(curve, {})
            course[round(scale * of["epsilon"], 9)] = name
            untouched = next((each for each, row in rows.items() if _is_untouched(row["of"], of["norm"])), None)
            if untouched is not None:
                course.setdefault(0.0, untouched)
    return {curve: dict(sorted(course.items())) for curve, course in found.items()}


def _is_untouched(of: Mapping[str, Any], norm: str) -> bool:
    return of.get("attack") == "none" and of["norm"] == norm


def _chart(groups: Sequence[Group], curve: Curve, course: Mapping[float, str]) -> str:
    lines: list[svg.Line] = []
    bands: list[svg.Band] = []
    for group in groups:
        value, low, high = ([_points(run, course, what) for run in group.runs] for what in ("value", "low", "high"))
        many = len(group.runs) > 1
        for run, points in zip(group.runs, value, strict=True):
            label = f"{group.name}, seed {run.config.seed}"
            lines += [svg.Line(group.number, points, label, "seed" if many else "mean")] if points else []
        if many:
            tables = [dict(points) for points in value]
            shared = sorted(set.intersection(*map(set, tables)))
            mean = [(x, statistics.fmean(each[x] for each in tables)) for x in shared]
            lines += [svg.Line(group.number, mean, f"{group.name}, mean")] if mean else []
        elif low[0]:
            bands.append(svg.Band(group.number, low[0], high[0]))
    chart = svg.line_chart(
        curve.title, lines, bands, shown=lambda share: f"{100 * share:.3g} %", x_name=curve.x_name, percent=True
    )
    return f'<figure data-robustness="{escape(curve.title)}"><h3>{escape(curve.title)}</h3>{chart}</figure>'


def _points(run: Run, course: Mapping[float, str], what: str) -> list[tuple[float, float]]:
    return [(x, value) for x, name in course.items() if (value := run.value(f"{FILE}:{what}.{name}")) is not None]


def _table(groups: Sequence[Group], names: Iterable[str], said: str = "") -> str:
    rows = []
    for name in names:
        counts: dict[float, str] = {}
        for run in (run for group in groups for run in group.runs if name in run.measured):
            counts.setdefault(run.measured[name]["n"], number(run, f"{FILE}:n.{name}", COUNT))
        images = " or ".join(counts.values())
        rows.append([f"<code>{escape(name)}</code>", images, *(_cell(group, name) for group in groups)])
    return table(["", "images", *(html.key(group) for group in groups)], rows, caption=escape(said))


def _cell(group: Group, name: str) -> str:
    runs = [run for run in group.runs if name in run.measured]
    if not runs:
        return NONE
    shown = spread(group, f"{FILE}:value.{name}", PERCENT)
    if len(runs) > 1 or runs[0].measured[name]["low"] is None:
        return shown
    low, high = (number(runs[0], f"{FILE}:{end}.{name}", lambda value: f"{100 * value:.1f}") for end in ("low", "high"))
    return f'{shown} <span class="soft interval">[{low}, {high}]</span>'


def _reservations(groups: Sequence[Group], grids: Grids) -> list[str]:
    """What a reader must know before comparing."""
    runs = [run for group in groups for run in group.runs]
    measured = [run for run in runs if run.measured]
    found = [
        f"{run.folder} has no results on changed images of its best weights; "
        f"'vitmix eval {run.folder} --suite robustness' measures them"
        for run in runs
        if not run.measured
    ]
    sets: dict[str, set[str]] = {}
    references: set[str] = set()
    for run in measured:
        parts = (run.robustness or {})["parts"]
        for part in dict.fromkeys(map(part_of, run.measured.values())):
            sets.setdefault(part, set()).add(parts[part]["data"] + _attacked(parts[part]["settings"], part))
        if "mCE" in run.measured:
            references.add(str(parts["corruptions"]["settings"]["reference"]))
    different = [part for part, data in sets.items() if len(data) > 1]
    if different:
        found.append(f"Measured on different images or bounds, so these do not compare: {', '.join(different)}")
    if len(grids) > 1:
        found.append(
            f"Patches are dropped on different grids, so accuracy without them does not compare: {', '.join(grids)}"
        )
    if len(references) > 1:
        found.append(f"Relative to different references, so mCE does not compare: {', '.join(sorted(references))}")
    return found


def _attacked(settings: dict[str, Any], part: str) -> str:
    """The images and bounds of an attack: what succeeded within one bound counts within those after it."""
    if part.split()[0] not in ("attacks", "autoattack"):
        return ""
    return f" {settings['attack_limit']} {settings['epsilons']}"


def _details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"
