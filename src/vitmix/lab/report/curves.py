"""Curves over the epochs."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from vitmix._mixer import Mixer
from vitmix.lab.runs import Run
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.prepare import build_mixer

from .groups import Group, course_lines, legend
from .html import Html, html
from .svg import Band, line_chart

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
        lines = course_lines(groups, partial(_points, name=name))
        if lines:
            bands, percent = list(_bands(groups, name, column.most)), column.most == 1.0
            chart = line_chart(column.title, lines, bands, shown=column.shown, x_name="epoch", percent=percent)
            caption = different_losses(groups) if name == "loss" else ""
            figures.append(html.figure(column.title, chart, "curve", name, caption))
    many = any(len(group.runs) > 1 for group in groups)
    said = "Thick: mean over the runs; shaded: ± one standard deviation; thin: each run." if many else ""
    return [legend(groups), html.paragraph(said), html.charts(figures, "charts")]


def _points(run: Run, name: str) -> Course:
    return [(epoch.number, value) for epoch in run.epochs if (value := epoch.get(name)) is not None]


def _bands(groups: Sequence[Group], name: str, most: float) -> Iterator[Band]:
    """Mean ± deviation (`most` at most) at the epochs that all runs of a group reached."""
    for group in groups:
        tables = [dict(_points(run, name)) for run in group.runs.values()]
        shared = sorted(set.intersection(*map(set, tables))) if len(tables) > 1 else []
        low, high = [], []
        for epoch in shared:
            values = [each[epoch] for each in tables]
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            # Accuracies, losses and speeds are never below zero, whatever their spread.
            low.append((epoch, max(mean - deviation, min(0.0, *values))))
            high.append((epoch, min(mean + deviation, most)))
        if shared:
            yield Band(group.number, low, high)


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
