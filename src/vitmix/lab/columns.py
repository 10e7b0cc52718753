"""Tables for a terminal and for Markdown."""

from collections.abc import Iterable, Sequence


def aligned(rows: Iterable[Sequence[str]], left: int | None = None) -> str:
    """Rows of cells as lines; the first `left` columns (default: all) are left-aligned, the others right-aligned."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'<' if left is None or place < left else '>'}{width}" for place, width in enumerate(widths)]
    return "\n".join("  ".join(map(format, row, forms)).rstrip() for row in rows)


def markdown_table(*rows: Iterable[object]) -> str:
    """Rows of cells; the first row is the header."""
    head, *rest = ([str(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rest])
