"""What `vitmix analyze` writes: analysis/STUDY.json, tables of estimates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from vitmix.lab.columns import aligned
from vitmix.lab.reading import JsonObject

from .estimates import Estimate
from .records import Record, absent, parse

TableRow = tuple[tuple[str, ...], Mapping[str, Estimate]]


@dataclass(frozen=True)
class Table(Record):
    """Rows of estimates under names.

    Attributes:
        keys: what the names at the start of each row stand for.
        rows: pairs of those names and the estimates by column.
        notes: how to read the numbers.
        percent: columns that are shown in percent.
        example: one pair as numbers, for a figure.
    """

    title: str
    keys: tuple[str, ...]
    rows: Sequence[TableRow]
    notes: tuple[str, ...] = ()
    percent: tuple[str, ...] = ()
    example: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Examples that are not numbers are left out."""
        if not isinstance(value, dict):
            raise ValueError("it is not a mapping")
        title, keys = parse(str, value.get("title"), "title"), parse(tuple[str, ...], value.get("keys"), "keys")
        notes, percent = (parse(tuple[str, ...], value.get(name), name) for name in ("notes", "percent"))
        rows = []
        for row in parse(tuple[JsonObject, ...], value.get("rows"), "rows"):
            numbers = {name: each for name, each in row.items() if name not in keys}
            names = tuple(parse(str, row.get(key), key) for key in keys)
            if not numbers:
                raise ValueError("a row has no numbers")
            rows.append((names, parse(dict[str, Estimate], numbers, "rows")))
        example = parse(JsonObject, value.get("example") or {}, "example")
        return cls(title, keys, rows, notes, percent, {name: each for name, each in example.items() if _numbers(each)})

    def to_json(self) -> JsonObject:
        rows = [
            {**dict(zip(self.keys, names, strict=True)), **{name: each.to_json() for name, each in values.items()}}
            for names, values in self.rows
        ]
        about = {"title": self.title, "keys": list(self.keys), "columns": self.columns, "percent": list(self.percent)}
        return {**about, "rows": rows, "notes": list(self.notes), "example": dict(self.example)}

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for _, values in self.rows for name in values))

    def row(self, names: Sequence[str]) -> Mapping[str, Estimate]:
        """The estimates of the row with these names; empty if there is none."""
        return next((values for own, values in self.rows if own == tuple(names)), {})

    def column(self, name: str, **where: str) -> list[float]:
        """The means of a column in the rows whose names are as given."""
        wanted = [(self.keys.index(key), value) for key, value in where.items()]
        found = [values for names, values in self.rows if all(names[place] == value for place, value in wanted)]
        return [values[name].mean for values in found if name in values]

    def text(self) -> str:
        head = [*self.keys, *self.columns, "n"]
        body = []
        for names, values in self.rows:
            counts = sorted({value.n for value in values.values()})
            n = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
            body.append([*names, *(self._shown(name, values.get(name)) for name in self.columns), n])
        return "\n".join([self.title, aligned([head, *body], left=len(self.keys)), *self.notes])

    def _shown(self, column: str, value: Estimate | None) -> str:
        if value is None:
            return "-"
        return f"{value.text(100, '.1f')} %" if column in self.percent else value.text()


def _numbers(values: Any) -> bool:
    try:
        return bool(parse(tuple[float, ...], values, "example"))
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Analysis(Record):
    """A study of one model: its tables, and how they were measured.

    Attributes:
        images: how many were used, in batches of `batch`, chosen and mixed with `seed`.
        methods: the requested ones; None if the study chose them.
        masks: the name of a folder of object masks, if one was given.
    """

    study: str
    about: str = ""
    weights: str
    weights_sha256: str | None
    model: str = ""
    data: str
    images: int
    batch: int
    seed: int
    methods: tuple[str, ...] | None
    remarks: tuple[str, ...] = ()
    vitmix: str = ""
    masks: str | None = absent()
    tables: tuple[Table, ...]

    def text(self) -> str:
        """The tables as text."""
        return "\n\n".join(table.text() for table in self.tables)

    def table(self, title: str) -> Table | None:
        return next((table for table in self.tables if table.title == title), None)


@dataclass(frozen=True)
class LeftOut(Record):
    """.left_out: requested parts of the suite and studies that do not apply to these weights."""

    weights_sha256: str
    names: tuple[str, ...]
