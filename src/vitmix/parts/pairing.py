"""Pairings: they give each sample one partner in the batch. A single sample is its own partner."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vitmix._checks import check_integer
from vitmix._registry import register
from vitmix.parts.base import Pairing

__all__ = [
    "Derangement",
    "Reversed",
    "Rolled",
    "best_assignment",
    "random_derangement",
    "reversed_pairs",
    "rolled_pairs",
]


def reversed_pairs(batch: int) -> Tensor:
    """Partners `(B,)` of the reversed batch, as in the papers; the middle of an odd batch is its own partner."""
    return torch.arange(batch - 1, -1, -1)


def rolled_pairs(batch: int, *, by: int = 1) -> Tensor:
    """Partners `(B,)`: the sample `by` positions later, wrapping around."""
    return (torch.arange(batch) + by) % batch


def random_derangement(batch: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Random partners `(B,)`, a permutation in which no sample is its own partner."""
    if batch < 2:
        return torch.arange(batch)
    # Rejection keeps the derangement uniform. One in e tries succeeds: 2.7 tries on average at any length.
    while True:
        partner = torch.randperm(batch, generator=generator)
        if not bool((partner == torch.arange(batch)).any()):
            return partner


def best_assignment(gain: Tensor) -> Tensor:
    """One partner per row of `gain` `(b, B)`, no partner twice, with the largest total gain. Solved on the CPU."""
    _, columns = linear_sum_assignment(gain.detach().cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, dtype=torch.long, device=gain.device)


@register
@dataclass(frozen=True)
class Reversed(Pairing):
    """The reversed batch, as in every paper."""

    name: ClassVar[str] = "reversed"

    def draw(self, batch: int, generator: torch.Generator | None) -> Tensor:
        return reversed_pairs(batch)


@register
@dataclass(frozen=True)
class Rolled(Pairing):
    """The sample `by` positions later."""

    name: ClassVar[str] = "rolled"
    by: int = 1

    def __post_init__(self) -> None:
        check_integer("by", self.by)

    def draw(self, batch: int, generator: torch.Generator | None) -> Tensor:
        return rolled_pairs(batch, by=self.by)


@register
@dataclass(frozen=True)
class Derangement(Pairing):
    """A random permutation without fixed points."""

    name: ClassVar[str] = "derangement"

    def draw(self, batch: int, generator: torch.Generator | None) -> Tensor:
        return random_derangement(batch, generator=generator)
