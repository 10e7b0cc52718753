"""An estimate: a number, how many values it comes from, and its 95 % interval if it has one."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from .records import Record, absent

LEVEL = 0.95
QUANTILE = 1.959963984540054  # scipy.special.ndtri((1 + LEVEL) / 2); importing scipy takes longer than reading a run
RESAMPLES = 1000
CHUNK = 50  # resamples at a time: 20 MB for 50,000 images

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate(Record):
    """A mean (or a statistic) of `n` values, their sample standard deviation, and the 95 % interval of the mean.

    Missing numbers are None: a correlation has no deviation, and one value has no interval. `p` is that of the
    paired t-test against zero.
    """

    mean: float
    std: float | None
    n: int
    low: float | None = None
    high: float | None = None
    p: float | None = absent()

    @classmethod
    def of_proportion(cls, right: int, n: int) -> Self:
        """The proportion of right answers, with Wilson's interval."""
        return cls(right / n, None, n, *wilson(right, n))

    @classmethod
    def normal(cls, mean: float, std: float | None, n: int, *, effect: float, couples: int) -> Self:
        """An estimate with a normal interval of the mean, for values that come in dependent groups (couples).

        Args:
            effect: the design effect: the variance of the mean over that of independent values.
            couples: how many independent groups of values there are.
        """
        if std is None or couples < 2:
            return cls(mean, std, n)
        # The interval of the couples' means if all couples have the same size.
        margin = QUANTILE * std / n * math.sqrt(effect * (n - 1) * couples / (couples - 1))
        return cls(mean, std, n, mean - margin, mean + margin)

    @classmethod
    def paired(cls, values: Sequence[float], reference: Sequence[float]) -> Self:
        """The mean of `values` minus `reference`, paired in their order, with interval and p of the paired t-test.

        Interval and p are None if there is no test: a single pair, or equal differences.
        """
        if len(values) != len(reference) or not values:
            raise ValueError(f"paired values must be equally many, at least one, got {len(values)}, {len(reference)}")
        differences = [one - other for one, other in zip(values, reference, strict=True)]
        n, mean = len(differences), statistics.fmean(differences)
        if n < 2:
            return cls(mean, None, n)
        std = statistics.stdev(differences)
        if std <= 1e-12 * max(1.0, abs(mean)):  # equal up to rounding
            return cls(mean, std, n)
        from scipy import stats  # whose import takes a second

        error = std / math.sqrt(n)
        margin = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
        p = 2 * float(stats.t.sf(abs(mean) / error, n - 1))
        return cls(mean, std, n, mean - margin, mean + margin, p)

    @property
    def interval(self) -> Interval | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    def text(self, factor: float = 1, form: str = ".4g") -> str:
        """The number with ± half of its interval; an asymmetric interval is in brackets."""
        shown = f"{factor * self.mean:{form}}"
        if self.low is None or self.high is None:
            return shown
        below, above = self.mean - self.low, self.high - self.mean
        if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-12):
            return f"{shown} ± {factor * above:{'.2g' if form == '.4g' else form}}"
        return f"{shown} [{factor * self.low:{form}}, {factor * self.high:{form}}]"


def wilson(right: float, n: float) -> Interval:
    """Wilson's score interval of a proportion; unlike the normal interval, it is valid at 0 and 1 and for small n."""
    if not 0 <= right <= n or n < 1:
        raise ValueError(f"an interval needs 0 <= right <= n and n of at least 1, got {right} of {n}")
    square = QUANTILE**2
    middle = (right + square / 2) / (n + square)
    half = QUANTILE / (n + square) * math.sqrt(right * (n - right) / n + square / 4)
    return (0.0 if right == 0 else middle - half), (1.0 if right == n else middle + half)


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], n: int) -> Interval:
    """The percentile interval of a statistic over images.

    Args:
        statistic: from the counts `(resamples, n)` of each image in each resample to values `(resamples,)`. All
            conditions use the same resampled images, so correlations between them are kept.
    """
    generator = np.random.default_rng(0)
    found: list[np.ndarray] = []
    for _ in range(RESAMPLES // CHUNK):
        counts = np.stack([np.bincount(generator.integers(0, n, n), minlength=n) for _ in range(CHUNK)])
        found.append(statistic(counts.astype(np.float64)))
    low, high = np.quantile(np.concatenate(found), [0.025, 0.975])
    return float(low), float(high)


def reflected(value: float, percentiles: Interval) -> Interval:
    """The basic bootstrap interval of a statistic, from the percentile one; it always contains the value.

    Noise increases some statistics, such as a sum of absolute values. Resampling adds this bias a second time, so the
    percentile interval is off by twice the bias. A value outside the interval extends it.
    """
    low, high = percentiles
    return min(value, 2 * value - high), max(value, 2 * value - low)
