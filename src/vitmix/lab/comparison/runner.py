"""Executes runs: finished ones are skipped, started ones are resumed, and a failure does not stop the rest."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmix.lab.environment import available_cores
from vitmix.lab.runs import FolderLock, check_folder
from vitmix.lab.training.config import to_yaml
from vitmix.lab.training.prepare import check_model
from vitmix.lab.writing import make_folder, write_file

from .evaluations import NOTHING, Evaluations
from .matrix import Training, is_trained
from .overview import Overview

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOOK_SECONDS = 0.3
THREADS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")  # of which each run has its part
CLAIM = ".claim"  # locked by the comparison that has a process for the run, from before its start to its end
SETTINGS = ".training.yaml"  # hidden: a run folder must look empty before the run begins


class Interrupted(Exception):
    """The comparison was told to stop; every run it had begun has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Failure:
    """A training run whose process ended with an error, and the last thing it said."""

    training: Training
    reason: str
    log: Path


def is_done(training: Training, evaluations: Evaluations = NOTHING) -> bool:
    """Whether the run is finished and everything is evaluated that is asked for."""
    run = training.run
    return is_trained(run) and not evaluations.missing(run)


def is_busy(training: Training) -> bool:
    """Whether a process trains in the folder."""
    return FolderLock(training.run.path).held


def check_trainings(trainings: Sequence[Training]) -> None:
    """Refuses, before anything runs or is read, names that are wrong and folders with another training run in them."""
    for training in trainings:
        check_model(training.config.model)
        check_folder(training.run, training.config)


def run_trainings(
    trainings: Sequence[Training],
    *,
    jobs: int = 1,
    minutes: float | None = None,
    stop_at_failure: bool = False,
    evaluations: Evaluations = NOTHING,
    say: Callable[[str], None] = lambda text: None,
) -> list[Failure]:
    """Runs and evaluates every run that is not done, `jobs` at a time, each in its process; returns what failed.

    Several comparisons may work on one folder: a run that another process trains is left to it. Whatever ends this
    function early (a signal, the end of the `minutes`, a failure if asked) lets each run write a checkpoint.
    """
    check_trainings(trainings)
    waiting = [training for training in trainings if not is_done(training, evaluations)]
    to_evaluate = sum(is_trained(training.run) for training in waiting)
    to_run = len(waiting) - to_evaluate
    said = f"{len(trainings)} run{'s' * (len(trainings) != 1)}: {len(trainings) - to_run} done, {to_run} to run"
    say(f"{said}, {to_evaluate} to evaluate." if to_evaluate else f"{said}.")
    if not waiting:
        return []
    with Overview(trainings) as overview, _Crew(jobs, evaluations, overview.say) as crew:
        while (waiting or crew.working) and not crew.received:
            if minutes is not None and time.monotonic() - overview.begun >= 60 * minutes:
                overview.say(f"{minutes:g} minutes are over; runs stop at a checkpoint, evaluations at once.")
                break
            if crew.failures and stop_at_failure:
                break
            waiting = crew.start(waiting)
            overview.update([training for training, _, _ in crew.working])
            time.sleep(LOOK_SECONDS)
            waiting = [*crew.collect(), *waiting]
    if crew.received:
        raise Interrupted(crew.received)
    return crew.failures


class _Crew:
    """The processes at work now. While it is at work, signals are remembered; at its end every process ends."""

    def __init__(self, jobs: int, evaluations: Evaluations, say: Callable[[str], None]) -> None:
        self.jobs, self.evaluations, self.say = jobs, evaluations, say
        self.working: list[tuple[Training, subprocess.Popen[bytes], float]] = []
        self.failures: list[Failure] = []
        self.received = 0
        self._claims: dict[str, int] = {}
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "_Crew":
        self._handlers = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: Any) -> None:
        """Remembers a signal: an exception here could part a process from the list that it must be in."""
        if self.received and number == signal.SIGINT:  # a second Ctrl-C: do not wait for checkpoints
            for _, process, _ in self.working:
                process.kill()
        self.received = self.received or number

    def start(self, waiting: list[Training]) -> list[Training]:
        """Starts what there is room for; returns what still waits."""
        left = []
        for training in waiting:
            if len(self.working) >= self.jobs or self.received:
                left.append(training)
            elif is_done(training, self.evaluations):  # by another comparison in the meantime
                continue
            elif self._claim(training):
                begun = "resumes" if training.run.exists else "begins"
                self.say(f"{training.name} {'is trained; evaluating it' if is_trained(training.run) else begun}")
                self.working.append((training, self._process(training), time.monotonic()))
            else:
                left.append(training)
        return left

    def _claim(self, training: Training) -> bool:
        """Makes a training run this comparison's, unless another process has it.

        A training run locks its folder only once it is built, and frees it before its weights are evaluated.
        """
        try:
            claim = take(training.run.path / CLAIM)
        except BlockingIOError:
            return False
        # Done in the meantime, or being trained by a process that no comparison started.
        if is_done(training, self.evaluations) or is_busy(training):
            os.close(claim)
            return False
        self._claims[training.name] = claim
        return True

    def _process(self, training: Training) -> "subprocess.Popen[bytes]":
        settings = training.run.path / SETTINGS
        write_file(settings, to_yaml(training.config).encode())
        environment = dict(os.environ)
        if self.jobs > 1:
            for name in THREADS:
                environment.setdefault(name, str(max(1, available_cores() // self.jobs)))
        with open(training.run.log, "ab") as log:
            # A separate session: Ctrl-C reaches only the comparison, which then stops each run once.
            return subprocess.Popen(
                [*training_command(settings), *self.evaluations.flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def collect(self) -> list[Training]:
        """Takes note of the processes that have ended; returns runs that must wait for another comparison."""
        ended = [each for each in self.working if each[1].poll() is not None]
        self.working = [each for each in self.working if each not in ended]
        again = []
        for training, process, begun in ended:
            os.close(self._claims.pop(training.name))
            if is_done(training, self.evaluations):
                self.say(f"{training.name} is done, after {time.monotonic() - begun:.0f} s")
            elif is_busy(training):  # another comparison was a moment faster
                again.append(training)
            else:
                failure = Failure(training, _reason(process.returncode, training.run.log), training.run.log)
                self.failures.append(failure)
                self.say(f"{training.name} failed: {failure.reason}")
        return again

    def _stop(self) -> None:
        """Lets every run write its checkpoint and end."""
        for _, process, _ in self.working:
            process.terminate()
        for _, process, _ in self.working:
            process.wait()
        self.working.clear()
        for claim in self._claims.values():
            os.close(claim)
        self._claims.clear()


def training_command(settings: Path) -> list[str]:
    return [sys.executable, "-m", "vitmix.lab.comparison.process", str(os.getpid()), str(settings)]


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


def _reason(code: int, log: Path) -> str:
    if code < 0:
        hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
        return f"signal {-code} ended it ({signal.strsignal(-code)}{hint})"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line]
    return lines[-1].removeprefix("vitmix: error: ") if lines else f"it ended with code {code}"
