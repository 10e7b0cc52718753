"""What a person sees while a comparison is running."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitmix.lab.report.quantities import titled
from vitmix.lab.training.progress import duration

from .matrix import Training

TERMINAL_SECONDS, LINE_SECONDS = 1.0, 60.0
EVALUATING = "trained, evaluating"


class Overview:
    """On a terminal, a bar for all epochs and one for each active run; elsewhere, a line per minute."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings, self.begun = trainings, time.monotonic()
        self._labels = labels_of(trainings)
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        status = (TextColumn("{task.fields[status]}", markup=False), TimeRemainingColumn())
        # No extra thread: the runs end with the thread that starts them.
        self._progress = Progress(
            *columns, *status, console=self._console, auto_refresh=False, transient=True, disable=not self._live
        )
        total = sum(training.config.total_epochs for training in trainings)
        self._all = self._progress.add_task("all epochs", total=total, status="")
        self._tasks: dict[str, TaskID] = {}
        self._shown = self.begun

    def __enter__(self) -> "Overview":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def update(self, working: Sequence[Training]) -> None:
        """Shows the progress that the run folders report, if the last update is long enough ago."""
        now = time.monotonic()
        if now - self._shown < (TERMINAL_SECONDS if self._live else LINE_SECONDS):
            return
        self._shown = now
        if self._live:
            self._draw(working)
        elif working:
            self.say(f"{duration(now - self.begun)}  {'; '.join(map(self._where, working))}")

    def _where(self, training: Training) -> str:
        run = training.run
        epoch = f"epoch {len(run.epochs)}/{training.config.total_epochs}"
        return f"{self._labels[training.name]}: {EVALUATING if run.summary is not None else epoch}"

    def _draw(self, working: Sequence[Training]) -> None:
        names = {training.name for training in working}
        for name in [name for name in self._tasks if name not in names]:
            self._progress.remove_task(self._tasks.pop(name))
        for training in working:
            if training.name not in self._tasks:
                label, total = self._labels[training.name], training.config.total_epochs
                self._tasks[training.name] = self._progress.add_task(label, total=total, status="")
            run = training.run
            score = run.epochs[-1].get(training.config.headline) if run.epochs else None
            status = "" if score is None else f"{titled(training.config.headline)} {100 * score:.2f} %"
            status = EVALUATING if run.summary is not None else status
            self._progress.update(self._tasks[training.name], completed=len(run.epochs), status=status)
        self._progress.update(self._all, completed=sum(len(training.run.epochs) for training in self.trainings))
        self._progress.refresh()


def labels_of(trainings: Sequence[Training]) -> dict[str, str]:
    """A short label for each run: row and seed, with model and data if there are several."""
    several = [name for name in ("model", "data") if len({getattr(training, name) for training in trainings}) > 1]
    return {
        each.name: ", ".join([each.row, *(getattr(each, name) for name in several), f"seed {each.seed}"])
        for each in trainings
    }
