"""`vitmix compare`: a matrix of trainings, and what may be concluded from it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import Count, Folder, Method, Name, Positive, Settings, key_and_value, option

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import Cell, Matrix

UNFINISHED = 75  # what shells know as "try again later"


@dataclass(frozen=True, kw_only=True)
class Compare(Settings):
    """Train a matrix of methods, models, data and seeds, and compare."""

    epilog = (
        "Example: vitmix compare example. Or: vitmix compare --method cutmix smmix --seeds 0 1 2 --set recipe=shapes. "
        "The same command resumes where it was stopped, and skips what is done."
    )

    matrix: Annotated[str, "MATRIX"] = option("", "YAML file of a matrix, or the name of a ready one", positional=True)
    list: bool = option(False, "list the ready matrices: the papers' tables")
    rows: tuple[Name, ...] = option(
        (),
        "train and compare only these rows of the matrix, in this order; the baseline stays beside them once all of "
        "its trainings are done",
    )
    method: tuple[Method, ...] = option((), "methods as rows (default: the matrix's)")
    model: tuple[Name, ...] = option((), "timm models (default: the matrix's)")
    data: tuple[str, ...] = option((), "data sets (default: the matrix's)")
    seeds: tuple[int, ...] = option((), "seeds (default: the matrix's)")
    set: tuple[Annotated[str, "KEY=VALUE"], ...] = option(
        (), "settings of every training, as vitmix train has them; none that a row of the matrix sets itself"
    )
    baseline: Name | None = option(None, "row that the others are compared with")
    measure: Literal["last", "best"] = option("last", "epoch whose top-1 accuracy is compared")
    suite: Annotated[str, "NAME[,NAME]"] | None = option(
        None, "also run these parts of vitmix eval --suite on every finished training, such as clean,noise,occlusion"
    )
    analyze: bool = option(False, "also run the studies of vitmix analyze on every finished training")
    jobs: Count = option(1, "trainings side by side on the device")
    minutes: Positive | None = option(None, "stop at checkpoints after so long; the next call resumes")
    stop_at_failure: bool = option(False, "stop everything when a training fails; others continue otherwise")
    dry_run: bool = option(False, "list the trainings and whether they are done")
    no_train: bool = option(False, "only write table and page of what is there")
    output: Folder | None = option(None, "where everything goes (default: comparisons/NAME)")
    publish: Folder | None = option(None, "also write a small folder for a repository: tables, settings, no weights")


def run(settings: Compare) -> int:
    # Not at the top: every other command would wait for these imports.
    from vitmix.lab.comparison import matrix as matrices
    from vitmix.lab.comparison.measuring import Measuring
    from vitmix.lab.comparison.runner import Interrupted, check_cells, is_done, run_cells

    if settings.list:
        return _list()
    measuring = Measuring.of(settings.suite, settings.analyze)
    if settings.no_train and measuring.flags:
        raise ValueError(f"--no-train runs nothing, which {measuring.flags[0]} would; give one of the two")
    if not settings.matrix and settings.rows:
        raise ValueError("--rows chooses among a matrix's rows; name the matrix before it: compare MATRIX --rows NAME")
    if not settings.matrix and not settings.method:
        raise ValueError("there is nothing to compare; name a matrix ('vitmix compare --list') or give --method")
    if settings.rows and settings.method:
        raise ValueError("--rows chooses among the rows that --method would replace; give one of the two")
    matrix = matrices.changed(
        matrices.read_matrix(settings.matrix) if settings.matrix else None,
        methods=settings.method,
        models=settings.model,
        data=settings.data,
        seeds=settings.seeds,
        settings=dict(key_and_value(each, "--set") for each in settings.set),
        baseline=settings.baseline,
    )
    output = Path(settings.output or Path("comparisons") / Path(settings.matrix or "methods").stem)
    if output.exists() and not output.is_dir():
        raise ValueError(f"{str(output)!r} is a file; give a folder as --output")
    if settings.rows:
        matrix = _only(matrix, settings.rows, output, asked=settings.baseline)
    cells = matrix.cells(output)
    check_cells(cells)
    bare = [cell.name for cell in cells if is_done(cell) and not cell.folder.best.exists()]
    if measuring.flags and bare:
        raise ValueError(
            f"{bare[0]} has no weights to measure, as in a published folder; leave out {measuring.flags[0]}"
        )
    if settings.dry_run:
        for cell in cells:
            left = "to measure" if is_done(cell) else "to run"
            print(f"{'done' if is_done(cell, measuring) else left:<{10 if measuring.flags else 7}} {cell.name}")
        return 0
    failures = []
    if not settings.no_train:
        if matrix.note:
            print(f"Note: {matrix.note}.")
        try:
            failures = run_cells(
                cells,
                jobs=settings.jobs,
                minutes=settings.minutes,
                stop_at_failure=settings.stop_at_failure,
                measuring=measuring,
                say=print,
            )
        except Interrupted as stopped:
            print(f"Stopped by {stopped}. Trainings have written checkpoints; the same command resumes.")
            return stopped.exit_code
    _conclude(matrix, cells, output, settings.measure, publish=settings.publish)
    for failure in failures:
        print(f"Failed: {failure.cell.name}: {failure.reason} ({failure.log})")
    if failures:
        return 1
    unmeasured = sum(is_done(cell) and not is_done(cell, measuring) for cell in cells)
    if unmeasured:
        print(f"Not measured yet: {unmeasured} of {len(cells)} trainings; the same command resumes.")
    return 0 if settings.no_train or all(is_done(cell, measuring) for cell in cells) else UNFINISHED


def _only(matrix: "Matrix", rows: tuple[str, ...], output: Path, *, asked: str | None) -> "Matrix":
    """These rows of the matrix, behind its baseline where that is done; `asked` is a baseline that was named."""
    from vitmix.lab.comparison.runner import is_done

    chosen, baseline = matrix.only(rows), matrix.reference
    if baseline in rows:
        return chosen
    if all(map(is_done, matrix.only([baseline]).cells(output))):
        return matrix.only([baseline, *rows])
    if asked is not None:
        raise ValueError(f"the baseline {asked!r} is not finished; name it among --rows too")
    instead = f"{chosen.reference!r} is in its place" if len(rows) > 1 else "there is nothing to compare with yet"
    print(f"The baseline {baseline!r} is neither finished nor among --rows; {instead}.")
    return chosen


def _conclude(matrix: "Matrix", cells: "list[Cell]", output: Path, measure: str, *, publish: str | None) -> None:
    import yaml

    from vitmix.lab.comparison import measured, page, results
    from vitmix.lab.comparison import publish as publishing
    from vitmix.lab.training.checkpoints import write_file

    found = results.compare_cells(matrix, cells, measure=measure)
    if not any(entry.runs for entry in found.entries):
        print("No training is finished yet, so there is nothing to compare.")
        return
    panels, notes = measured.read_panels(found)
    print(results.text(found))  # first: a disk may be full by now
    for note in notes:
        print(f"Left out: {note}.")
    content = publishing.content(matrix, found, panels)
    write_file(output / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
    write_file(output / "compare.csv", results.csv_text(content["rows"]).encode())
    write_file(output / "matrix.yaml", yaml.safe_dump(matrix.plain(), sort_keys=False, width=1000).encode())
    write_file(output / "compare.html", page.comparison_page(found, matrix.about).encode())
    print(f"{output}: compare.html, compare.csv, compare.json, matrix.yaml, runs")
    if publish is not None:
        publishing.publish(matrix, found, panels, Path(publish))
        print(f"{publish}: README.md, compare.csv, compare.json, matrix.yaml, runs")


def _list() -> int:
    from vitmix.lab.comparison.matrix import list_matrices

    found = list_matrices()
    width = max(map(len, found))
    for name, matrix in found.items():
        cells = len(matrix.rows) * max(1, len(matrix.models)) * max(1, len(matrix.data)) * len(matrix.seeds)
        print(f"{name:<{width}}  {matrix.about} ({cells} trainings)")
    return 0


COMMAND = Command(Compare, run)
