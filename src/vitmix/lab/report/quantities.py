"""Quantities of a run: where a number is stored, how it is read from the run's records, and how it is shown."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vitmix.lab.runs import Estimate, Evaluation, Run
from vitmix.lab.training.progress import duration

from .groups import Group
from .html import NONE, Cell, Html, html, joined

Shown = Callable[[float], str]
Read = Callable[[Run], float | None]
PERCENT: Shown = lambda value: f"{100 * value:.2f} %"  # noqa: E731
POINTS: Shown = lambda value: f"{100 * value:.2f}"  # noqa: E731
COUNT: Shown = lambda value: f"{value:,.0f}"  # noqa: E731
TITLES = {
    **{"accuracy": "top-1", "miou": "mIoU", "pixel_accuracy": "pixel accuracy", "eval_loss": "loss", "iou": "IoU"},
    **{"ap": "AP", "ap50": "AP50", "ap75": "AP75", "mask_ap": "mask AP", "mask_ap50": "mask AP50"},
    **{"mask_ap75": "mask AP75", "ap_small": "AP small", "ap_medium": "AP medium", "ap_large": "AP large"},
    **{f"mask_ap_{size}": f"mask AP {size}" for size in ("small", "medium", "large")},
}


def titled(score: str) -> str:
    """The display name of a score."""
    return TITLES.get(score, score)


def cell(value: float, text: str, place: str = "", **about: Any) -> Cell:
    """A number as text, and as HTML with its exact value, its source and what it describes: run, group, of."""
    return Cell(text, html.number(value, text, place, **about))


@dataclass(frozen=True)
class Quantity:
    """A number of a run; `place` is its source, as FILE:PLACE in the run's folder."""

    place: str
    read: Read
    shown: Shown

    def of(self, group: Group) -> dict[int, float]:
        """The values of the group's runs that have one, by the index of the run on the page."""
        return {number: value for number, run in group.runs.items() if (value := self.read(run)) is not None}

    def values(self, group: Group) -> list[float]:
        return list(self.of(group).values())

    def number(self, number: int, run: Run) -> Html:
        """The value of one run, given by its index on the page."""
        value = self.read(run)
        return NONE if value is None else cell(value, self.shown(value), self.place, run=number)

    def spread(self, group: Group) -> Html:
        """Mean ± sample standard deviation over the group's runs; the value itself if only one run has it."""
        found = self.of(group)
        if len(found) < 2:
            return self.number(one := next(iter(found)), group.runs[one]) if found else NONE
        return joined(self.mean(group), " ± ", self._over(group, "deviation", statistics.stdev))

    def mean(self, group: Group) -> Html:
        return self._over(group, "mean", statistics.fmean) if self.of(group) else NONE

    def total(self, group: Group) -> Html:
        """A count, added up over the group's runs."""
        return self._over(group, "total", sum)

    def _over(self, group: Group, of: str, statistic: Callable[[Iterable[float]], float]) -> Html:
        value = statistic(self.values(group))
        return cell(value, self.shown(value), self.place, group=group.number, of=of)


def with_interval(group: Group, quantity: Callable[[str], Quantity]) -> Html:
    """The value over the group's runs; with its interval if only one run has it.

    Args:
        quantity: the value, low and high of an estimate by these words.
    """
    value, low, high = map(quantity, ("value", "low", "high"))
    having = [(number, group.runs[number]) for number in value.of(group)]
    if len(having) != 1 or low.read(having[0][1]) is None:
        return value.spread(group)
    return html.interval(*(each.number(*having[0]) for each in (value, low, high)))


def counts(groups: Iterable[Group], quantities: Sequence[Quantity]) -> Html:
    """The range of counts that are mostly equal."""
    every: dict[float, Html] = {}
    for group in groups:
        for quantity in quantities:
            for number, value in quantity.of(group).items():
                every.setdefault(value, quantity.number(number, group.runs[number]))
    least, most = min(every), max(every)
    return every[least] if least == most else joined(every[least], " to ", every[most])


def best(name: str, shown: Shown = PERCENT) -> Quantity:
    """A score of the epoch whose weights were kept."""
    return Quantity(f"metrics.jsonl:best.{name}", lambda run: run.score(run.best_epoch, name), shown)


def last(name: str, shown: Shown = PERCENT) -> Quantity:
    return Quantity(f"metrics.jsonl:last.{name}", lambda run: run.epochs[-1].get(name), shown)


def median(name: str, shown: Shown) -> Quantity:
    """The median over the epochs."""

    def read(run: Run) -> float | None:
        values = [value for epoch in run.epochs if (value := epoch.get(name)) is not None]
        return statistics.median(values) if values else None

    return Quantity(f"metrics.jsonl:median.{name}", read, shown)


def summarized(name: str, shown: Shown = duration) -> Quantity:
    return Quantity(f"summary.json:{name}", lambda run: getattr(run.summary, name, None), shown)


def evaluated(name: str, shown: Shown = PERCENT, read: Callable[[Evaluation], float | None] | None = None) -> Quantity:
    """A number of the evaluation: the field of this name, or the result of `read`."""

    def found(run: Run) -> float | None:
        if run.evaluation is None:
            return None
        return getattr(run.evaluation, name) if read is None else read(run.evaluation)

    return Quantity(f"evaluation.json:{name}", found, shown)


def images_of(label: int) -> Quantity:
    return evaluated(f"images.{label}", COUNT, lambda found: found.images_of(label))


def recall(label: int) -> Quantity:
    return evaluated(f"recall.{label}", PERCENT, lambda found: found.recall(label))


def confusion(label: int, predicted: int) -> Quantity:
    place = f"confusion.{label}.{predicted}"
    return evaluated(place, COUNT, lambda found: found.counts.get(label, {}).get(predicted, 0))


def measurement(name: str, part: str = "value") -> Quantity:
    """Of a measurement of the suite: its `value`, `low`, `high` or `n`."""
    shown = {"value": PERCENT, "n": COUNT}.get(part, lambda value: f"{100 * value:.1f}")

    def read(run: Run) -> float | None:
        found = None if run.robustness is None else run.robustness.by_name.get(name)
        return None if found is None else part_of(found.estimate, part)

    return Quantity(f"robustness.json:{part}.{name}", read, shown)


def part_of(estimate: Estimate, part: str) -> float | None:
    return getattr(estimate, "mean" if part == "value" else part)


def _top5(run: Run) -> float | None:
    """Of runs with more than five classes."""
    return best("accuracy5").read(run) if run.evaluation is None or run.evaluation.top5_informative else None


TOP5 = Quantity(best("accuracy5").place, _top5, PERCENT)
EPOCHS = Quantity("metrics.jsonl:last.epoch", lambda run: run.epochs[-1].number, COUNT)
BEST_EPOCH = Quantity("metrics.jsonl:best.epoch", lambda run: run.best_epoch and run.best_epoch.number, COUNT)
SPEED, SECONDS, WHOLE_TIME = median("images/s", COUNT), summarized("training_seconds"), summarized("seconds")
MEMORY = summarized("peak_memory", lambda value: f"{value / 2**30:.2f}")
