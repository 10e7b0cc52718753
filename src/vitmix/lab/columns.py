"""Tables for a terminal."""

from collections.abc import Iterable, Sequence


def aligned(rows: Iterable[Sequence[str]], left: int | None = None) -> str:
    """Rows of cells as lines; the first `left` columns (default: all) are left-aligned, the others right-aligned."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'<' if left is None or place < left else '>'}{width}" for place, width in enumerate(widths)]
    return "\n".join("  ".join(map(format, row, forms)).rstrip() for row in rows)
