"""`vitmix compare`: a matrix of runs, and what may be concluded from it."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vitmix.lab.cli._common import Method
from vitmix.lab.cli._parser import Command
from vitmix.lab.columns import aligned
from vitmix.lab.settings import Count, Folder, Name, NotNegative, Positive, Settings, key_and_value, option
from vitmix.lab.training.output import unfailing_output

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import RunMatrix, Training

UNFINISHED = 75  # what shells know as "try again later"


@dataclass(frozen=True, kw_only=True)
class Cluster(Settings):
    """Where runs are executed, if not on this machine."""

    section = "On a cluster"

    on: Literal["ray", "slurm"] | None = option(None, "run on a Ray or Slurm cluster instead of this machine")
    address: Annotated[str, "HOST:PORT"] | None = option(
        None, "running Ray cluster (default: $RAY_ADDRESS, the one of this machine, or a new one here)"
    )
    slurm: tuple[Annotated[str, "KEY=VALUE"], ...] = option(
        (), "options of sbatch, such as partition=gpu time=4:00:00 account=mine"
    )
    cpus: Count | None = option(None, "CPU cores of each run (default: as many as data-loader workers, at least 1)")
    gpus: NotNegative | None = option(
        None, "GPUs of each run; with Ray also a fraction, such as 0.5 (default: 1 if the cluster has any)"
    )
    store: Annotated[str, "URL"] | None = option(
        None,
        "how files of runs travel to and from nodes: s3://BUCKET/FOLDER or another URL of fsspec, or 'objects' for "
        "Ray's object store (default: the output folder, if nodes share it; with Ray otherwise objects)",
    )


@dataclass(frozen=True, kw_only=True)
class Compare(Cluster):
    """Train a matrix of methods, models, data and seeds, and compare."""

    epilog = (
        "Example: vitmix compare example. Or: vitmix compare --method cutmix smmix --seeds 0 1 2 --set recipe=shapes. "
        "Rerun the command to resume; finished runs are skipped."
    )

    matrix: Annotated[str, "MATRIX"] = option("", "YAML file, published comparison or built-in matrix", positional=True)
    list: bool = option(False, "list the built-in matrices, such as the papers' tables")
    rows: tuple[Name, ...] = option(
        (),
        "train and compare only these rows of the matrix, in this order; the baseline is added once all of "
        "its runs are finished",
    )
    method: tuple[Method, ...] = option((), "methods as rows (default: the matrix's)")
    model: tuple[Annotated[str, "NAME"], ...] = option(
        (), "timm models, or backbones of transfers (default: the matrix's)"
    )
    data: tuple[str, ...] = option((), "datasets (default: the matrix's)")
    seeds: tuple[int, ...] = option((), "seeds (default: the matrix's)")
    set: tuple[Annotated[str, "KEY=VALUE"], ...] = option(
        (),
        "settings of vitmix train for every run (of vitmix transfer if they include task); not those that a row of "
        "the matrix sets",
    )
    baseline: Name | None = option(None, "row with which the others are compared")
    measure: Literal["last", "best"] = option(
        "last", "epoch whose score is compared: top-1 accuracy, or the task's first score"
    )
    suite: Annotated[str, "NAME[,NAME]"] | None = option(
        None, "also run these suites of vitmix eval on every finished run, such as clean,noise,occlusion"
    )
    analyze: bool = option(False, "also run the studies of vitmix analyze on every finished run")
    jobs: Count | None = option(None, "number of parallel runs (default: 1; on a cluster, as many as it has room for)")
    minutes: Positive | None = option(None, "stop at checkpoints after this time; rerun to resume")
    stop_at_failure: bool = option(False, "stop all runs when one fails (default: the others continue)")
    dry_run: bool = option(False, "list the runs and whether they are finished")
    no_train: bool = option(False, "train nothing; write table and page of the existing runs")
    output: Folder | None = option(None, "output folder (default: comparisons/NAME)")
    publish: Folder | None = option(
        None, "also write a small folder for a repository: tables and settings without weights"
    )


def run(settings: Compare) -> int:
    # Not at the top: every other command would wait for these imports.
    from vitmix.lab.comparison import matrix as matrices
    from vitmix.lab.comparison.evaluations import Evaluations
    from vitmix.lab.comparison.runner import Interrupted, check_trainings, is_done, run_trainings
    from vitmix.lab.engines.choosing import choose_engine

    if settings.list:
        return _list()
    evaluations = Evaluations.of(settings.suite, settings.analyze)
    if settings.no_train and evaluations.flags:
        raise ValueError(f"--no-train and {evaluations.flags[0]} exclude each other; give one of the two")
    if not settings.matrix and settings.rows:
        raise ValueError("--rows selects rows of a matrix; name the matrix first: compare MATRIX --rows NAME")
    if not settings.matrix and not settings.method:
        raise ValueError("there is nothing to compare; name a matrix ('vitmix compare --list') or give --method")
    if settings.rows and settings.method:
        raise ValueError("--method replaces the rows that --rows selects from; give one of the two")
    matrix = matrices.changed(
        matrices.read_matrix(settings.matrix) if settings.matrix else None,
        methods=settings.method,
        models=settings.model,
        data=settings.data,
        seeds=settings.seeds,
        settings=dict(key_and_value(each, "--set") for each in settings.set),
        baseline=settings.baseline,
    )
    if "task" in matrix.settings and evaluations.flags:
        raise ValueError(f"{evaluations.flags[0]} measures classifiers, but these runs are transfers; leave it out")
    output = Path(settings.output or matrices.usual_output(settings.matrix))
    if output.exists() and not output.is_dir():
        raise ValueError(f"{str(output)!r} is a file; give a folder as --output")
    if settings.rows:
        matrix = _only(matrix, settings.rows, output, asked=settings.baseline)
    trainings = matrix.trainings(output, *([Path(settings.matrix)] if settings.no_train and settings.matrix else []))
    check_trainings(trainings)
    cluster = {each.name: getattr(settings, each.name) for each in fields(Cluster)}
    engine = choose_engine(runs=output / "runs", jobs=settings.jobs, **cluster)
    bare = [training.name for training in trainings if is_done(training) and not training.run.best.exists()]
    if evaluations.flags and bare:
        raise ValueError(
            f"{bare[0]} has no weights to evaluate, as in a published folder; leave out {evaluations.flags[0]}"
        )
    if settings.dry_run:
        for training in trainings:
            left = "to evaluate" if is_done(training) else "to run"
            state = "done" if is_done(training, evaluations) else left
            print(f"{state:<{11 if evaluations.flags else 7}} {training.name}")
        return 0
    with unfailing_output():
        failures = []
        if not settings.no_train:
            if matrix.note:
                print(f"Note: {matrix.note}.")
            try:
                failures = run_trainings(
                    trainings,
                    engine=engine,
                    minutes=settings.minutes,
                    stop_at_failure=settings.stop_at_failure,
                    evaluations=evaluations,
                    say=print,
                )
            except Interrupted as stopped:
                print(f"Stopped by {stopped}. Checkpoints were written; rerun the command to resume.")
                _conclude(matrix, trainings, output, settings.measure, settings.publish)
                return stopped.exit_code
        _conclude(matrix, trainings, output, settings.measure, settings.publish)
        for failure in failures:
            print(f"Failed: {failure.training.name}: {failure.reason} ({failure.log})")
        if failures:
            return 1
        missing = sum(is_done(training) and not is_done(training, evaluations) for training in trainings)
        if missing:
            print(f"Not evaluated yet: {missing} of {len(trainings)} runs; rerun the command to resume.")
        return 0 if settings.no_train or all(is_done(training, evaluations) for training in trainings) else UNFINISHED


def _only(matrix: "RunMatrix", rows: tuple[str, ...], output: Path, *, asked: str | None) -> "RunMatrix":
    """These rows of the matrix, after its baseline if that is finished; `asked` is the baseline given as a flag."""
    from vitmix.lab.comparison.runner import is_done

    chosen, baseline = matrix.only(rows), matrix.reference
    if baseline in rows:
        return chosen
    if all(map(is_done, matrix.only([baseline]).trainings(output))):
        return matrix.only([baseline, *rows])
    if asked is not None:
        raise ValueError(f"the baseline {asked!r} is not finished; name it among --rows too")
    instead = f"{chosen.reference!r} replaces it" if len(rows) > 1 else "there is nothing to compare with yet"
    print(f"The baseline {baseline!r} is neither finished nor among --rows; {instead}.")
    return chosen


def _conclude(
    matrix: "RunMatrix", trainings: "list[Training]", output: Path, measure: str, publish: str | None
) -> None:
    from vitmix.lab.comparison import compare, publishing, rows

    found = compare(matrix, trainings, measure=measure)
    if not any(row.runs for row in found.rows):
        print("No run is finished yet, so there is nothing to compare.")
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

    rows = []
    for name, matrix in list_matrices().items():
        trainings = len(matrix.rows) * max(1, len(matrix.models)) * max(1, len(matrix.data)) * len(matrix.seeds)
        rows.append((name, f"{matrix.about} ({trainings} runs)"))
    print(aligned(rows))
    return 0


COMMAND = Command(Compare, run)
