"""What compare.json and compare.csv hold: scores and differences as fractions, numbers that are missing as null."""

import csv
import dataclasses
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from vitmix.lab.report.quantities import SECONDS, Quantity
from vitmix.lab.runs import Estimate, Record

from .rows import FLOPS, Comparison, Row, verdict
from .tables import Difference, SeedTable, differences


@dataclass(frozen=True)
class StoredDifference(Record):
    """A row minus the baseline, paired by seed."""

    mean: float
    std: float | None
    n: int
    low: float | None
    high: float | None
    p: float | None
    verdict: str

    @classmethod
    def from_estimate(cls, found: Estimate, **about: Any) -> Self:
        return cls(**dataclasses.asdict(found), verdict=verdict(found), **about)


@dataclass(frozen=True)
class SeedValues(Record):
    """A number of a row, by seed."""

    mean: float | None
    std: float | None
    seeds: dict[str, float]

    @classmethod
    def from_row(cls, row: Row, quantity: Quantity) -> Self:
        by_seed = {str(row.runs[number].config.seed): value for number, value in quantity.of(row).items()}
        values = list(by_seed.values())
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values) if values else None, std, by_seed)


@dataclass(frozen=True, kw_only=True)
class StoredRow(Record):
    """A row of the comparison; `scores` are what is compared, by seed, with their mean and standard deviation."""

    row: str
    model: str
    data: str
    seeds: tuple[int, ...]
    planned: int
    scores: dict[str, float]
    mean: float | None
    std: float | None
    difference: StoredDifference | None
    training_seconds: tuple[float, ...]
    slowdown: float | None
    parameters: float | None
    flops: float | None
    runs: tuple[str, ...]


@dataclass(frozen=True)
class StoredComparison(Record):
    baseline: str
    measure: str
    tests: int
    rows: tuple[StoredRow, ...]


def stored(comparison: Comparison) -> StoredComparison:
    rows = []
    for row in comparison.rows:
        difference, scores = comparison.difference(row), SeedValues.from_row(row, comparison.quantity)
        rows.append(
            StoredRow(
                **row.about,
                seeds=tuple(sorted(row.by_seed)),
                planned=row.planned,
                scores=scores.seeds,
                mean=scores.mean,
                std=scores.std,
                difference=None if difference is None else StoredDifference.from_estimate(difference),
                training_seconds=tuple(SECONDS.values(row)),
                slowdown=comparison.slowdown(row),
                parameters=next(iter(comparison.costs["parameters"].values(row)), None),
                flops=next(iter(FLOPS.values(row)), None),
                runs=tuple(str(run.path) for run in row.runs.values()),
            )
        )
    return StoredComparison(comparison.baseline, comparison.measure, comparison.tests, tuple(rows))


# The tables besides accuracy


@dataclass(frozen=True, kw_only=True)
class StoredTableRow(Record):
    row: str
    model: str
    data: str
    images: tuple[int, ...]
    columns: dict[str, SeedValues]


@dataclass(frozen=True)
class StoredTable(Record):
    title: str
    rows: tuple[StoredTableRow, ...]


@dataclass(frozen=True, kw_only=True)
class TableDifference(StoredDifference):
    """The difference in the mean of the table `of`."""

    row: str
    model: str
    data: str
    of: str


@dataclass(frozen=True)
class StoredTables(Record):
    tables: tuple[StoredTable, ...]
    tests: int
    differences: tuple[TableDifference, ...]


def count_tests(found: Sequence[Difference]) -> int:
    return sum(each.found.p is not None for each in found)


def stored_tables(comparison: Comparison, tables: Sequence[SeedTable]) -> StoredTables:
    found = differences(comparison, tables)
    own = tuple(
        StoredTable(table.title, tuple(_stored_row(table, row) for row in table.rows(comparison))) for table in tables
    )
    lines = tuple(TableDifference.from_estimate(each.found, **each.row.about, of=each.of) for each in found)
    return StoredTables(own, count_tests(found), lines)


def _stored_row(table: SeedTable, row: Row) -> StoredTableRow:
    values = {column: SeedValues.from_row(row, quantity) for column, quantity in table.columns.items()}
    columns = {column: own for column, own in values.items() if own.seeds}
    return StoredTableRow(**row.about, images=tuple(table.images([row])), columns=columns)


# Spreadsheets


def csv_cell(value: Any) -> Any:
    """A value for a spreadsheet: a text that it would take for a formula is marked as text."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\n")  # which the csv module would not quote
    if not value.startswith(("=", "+", "-", "@", "\t", "\n")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_text(rows: Sequence[StoredRow]) -> str:
    """The rows as a table: one number per cell; missing numbers leave it empty."""
    file = io.StringIO()
    difference = [f"difference_{each.name}" for each in fields(StoredDifference)]
    before = ["row", "model", "data", "seeds", "planned", "mean", "std"]
    columns = [*before, *difference, "training_seconds", "slowdown", "parameters", "flops"]
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        found = {**vars(row), "seeds": " ".join(map(str, row.seeds))}
        found |= {f"difference_{name}": value for name, value in vars(row.difference).items()} if row.difference else {}
        found["training_seconds"] = statistics.fmean(row.training_seconds) if row.training_seconds else None
        writer.writerow({name: csv_cell(value) for name, value in found.items()})
    return file.getvalue()
