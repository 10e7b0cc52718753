"""Tables over the seeds: mean and deviation of every number, differences to the baseline, as JSON and as Markdown."""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from vitmix.lab.runs import Estimate, Run

from .rows import Comparison, Read, Row, mean_and_deviation, plain_difference, verdict, warning
from .tables import MEAN, Conditions, SeedTable

UNLIKE = "Not all runs were measured on the same images in the same way: such rows do not compare, and are not tested."


class Difference(NamedTuple):
    """A row's distance from the baseline in the mean of a table."""

    row: Row
    of: str
    found: Estimate


def by_seed(row: Row, read: Read) -> dict[int, float]:
    return {seed: value for seed, run in row.runs.items() if (value := read(run)) is not None}


def differences(comparison: Comparison, tables: Sequence[SeedTable]) -> list[Difference]:
    """Every row against the baseline in the means of tables, of runs that were measured in the same way."""
    found = []
    for row in comparison.rows:
        for table in (each for each in tables if MEAN in each.columns):
            paired = comparison.difference(row, table.columns[MEAN], partial(_measured_alike, table))
            found += [] if paired is None else [Difference(row, table.title, paired)]
    return found


def _measured_alike(table: SeedTable, own: Run, other: Run) -> bool:
    return table.conditions(own) == table.conditions(other)


def count_tests(found: Sequence[Difference]) -> int:
    return sum(each.found.p is not None for each in found)


# JSON


def plain_tables(comparison: Comparison, tables: Sequence[SeedTable]) -> dict[str, Any]:
    """As JSON holds it, unscaled."""
    found = differences(comparison, tables)
    return {
        "tables": [
            {"title": table.title, "rows": [_plain_row(table, row) for row in _shown(table, comparison)]}
            for table in tables
        ],
        "tests": count_tests(found),
        "differences": [{**_names(each.row), "of": each.of, **plain_difference(each.found)} for each in found],
    }


def _plain_row(table: SeedTable, row: Row) -> dict[str, Any]:
    values = {column: by_seed(row, read) for column, read in table.columns.items()}
    columns = {
        column: {
            "mean": statistics.fmean(own.values()),
            "std": statistics.stdev(own.values()) if len(own) > 1 else None,
            "seeds": own,
        }
        for column, own in values.items()
        if own
    }
    return {**_names(row), "images": _images(table, [row]), "columns": columns}


def _names(row: Row) -> dict[str, str]:
    return {"row": row.name, "model": row.model, "data": row.data}


def _shown(table: SeedTable, comparison: Comparison) -> list[Row]:
    """The rows that a table has numbers of."""
    return [row for row in comparison.rows if any(map(table.conditions, row.runs.values()))]


def _images(table: SeedTable, rows: Sequence[Row]) -> list[int]:
    """On how many images was measured; one number where all are the same."""
    found = [table.conditions(run) for row in rows for run in row.runs.values()]
    return sorted({each.images for each in found if each is not None})


# Markdown


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def sections(comparison: Comparison, tables: Sequence[SeedTable]) -> list[str]:
    """The tables as paragraphs of a README; nothing where there is no table."""
    if not tables:
        return []
    parts = [
        "## Besides accuracy",
        "Mean ± sample standard deviation over the seeds, with the weights of each run's best epoch, which is chosen "
        "on the images that the run is evaluated on. *Seeds* counts the runs that were measured.",
    ]
    for table in tables:
        parts += _section(table, comparison)
    found = differences(comparison, tables)
    return [*parts, *_difference_section(found, comparison)] if found else parts


def _section(table: SeedTable, comparison: Comparison) -> list[str]:
    rows = _shown(table, comparison)
    lines = []
    for row in rows:
        measured = sum(table.conditions(run) is not None for run in row.runs.values())
        cells = [list(by_seed(row, read).values()) for read in table.columns.values()]
        shown = [mean_and_deviation(own, table.scale, table.form) if own else "-" for own in cells]
        lines.append([*row.names(comparison.axes), measured, *shown])
    images = " or ".join(f"{count:,}" for count in _images(table, rows))
    said = f"{table.note} {images} images."
    conditions: dict[tuple[str, str], set[Conditions | None]] = {}
    for row in rows:
        conditions.setdefault(row.column, set()).update(map(table.conditions, row.runs.values()))
    if any(len(each - {None}) > 1 for each in conditions.values()):
        said += f" {UNLIKE}"
    return [f"### {table.title}", markdown_table(["", *comparison.axes, "seeds", *table.columns], lines), said]


def _difference_section(found: Sequence[Difference], comparison: Comparison) -> list[str]:
    """All that is tested is an accuracy, so differences are in points of a hundred."""
    measures = list(dict.fromkeys(each.of for each in found))
    lines = []
    for row in comparison.rows:
        own = {each.of: each.found for each in found if each.row is row}
        if own:
            seeds = " or ".join(map(str, sorted({each.n for each in own.values()})))
            lines.append([*row.names(comparison.axes), seeds, *(_difference(own.get(each)) for each in measures)])
    said = "Of the column *mean* of each table above, in points, paired by seed. "
    tests = count_tests(found)
    if tests:
        said += (
            "In brackets: 95 % interval of the paired t-test; **better** and **worse** only where it excludes zero. "
            f"{warning(tests)}"
        )
    else:
        said += "Without two seeds that differ there is no test."
    head = ["", *comparison.axes, "seeds", *measures]
    return [f"### Differences to {comparison.baseline}", markdown_table(head, lines), said]


def _difference(found: Estimate | None) -> str:
    if found is None:
        return "-"
    shown = f"{100 * found.mean:+.2f}"
    if found.low is None or found.high is None:
        return shown
    bold = f" **{verdict(found)}**" if verdict(found) in ("better", "worse") else ""
    return f"{shown} ({100 * found.low:+.2f} to {100 * found.high:+.2f}){bold}"
