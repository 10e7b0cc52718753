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
        return self.words.format(value=shown, **dict(zip(table.keys, names, strict=True)))
