"""Means and their intervals, where mixed images share originals."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import vitmix
from support import tiny_vit
from vitmix.lab.runs import Estimate
from vitmix.lab.studies import estimates, labels
from vitmix.lab.studies.accuracy import mixed_accuracy
from vitmix.lab.studies.coverage import coverage_study
from vitmix.lab.studies.estimates import correlation, root_mean_square, spread
from vitmix.lab.studies.fluctuation import fluctuation_study
from vitmix.lab.studies.pairs import ImageBatch
from vitmix.lab.studies.regions import presence_study, region_study


def test_spread_by_hand() -> None:
    found = spread(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert found.mean == 3 and found.n == 4 and found.std == pytest.approx(math.sqrt(14 / 3))
    margin = 1.959964 * math.sqrt(14 / 3) / 2
    assert (found.low, found.high) == pytest.approx((3 - margin, 3 + margin), rel=1e-6)
    assert found.text() == "3 ± 2.1"
    assert spread(torch.tensor([2.0])) == Estimate(2, None, 1)
    with pytest.raises(ValueError, match="nothing to average"):
        spread(torch.empty(0))
    with pytest.raises(ValueError, match="not finite"):
        spread(torch.tensor([1.0, math.nan]))
    # Yes and no have Wilson's interval, which is none of width zero where all are right: 1 / (1 + 1.96² / 10)
    sure = spread(torch.ones(10, dtype=torch.bool))
    assert (sure.mean, sure.high) == (1, 1) and sure.low == pytest.approx(10 / (10 + 1.959964**2))
    assert sure.text(100, ".1f") == "100.0 [72.2, 100.0]"
    rising = torch.tensor([1.0, 2.0, 3.0])
    assert correlation(rising, 5 - 2 * rising).mean == pytest.approx(-1)
    assert correlation(rising, torch.ones(3)).mean == 0
    related = correlation(torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([1.0, 3, 2, 5, 4]))  # r = 0.8
    bounds = [math.tanh(math.atanh(0.8) + sign * 1.959964 / math.sqrt(2)) for sign in (-1, 1)]
    assert (related.mean, related.low, related.high) == pytest.approx((0.8, *bounds))


def test_mirrored_pairs_are_one_outcome() -> None:
    """Of two outcomes that are always the same, the interval is that of one; n still counts both."""
    once = torch.tensor([1.0, 2.0, 3.0, 6.0])
    couples = torch.arange(4)
    twice, pairs = once.repeat(2), couples.repeat(2)
    for values, both in ((once, twice), (once > 2, twice > 2), (once > 0, twice > 0)):
        one, found = spread(values, couples), spread(both, pairs)
        assert found.n == 8 and (found.mean, found.low, found.high) == pytest.approx((one.mean, one.low, one.high))
        assert one == spread(values)  # who is in no couple is independent
    rms, single = root_mean_square(twice, pairs), root_mean_square(once)
    assert rms.n == 8 and (rms.low, rms.high) == pytest.approx((single.low, single.high))
    first, second = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([1.0, 3, 2, 5, 4])
    found, one = correlation(first.repeat(2), second.repeat(2), torch.arange(5).repeat(2)), correlation(first, second)
    assert found.n == 10 and (found.low, found.high) == pytest.approx((one.low, one.high))


def test_couples_by_hand() -> None:
    # Couples (1, 3) and (2, 8), and 6 by itself: the sums of their distances from 4 are -4, 2 and 2
    found = spread(torch.tensor([1.0, 2, 6, 8, 3]), torch.tensor([7, 1, 2, 1, 7]))
    margin = 1.959964 * math.sqrt(3 / 2 * (16 + 4 + 4)) / 5
    assert found.n == 5 and (found.mean, found.low, found.high) == pytest.approx((4, 4 - margin, 4 + margin), rel=1e-6)
    # Right, right; right, wrong; wrong, wrong: squares 1 + 0 + 1 of sums against 6 / 4, so 6 pairs are worth 4.5
    found = spread(torch.tensor([1, 1, 1, 0, 0, 0]).bool(), torch.tensor([0, 0, 1, 1, 2, 2]))
    half = 1.959964 / (4.5 + 1.959964**2) * math.sqrt(4.5 / 4 + 1.959964**2 / 4)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), rel=1e-6)
    # Outcomes that are always opposite make a mean exact, but no proportion of few is
    opposite, couples = torch.tensor([1.0, 0, 1, 0]), torch.tensor([0, 0, 1, 1])
    assert spread(opposite, couples).low == 0.5 and spread(opposite.bool(), couples) == spread(opposite.bool())
    assert spread(opposite[:2], couples[:2]).low is None  # one couple has no spread
    lone = spread(opposite[:2].bool(), couples[:2])
    assert lone.low is not None and lone.high is not None and lone.low < 0.1 and lone.high > 0.9


@pytest.mark.parametrize("yes_or_no", [False, True])
def test_intervals_hold_what_they_promise(yes_or_no: bool) -> None:
    """In 95 of 100 samples of couples that are half alike; as if independent, it would be 89."""
    generator, inside, trials = torch.Generator().manual_seed(0), 0, 2000
    couples = torch.arange(200).repeat(2)
    for _ in range(trials):
        shared, other = torch.rand(2, 200, generator=generator)
        again = torch.where(torch.rand(200, generator=generator) < 0.5, shared, other)
        values = torch.cat([shared, again])
        found = spread(values < 0.3 if yes_or_no else values, couples)
        assert found.low is not None and found.high is not None
        inside += found.low < (0.3 if yes_or_no else 0.5) < found.high
    assert inside / trials == pytest.approx(0.95, abs=0.012)


def test_who_shares_images_is_one() -> None:
    def couples(partner: list[int]) -> list[int]:
        return estimates.couples(torch.tensor(partner)).tolist()

    assert couples([4, 3, 2, 1, 0]) == [0, 1, 2, 1, 0]  # the middle of an odd batch by itself
    assert couples([1, 2, 3, 4, 0]) == [0] * 5  # every image leads to the next
    assert couples([2, 5, 4, 1, 0, 3]) == [0, 1, 0, 1, 0, 1]
    found = estimates.Gathered()
    for partner in ([2, 1, 0], [1, 0, 3, 2]):
        batch: Any = SimpleNamespace(
            mix=SimpleNamespace(partner=torch.tensor(partner)), frame=SimpleNamespace(batch=len(partner))
        )
        found.add({"value": torch.tensor(partner)}, batch, torch.tensor([True] * (len(partner) - 1) + [False]))
    assert found.column("value").tolist() == [2, 1, 0, 3]  # neither the middle, nor what does not count
    assert found.couples.unique(return_inverse=True)[1].tolist() == [0, 1, 1, 2]  # other batches, other couples


def test_every_study_of_pairs_knows_its_couples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a study averages over mixed images: three batches of eight are twelve couples."""
    images, objects = torch.randn(8, 3, 16, 16), torch.rand(8, 16, 16) < 0.3
    batches = [ImageBatch(images, torch.arange(8), objects)] * 3
    model, method = tiny_vit().eval(), {"cutmix": vitmix.create("cutmix", 10)}
    seen: list[Tensor] = []

    def design(residuals: Tensor, couples: Tensor | None) -> tuple[float, int]:
        assert couples is not None and len(couples) == len(residuals)
        seen.append(couples)
        return 1.0, len(couples)

    monkeypatch.setattr(estimates, "design_effect", design)
    monkeypatch.setattr(labels, "in_classes", lambda *given: {})  # whose estimates are of some pairs each
    for measure in (
        lambda: mixed_accuracy(model, method, batches),
        lambda: labels.label_error_study(model, method, batches),
        lambda: fluctuation_study(model, {"cutmix": method["cutmix"]}, batches),
        lambda: region_study(model, method, batches),
        lambda: presence_study(model, method, batches),
        lambda: coverage_study(model, method, batches),
    ):
        seen.clear()
        measure()
        assert seen and all(len(each.unique()) == 12 and len(each) == 24 for each in seen)
