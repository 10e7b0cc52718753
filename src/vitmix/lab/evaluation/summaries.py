"""From the answers in cells to numbers with intervals."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from .cells import Answers, Cell
from .intervals import bootstrap, reflected, wilson
from .measure import BINS, Measurement, bin_numbers, calibration_error

Found = list[tuple[Cell, Answers]]
Summary = Callable[[Found], Iterator[Measurement]]


def accuracy(cell: Cell, answers: Answers) -> Measurement:
    right, n = answers.count(cell.name)
    return Measurement(cell.name, right / n, n, *wilson(right, n), of=cell.facts)


def accuracies(found: Found) -> Iterator[Measurement]:
    for cell, answers in found:
        yield accuracy(cell, answers)


def worst_so_far(found: Found) -> Iterator[Measurement]:
    """Accuracies under growing bounds: what was found within a smaller bound lies within a larger one too."""
    worst = found[0][1].right
    for cell, answers in found:
        worst = np.minimum(worst, answers.right)
        yield accuracy(cell, replace(answers, right=worst))


def calibrated(found: Found) -> Iterator[Measurement]:
    """Accuracy and expected calibration error."""
    for cell, answers in found:
        yield accuracy(cell, answers)
        readable = answers.readable
        yield calibration(cell.name, answers.confidence[readable], answers.right[readable] == 1)


def calibration(name: str, confidence: np.ndarray, right: np.ndarray) -> Measurement:
    """The expected calibration error. Resampling adds its own scatter to it, so the interval is the reflected one."""
    n, value = len(right), calibration_error(confidence, right)
    gaps = np.zeros((n, BINS))  # of each image, in the column of its bin
    gaps[np.arange(n), bin_numbers(confidence)] = right - confidence.astype(np.float64)
    low, high = reflected(value, bootstrap(lambda counts: np.abs(counts @ gaps).sum(1) / n, n))
    of = {"metric": "calibration error"}
    return Measurement(f"{name} calibration error", value, n, max(0.0, low), high, of=of)


def corruption_errors(found: Found, divisors: Mapping[str, float], words: str, mean: str) -> Iterator[Measurement]:
    """Each corruption's error over its severities, divided by what belongs to it, and the mean over corruptions.

    All of them are means over images of how often each was misread, so the interval resamples images, and what the
    corruptions of one image have in common is in it. Images that could not be read somewhere do not count.
    """
    readable = np.all([answers.readable for _, answers in found], axis=0)
    wrong = {
        name: np.mean([a.right[readable] == 0 for cell, a in found if cell.settings["corruption"] == name], axis=0) / by
        for name, by in divisors.items()
    }
    for name, values in wrong.items():
        yield _mean(f"{words} {name}", values, {"corruption": name, "metric": words})
    yield _mean(mean, np.mean(list(wrong.values()), axis=0), {"metric": mean})


def _mean(name: str, values: np.ndarray, of: Mapping[str, str]) -> Measurement:
    n = len(values)
    if n == 0:
        raise ValueError(f"no image could be read in every cell of {name!r}; get the files again")
    return Measurement(name, float(values.mean()), n, *bootstrap(lambda counts: counts @ values / n, n), of=of)
