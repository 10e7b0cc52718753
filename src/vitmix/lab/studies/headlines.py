"""One sentence for each study, with its main number."""

from collections.abc import Callable
from dataclasses import dataclass

from vitmix.lab.runs import Analysis, Estimate, Table


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


HEADLINES = {
    "accuracy": Headline(
        "Accuracy", "top-1", "images mixed by {method} are recognized best: one of two classes {value}"
    ),
    "labels": Headline(
        "Label error", "error", "the labels of '{rule}' are closest to the visible objects: {value}", min
    ),
    "fluctuation": Headline("RMSE", "of shares", "{labels} labels differ by {value} (RMSE of shares)"),
    "regions": Headline(
        "Attention",
        "partner to partner",
        "in the last block, pasted patches attend most to each other with {method}: {value}",
        last=True,
    ),
    "presence": Headline(
        "Presence", "deviation", "in the last block, presence deviates by {value} ({method})", last=True
    ),
    "sharpness": Headline("Sharpness", "TV, L1", "{saliency} is sharpest in block {block}: total variation {value}"),
    "coverage": Headline("Objects", "pasted", "{method} shows most of the partner's object: {value}"),
    "htm": Headline("What HTM", "samples", "in epoch {epoch}, the last, HTM mixed {value} of the samples", last=True),
}


def headline(analysis: Analysis) -> str:
    """`accuracy: images mixed by smmix are ...`, or what the study measures."""
    known = HEADLINES.get(analysis.study)
    return f"{analysis.study}: {(known and known.text(analysis.tables)) or analysis.about}"
