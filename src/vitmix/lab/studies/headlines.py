"""One sentence for each study, with its main number."""

from collections.abc import Callable
from dataclasses import dataclass

from vitmix.lab.runs import Estimate, Table


@dataclass(frozen=True)
class Headline:
    """The row of a table with the largest or smallest number of a column, in words.

    Attributes:
        title: how the title of the table begins.
        words: the sentence, with fields for the names of the row and for `value`.
        last: looks at the last block or epoch alone.
    """

    title: str
    column: str
    words: str
    best: Callable[..., tuple[tuple[str, ...], Estimate]] = max
    last: bool = False

    def text(self, tables: tuple[Table, ...]) -> str | None:
        """The sentence; None if the tables have no such number."""
        table = next((each for each in tables if each.title.startswith(self.title)), None)
        found = [] if table is None else [(names, row[self.column]) for names, row in table.rows if self.column in row]
        if table is None or not found:
            return None
        place = next((table.keys.index(key) for key in ("block", "epoch") if key in table.keys), None)
        if self.last and place is not None:
            end = found[-1][0][place]
            found = [each for each in found if each[0][place] == end]
        names, value = self.best(found, key=lambda each: each[1].mean)
        shown = f"{value.text(100, '.1f')} %" if self.column in table.percent else value.text()
        said = self.words.format(value=shown, **dict(zip(table.keys, names, strict=True)))
        return said + _overlap(value, [(", ".join(other), each) for other, each in found if other != names])


def _overlap(best: Estimate, others: list[tuple[str, Estimate]]) -> str:
    """The rows whose intervals overlap that of the best one, which is then not shown to be the best."""
    alike = [name for name, each in others if _overlaps(best, each)]
    if not alike:
        return ""
    return f"; the interval overlaps {f'that of {alike[0]}' if len(alike) == 1 else f'those of {len(alike)} others'}"


def _overlaps(one: Estimate, other: Estimate) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return one.mean == other.mean
    return one.low <= other.high and other.low <= one.high
