"""The sections of a report about what goes wrong: classes, calibration, confusions."""

import statistics
from collections.abc import Sequence
from html import escape

from vitmix.lab.evaluation.text import top_confusions

from . import html, svg
from .html import COUNT, PERCENT, note, number, spread, table
from .runs import Group, Run

MOST_CLASSES, MOST_PAIRS = 40, 10


def _evaluated(groups: Sequence[Group]) -> list[Group]:
    """The groups with their evaluated runs alone."""
    found = [group.only([run for run in group.runs if run.evaluation]) for group in groups]
    return [group for group in found if group.runs]


def _missing(groups: Sequence[Group]) -> str:
    return "".join(
        note(f"{run.folder} is not evaluated: {run.not_evaluated}")
        for group in groups
        for run in group.runs
        if run.evaluation is None
    )


def classes_section(groups: Sequence[Group]) -> str:
    """A table for each data set that runs were evaluated on: classes of different ones do not compare."""
    seen = _evaluated(groups)
    sets = dict.fromkeys(_data_set(run) for group in seen for run in group.runs)
    parts = [_missing(groups)]
    for data, names in sets:
        parts += [f"<h3>{escape(data)}</h3>"] if len(sets) > 1 else []
        there = [group.only([run for run in group.runs if _data_set(run) == (data, names)]) for group in seen]
        parts.append(_class_table([group for group in there if group.runs], names))
    return "".join(parts)


def _data_set(run: Run) -> tuple[str, tuple[str, ...]]:
    assert run.evaluation is not None
    return run.evaluation["data"], tuple(run.evaluation["classes"])


def _class_table(groups: Sequence[Group], names: Sequence[str]) -> str:
    """Every class that has a readable image in some run's evaluation."""
    runs = [run for group in groups for run in group.runs]
    labels: list[int] = sorted({each[0] for run in runs for each in (run.evaluation or {})["confusion"]})
    means = {
        label: statistics.fmean(v for g in groups for v in g.values(f"evaluation.json:recall.{label}"))
        for label in labels
    }
    labels.sort(key=lambda label: (means[label], label))
    said = "Lowest first."
    if len(labels) > MOST_CLASSES:
        said = f"The lowest {MOST_CLASSES} of {len(labels)} classes."
        labels = labels[:MOST_CLASSES]
    rows = []
    for label in labels:
        counted = f"evaluation.json:images.{label}"
        most = max(runs, key=lambda run: run.value(counted) or 0)
        meters = (_meter(group, label) for group in groups)
        rows.append([escape(names[label]), number(most, counted, COUNT), *meters])
    head = ["class", "images", *(html.key(group) for group in groups)]
    return table(head, rows, caption=f"Part of each class's images that is recognized. {said}")


def _meter(group: Group, label: int) -> str:
    source = f"evaluation.json:recall.{label}"
    values = group.values(source)
    if not values:
        return html.NONE
    bar = f'<i style="width:{100 * statistics.fmean(values):.1f}%"></i>'
    return f'<span class="meter {svg.look(group.number)}">{bar}</span>' + spread(group, source, PERCENT)


def calibration_section(groups: Sequence[Group]) -> str:
    charts = []
    for group in _evaluated(groups):
        for run in group.runs:
            assert run.evaluation is not None
            chart = svg.reliability_chart(f"Reliability of {run.folder}", run.evaluation["bins"], group.number)
            error = number(run, "evaluation.json:ece", PERCENT)
            title = html.key(group) + (f" seed {run.config.seed}" if len(group.runs) > 1 else "")
            said = f"<figcaption>calibration error {error}</figcaption>"
            charts.append(f'<figure data-reliability="{run.number}"><h3>{title}</h3>{chart}{said}</figure>')
    if not charts:
        return ""
    about = (
        '<p class="soft">How often predictions are right, by how sure the model is of them. Bars below the dashed '
        "line: surer than right. The fuller the color, the more images.</p>"
    )
    return f'{about}<div class="charts small">{"".join(charts)}</div>'


def confusions_section(groups: Sequence[Group]) -> str:
    parts = []
    for group in _evaluated(groups):
        counts: dict[tuple[int, int], int] = {}
        for run in group.runs:
            for label, seen, count in top_confusions(run.evaluation or {}, most=10**9):
                counts[label, seen] = counts.get((label, seen), 0) + count
        pairs = sorted(counts, key=lambda pair: (-counts[pair], pair))[:MOST_PAIRS]
        names = dict(enumerate((group.runs[0].evaluation or {})["classes"]))
        rows = []
        for label, seen in pairs:
            count = html.total(group, f"evaluation.json:confusion.{label}.{seen}")
            of = html.total(group, f"evaluation.json:images.{label}")
            words = (str(names.get(each, f"output {each}")) for each in (label, seen))
            rows.append([*map(escape, words), f"{count} of {of}"])
        found = table(["is", "taken for", "images"], rows, kind="words") if rows else "<p>No mistakes.</p>"
        parts.append(f"<div><h3>{html.key(group)}</h3>{found}</div>")
    if not parts:
        return ""
    many = any(len(group.runs) > 1 for group in groups)
    said = '<p class="soft">Added up over the runs.</p>' if many else ""
    return f'{said}<div class="columns">{"".join(parts)}</div>'
