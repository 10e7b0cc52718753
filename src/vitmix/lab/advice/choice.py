"""From what was measured to a recommendation for one training."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .evidence import Findings, Measured, Series

SHORT = 2  # a training with less than half of the updates of the shortest one measured is too short to judge
MARGIN = 2  # one seed counts if its gain is this many times the largest standard deviation over seeds


@dataclass(frozen=True)
class PlannedTraining:
    """A training that is planned.

    Attributes:
        model: its name; None if any.
        refusal: why a method does not work with the model; None if it does.
    """

    images: int
    updates: int
    start: str
    built_in: bool = False
    size: int | None = None
    model: str | None = None
    refusal: Callable[[str], str | None] = lambda method: None


@dataclass(frozen=True)
class Advice:
    """Attributes:
    chosen: the recommended method; None recommends no mixing.
    series: the measurements that decide; None if there are none.
    short: the training is much shorter than everything measured.
    refused: methods that gained more but do not work with the model, and why.
    best: the method with the largest mean gain that works with the model and is not chosen, whether or not the gain
        was shown.
    """

    chosen: Measured | None
    series: Series | None
    short: bool
    refused: dict[str, str]
    best: Measured | None = None


def choose(evidence: Findings, plan: PlannedTraining) -> Advice:
    """The method with the largest gain that was shown at the nearest length, or no mixing."""
    series = evidence.alike(start=plan.start, built_in=plan.built_in)
    if not series:
        return Advice(None, None, False, {})
    if plan.updates * SHORT < series[0].updates:
        return Advice(None, series[0], True, {}, _best(series[0], plan, besides=None))
    nearest = min(series, key=lambda each: abs(math.log(plan.updates / each.updates)))
    gaining = [each for each in nearest.methods if is_shown(each, largest_deviation(series))]
    refused: dict[str, str] = {}
    for each in sorted(gaining, key=_gain, reverse=True):
        reason = plan.refusal(each.method)
        if reason is None:
            return Advice(each, nearest, False, refused, _best(nearest, plan, besides=each))
        refused[each.name] = reason
    return Advice(None, nearest, False, refused, _best(nearest, plan, besides=None))


def _best(series: Series, plan: PlannedTraining, *, besides: Measured | None) -> Measured | None:
    others = [each for each in series.methods if each.gain is not None and each != besides]
    ranked = sorted(others, key=_gain, reverse=True)
    return next((each for each in ranked if plan.refusal(each.method) is None), None)


def _gain(measured: Measured) -> float:
    return -math.inf if measured.gain is None else measured.gain.mean


def is_shown(measured: Measured, deviation: float) -> bool:
    """Whether a gain is more than chance: its interval is above zero, or it is far above the deviation over seeds."""
    if measured.gain is None:
        return False
    if measured.gain.low is not None:
        return measured.gain.low > 0
    return measured.gain.mean > MARGIN * deviation


def is_loss(measured: Measured, deviation: float) -> bool:
    """Whether a loss is more than chance, by the rule for gains."""
    if measured.gain is None:
        return False
    if measured.gain.high is not None:
        return measured.gain.high < 0
    return measured.gain.mean < -MARGIN * deviation


def largest_deviation(series: list[Series]) -> float:
    """The largest standard deviation of a gain over seeds; infinite if none is known."""
    found = [each.gain.std for one in series for each in one.methods if each.gain and each.gain.std is not None]
    return max(found, default=math.inf)
