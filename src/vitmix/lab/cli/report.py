"""`vitmix report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import File, Settings, Whole, option


@dataclass(frozen=True, kw_only=True)
class Report(Settings):
    """Write one page about runs: curves, examples, mistakes, comparison."""

    runs: tuple[Annotated[str, "RUN"], ...] = option(
        ..., "run folders, folders of them, published comparisons", positional=True
    )
    output: File = option("report.html", "page to write")
    examples: Whole = option(5, "mixed images of each method, at most 8; 0 shows none")
    no_eval: bool = option(False, "no effect, because report evaluates nothing")


def run(settings: Report) -> int:
    from vitmix.lab.report import write_report

    output = Path(settings.output)
    if settings.no_eval:
        print("Note: --no-eval has no effect, because report evaluates nothing.")
    size = write_report([Path(each) for each in settings.runs], output, examples=settings.examples, say=print)
    print(f"{output} ({size / 1e6:.2f} MB)")
    return 0


COMMAND = Command(Report, run)
