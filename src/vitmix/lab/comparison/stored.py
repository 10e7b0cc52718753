"""What compare.json and compare.csv hold: scores and differences as fractions, numbers that are missing as null."""

import csv
import dataclasses
import io
import statistics
from collections.abc import Sequence
from typing import Any

from vitmix.lab.reading import JsonObject
from vitmix.lab.report.quantities import SECONDS, Quantity
from vitmix.lab.runs import Estimate

from .rows import FLOPS, Comparison, Row, verdict
from .tables import Difference, SeedTable, table_differences


def stored_rows(comparison: Comparison) -> list[JsonObject]:
    """The rows of the comparison; under the name of the score, what is compared, by seed."""
    rows = []
    for row in comparison.rows:
        difference, scores = comparison.difference(row), _by_seed(row, comparison.quantity)
        rows.append(
            {
                **row.about,
                "seeds": sorted(row.by_seed),
                "planned": row.planned,
                "mean": scores["mean"],
                "std": scores["std"],
                "difference": None if difference is None else stored_difference(difference),
                "training_seconds": list(SECONDS.values(row)),
                "slowdown": comparison.slowdown(row),
                "parameters": next(iter(comparison.costs["parameters"].values(row)), None),
                "flops": next(iter(FLOPS.values(row)), None),
                "runs": [str(run.path) for run in row.runs.values()],
                comparison.score: scores["seeds"],
            }
        )
    return rows


def stored_difference(found: Estimate) -> JsonObject:
    """A row minus the baseline, paired by seed."""
    return {**dataclasses.asdict(found), "verdict": verdict(found)}


def _by_seed(row: Row, quantity: Quantity) -> JsonObject:
    """A number of a row: mean and sample standard deviation over the seeds, and its values."""
    by_seed = {str(row.runs[number].config.seed): value for number, value in quantity.of(row).items()}
    values = list(by_seed.values())
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values) if values else None, "std": std, "seeds": by_seed}


# The tables besides accuracy


def count_tests(found: Sequence[Difference]) -> int:
    return sum(each.found.p is not None for each in found)


def stored_tables(comparison: Comparison, tables: Sequence[SeedTable]) -> JsonObject:
    """The tables, and the differences in the means of their rows; `of` is the table."""
    found = table_differences(comparison, tables)
    return {
        "tables": [
            {"title": table.title, "rows": [_table_row(table, row) for row in table.rows(comparison)]}
            for table in tables
        ],
        "tests": count_tests(found),
        "differences": [{**stored_difference(each.found), **each.row.about, "of": each.of} for each in found],
    }


def _table_row(table: SeedTable, row: Row) -> JsonObject:
    values = {column: _by_seed(row, quantity) for column, quantity in table.columns.items()}
    columns = {column: own for column, own in values.items() if own["seeds"]}
    return {**row.about, "images": list(table.images([row])), "columns": columns}


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


def csv_text(rows: Sequence[JsonObject]) -> str:
    """The rows as a table: one number per cell; missing numbers leave it empty."""
    file = io.StringIO()
    difference = [f"difference_{name}" for name in (*(each.name for each in dataclasses.fields(Estimate)), "verdict")]
    before = ["row", "model", "data", "seeds", "planned", "mean", "std"]
    columns = [*before, *difference, "training_seconds", "slowdown", "parameters", "flops"]
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        found = {**row, "seeds": " ".join(map(str, row["seeds"]))}
        found |= {f"difference_{name}": value for name, value in (row["difference"] or {}).items()}
        found["training_seconds"] = statistics.fmean(row["training_seconds"]) if row["training_seconds"] else None
        writer.writerow({name: csv_cell(value) for name, value in found.items()})
    return file.getvalue()
