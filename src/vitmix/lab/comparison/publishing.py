"""What a comparison writes: table and page, and a small folder for a repository, without weights:

README.md             the tables, where they were measured, and the command
comparison.jsonl.gz   the matrix, and of each training its configuration, its epochs, and all that was measured of it
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from vitmix.lab.evaluation.settings import PARTS
from vitmix.lab.report.quantities import COUNT, median, summarized
from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE, read_published, write_published
from vitmix.lab.training.progress import duration
from vitmix.lab.writing import make_folder, write_file

from .evaluations import Evaluations, usual_parts
from .markdown import markdown_table, plain_tables, sections
from .matrix import Matrix
from .page import comparison_page
from .rows import GFLOPS, Comparison, Row, csv_text, notes, plain, table
from .tables import read_tables

SHARED = "Trainings that ran side by side slowed each other down: times and images/s then do not compare methods."
COST = ("", "epochs", "images/s", "memory, GiB", "time of a training")
SPEED, MEMORY, SECONDS = median("images/s", COUNT), summarized("peak_memory", COUNT), summarized("seconds")


def runs_of(comparison: Comparison) -> list[Run]:
    return [run for row in comparison.rows for run in row.runs.values()]


def write_results(matrix: Matrix, comparison: Comparison, output: Path) -> list[str]:
    """Writes table and page beside the runs; returns a sentence for each study that cannot be shown."""
    tables, notes = read_tables(runs_of(comparison))
    measured = {"measured": plain_tables(comparison, tables)} if tables else {}
    make_folder(output)
    content = {"about": matrix.about, "matrix": matrix.plain(), **plain(comparison), **measured}
    write_file(output / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
    write_file(output / "compare.csv", csv_text(content["rows"]).encode())
    write_file(output / "matrix.yaml", yaml.safe_dump(matrix.plain(), sort_keys=False, width=1000).encode())
    write_file(output / "compare.html", comparison_page(comparison, matrix.about).encode(errors="replace"))
    return notes


def publish(matrix: Matrix, comparison: Comparison, folder: Path) -> None:
    """Writes the folder. README.md is made of the file beside it, whose numbers are rounded."""
    make_folder(folder)
    about = {"vitmix": 1, "measure": comparison.measure, "matrix": matrix.plain()}
    write_published(folder / FILE, about, {run.path.name: run for run in runs_of(comparison)})
    stored = read_published(folder / FILE).runs
    rows = (
        replace(row, runs={seed: stored[run.path.name] for seed, run in row.runs.items()}) for row in comparison.rows
    )
    write_file(folder / "README.md", readme(matrix, replace(comparison, rows=tuple(rows))).encode())


def readme(matrix: Matrix, comparison: Comparison) -> str:
    """The tables as Markdown, with what a reader must know to trust and to repeat them."""
    runs = runs_of(comparison)
    places = {json.dumps(run.summary.environment, sort_keys=True) for run in runs if run.summary}
    spent = duration(sum(SECONDS.read(run) or 0 for run in runs))
    trainings = f"One training of {spent}" if len(runs) == 1 else f"{len(runs)} trainings of {spent} in all"
    head, *rows = table(comparison)
    parts = [
        f"# {matrix.about or 'Comparison'}",
        f"```\n{_command(runs)}\n```",
        markdown_table(head, rows),
        " ".join([*notes(comparison), GFLOPS, SHARED]),
        markdown_table(COST, [_cost(row) for row in comparison.rows if row.runs]),
        "Images per second of the whole training loop: median over the epochs, mean over the seeds. Memory: the peak "
        "of tensors on the GPU.",
        "\n".join(f"- {_place(json.loads(place) or {})}" for place in sorted(places)),
        f"{trainings}, evaluation included. `{FILE}` has the configuration, the epochs and the measurements of each; "
        "`vitmix report .` makes a page of them, and `--rows` and `--seeds` choose trainings to repeat.",
        *sections(comparison, read_tables(runs)[0]),
    ]
    return "\n\n".join(parts) + "\n"


def _command(runs: Sequence[Run]) -> str:
    """What trains and measures all of it again, where it was measured in the usual way."""
    measured = {part for run in runs if run.robustness for part in usual_parts(run.robustness)}
    suite = tuple(part for part in PARTS if part in measured)
    evaluations = Evaluations(suite, any(run.analyses for run in runs))
    return " ".join(["vitmix compare . --output AGAIN", *evaluations.flags])


def _place(environment: Mapping[str, str | None]) -> str:
    versions = [f"{name} {version}" for name, version in environment.items() if name != "device"]
    return f"{environment.get('device')}: {', '.join(versions)}"


def _cost(row: Row) -> list[str]:
    epochs = sorted({len(run.epochs) for run in row.runs.values()})
    speed, memory, seconds = (row.values(quantity) for quantity in (SPEED, MEMORY, SECONDS))
    return [
        row.name,
        " and ".join(map(str, epochs)),
        f"{statistics.fmean(speed):,.0f}" if speed else "-",
        f"{statistics.fmean(memory) / 2**30:.2f}" if memory else "-",
        duration(statistics.fmean(seconds)) if seconds else "-",
    ]
