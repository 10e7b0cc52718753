"""What a study returns: numbers with their spread and n, as text for people and as plain values for JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

NORMAL_95 = 1.959963984540054  # half the width of a 95 % interval, in standard errors


class Spread(NamedTuple):
    """The mean of `n` values and their sample standard deviation; None where one number stands for all of them."""

    mean: float
    std: float | None
    n: int

    @property
    def margin(self) -> float | None:
        """Half the width of the mean's 95 % interval."""
        return None if self.std is None or self.n < 2 else NORMAL_95 * self.std / math.sqrt(self.n)


def spread(values: Tensor) -> Spread:
    """Mean, deviation and number of some values, of which there must be one at least."""
    values = values.detach().to("cpu", torch.float64).flatten()
    if not len(values):
        raise ValueError("there is nothing to average; give more images")
    return Spread(float(values.mean()), float(values.std()) if len(values) > 1 else None, len(values))


def correlation(first: Tensor, second: Tensor) -> Spread:
    """Pearson's correlation of two rows of values; 0 where one of them does not vary."""
    first, second = (each.detach().to("cpu", torch.float64) - each.double().mean().cpu() for each in (first, second))
    scale = float(first.norm() * second.norm())
    return Spread(float(first @ second) / scale if scale > 1e-12 else 0.0, None, len(first))


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
    rows: Sequence[tuple[tuple[str, ...], Mapping[str, Spread]]]
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
        return {"title": self.title, "rows": rows, "notes": list(self.notes), "example": self.example}

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
        if column in self.percent:
            margin = "" if value.margin is None else f" ± {100 * value.margin:.1f}"
            return f"{100 * value.mean:.1f}{margin} %"
        margin = "" if value.margin is None else f" ± {value.margin:.2g}"
        return f"{value.mean:.4g}{margin}"
