"""Who is mixed with whom, by hand: pairings, gains, and the assignment with the largest total gain."""

import pytest
import torch

import vitmix
from support import close, same
from vitmix import functional as F


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_pairings_by_hand() -> None:
    assert F.rolled_pairs(4).tolist() == vitmix.Rolled().draw(4, None).tolist() == [1, 2, 3, 0]
    assert vitmix.Rolled(by=-1).draw(4, None).tolist() == [3, 0, 1, 2]
    assert F.random_derangement(1).tolist() == [0] and F.random_derangement(2).tolist() == [1, 0]
    assert F.random_derangement(0).tolist() == []
    for pairing in (vitmix.Derangement().draw(40, gen(3)), F.random_derangement(40, generator=gen(3))):
        same(pairing, F.random_derangement(40, generator=gen(3)))
    assert len({tuple(F.random_derangement(3, generator=gen(seed)).tolist()) for seed in range(20)}) == 2
    best = F.best_assignment(torch.tensor([[1.0, 5.0, 4.0], [0.0, 5.0, 1.0]]))
    assert best.tolist() == [2, 1] and best.dtype == torch.long
    with pytest.raises(ValueError, match="by must be an integer"):
        vitmix.Rolled(by=0.5)


def test_gains_of_many_samples_and_of_none() -> None:
    saliency = torch.rand(70, 4, dtype=torch.float64)
    gain = F.saliency_gain(saliency[:67], saliency, 0.1)
    assert gain.shape == (67, 70)
    close(gain[66, 3], (saliency[3] - saliency[66] - 0.1).clamp_min(0).sum(), 1e-12)
    none = F.saliency_gain(saliency[:0], saliency, 0.1)
    assert none.shape == (0, 70)
    same(F.assign_partners(saliency, torch.zeros(70, dtype=torch.bool), 0.1), torch.arange(70))


def test_samples_that_are_not_finite_attract_nobody() -> None:
    saliency = torch.tensor([[0.1, 0.1], [torch.nan, 0.2], [torch.inf, 0.1], [0.2, 0.3]])
    partner = F.assign_partners(saliency, torch.tensor([True, False, False, False]), 0.05)
    assert partner.tolist() == [3, 1, 2, 3]
