"""What a study returns: numbers with n and interval, as text for people and as plain values for JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitmix.evaluate.intervals import QUANTILE, wilson


class Spread(NamedTuple):
    """The mean of `n` values, their sample standard deviation, and the interval of 95 % of the mean.

    None where there is no such thing: a correlation is no mean of anything, and one value has no spread.
    """

    mean: float
    std: float | None
    n: int
    low: float | None = None
    high: float | None = None

    @classmethod
    def normal(cls, mean: float, std: float | None, n: int) -> "Spread":
        """With the interval of a normal distribution of the mean."""
        if std is None or n < 2:
            return cls(mean, None, n)
        margin = QUANTILE * std / math.sqrt(n)
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


def spread(values: Tensor) -> Spread:
    """Mean, deviation, number and interval of some values, one at least; Wilson's interval where they are yes or no."""
    values = values.detach().cpu().flatten()
    if not len(values):
        raise ValueError("there is nothing to average; give more images")
    numbers = values.double()
    if not numbers.isfinite().all():
        raise ValueError("what was measured is not finite; the model gives numbers that are not, so train it anew")
    mean, std = float(numbers.mean()), float(numbers.std()) if len(values) > 1 else None
    if values.dtype == torch.bool:
        return Spread(mean, std, len(values), *wilson(int(values.sum()), len(values)))
    return Spread.normal(mean, std, len(values))


def correlation(first: Tensor, second: Tensor) -> Spread:
    """Pearson's correlation of two rows of values with Fisher's interval; 0 where one of them does not vary."""
    first, second = (each.detach().to("cpu", torch.float64) for each in (first, second))
    first, second = first - first.mean(), second - second.mean()
    scale, n = float(first.norm() * second.norm()), len(first)
    value = max(-1.0, min(1.0, float(first @ second) / scale)) if scale > 1e-12 else 0.0
    if n < 4 or scale <= 1e-12 or abs(value) > 1 - 1e-12:
        return Spread(value, None, n)
    middle, margin = math.atanh(value), QUANTILE / math.sqrt(n - 3)
    return Spread(value, None, n, math.tanh(middle - margin), math.tanh(middle + margin))


def root_mean_square(differences: Tensor) -> Spread:
    """The root of the mean square, with an interval by the delta method."""
    squares = differences.detach().to("cpu", torch.float64).square()
    root = float(squares.mean().sqrt())
    return Spread.normal(
        root, float(squares.std()) / (2 * root) if root > 0 and len(squares) > 1 else None, len(squares)
    )


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
