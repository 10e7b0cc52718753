"""What a few seeds allow one to say: paired differences with their 95 % interval."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

LEVEL = 0.95


class Paired(NamedTuple):
    """Differences between two rows, seed by seed: mean, deviation, n, 95 % interval and p of the paired t-test.

    Interval and p are None where there is no test: one seed, or differences that are all alike.
    """

    mean: float
    std: float | None
    n: int
    low: float | None
    high: float | None
    p: float | None

    @property
    def verdict(self) -> str:
        """`better` and `worse` only where the interval leaves zero out."""
        if self.n < 2:
            return "one seed, no test"
        if self.low is None or self.high is None:
            return "seeds do not differ, no test"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no difference shown"


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """`values` minus `reference`, which belong to the same seeds in the same order."""
    if len(values) != len(reference) or not values:
        raise ValueError(
            f"paired values must be as many on either side, at least one, got {len(values)}, {len(reference)}"
        )
    differences = [one - other for one, other in zip(values, reference, strict=True)]
    n, mean = len(differences), statistics.fmean(differences)
    if n < 2:
        return Paired(mean, None, n, None, None, None)
    std = statistics.stdev(differences)
    if std <= 1e-12 * max(1.0, abs(mean)):  # rounding, or nothing at all
        return Paired(mean, std, n, None, None, None)
    error = std / math.sqrt(n)
    margin = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    return Paired(mean, std, n, mean - margin, mean + margin, p)
