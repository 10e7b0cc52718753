"""What a person sees while the cells of a matrix are trained."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitmix.lab.training.progress import duration

from .matrix import Cell

TERMINAL_SECONDS, LINE_SECONDS = 1.0, 60.0
MEASURING = "trained, measuring"


class Overview:
    """On a terminal a bar for all epochs and one for each training that runs; elsewhere a line a minute."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells, self.begun = cells, time.monotonic()
        self._labels = labels_of(cells)
        self._console = Console(highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        status = (TextColumn("{task.fields[status]}", markup=False), TimeRemainingColumn())
        # No thread of its own: the trainings are tied to the one that starts them.
        self._progress = Progress(*columns, *status, console=self._console, auto_refresh=False, transient=True)
        self._tasks: dict[str, TaskID] = {}
        self._shown = self.begun

    def __enter__(self) -> "Overview":
        if self._console.is_terminal:
            total = sum(cell.config.total_epochs for cell in self.cells)
            self._all = self._progress.add_task("all epochs", total=total, status="")
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def update(self, working: Sequence[Cell]) -> None:
        """Shows where the trainings are, as their folders say, if the last time is long enough ago."""
        now = time.monotonic()
        if now - self._shown < (TERMINAL_SECONDS if self._console.is_terminal else LINE_SECONDS):
            return
        self._shown = now
        if self._console.is_terminal:
            self._draw(working)
        elif working:
            self.say(f"{duration(now - self.begun)}  {'; '.join(map(self._where, working))}")

    def _where(self, cell: Cell) -> str:
        epoch = f"epoch {epochs_of(cell)[0]}/{cell.config.total_epochs}"
        return f"{self._labels[cell.name]}: {MEASURING if cell.folder.summary.exists() else epoch}"

    def _draw(self, working: Sequence[Cell]) -> None:
        names = {cell.name for cell in working}
        for name in [name for name in self._tasks if name not in names]:
            self._progress.remove_task(self._tasks.pop(name))
        for cell in working:
            if cell.name not in self._tasks:
                total = cell.config.total_epochs
                self._tasks[cell.name] = self._progress.add_task(self._labels[cell.name], total=total, status="")
            epochs, row = epochs_of(cell)
            status = "" if row is None else f"top-1 {100 * row['accuracy']:.2f} %" if "accuracy" in row else ""
            status = MEASURING if cell.folder.summary.exists() else status
            self._progress.update(self._tasks[cell.name], completed=epochs, status=status)
        self._progress.update(self._all, completed=sum(epochs_of(cell)[0] for cell in self.cells))
        self._progress.refresh()


def labels_of(cells: Sequence[Cell]) -> dict[str, str]:
    """Short texts by the cells' names: row and seed, with model and data where there are several."""
    several = [name for name in ("model", "data") if len({getattr(cell, name) for cell in cells}) > 1]
    return {
        cell.name: ", ".join([cell.row, *(getattr(cell, name) for name in several), f"seed {cell.seed}"])
        for cell in cells
    }


def epochs_of(cell: Cell) -> tuple[int, dict[str, Any] | None]:
    """How many epochs a cell has, and what the last one gave."""
    try:
        rows = cell.folder.read_metrics()
        return len(rows), rows[-1]
    except (OSError, IndexError, ValueError):
        return 0, None
