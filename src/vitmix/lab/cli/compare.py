"""`vitmix compare`: a matrix of trainings, and what may be concluded from it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.lab.cli._command import Command
from vitmix.lab.cli.train import key_and_value

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import Matrix, Training

UNFINISHED = 75  # what shells know as "try again later"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Example: vitmix compare example. Or: vitmix compare --method cutmix smmix --seeds 0 1 2 --set recipe=shapes. "
        "The same command goes on where it was stopped, and skips what is done."
    )
    add = parser.add_argument
    add(
        "matrix",
        nargs="?",
        metavar="MATRIX",
        help="YAML file, published comparison, or name of a ready matrix",
    )
    add("--list", action="store_true", help="list the ready matrices: the papers' tables")
    add(
        "--rows",
        nargs="+",
        metavar="NAME",
        default=[],
        help="train and compare only these rows of the matrix, in this order; the baseline stays beside them once all "
        "of its trainings are done",
    )
    add("--method", nargs="+", metavar="METHOD", default=[], help="methods as rows, instead of the matrix's own")
    add("--model", nargs="+", metavar="NAME", default=[], help="timm models, instead of the matrix's own")
    add("--data", nargs="+", metavar="TEXT", default=[], help="data sets, instead of the matrix's own")
    add("--seeds", nargs="+", type=int, metavar="N", default=[], help="seeds, instead of the matrix's own")
    add(
        "--set",
        nargs="+",
        metavar="KEY=VALUE",
        default=[],
        help="settings of every training, as vitmix train has them; none that a row of the matrix sets itself",
    )
    add("--baseline", metavar="ROW", help="row that the others are compared with")
    add("--measure", choices=("last", "best"), default="last", help="top-1 of which epoch is compared (default: last)")
    add(
        "--suite",
        metavar="NAME[,NAME]",
        help="also evaluate every training that has ended on changed images: parts of vitmix eval --suite, such as "
        "clean,noise,occlusion",
    )
    add(
        "--analyze",
        action="store_true",
        help="also make the studies of vitmix analyze, of every training that has ended",
    )
    add("--jobs", type=int, default=1, metavar="N", help="trainings side by side on the device (default: 1)")
    add("--minutes", type=float, metavar="M", help="stop at checkpoints after so long; the next call goes on")
    add("--stop-at-failure", action="store_true", help="stop everything when a training fails; others go on otherwise")
    add("--dry-run", action="store_true", help="list the trainings and whether they are done")
    add("--no-train", action="store_true", help="only write table and page of what is there")
    add("--output", metavar="FOLDER", help="where everything goes; comparisons/NAME if none")
    add("--publish", metavar="FOLDER", help="also write a small folder for a repository: tables, settings, no weights")


def _run(namespace: argparse.Namespace) -> int:
    # Not at the top: every other command would wait for these imports.
    from vitmix._checks import check_count, check_positive
    from vitmix.lab.comparison import matrix as matrices
    from vitmix.lab.comparison.evaluations import Evaluations
    from vitmix.lab.comparison.runner import Interrupted, check_trainings, is_done, run_trainings

    if namespace.list:
        return _list()
    check_count("jobs", namespace.jobs)
    if namespace.minutes is not None:
        check_positive("minutes", namespace.minutes)
    evaluations = Evaluations.of(namespace.suite, namespace.analyze)
    if namespace.no_train and evaluations.flags:
        raise ValueError(f"--no-train runs nothing, which {evaluations.flags[0]} would; give one of the two")
    if namespace.matrix is None and namespace.rows:
        raise ValueError("--rows chooses among a matrix's rows; name the matrix before it: compare MATRIX --rows NAME")
    if namespace.matrix is None and not namespace.method:
        raise ValueError("there is nothing to compare; name a matrix ('vitmix compare --list') or give --method")
    if namespace.rows and namespace.method:
        raise ValueError("--rows chooses among the rows that --method would replace; give one of the two")
    matrix = matrices.changed(
        None if namespace.matrix is None else matrices.read_matrix(namespace.matrix),
        methods=namespace.method,
        models=namespace.model,
        data=namespace.data,
        seeds=namespace.seeds,
        settings=dict(key_and_value(each, "--set") for each in namespace.set),
        baseline=namespace.baseline,
    )
    output = Path(namespace.output or matrices.usual_output(namespace.matrix))
    if output.exists() and not output.is_dir():
        raise ValueError(f"{str(output)!r} is a file; give a folder as --output")
    if namespace.rows:
        matrix = _only(matrix, namespace.rows, output, asked=namespace.baseline)
    trainings = matrix.trainings(output)
    check_trainings(trainings)
    bare = [training.name for training in trainings if is_done(training) and not training.run.best.exists()]
    if evaluations.flags and bare:
        raise ValueError(
            f"{bare[0]} has no weights to evaluate, as in a published folder; leave out {evaluations.flags[0]}"
        )
    if namespace.dry_run:
        for training in trainings:
            left = "to evaluate" if is_done(training) else "to run"
            state = "done" if is_done(training, evaluations) else left
            print(f"{state:<{11 if evaluations.flags else 7}} {training.name}")
        return 0
    failures = []
    if not namespace.no_train:
        if matrix.note:
            print(f"Note: {matrix.note}.")
        try:
            failures = run_trainings(
                trainings,
                jobs=namespace.jobs,
                minutes=namespace.minutes,
                stop_at_failure=namespace.stop_at_failure,
                evaluations=evaluations,
                say=print,
            )
        except Interrupted as stopped:
            print(f"Stopped by {stopped}. Trainings have written checkpoints; the same command resumes.")
            return stopped.exit_code
    _conclude(matrix, trainings, output, namespace.measure, namespace.publish)
    for failure in failures:
        print(f"Failed: {failure.training.name}: {failure.reason} ({failure.log})")
    if failures:
        return 1
    unmeasured = sum(is_done(training) and not is_done(training, evaluations) for training in trainings)
    if unmeasured:
        print(f"Not measured yet: {unmeasured} of {len(trainings)} trainings; the same command resumes.")
    return 0 if namespace.no_train or all(is_done(training, evaluations) for training in trainings) else UNFINISHED


def _only(matrix: "Matrix", rows: list[str], output: Path, *, asked: str | None) -> "Matrix":
    """These rows of the matrix, behind its baseline where that is done; `asked` is a baseline that was named."""
    from vitmix.lab.comparison.runner import is_done

    chosen, baseline = matrix.only(rows), matrix.reference
    if baseline in rows:
        return chosen
    if all(map(is_done, matrix.only([baseline]).trainings(output))):
        return matrix.only([baseline, *rows])
    if asked is not None:
        raise ValueError(f"the baseline {asked!r} is not finished; name it among --rows too")
    instead = f"{chosen.reference!r} is in its place" if len(rows) > 1 else "there is nothing to compare with yet"
    print(f"The baseline {baseline!r} is neither finished nor among --rows; {instead}.")
    return chosen


def _conclude(matrix: "Matrix", trainings: "list[Training]", output: Path, measure: str, publish: str | None) -> None:
    from vitmix.lab.comparison import compare, publishing, rows

    found = compare(matrix, trainings, measure=measure)
    if not any(row.runs for row in found.rows):
        print("No training is finished yet, so there is nothing to compare.")
        return
    print(rows.text(found))  # first: a disk may be full by now
    for note in publishing.write_results(matrix, found, output):
        print(f"Left out: {note}.")
    print(f"{output}: compare.html, compare.csv, compare.json, matrix.yaml, runs")
    if publish is not None:
        publishing.publish(matrix, found, Path(publish))
        print(f"{publish}: README.md, {publishing.FILE}")


def _list() -> int:
    from vitmix.lab.comparison.matrix import list_matrices

    found = list_matrices()
    width = max(map(len, found))
    for name, matrix in found.items():
        trainings = len(matrix.rows) * max(1, len(matrix.models)) * max(1, len(matrix.data)) * len(matrix.seeds)
        print(f"{name:<{width}}  {matrix.about} ({trainings} trainings)")
    return 0


COMMAND = Command("Train a matrix of methods, models, data and seeds, and compare.", _add_arguments, _run)
