"""`vitmix report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import File, Settings, Whole, option


@dataclass(frozen=True, kw_only=True)
class Report(Settings):
    """Write one page about runs: curves, examples, mistakes, comparison."""

    runs: tuple[Annotated[str, "RUN"], ...] = option(..., "run folders, or folders that hold some", positional=True)
    output: File = option("report.html", "page to write")
    examples: Whole = option(5, "mixed images of each method; 0 draws nothing")
    no_eval: bool = option(False, "do not evaluate runs that have no evaluation yet; leave them out there")


def run(settings: Report) -> int:
    from vitmix.lab.report import write_report

    output = Path(settings.output)
    places = [Path(each) for each in settings.runs]
    size = write_report(places, output, examples=settings.examples, compute=not settings.no_eval, say=print)
    print(f"{output} ({size / 1e6:.2f} MB)")
    return 0


COMMAND = Command(Report, run)
