"""Runs the cells of a matrix: what is done is skipped, what was begun goes on, what fails is told and left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from vitmix.lab.training.checkpoints import make_folder, write_file
from vitmix.lab.training.config import to_yaml
from vitmix.lab.training.prepare import check_model
from vitmix.lab.training.runs import RunFolder

from .matrix import Cell
from .measuring import Measuring
from .overview import Overview

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOOK_SECONDS = 0.3
THREADS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")  # of which each training has its part
CLAIM = ".claim"  # locked by the comparison that has a process for the cell, from before its start to its end
SETTINGS = ".cell.yaml"  # hidden: a run folder must look empty before its training begins
NOTHING = Measuring()


class Interrupted(Exception):
    """The comparison was told to stop; every training it had begun has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Failure:
    """A cell whose process ended with an error, and the last thing it said."""

    cell: Cell
    reason: str
    log: Path


def is_trained(folder: RunFolder) -> bool:
    """Whether the training is finished and its best weights are evaluated."""
    return folder.read_summary() is not None and (folder.path / "evaluation.json").is_file()


def is_done(cell: Cell, measuring: Measuring = NOTHING) -> bool:
    """Whether the cell is trained, and everything is measured that is asked for besides."""
    return is_trained(cell.folder) and not measuring.missing(cell.folder)


def check_cells(cells: Sequence[Cell]) -> None:
    """Refuses, before anything runs or is read, names that are wrong and folders with another training in them."""
    for cell in cells:
        check_model(cell.config.model)
        cell.folder.check(cell.config)


def run_cells(
    cells: Sequence[Cell],
    *,
    jobs: int = 1,
    minutes: float | None = None,
    stop_at_failure: bool = False,
    measuring: Measuring = NOTHING,
    say: Callable[[str], None] = lambda text: None,
) -> list[Failure]:
    """Trains and measures every cell that is not done, `jobs` at a time, each in its process; returns what failed.

    Several comparisons may work on one folder: a cell that another process trains is left to it. Whatever ends this
    function early (a signal, the end of the `minutes`, a failure if asked) lets each training write a checkpoint.
    """
    check_cells(cells)
    waiting = [cell for cell in cells if not is_done(cell, measuring)]
    to_measure = sum(is_trained(cell.folder) for cell in waiting)
    to_run = len(waiting) - to_measure
    said = f"{len(cells)} training{'s' * (len(cells) != 1)}: {len(cells) - to_run} done, {to_run} to run"
    say(f"{said}, {to_measure} to measure." if to_measure else f"{said}.")
    if not waiting:
        return []
    with Overview(cells) as overview, _Crew(jobs, measuring, overview.say) as crew:
        while (waiting or crew.working) and not crew.received:
            if minutes is not None and time.monotonic() - overview.begun >= 60 * minutes:
                overview.say(
                    f"{minutes:g} minutes are over; trainings are stopped at a checkpoint, measuring where it is."
                )
                break
            if crew.failures and stop_at_failure:
                break
            waiting = crew.start(waiting)
            overview.update([cell for cell, _, _ in crew.working])
            time.sleep(LOOK_SECONDS)
            waiting = [*crew.collect(), *waiting]
    if crew.received:
        raise Interrupted(crew.received)
    return crew.failures


class _Crew:
    """The processes at work now. While it is at work, signals are remembered; at its end every process ends."""

    def __init__(self, jobs: int, measuring: Measuring, say: Callable[[str], None]) -> None:
        self.jobs, self.measuring, self.say = jobs, measuring, say
        self.working: list[tuple[Cell, subprocess.Popen[bytes], float]] = []
        self.failures: list[Failure] = []
        self.received = 0
        self._claims: dict[str, int] = {}
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "_Crew":
        self._handlers = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: Any) -> None:
        """Remembers a signal: an exception here could part a process from the list that it must be in."""
        if self.received and number == signal.SIGINT:  # whoever presses Ctrl-C twice does not want to wait
            for _, process, _ in self.working:
                process.kill()
        self.received = self.received or number

    def start(self, waiting: list[Cell]) -> list[Cell]:
        """Starts what there is room for; returns what still waits."""
        left = []
        for cell in waiting:
            if len(self.working) >= self.jobs or self.received:
                left.append(cell)
            elif is_done(cell, self.measuring):  # by another comparison, meanwhile
                continue
            elif self._claim(cell):
                begun = "goes on" if cell.folder.exists else "begins"
                self.say(f"{cell.name} {'is trained; measuring it' if is_trained(cell.folder) else begun}")
                self.working.append((cell, self._process(cell), time.monotonic()))
            else:
                left.append(cell)
        return left

    def _claim(self, cell: Cell) -> bool:
        """Makes a cell this comparison's, unless another process has it.

        A training locks its folder only once it is built, and frees it before its weights are evaluated.
        """
        try:
            claim = take(cell.folder.path / CLAIM)
        except BlockingIOError:
            return False
        # Done meanwhile, or in a training that no comparison started.
        if is_done(cell, self.measuring) or is_busy(cell.folder):
            os.close(claim)
            return False
        self._claims[cell.name] = claim
        return True

    def _process(self, cell: Cell) -> "subprocess.Popen[bytes]":
        settings = cell.folder.path / SETTINGS
        write_file(settings, to_yaml(cell.config).encode())
        environment = dict(os.environ)
        if self.jobs > 1:
            for name in THREADS:
                environment.setdefault(name, str(max(1, _cores() // self.jobs)))
        with open(cell.folder.log, "ab") as log:
            # A session of its own: Ctrl-C reaches the comparison alone, which tells each training once.
            return subprocess.Popen(
                [*training_command(settings), *self.measuring.flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def collect(self) -> list[Cell]:
        """Takes note of the processes that have ended; returns cells that must wait for another comparison."""
        ended = [each for each in self.working if each[1].poll() is not None]
        self.working = [each for each in self.working if each not in ended]
        again = []
        for cell, process, begun in ended:
            os.close(self._claims.pop(cell.name))
            if is_done(cell, self.measuring):
                self.say(f"{cell.name} is done, after {time.monotonic() - begun:.0f} s")
            elif is_busy(cell.folder):  # another comparison was a moment faster
                again.append(cell)
            else:
                failure = Failure(cell, _reason(process.returncode, cell.folder.log), cell.folder.log)
                self.failures.append(failure)
                self.say(f"{cell.name} failed: {failure.reason}")
        return again

    def _stop(self) -> None:
        """Lets every training write its checkpoint and end."""
        for _, process, _ in self.working:
            process.terminate()
        for _, process, _ in self.working:
            process.wait()
        self.working.clear()
        for claim in self._claims.values():
            os.close(claim)
        self._claims.clear()


def training_command(settings: Path) -> list[str]:
    return [sys.executable, "-m", "vitmix.lab.comparison.cell", str(os.getpid()), str(settings)]


def take(file: Path) -> int:
    """Locks a file, which is made if need be, until the number returned is closed; BlockingIOError if it is taken."""
    make_folder(file.parent)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
    return handle


def is_busy(folder: RunFolder) -> bool:
    """Whether a process trains in a folder."""
    if folder.is_open_here:
        return True
    if fcntl is None or not folder.lock.exists():
        return False
    with open(folder.lock, "rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reason(code: int, log: Path) -> str:
    if code < 0:
        hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
        return f"signal {-code} ended it ({signal.strsignal(-code)}{hint})"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line]
    return lines[-1].removeprefix("vitmix: error: ") if lines else f"it ended with code {code}"
