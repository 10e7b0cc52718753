"""Curves over the epochs."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitmix._mixer import Mixer
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.prepare import build_mixer

from .groups import Group, legend
from .html import Html, html
from .svg import Band, Line, line_chart

LOSSES = {"ce": "cross-entropy", "bce": "binary cross-entropy"}
Course = list[tuple[float, float]]


@dataclass(frozen=True)
class Column:
    """A column of metrics.jsonl; `most` is what its values cannot exceed."""

    title: str
    shown: Callable[[float], str]
    most: float = math.inf


COLUMNS = {
    "accuracy": Column("Accuracy", lambda value: f"{100 * value:.3g} %", 1.0),
    "ema_accuracy": Column("Accuracy of the averaged weights", lambda value: f"{100 * value:.3g} %", 1.0),
    "eval_loss": Column("Evaluation loss", lambda value: f"{value:.3g}"),
    "loss": Column("Training loss", lambda value: f"{value:.3g}"),
    "lr": Column("Learning rate", lambda value: f"{value:.2g}"),
    "images/s": Column("Images per second, training", lambda value: f"{value:,.0f}"),
}


def curves(groups: Sequence[Group]) -> list[Html]:
    figures = []
    for name, column in COLUMNS.items():
        lines, bands = _lines(groups, name, column)
        if lines:
            percent = column.most == 1.0
            chart = line_chart(column.title, lines, bands, shown=column.shown, x_name="epoch", percent=percent)
            caption = different_losses(groups) if name == "loss" else ""
            figures.append(html.figure(column.title, chart, "curve", name, caption))
    many = any(len(group.runs) > 1 for group in groups)
    said = "Thick: mean over the runs; shaded: ± one standard deviation; thin: each run." if many else ""
    return [legend(groups), html.paragraph(said), html.charts(figures, "charts")]


def _lines(groups: Sequence[Group], name: str, column: Column) -> tuple[list[Line], list[Band]]:
    lines: list[Line] = []
    bands: list[Band] = []
    for group in groups:
        runs = list(group.runs.values())
        courses = [[(e.number, value) for e in run.epochs if (value := e.get(name)) is not None] for run in runs]
        kind = "seed" if len(runs) > 1 else "mean"
        lines += [Line(group.number, c, group.label(run), kind) for c, run in zip(courses, runs, strict=True) if c]
        if len(runs) > 1:
            mean, low, high = _mean_course(courses, column.most)
            if mean:
                lines.append(Line(group.number, mean, f"{group.name}, mean"))
                bands.append(Band(group.number, low, high))
    return lines, bands


def _mean_course(courses: Sequence[Course], most: float) -> tuple[Course, Course, Course]:
    """Mean, mean - deviation and mean + deviation (`most` at most) at the epochs that all runs reached."""
    tables = [dict(course) for course in courses]
    shared = sorted(set.intersection(*map(set, tables)))
    mean, low, high = [], [], []
    for epoch in shared:
        values = [each[epoch] for each in tables]
        middle, deviation = statistics.fmean(values), statistics.stdev(values)
        mean.append((epoch, middle))
        # Accuracies, losses and speeds are never below zero, whatever their spread.
        low.append((epoch, max(middle - deviation, min(0.0, *values))))
        high.append((epoch, min(middle + deviation, most)))
    return mean, low, high


def different_losses(groups: Sequence[Group]) -> str:
    """A sentence where runs were trained with different kinds of loss, whose curves do not compare."""
    methods: dict[str, list[str]] = {}
    for config in (group.first.config for group in groups):
        try:
            methods.setdefault(training_loss(config), []).append(config.method)
        except ValueError:  # a method of another version, of which nothing can be said
            continue
    if len(methods) < 2:
        return ""
    listed = "; ".join(f"{kind} ({', '.join(dict.fromkeys(names))})" for kind, names in methods.items())
    return f"These losses are of different kinds, so their values do not compare: {listed}."


def training_loss(config: TrainConfig) -> str:
    """The losses that are added up, such as `cross-entropy + region + consistency`; of a switch, each sum of them."""
    return " or ".join(dict.fromkeys(map(_sum, build_mixer(config, 2).mixers)))


def _sum(mixer: Mixer) -> str:
    extra = [part.name for part in mixer.extra if part.weight]
    added = dict.fromkeys(name for part in mixer.inner for name, weight in part.loss_weights.items() if weight)
    return " + ".join([LOSSES[mixer.loss or "ce"], *extra, *added])
