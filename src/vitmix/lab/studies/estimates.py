"""Estimates on mixed images.

Mixed images of the same originals are not independent. `couples` has the same number for values that depend on each
other: n then counts the values, and the interval is over couples. Without it, every value is independent.
"""

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from vitmix._mixing import MixedBatch
from vitmix.lab.runs import Estimate
from vitmix.lab.runs.estimates import QUANTILE, wilson

Column = TypeVar("Column", bound=Hashable)


class Gathered:
    """Values of mixed images over the batches, by column, and which of them share an image."""

    def __init__(self) -> None:
        self._values: list[dict[Hashable, Tensor]] = []
        self._couples: list[Tensor] = []

    def add(self, values: Mapping[Column, Tensor], batch: MixedBatch, counted: Tensor | None = None) -> None:
        """Adds the values `(B,)` of the images in a batch that are `counted` `(B,)` and mixed with another one."""
        kept = paired(batch) if counted is None else paired(batch) & counted.cpu()
        self._values.append({name: each.cpu()[kept] for name, each in values.items()})
        self._couples.append(couples(batch.mix.partner)[kept] + (len(self._couples) << 32))  # no batch shares images

    def __len__(self) -> int:
        return sum(map(len, self._couples))

    def column(self, name: Hashable) -> Tensor:
        return torch.cat([each[name] for each in self._values])

    @property
    def couples(self) -> Tensor:
        return torch.cat(self._couples)

    def estimates(self) -> dict[str, Estimate]:
        """The mean of each column."""
        return {str(name): spread(self.column(name), self.couples) for name in self._values[0]}


def paired(batch: MixedBatch) -> Tensor:
    """Which samples `(B,)` are mixed with another one: the middle of an odd batch is its own partner."""
    return batch.mix.partner.cpu() != torch.arange(batch.frame.batch)


def couples(partner: Tensor) -> Tensor:
    """A number `(B,)` for each mixed image, equal for those that share an original, such as (i, j) and (j, i).

    In a pairing that is not symmetric, (i, j) shares an original with (j, k), and so on.
    """
    partner = partner.cpu()
    found = torch.arange(len(partner))
    for _ in range(len(partner).bit_length()):  # doubles the distance each time
        found, partner = torch.minimum(found, found[partner]), partner[partner]
    return found


def design_effect(residuals: Tensor, couples: Tensor | None) -> tuple[float, int]:
    """The design effect (variance of the mean over that of independent values), and the number of couples.

    If values do not vary, or there is one couple, a couple counts as one value.

    Args:
        residuals: `(n,)`, the differences of the values from their mean.
        couples: `(n,)` long, the same number for values that are not independent.
    """
    n = len(residuals)
    if couples is None:
        return 1.0, n
    numbers, place = couples.unique(return_inverse=True)
    count, total = len(numbers), float(residuals.square().sum())
    if count == 1 or total == 0:
        return n / count, count
    sums = torch.zeros(count, dtype=residuals.dtype).index_add_(0, place, residuals)
    return float(sums.square().sum()) / total, count


def spread(values: Tensor, couples: Tensor | None = None) -> Estimate:
    """Mean, standard deviation, number and interval of at least one value; Wilson's interval for booleans."""
    values = values.detach().cpu().flatten()
    if not len(values):
        raise ValueError("there is nothing to average; give more images")
    numbers = values.double()
    if not numbers.isfinite().all():
        raise ValueError("what was measured is not finite: the model returns NaN or Inf; check its weights")
    n, mean, std = len(values), float(numbers.mean()), float(numbers.std()) if len(values) > 1 else None
    effect, count = design_effect(numbers - numbers.mean(), couples)
    if values.dtype == torch.bool:
        worth = n / max(1.0, effect)  # not an integer, which the formula does not need
        return Estimate(mean, std, n, *wilson(mean * worth, worth))
    return Estimate.normal(mean, std, n, effect=effect, couples=count)


def correlation(first: Tensor, second: Tensor, couples: Tensor | None = None) -> Estimate:
    """Pearson's correlation of two rows of values with Fisher's interval; 0 where one of them does not vary."""
    first, second = (each.detach().to("cpu", torch.float64) for each in (first, second))
    first, second = first - first.mean(), second - second.mean()
    scale, n = float(first.norm() * second.norm()), len(first)
    value = max(-1.0, min(1.0, float(first @ second) / scale)) if scale > 1e-12 else 0.0
    if scale <= 1e-12 or abs(value) > 1 - 1e-12:
        return Estimate(value, None, n)
    first, second = first / first.norm(), second / second.norm()
    influence = first * second - value / 2 * (first.square() + second.square())  # of each pair on the correlation
    worth = n / max(1.0, design_effect(influence, couples)[0])
    if worth < 4:
        return Estimate(value, None, n)
    middle, margin = math.atanh(value), QUANTILE / math.sqrt(worth - 3)
    return Estimate(value, None, n, math.tanh(middle - margin), math.tanh(middle + margin))


def root_mean_square(differences: Tensor, couples: Tensor | None = None) -> Estimate:
    """The root of the mean square, with an interval by the delta method."""
    squares = differences.detach().to("cpu", torch.float64).square()
    root = float(squares.mean().sqrt())
    std = float(squares.std()) / (2 * root) if root > 0 and len(squares) > 1 else None
    effect, count = design_effect(squares - squares.mean(), couples)
    return Estimate.normal(root, std, len(squares), effect=effect, couples=count)
