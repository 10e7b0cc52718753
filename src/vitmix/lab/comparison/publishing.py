"""What a comparison writes: table and page, and a small folder for a repository, without weights:

README.md             the tables, where they were measured, and the command
comparison.jsonl.gz   the matrix, and of each run its configuration, its epochs, and all that was measured of it
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vitmix.lab.columns import markdown_table
from vitmix.lab.report.groups import every_run, legend
from vitmix.lab.report.html import Html, html
from vitmix.lab.report.page import PageSection, render
from vitmix.lab.report.quantities import MEMORY, SECONDS, SPEED, WHOLE_TIME, titled
from vitmix.lab.report.svg import Line, line_chart
from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE, read_published, write_published
from vitmix.lab.suite import PARTS
from vitmix.lab.training.progress import duration
from vitmix.lab.training.recipes import read_recipe
from vitmix.lab.writing import make_folder, write_file

from .evaluations import Evaluations, usual_parts
from .markdown import sections
from .matrix import RunMatrix
from .rows import CLASSIFIER, Comparison, Row, heads, notes, numbers, table
from .stored import csv_text, stored_rows, stored_tables
from .tables import read_tables

SHARED = "Parallel runs slow each other down; times and images/s of such runs cannot be compared between methods."
COST = ("", "epochs", "images/s", "memory, GiB", "time of a run")


def write_results(matrix: RunMatrix, comparison: Comparison, output: Path) -> list[str]:
    """Writes table and page beside the runs; returns a message for each study that cannot be shown."""
    tables, notes = read_tables(every_run(comparison.rows))
    measured = {"measured": stored_tables(comparison, tables)} if tables else {}
    make_folder(output)
    rows = stored_rows(comparison)
    content = {"about": matrix.about, "matrix": matrix.plain(), "baseline": comparison.baseline}
    content |= {"measure": comparison.measure, "tests": comparison.tests, "rows": rows, **measured}
    write_file(output / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
    write_file(output / "compare.csv", csv_text(rows).encode())
    write_file(output / "matrix.yaml", yaml.safe_dump(matrix.plain(), sort_keys=False, width=1000).encode())
    write_file(output / "compare.html", comparison_page(comparison, matrix.about).encode(errors="replace"))
    return notes


# The page: the table, accuracy against training time, and then what every report has


def comparison_page(comparison: Comparison, about: str) -> str:
    """The whole page; rows without a finished run are named and otherwise left out."""
    shown = [row for row in comparison.rows if row.runs]
    sections = [
        PageSection("comparison", "Comparison", _comparison(comparison)),
        PageSection("time", f"{_score(comparison)} against training time", _time(comparison)),
    ]
    return render(shown, heading=about or "Comparison", first=sections)


def _comparison(comparison: Comparison) -> list[Html]:
    missing = [row.name for row in comparison.rows if not row.runs]
    warning = [html.note(f"Not finished and left out: {', '.join(missing)}")] if missing else []
    rows = [[row.key, *numbers(row, comparison, SECONDS.spread)] for row in comparison.rows if row.runs]
    return [*warning, html.table(["", *heads(comparison)], rows, " ".join(notes(comparison)))]


def _score(comparison: Comparison) -> str:
    return "Accuracy" if comparison.score == CLASSIFIER else titled(comparison.score)


def _time(comparison: Comparison) -> list[Html]:
    ends: list[Line] = []
    courses: list[Line] = []
    for row in comparison.rows:
        for run in row.runs.values():
            score, seconds = comparison.quantity.read(run), SECONDS.read(run)
            if score is not None and seconds is not None:
                ends.append(Line(row.number, [(seconds / 60, score)], row.label(run)))
            points, passed = [], 0.0
            for epoch in run.epochs:
                passed += epoch.get("seconds") or 0
                if (score := epoch.get(comparison.score)) is not None:
                    points.append((passed / 60, score))
            kind = "seed" if len(row.runs) > 1 else "mean"
            courses += [Line(row.number, points, row.label(run), kind)] if points else []
    x_range = (0.0, 1.05 * max(x for line in courses for x, _ in line.points))
    charts = (
        ("At the end", f"{_score(comparison)} and training time", ends),
        ("On the way", f"{_score(comparison)} over training time", courses),
    )
    figures = [
        html.figure(title, line_chart(about, lines, x_name="minutes", x_range=x_range, percent=True))
        for title, about, lines in charts
        if lines
    ]
    said = "Training time without evaluation; parallel runs slow each other down."
    return [legend([row for row in comparison.rows if row.runs]), html.paragraph(said), html.charts(figures, "charts")]


# The folder for a repository


def publish(matrix: RunMatrix, comparison: Comparison, folder: Path) -> None:
    """Writes the folder. README.md is made of the file beside it, whose numbers are rounded."""
    make_folder(folder)
    matrix = with_fitted_settings(matrix, every_run(comparison.rows))
    about = {"vitmix": 1, "measure": comparison.measure, "matrix": matrix.plain()}
    write_published(folder / FILE, about, {run.path.name: run for run in every_run(comparison.rows)})
    published = read_published(folder / FILE).runs
    rows = (replace(row, runs={n: published[run.path.name] for n, run in row.runs.items()}) for row in comparison.rows)
    write_file(folder / "README.md", readme(matrix, replace(comparison, rows=tuple(rows))).encode())


def with_fitted_settings(matrix: RunMatrix, runs: Sequence[Run]) -> RunMatrix:
    """The matrix with the settings that follow from the size of the data, if all runs share them.

    So it can be read where the data is not, and repeats the runs on data of another size.
    """
    names = {name for run in runs if run.config.recipe is not None for name in read_recipe(run.config.recipe).fitted}
    if any(getattr(run.config, name, None) is not None for run in runs for name in ("steps", "warmup_steps")):
        names |= {"epochs", "warmup_epochs"}  # which follow from the number of images
    values = {name: {getattr(run.config, name) for run in runs} for name in sorted(names)}
    shared = {name: found.pop() for name, found in values.items() if len(found) == 1}
    return replace(matrix, settings={**shared, **matrix.settings})


def readme(matrix: RunMatrix, comparison: Comparison) -> str:
    """The tables as Markdown, with what a reader needs to check and repeat them."""
    runs = every_run(comparison.rows)
    places = {json.dumps(run.summary.environment, sort_keys=True) for run in runs if run.summary}
    spent = duration(sum(WHOLE_TIME.read(run) or 0 for run in runs))
    trainings = f"One training run of {spent}" if len(runs) == 1 else f"{len(runs)} training runs of {spent} in total"
    parts = [
        f"# {matrix.about or 'Comparison'}",
        f"```\n{_command(runs)}\n```",
        markdown_table(*table(comparison)),
        " ".join([*notes(comparison), SHARED]),
        markdown_table(COST, *(_cost(row) for row in comparison.rows if row.runs)),
        "Images per second of the full training loop: median over the epochs, mean over the seeds. Memory: peak of "
        "tensors on the GPU.",
        "\n".join(f"- {_place(json.loads(place) or {})}" for place in sorted(places)),
        f"{trainings}, including evaluation. `{FILE}` has the configuration, epochs and measurements of each run; "
        "`vitmix report .` makes a page of them, and `--rows` and `--seeds` select runs to repeat.",
        *sections(comparison, read_tables(runs)[0]),
    ]
    return "\n\n".join(parts) + "\n"


def _command(runs: Sequence[Run]) -> str:
    """The command that repeats everything that was measured with the default settings."""
    measured = {part for run in runs if run.robustness for part in usual_parts(run.robustness)}
    suite = tuple(part for part in PARTS if part in measured)
    evaluations = Evaluations(suite, any(run.analyses for run in runs))
    return " ".join(["vitmix compare . --output AGAIN", *evaluations.flags])


def _place(environment: Mapping[str, str | None]) -> str:
    versions = [f"{name} {version}" for name, version in environment.items() if name != "device"]
    return f"{environment.get('device')}: {', '.join(versions)}"


def _cost(row: Row) -> list[Any]:
    epochs = sorted({len(run.epochs) for run in row.runs.values()})
    return [row.row, " and ".join(map(str, epochs)), *(each.mean(row) for each in (SPEED, MEMORY, WHOLE_TIME))]
