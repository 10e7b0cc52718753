"""From predictions under conditions to numbers with intervals."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from vitmix.lab.runs import Estimate, Facts, Measurement
from vitmix.lab.runs.estimates import bootstrap, reflected

from .conditions import Answers, Condition
from .predictions import BINS, bin_numbers, calibration_error

Answered = list[tuple[Condition, Answers]]
Summarize = Callable[[Answered], Iterator[Measurement]]


def accuracy(condition: Condition, answers: Answers) -> Measurement:
    return Measurement(condition.name, Estimate.of_proportion(*answers.count(condition.name)), condition.of)


def accuracies(found: Answered) -> Iterator[Measurement]:
    for condition, answers in found:
        yield accuracy(condition, answers)


def worst_so_far(found: Answered) -> Iterator[Measurement]:
    """Accuracies under growing bounds: an attack within a smaller bound is also within a larger one."""
    worst = found[0][1].right
    for condition, answers in found:
        worst = np.minimum(worst, answers.right)
        yield accuracy(condition, replace(answers, right=worst))


def calibrated(found: Answered) -> Iterator[Measurement]:
    """Accuracy and expected calibration error."""
    for condition, answers in found:
        yield accuracy(condition, answers)
        readable = answers.readable
        error = calibration(answers.confidence[readable], answers.right[readable] == 1)
        name = f"{condition.name} calibration error"
        yield Measurement(name, error, replace(condition.of, metric="calibration error"))


def calibration(confidence: np.ndarray, right: np.ndarray) -> Estimate:
    """The expected calibration error. Resampling increases it, so the reflected interval is used."""
    n, value = len(right), calibration_error(confidence, right)
    gaps = np.zeros((n, BINS))  # of each image, in the column of its bin
    gaps[np.arange(n), bin_numbers(confidence)] = right - confidence.astype(np.float64)
    low, high = reflected(value, bootstrap(lambda counts: np.abs(counts @ gaps).sum(1) / n, n))
    return Estimate(value, None, n, max(0.0, low), high)


def corruption_errors(found: Answered, divisors: Mapping[str, float], words: str, mean: str) -> Iterator[Measurement]:
    """Each corruption's error over its severities, divided by its divisor, and the mean over corruptions.

    All of them are means over images of how often each was misclassified, so the interval resamples images and includes
    the correlation between corruptions of one image. Images that were unreadable under any condition do not count.
    """
    readable = np.all([answers.readable for _, answers in found], axis=0)
    wrong = {
        name: np.mean([a.right[readable] == 0 for each, a in found if each.of.corruption == name], axis=0) / by
        for name, by in divisors.items()
    }
    part = found[0][0].of.part
    for name, values in wrong.items():
        yield _mean(f"{words} {name}", values, Facts(part=part, corruption=name, metric=words))
    yield _mean(mean, np.mean(list(wrong.values()), axis=0), Facts(part=part, metric=mean))


def _mean(name: str, values: np.ndarray, of: Facts) -> Measurement:
    n = len(values)
    if n == 0:
        raise ValueError(f"no image could be read under every condition of {name!r}; get the files again")
    interval = bootstrap(lambda counts: counts @ values / n, n)
    return Measurement(name, Estimate(float(values.mean()), None, n, *interval), of)
