"""Confidence intervals of 95 %: Wilson's for accuracies, the bootstrap over images for what is computed from them."""

import math
from collections.abc import Callable

import numpy as np

QUANTILE = 1.959963984540054  # of the normal distribution, for 95 %
RESAMPLES = 1000
CHUNK = 50  # resamples at a time: 20 MB for 50,000 images

Interval = tuple[float, float]


def wilson(right: int, n: int) -> Interval:
    """Wilson's score interval of a proportion; unlike the normal one it holds at 0 and 1 and for small n."""
    if not 0 <= right <= n or n < 1:
        raise ValueError(f"an interval needs 0 <= right <= n and n of at least 1, got {right} of {n}")
    square = QUANTILE**2
    middle = (right + square / 2) / (n + square)
    half = QUANTILE / (n + square) * math.sqrt(right * (n - right) / n + square / 4)
    return (0.0 if right == 0 else middle - half), (1.0 if right == n else middle + half)


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], n: int, *, seed: int = 0) -> Interval:
    """The percentile interval of a statistic over images.

    Args:
        statistic: from how often each of the n images occurs in each resample, `(resamples, n)`, to `(resamples,)`.
            The same images are resampled in all that it looks at, so what they have in common stays so.
    """
    generator = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for _ in range(RESAMPLES // CHUNK):
        counts = np.stack([np.bincount(generator.integers(0, n, n), minlength=n) for _ in range(CHUNK)])
        found.append(statistic(counts.astype(np.float64)))
    low, high = np.quantile(np.concatenate(found), [0.025, 0.975])
    return float(low), float(high)


def reflected(value: float, percentiles: Interval) -> Interval:
    """The basic bootstrap interval of a statistic, from the percentile one; it always holds the value.

    A statistic that scatter makes larger, as a sum of absolute values, is larger again in resamples by about as much,
    so that the percentile interval is off by this twice. Where the value lies outside of the percentiles, it is an end.
    """
    low, high = percentiles
    return min(value, 2 * value - high), max(value, 2 * value - low)
