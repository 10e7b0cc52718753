"""Quantities of a run: where a number is stored, how it is read from the run's records, and how it is shown."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vitmix.lab.runs import Estimate, Evaluation, Run
from vitmix.lab.training.progress import duration

from .groups import Group, numbered
from .html import NONE, Html, html

Shown = Callable[[float], str]
PERCENT: Shown = lambda value: f"{100 * value:.2f} %"  # noqa: E731
LOSS: Shown = lambda value: f"{value:.4f}"  # noqa: E731
COUNT: Shown = lambda value: f"{value:,.0f}"  # noqa: E731
GIGA: Shown = lambda value: f"{value / 1e9:.4g} G"  # noqa: E731


@dataclass(frozen=True)
class Quantity:
    """A number of a run; `place` says where it is, as FILE:PLACE in the run's folder."""

    place: str
    read: Callable[[Run], float | None]
    shown: Shown

    def values(self, group: Group) -> list[float]:
        return [value for run in group.runs.values() if (value := self.read(run)) is not None]

    def number(self, number: int, run: Run) -> Html:
        """The number of one run, which has this number on the page."""
        value = self.read(run)
        return NONE if value is None else html.number(value, self.shown(value), self.place, run=number)

    def spread(self, group: Group) -> Html:
        """Mean ± sample standard deviation over the group's runs; the number itself where one run has it."""
        having = [number for number, run in group.runs.items() if self.read(run) is not None]
        if len(having) < 2:
            return self.number(having[0], group.runs[having[0]]) if having else NONE
        values = self.values(group)
        found = {"mean": statistics.fmean(values), "deviation": statistics.stdev(values)}
        mean, deviation = (
            html.number(value, self.shown(value), self.place, group=group.number, of=of) for of, value in found.items()
        )
        return html.joined([mean, deviation], " ± ")

    def total(self, group: Group) -> Html:
        """A count, added up over the group's runs."""
        value = sum(self.values(group))
        return html.number(value, f"{value:,}", self.place, group=group.number, of="total")


def with_interval(group: Group, quantity: Callable[[str], Quantity]) -> Html:
    """The value over the group's runs; where one run has it, with its interval.

    Args:
        quantity: the value, low and high of an estimate by these words.
    """
    shown = quantity("value").spread(group)
    having = [(number, run) for number, run in group.runs.items() if quantity("value").read(run) is not None]
    if len(having) != 1 or quantity("low").read(having[0][1]) is None:
        return shown
    return html.interval(shown, *(quantity(end).number(*having[0]) for end in ("low", "high")))


def counts(groups: Iterable[Group], quantities: Sequence[Quantity]) -> Html:
    """The smallest and the largest of counts that are mostly the same."""
    every: dict[float, Html] = {}
    for number, (_, run) in numbered(groups).items():
        for quantity in quantities:
            if (value := quantity.read(run)) is not None:
                every.setdefault(value, quantity.number(number, run))
    return html.joined([every[end] for end in sorted({min(every), max(every)})], " to ")


def best(name: str, shown: Shown = PERCENT) -> Quantity:
    """A score of the epoch whose weights were kept."""
    return Quantity(f"metrics.jsonl:best.{name}", lambda run: run.score(run.best_epoch, name), shown)


def informative_top5() -> Quantity:
    """Top-5 accuracy of the best epoch, of runs with more than five classes."""
    found = best("accuracy5")

    def read(run: Run) -> float | None:
        return found.read(run) if run.evaluation is None or run.evaluation.top5_informative else None

    return Quantity(found.place, read, found.shown)


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


def evaluated(name: str, shown: Shown = PERCENT) -> Quantity:
    return Quantity(f"evaluation.json:{name}", lambda run: getattr(run.evaluation, name, None), shown)


def images_of(label: int) -> Quantity:
    return _of_evaluation(f"images.{label}", lambda found: found.images_of(label), COUNT)


def recall(label: int) -> Quantity:
    return _of_evaluation(f"recall.{label}", lambda found: found.recall(label), PERCENT)


def confusion(label: int, predicted: int) -> Quantity:
    place = f"confusion.{label}.{predicted}"
    return _of_evaluation(place, lambda found: found.counts.get(label, {}).get(predicted, 0), COUNT)


def _of_evaluation(place: str, read: Callable[[Evaluation], float | None], shown: Shown) -> Quantity:
    return Quantity(
        f"evaluation.json:{place}", lambda run: None if run.evaluation is None else read(run.evaluation), shown
    )


def measurement(name: str, part: str = "value") -> Quantity:
    """Of a measurement of the suite: its `value`, `low`, `high` or `n`."""
    shown = {"value": PERCENT, "n": COUNT}.get(part, lambda value: f"{100 * value:.1f}")

    def read(run: Run) -> float | None:
        found = None if run.robustness is None else run.robustness.by_name.get(name)
        return None if found is None else part_of(found.estimate, part)

    return Quantity(f"robustness.json:{part}.{name}", read, shown)


def part_of(estimate: Estimate, part: str) -> float | None:
    return {"value": estimate.mean, "low": estimate.low, "high": estimate.high, "n": estimate.n}[part]


EPOCHS = Quantity("metrics.jsonl:last.epoch", lambda run: run.epochs[-1].number, COUNT)
BEST_EPOCH = Quantity(
    "metrics.jsonl:best.epoch", lambda run: None if run.best_epoch is None else run.best_epoch.number, COUNT
)
SECONDS = summarized("training_seconds")
