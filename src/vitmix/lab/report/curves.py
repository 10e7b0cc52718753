"""Curves over the epochs."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from vitmix._mixer import Mixer
from vitmix.lab.runs import Run
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.prepare import build_mixer

from .groups import Group, legend, several
from .html import Html, html
from .svg import Line, Points, band, course_lines, line_chart, shared

LOSSES = {"ce": "cross-entropy", "bce": "binary cross-entropy"}


class Column(NamedTuple):
    """A column of metrics.jsonl; `most` is what its values cannot exceed."""

    title: str
    shown: Callable[[float], str]
    most: float = math.inf


COLUMNS = {
    "accuracy": Column("Accuracy", lambda value: f"{100 * value:.3g} %", 1.0),
    "ema_accuracy": Column("Accuracy of the EMA weights", lambda value: f"{100 * value:.3g} %", 1.0),
    "miou": Column("Mean intersection over union", lambda value: f"{100 * value:.3g} %", 1.0),
    "ema_miou": Column("Mean intersection over union of the EMA weights", lambda value: f"{100 * value:.3g} %", 1.0),
    "ap": Column("Average precision", lambda value: f"{100 * value:.3g} %", 1.0),
    "ema_ap": Column("Average precision of the EMA weights", lambda value: f"{100 * value:.3g} %", 1.0),
    "eval_loss": Column("Evaluation loss", lambda value: f"{value:.3g}"),
    "loss": Column("Training loss", lambda value: f"{value:.3g}"),
    "lr": Column("Learning rate", lambda value: f"{value:.2g}"),
    "images/s": Column("Images per second, training", lambda value: f"{value:,.0f}"),
}


def curves(groups: Sequence[Group]) -> list[Html]:
    figures = []
    for name, column in COLUMNS.items():
        points = partial(_points, name=name)
        lines = [*_bands(groups, points, column.most), *course_lines(groups, points)]
        if lines:
            percent, caption = column.most == 1.0, different_losses(groups) if name == "loss" else ""
            chart = line_chart(column.title, lines, shown=column.shown, x_name="epoch", percent=percent)
            figures.append(html.figure(column.title, chart, "curve", name, caption))
    said = "Thick: mean over the runs; shaded: ± one standard deviation; thin: each run." if several(groups) else ""
    return [legend(groups), html.paragraph(said), html.charts(figures, "charts")]


def _points(run: Run, name: str) -> Points:
    return [(epoch.number, value) for epoch in run.epochs if (value := epoch.get(name)) is not None]


def _bands(groups: Sequence[Group], points: Callable[[Run], Points], most: float) -> Iterator[Line]:
    """Mean ± deviation (`most` at most) at the epochs that all runs of a group reached."""
    for group in groups:
        found = [(x, values, statistics.stdev(values)) for x, values in shared(group, points).items()]
        # Accuracies, losses and speeds are never below zero.
        low = [(x, max(statistics.fmean(values) - std, min(0.0, *values))) for x, values, std in found]
        high = [(x, min(statistics.fmean(values) + std, most)) for x, values, std in found]
        if found:
            yield band(group.number, low, high)


def different_losses(groups: Sequence[Group]) -> str:
    """A note if runs were trained with different losses, because their curves cannot be compared."""
    methods: dict[str, list[str]] = {}
    for config in (group.first.config for group in groups):
        if not isinstance(config, TrainConfig):
            return ""  # a task has one loss
        try:
            methods.setdefault(training_loss(config), []).append(config.method)
        except ValueError:  # a method of another version, of which nothing can be said
            continue
    if len(methods) < 2:
        return ""
    listed = "; ".join(f"{kind} ({', '.join(dict.fromkeys(names))})" for kind, names in methods.items())
    return f"These runs use different losses, so the values cannot be compared: {listed}."


def training_loss(config: TrainConfig) -> str:
    """The losses that are added up, such as `cross-entropy + region + consistency`; of a switch, each sum of them."""
    return " or ".join(dict.fromkeys(map(_sum, build_mixer(config, 2).mixers)))


def _sum(mixer: Mixer) -> str:
    extra = [part.name for part in mixer.extra if part.weight]
    added = dict.fromkeys(name for part in mixer.inner for name, weight in part.loss_weights.items() if weight)
    return " + ".join([LOSSES[mixer.loss or "ce"], *extra, *added])
