"""`vitmix report`."""

import argparse
from pathlib import Path

from vitmix._checks import check_count
from vitmix.lab.cli._command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, folders of them, or published comparisons")
    parser.add_argument("--output", metavar="FILE", default="report.html", help="page to write (default: report.html)")
    parser.add_argument(
        "--examples",
        type=int,
        metavar="N",
        default=5,
        help="mixed images of each method, at most 8; 0 shows none (default: 5)",
    )
    parser.add_argument("--no-eval", action="store_true", help="no effect: report reads folders and evaluates nothing")


def _run(namespace: argparse.Namespace) -> int:
    from vitmix.lab.report import write_report

    check_count("examples", namespace.examples, least=0)
    if namespace.no_eval:
        print("Note: --no-eval has no effect any more: report evaluates nothing.")
    output = Path(namespace.output)
    size = write_report([Path(each) for each in namespace.runs], output, examples=namespace.examples, say=print)
    print(f"{output} ({size / 1e6:.2f} MB)")
    return 0


COMMAND = Command("Write one page about runs: curves, examples, mistakes, comparison.", _add_arguments, _run)
