"""Intervals of shares, means and calibration errors: by hand, by their equations, and whether they cover the truth."""

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitmix.lab.evaluation import calibration_error
from vitmix.lab.evaluation.summaries import calibration
from vitmix.lab.runs.estimates import bootstrap, wilson


def test_wilson_by_hand() -> None:
    assert wilson(0, 10) == pytest.approx((0, 0.27753), abs=1e-5)
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert wilson(10, 10)[1] == 1
    with pytest.raises(ValueError, match="at least 1"):
        wilson(0, 0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_equation(pair: tuple[int, int]) -> None:
    right, n = pair
    for end in wilson(right, n):  # |p - q| = z sqrt(q (1 - q) / n) at both ends q
        assert (right / n - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / n, abs=1e-7)


def test_bootstrap_of_a_mean_is_about_the_normal_interval() -> None:
    values = np.random.default_rng(0).random(400)
    low, high = bootstrap(lambda counts: counts @ values / 400, 400)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.005)
    assert bootstrap(lambda counts: counts @ np.ones(7) / 7, 7) == (1, 1)


def overconfident(n: int, gap: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and answers that are right less often than these say by the gap, so that it is the true error."""
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, n).astype(np.float32)
    return confidence, generator.random(n) < confidence - gap


@pytest.mark.parametrize("gap", [0.02, 0.05])
def test_interval_of_the_calibration_error_covers_the_true_one(gap: float) -> None:
    found = [calibration(*overconfident(1000, gap, seed)) for seed in range(60)]
    low, value, high = (np.array([getattr(each, end) for each in found]) for end in ("low", "mean", "high"))
    assert (low >= 0).all() and (low <= value).all() and (value <= high).all()
    assert np.mean((low <= gap) & (gap <= high)) >= 0.8  # percentiles alone: 0.12 for a gap of 0.02


@given(st.integers(0, 1000), st.integers(1, 40))
@hypothesis.settings(max_examples=15, deadline=None)
def test_interval_of_the_calibration_error_holds_its_value(seed: int, n: int) -> None:
    confidence, right = overconfident(n, 0, seed)
    found = calibration(confidence, right)
    assert found.low is not None and found.high is not None and 0 <= found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(calibration_error(confidence, right))
