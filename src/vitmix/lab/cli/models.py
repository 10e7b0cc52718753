"""`vitmix models`."""

import argparse

from vitmix.lab.cli._command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--why", action="store_true", help="also say why a method does not work on a family")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def _run(namespace: argparse.Namespace) -> int:
    from vitmix.lab.families import table

    rows, reasons = table()
    if namespace.markdown:
        rows.insert(1, ["---"] * len(rows[0]))
        for row in rows:
            print("| " + " | ".join(row) + " |")
    else:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if any("?" in row for row in rows):
        print("\n?: install transformers to see (pip install 'vitmix[hf]').")
    if namespace.why:
        print("\n" + "\n".join(reasons))
    return 0


COMMAND = Command("Show which methods work on which families of models.", _add_arguments, _run)
