"""Runs the cells of a matrix: what is done is skipped, what was begun goes on, what fails is told and left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitmix.train.checkpoints import write_file
from vitmix.train.config import to_yaml
from vitmix.train.runs import RunFolder

from .matrix import Cell

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOOK_SECONDS = 0.3
THREADS = "OMP_NUM_THREADS"


class Interrupted(Exception):
    """The comparison was told to stop; every training it had begun has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Failure:
    """A training that ended with an error, and the last thing it said."""

    cell: Cell
    reason: str
    log: Path


def is_done(cell: Cell) -> bool:
    """Whether the training is finished and its best weights are evaluated."""
    folder = folder_of(cell)
    return folder.read_summary() is not None and (folder.path / "evaluation.json").is_file()


def folder_of(cell: Cell) -> RunFolder:
    assert cell.config.output is not None
    return RunFolder(Path(cell.config.output))


def run_cells(
    cells: Sequence[Cell], output: Path, *, jobs: int = 1, say: Callable[[str], None] = lambda text: None
) -> list[Failure]:
    """Trains every cell that is not done, `jobs` at a time, each in a process of its own; returns what failed.

    Several comparisons may work on one folder: a cell that another process trains is left to it.
    """
    for cell in cells:
        folder_of(cell).check(cell.config)  # before anything runs: a folder with another training is refused
    waiting = [cell for cell in cells if not is_done(cell)]
    say(f"{len(cells)} trainings: {len(cells) - len(waiting)} done, {len(waiting)} to run.")
    if not waiting:
        return []
    for name in ("cells", "logs", "runs"):
        (output / name).mkdir(parents=True, exist_ok=True)
    crew = _Crew(output, jobs)
    handlers = {number: signal.signal(number, crew.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, auto_refresh=False) as progress:  # one thread: the children are tied to this one
            task = progress.add_task("epochs", total=sum(cell.config.total_epochs for cell in cells))

            def tell(text: str) -> None:
                progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

            while waiting or crew.working:
                waiting = crew.start(waiting, tell)
                crew.collect(tell)
                progress.update(task, completed=sum(map(_epochs, cells)), refresh=True)
                time.sleep(LOOK_SECONDS)
    finally:
        crew.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return crew.failures


class _Crew:
    """The processes that train now."""

    def __init__(self, output: Path, jobs: int) -> None:
        self.output, self.jobs = output, jobs
        self.working: list[tuple[Cell, subprocess.Popen[bytes], float]] = []
        self.failures: list[Failure] = []

    def interrupt(self, number: int, frame: Any) -> None:
        raise Interrupted(number)

    def start(self, waiting: list[Cell], say: Callable[[str], None]) -> list[Cell]:
        """Starts what there is room for; returns what still waits."""
        left = []
        for cell in waiting:
            if is_done(cell):  # by another comparison, meanwhile
                continue
            if len(self.working) >= self.jobs or is_busy(folder_of(cell)):
                left.append(cell)
            else:
                say(f"{cell.name} {'goes on' if folder_of(cell).exists else 'begins'}")
                self.working.append((cell, self._process(cell), time.monotonic()))
        return left

    def _process(self, cell: Cell) -> "subprocess.Popen[bytes]":
        settings = self.output / "cells" / f"{cell.name}.yaml"
        write_file(settings, to_yaml(cell.config).encode())
        environment = dict(os.environ)
        if self.jobs > 1:
            environment.setdefault(THREADS, str(max(1, (os.cpu_count() or 1) // self.jobs)))
        command = [sys.executable, "-m", "vitmix.compare.cell", str(os.getpid()), str(settings)]
        with open(self._log(cell), "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def _log(self, cell: Cell) -> Path:
        return self.output / "logs" / f"{cell.name}.log"

    def collect(self, say: Callable[[str], None]) -> None:
        """Takes note of the processes that have ended."""
        ended = [each for each in self.working if each[1].poll() is not None]
        self.working = [each for each in self.working if each not in ended]
        for cell, process, begun in ended:
            code = process.returncode
            if code == 0:
                say(f"{cell.name} is done, after {time.monotonic() - begun:.0f} s")
                continue
            failure = Failure(cell, _last_line(self._log(cell)) or f"it ended with code {code}", self._log(cell))
            self.failures.append(failure)
            say(f"{cell.name} failed: {failure.reason}")

    def stop(self) -> None:
        """Lets every training write its checkpoint and end."""
        for _, process, _ in self.working:
            process.terminate()
        for _, process, _ in self.working:
            process.wait()
        self.working.clear()


def is_busy(folder: RunFolder) -> bool:
    """Whether another process trains in a folder."""
    lock = folder.path / ".lock"
    if fcntl is None or not lock.exists():
        return False
    with open(lock, "rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _epochs(cell: Cell) -> int:
    try:
        return (folder_of(cell).path / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line]
    return lines[-1].removeprefix("vitmix: error: ") if lines else ""
