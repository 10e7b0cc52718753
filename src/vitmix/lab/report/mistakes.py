"""What goes wrong: classes, calibration, confusions."""

import statistics
from collections import Counter
from collections.abc import Sequence

from vitmix.lab.runs import EVALUATION, Evaluation, Run

from .groups import Group, advice, every_run, having, several
from .html import NONE, Html, html, joined
from .quantities import confusion, evaluated, images_of, recall
from .svg import reliability_chart

MOST_CLASSES, MOST_PAIRS = 40, 10


def _evaluated(groups: Sequence[Group]) -> list[Group]:
    return having(groups, lambda run: run.evaluation is not None)


def evaluation_of(run: Run) -> Evaluation:
    assert run.evaluation is not None
    return run.evaluation


def classes(groups: Sequence[Group]) -> list[Html]:
    """A table for each dataset that runs were evaluated on, because their classes differ."""
    parts: list[Html] = [
        html.note(f"{run.path} is not evaluated: {run.problems[EVALUATION]}{advice(run, 'eval {}')}")
        for run in every_run(groups)
        if run.evaluation is None
    ]
    seen = _evaluated(groups)
    sets = dict.fromkeys(_data_set(run) for run in every_run(seen))
    for data, names in sets:
        parts += [html.heading(data)] if len(sets) > 1 else []
        parts.append(_class_table(having(seen, lambda run, own=(data, names): _data_set(run) == own), names))
    return parts


def _data_set(run: Run) -> tuple[str, tuple[str, ...]]:
    return evaluation_of(run).data, evaluation_of(run).classes


def _class_table(groups: Sequence[Group], names: Sequence[str]) -> Html:
    """Every class that has a readable image in some run's evaluation."""
    runs = {number: run for group in groups for number, run in group.runs.items()}
    means = {
        label: statistics.fmean(value for group in groups for value in recall(label).values(group))
        for label in sorted({label for run in runs.values() for label in evaluation_of(run).counts})
    }
    rows = []
    for label in sorted(means, key=lambda label: (means[label], label))[:MOST_CLASSES]:
        most = max(runs, key=lambda number, label=label: evaluation_of(runs[number]).images_of(label))
        meters = (_meter(group, label) for group in groups)
        rows.append([names[label], images_of(label).number(most, runs[most]), *meters])
    said = f"The lowest {MOST_CLASSES} of {len(means)} classes." if len(means) > MOST_CLASSES else "Lowest first."
    caption = f"Recall: the fraction of each class's images that is classified correctly. {said}"
    return html.table(["class", "images", *(group.key for group in groups)], rows, caption)


def _meter(group: Group, label: int) -> Html:
    values = recall(label).values(group)
    return html.meter(group.number, statistics.fmean(values), recall(label).spread(group)) if values else NONE


def calibration(groups: Sequence[Group]) -> list[Html]:
    figures = []
    for group in _evaluated(groups):
        for number, run in group.runs.items():
            chart = reliability_chart(f"Reliability of {run.path}", evaluation_of(run).bins, group.number)
            title = joined(group.key, f" seed {run.config.seed}" if len(group.runs) > 1 else "")
            caption = joined("calibration error ", evaluated("ece").number(number, run))
            figures.append(html.figure(title, chart, "reliability", number, caption))
    said = (
        "Accuracy of the predictions by their confidence. Bars below the dashed line: overconfident. The fuller the "
        "color, the more images."
    )
    return [html.paragraph(said), html.charts(figures)] if figures else []


def confusions(groups: Sequence[Group]) -> list[Html]:
    parts = []
    for group in _evaluated(groups):
        counts: Counter[tuple[int, int]] = Counter()
        for run in group.runs.values():
            counts.update({(label, seen): count for label, seen, count in evaluation_of(run).mistakes()})
        names = dict(enumerate(evaluation_of(group.first).classes))
        rows = []
        for label, seen in sorted(counts, key=lambda pair: (-counts[pair], pair))[:MOST_PAIRS]:
            images = joined(confusion(label, seen).total(group), " of ", images_of(label).total(group))
            rows.append([*(names.get(each, f"output {each}") for each in (label, seen)), images])
        table = html.table(["label", "predicted", "images"], rows, kind="words")
        parts.append(joined(html.heading(group.key), table if rows else html.paragraph("No mistakes.")))
    said = [html.paragraph("Added up over the runs.")] if several(groups) else []
    return [*said, html.columns(parts)] if parts else []
