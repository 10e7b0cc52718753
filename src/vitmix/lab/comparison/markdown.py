"""Tables over the seeds: mean and deviation of every number, differences to the baseline, as JSON and as Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from vitmix.lab.runs import Estimate

from .rows import Comparison, Row, mean_and_deviation, plain_difference, seed_values, verdict, warning
from .tables import Difference, SeedTable, differences

UNLIKE = "Not all runs were measured on the same images in the same way; such rows are not compared or tested."


def count_tests(found: Sequence[Difference]) -> int:
    return sum(each.found.p is not None for each in found)


def plain_tables(comparison: Comparison, tables: Sequence[SeedTable]) -> dict[str, Any]:
    """As JSON, unscaled."""
    found = differences(comparison, tables)
    shown = [
        {"title": table.title, "rows": [_plain_row(table, row) for row in table.rows(comparison)]} for table in tables
    ]
    lines = [{**each.row.about, "of": each.of, **plain_difference(each.found)} for each in found]
    return {"tables": shown, "tests": count_tests(found), "differences": lines}


def _plain_row(table: SeedTable, row: Row) -> dict[str, Any]:
    values = {column: seed_values(row, quantity) for column, quantity in table.columns.items()}
    columns = {
        column: {**mean_and_deviation(list(own.values())), "seeds": own} for column, own in values.items() if own
    }
    return {**row.about, "images": table.images([row]), "columns": columns}


def markdown_table(*rows: Iterable[Any]) -> str:
    """Rows of cells; the first row is the header."""
    head, *rest = ([str(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rest])


def sections(comparison: Comparison, tables: Sequence[SeedTable]) -> list[str]:
    """The tables as paragraphs of a README; empty without tables."""
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
    rows = table.rows(comparison)
    head = ["", *comparison.axes, "seeds", *table.columns]
    lines = (
        [*row.names, len(table.conditions_of([row])), *(each.spread(row) for each in table.columns.values())]
        for row in rows
    )
    images = " or ".join(f"{count:,}" for count in table.images(rows))
    said = f"{table.note} {images} images."
    within = [[row for row in rows if row.column == column] for column in {row.column for row in rows}]
    if any(len(set(table.conditions_of(own))) > 1 for own in within):
        said += f" {UNLIKE}"
    return [f"### {table.title}", markdown_table(head, *lines), said]


def _difference_section(found: Sequence[Difference], comparison: Comparison) -> list[str]:
    """Everything tested is an accuracy, so differences are in percentage points."""
    measures = list(dict.fromkeys(each.of for each in found))
    lines = []
    for row in comparison.rows:
        own = {each.of: each.found for each in found if each.row is row}
        if own:
            seeds = " or ".join(map(str, sorted({each.n for each in own.values()})))
            lines.append([*row.names, seeds, *(_difference(own.get(each)) for each in measures)])
    said = "Differences of the *mean* column of each table above, in points, paired by seed. "
    tests = count_tests(found)
    if not tests:
        said += "A test needs at least two seeds with different results."
    else:
        said += (
            "In brackets: 95 % interval of the paired t-test; **better** and **worse** only if it excludes zero. "
            f"{warning(tests)}"
        )
    head = ["", *comparison.axes, "seeds", *measures]
    return [f"### Differences to {comparison.baseline}", markdown_table(head, *lines), said]


def _difference(found: Estimate | None) -> str:
    if found is None:
        return "-"
    shown = f"{100 * found.mean:+.2f}"
    if found.low is None or found.high is None:
        return shown
    bold = f" **{verdict(found)}**" if verdict(found) in ("better", "worse") else ""
    return f"{shown} ({100 * found.low:+.2f} to {100 * found.high:+.2f}){bold}"
