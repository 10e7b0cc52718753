"""`vitmix report`."""

import argparse
from pathlib import Path

from vitmix._checks import check_count
from vitmix.lab.cli._command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders that hold some")
    parser.add_argument("--output", metavar="FILE", default="report.html", help="page to write (default: report.html)")
    parser.add_argument(
        "--examples",
        type=int,
        metavar="N",
        default=5,
        help="mixed images of each method; 0 draws nothing (default: 5)",
    )
    parser.add_argument(
        "--no-eval", action="store_true", help="do not evaluate runs that have no evaluation yet; leave them out there"
    )


def _run(namespace: argparse.Namespace) -> int:
    from vitmix.lab.report import write_report

    check_count("examples", namespace.examples, least=0)
    output = Path(namespace.output)
    places = [Path(each) for each in namespace.runs]
    size = write_report(places, output, examples=namespace.examples, compute=not namespace.no_eval, say=print)
    print(f"{output} ({size / 1e6:.2f} MB)")
    return 0


COMMAND = Command("Write one page about runs: curves, examples, mistakes, comparison.", _add_arguments, _run)
