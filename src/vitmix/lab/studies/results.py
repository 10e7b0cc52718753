"""What a study returns: numbers with n and interval, as text for people and as plain values for JSON.

Mixed images that were made of the same pictures are no independent outcomes. Where `couples` says which are, by a
number for each value, n counts the values and the interval is one over couples; without it, every value is its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitmix.lab.evaluation.intervals import QUANTILE, wilson


class Spread(NamedTuple):
    """The mean of `n` values, their sample standard deviation, and the interval of 95 % of the mean, over couples.

    None where there is no such thing: a correlation is no mean of anything, and one value has no spread.
    """

    mean: float
    std: float | None
    n: int
    low: float | None = None
    high: float | None = None

    @classmethod
    def normal(cls, mean: float, std: float | None, n: int, *, effect: float, couples: int) -> "Spread":
        """With the interval of a normal distribution of the mean; see `design_effect`."""
        if std is None or couples < 2:
            return cls(mean, std, n)
        # As of the couples' means, where all couples are of one size.
        margin = QUANTILE * std / n * math.sqrt(effect * (n - 1) * couples / (couples - 1))
        return cls(mean, std, n, mean - margin, mean + margin)

    def text(self, factor: float = 1, form: str = ".4g") -> str:
        """The number, with ± half of its interval, or with an interval that is not symmetric in brackets."""
        shown = f"{factor * self.mean:{form}}"
        if self.low is None or self.high is None:
            return shown
        below, above = self.mean - self.low, self.high - self.mean
        if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-12):
            return f"{shown} ± {factor * above:{'.2g' if form == '.4g' else form}}"
        return f"{shown} [{factor * self.low:{form}}, {factor * self.high:{form}}]"


def design_effect(residuals: Tensor, couples: Tensor | None) -> tuple[float, int]:
    """How many times the variance of independent values their mean has, and how many couples there are.

    Values that do not vary, or are of one couple, do not tell: a couple is then worth one value.

    Args:
        residuals: `(n,)`, the distances of the values from their mean.
        couples: `(n,)` long, the same number for values that are no independent ones.
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


def spread(values: Tensor, couples: Tensor | None = None) -> Spread:
    """Mean, deviation, number and interval of some values, one at least; Wilson's interval where they are yes or no."""
    values = values.detach().cpu().flatten()
    if not len(values):
        raise ValueError("there is nothing to average; give more images")
    numbers = values.double()
    if not numbers.isfinite().all():
        raise ValueError("what was measured is not finite; the model gives numbers that are not, so train it anew")
    n, mean, std = len(values), float(numbers.mean()), float(numbers.std()) if len(values) > 1 else None
    effect, count = design_effect(numbers - numbers.mean(), couples)
    if values.dtype == torch.bool:
        worth = n / max(1.0, effect)  # no whole number, which the formula does not need
        return Spread(mean, std, n, *wilson(mean * worth, worth))  # pyright: ignore[reportArgumentType]
    return Spread.normal(mean, std, n, effect=effect, couples=count)


def correlation(first: Tensor, second: Tensor, couples: Tensor | None = None) -> Spread:
    """Pearson's correlation of two rows of values with Fisher's interval; 0 where one of them does not vary."""
    first, second = (each.detach().to("cpu", torch.float64) for each in (first, second))
    first, second = first - first.mean(), second - second.mean()
    scale, n = float(first.norm() * second.norm()), len(first)
    value = max(-1.0, min(1.0, float(first @ second) / scale)) if scale > 1e-12 else 0.0
    if scale <= 1e-12 or abs(value) > 1 - 1e-12:
        return Spread(value, None, n)
    first, second = first / first.norm(), second / second.norm()
    influence = first * second - value / 2 * (first.square() + second.square())  # of each pair on the correlation
    worth = n / max(1.0, design_effect(influence, couples)[0])
    if worth < 4:
        return Spread(value, None, n)
    middle, margin = math.atanh(value), QUANTILE / math.sqrt(worth - 3)
    return Spread(value, None, n, math.tanh(middle - margin), math.tanh(middle + margin))


def root_mean_square(differences: Tensor, couples: Tensor | None = None) -> Spread:
    """The root of the mean square, with an interval by the delta method."""
    squares = differences.detach().to("cpu", torch.float64).square()
    root = float(squares.mean().sqrt())
    std = float(squares.std()) / (2 * root) if root > 0 and len(squares) > 1 else None
    effect, count = design_effect(squares - squares.mean(), couples)
    return Spread.normal(root, std, len(squares), effect=effect, couples=count)


Row = tuple[tuple[str, ...], Mapping[str, Spread]]


@dataclass(frozen=True)
class Table:
    """Rows of measured values under names.

    Attributes:
        keys: what the names in front of each row are names of.
        rows: pairs of those names and the values by column.
        notes: what a reader must know to read the numbers.
        percent: columns that are shown in percent.
        example: one pair as numbers, for a figure.
    """

    title: str
    keys: tuple[str, ...]
    rows: Sequence[Row]
    notes: tuple[str, ...] = ()
    percent: tuple[str, ...] = ()
    example: dict[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for _, values in self.rows for name in values))

    def column(self, name: str, **where: str) -> list[float]:
        """The means of a column in the rows whose names are as given."""
        wanted = [(self.keys.index(key), value) for key, value in where.items()]
        found = [values for names, values in self.rows if all(names[place] == value for place, value in wanted)]
        return [values[name].mean for values in found if name in values]

    def plain(self) -> dict[str, Any]:
        rows = [
            dict(zip(self.keys, names, strict=True)) | {name: value._asdict() for name, value in values.items()}
            for names, values in self.rows
        ]
        about = {"title": self.title, "keys": self.keys, "columns": self.columns, "percent": self.percent}
        return {**about, "rows": rows, "notes": list(self.notes), "example": self.example}

    def text(self) -> str:
        head = [*self.keys, *self.columns, "n"]
        body = []
        for names, values in self.rows:
            counts = sorted({value.n for value in values.values()})
            n = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
            body.append([*names, *(self._shown(name, values.get(name)) for name in self.columns), n])
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        left = len(self.keys)
        lines = [
            "  ".join(
                cell.ljust(width) if place < left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (head, *body)
        ]
        return "\n".join([self.title, *lines, *self.notes])

    def _shown(self, column: str, value: Spread | None) -> str:
        if value is None:
            return "-"
        return f"{value.text(100, '.1f')} %" if column in self.percent else value.text()
