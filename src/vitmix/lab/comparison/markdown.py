"""Tables over the seeds as Markdown: mean and deviation of every number, differences to the baseline."""

from collections.abc import Sequence

from vitmix.lab.columns import markdown_table
from vitmix.lab.report.quantities import titled
from vitmix.lab.runs import Estimate

from .rows import CLASSIFIER, Comparison, verdict, warning
from .stored import count_tests
from .tables import Difference, SeedTable, table_differences

UNLIKE = "Not all runs were measured on the same images in the same way; such rows are not compared or tested."


def sections(comparison: Comparison, tables: Sequence[SeedTable]) -> list[str]:
    """The tables as paragraphs of a README; empty without tables."""
    if not tables:
        return []
    parts = [
        "## Besides accuracy" if comparison.score == CLASSIFIER else f"## Besides {titled(comparison.score)}",
        "Mean ± sample standard deviation over the seeds, with the weights of each run's best epoch, which is chosen "
        "on the images that the run is evaluated on. *Seeds* counts the runs that were measured.",
    ]
    for table in tables:
        parts += _section(table, comparison)
    found = table_differences(comparison, tables)
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
