"""Executes runs: finished ones are skipped, started ones are resumed, and a failure does not stop the rest."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitmix.lab.dense.backbone import check_backbone
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.engines import Ending, Engine, Job, LocalProcesses, NoRoom
from vitmix.lab.runs import FolderLock, check_folder
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.prepare import check_model
from vitmix.lab.writing import make_folder

from .evaluations import NOTHING, Evaluations
from .matrix import Training
from .overview import Overview

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOOK_SECONDS = 0.3
STOP_LOOK_SECONDS = 0.05
TELL_SECONDS = 600.0  # between sentences about the same wait
MOST_LOSSES = 3  # of a run in a row, without a new checkpoint between them
CLAIM = ".claim"  # locked by the comparison that has a job for the run, from before its start to its end


class Interrupted(Exception):
    """A signal stopped the comparison; every run that it had started has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Failure:
    """A training run whose job ended with an error, and the last thing it said."""

    training: Training
    reason: str
    log: Path


@dataclass(frozen=True)
class _Work:
    """A run that an engine has."""

    training: Training
    job: Job
    begun: float


def is_done(training: Training, evaluations: Evaluations = NOTHING) -> bool:
    """Whether the run is finished and all requested evaluations are stored."""
    run = training.run
    return run.is_trained and not evaluations.missing(run)


def is_busy(training: Training) -> bool:
    """Whether a process trains in the folder."""
    return FolderLock(training.run.path).held


def check_trainings(trainings: Sequence[Training]) -> None:
    """Refuses, before anything runs or is read, names that are wrong and folders with another training run in them."""
    for training in trainings:
        if isinstance(training.config, TrainConfig):
            check_model(training.config.model)
        check_folder(training.run, training.config)


def check_backbones(trainings: Sequence[Training]) -> None:
    """Refuses, before anything runs, transfers whose backbones are not there."""
    for training in trainings:
        if isinstance(training.config, TransferConfig) and not training.run.is_trained:
            check_backbone(training.config)


def run_trainings(
    trainings: Sequence[Training],
    *,
    jobs: int = 1,
    engine: Engine | None = None,
    minutes: float | None = None,
    stop_at_failure: bool = False,
    evaluations: Evaluations = NOTHING,
    say: Callable[[str], None] = lambda text: None,
) -> list[Failure]:
    """Runs and evaluates every run that is not done, on the engine or `jobs` at a time here; returns what failed.

    Several comparisons may work on one folder: a run that another process trains is left to it. Whatever ends this
    function early (a signal, the end of the `minutes`, a failure if asked) lets each run write a checkpoint.
    """
    check_trainings(trainings)
    check_backbones(trainings)
    with engine or LocalProcesses(jobs) as place:
        place.prepare(trainings, say)
        waiting = [training for training in trainings if not is_done(training, evaluations)]
        to_evaluate = sum(training.run.is_trained for training in waiting)
        to_run = len(waiting) - to_evaluate
        said = f"{len(trainings)} run{'s' * (len(trainings) != 1)}: {len(trainings) - to_run} done, {to_run} to run"
        say(f"{said}, {to_evaluate} to evaluate." if to_evaluate else f"{said}.")
        if not waiting:
            return []
        with Overview(trainings) as overview, _Crew(place, evaluations, overview.say) as crew:
            while (waiting or crew.working) and not crew.received:
                if minutes is not None and time.monotonic() - overview.begun >= 60 * minutes:
                    overview.say(f"{minutes:g} minutes are over; runs stop at a checkpoint, evaluations at once.")
                    break
                if crew.failures and stop_at_failure:
                    break
                waiting = crew.start(waiting)
                overview.update(crew.running())
                time.sleep(LOOK_SECONDS)
                waiting = [*crew.collect(), *waiting]
    if crew.received:
        raise Interrupted(crew.received)
    return crew.failures


class _Crew:
    """The jobs at work now. While it is at work, signals are remembered; at its end every job ends."""

    def __init__(self, engine: Engine, evaluations: Evaluations, say: Callable[[str], None]) -> None:
        self.engine, self.evaluations, self.say = engine, evaluations, say
        self.working: list[_Work] = []
        self.failures: list[Failure] = []
        self.received, self._hurry = 0, False
        self._claims: dict[str, int] = {}
        self._losses: dict[str, list[int]] = {}  # newest update at each loss in a row
        self._told: dict[str, float] = {}
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "_Crew":
        self._handlers = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._stop()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: Any) -> None:
        """Remembers a signal: an exception here could part a job from the list that it must be in."""
        self._hurry = self._hurry or (self.received != 0 and number == signal.SIGINT)  # a second Ctrl-C
        self.received = self.received or number

    def start(self, waiting: list[Training]) -> list[Training]:
        """Starts what there is room for; returns what still waits."""
        left = []
        for number, training in enumerate(waiting):
            if not self.engine.has_room(len(self.working)) or self.received:
                return [*left, *waiting[number:]]
            if is_done(training, self.evaluations):  # by another comparison in the meantime
                continue
            if not self._claim(training):
                left.append(training)
                continue
            try:
                job = self.engine.start(training, self.evaluations.flags, self.say)
            except NoRoom as full:
                self._release(training)
                self._tell(str(full))
                return [*left, *waiting[number:]]
            self.working.append(_Work(training, job, time.monotonic()))
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
        if is_done(training, self.evaluations) or (is_busy(training) and not self.engine.knows(training)):
            os.close(claim)
            return False
        self._claims[training.name] = claim
        return True

    def _release(self, training: Training) -> None:
        os.close(self._claims.pop(training.name))

    def running(self) -> list[Training]:
        """The runs that have begun; says what the others wait for."""
        reasons: dict[str, list[Training]] = {}
        for work in self.working:
            reasons.setdefault(work.job.waiting(), []).append(work.training)
        begun = reasons.pop("", [])
        for reason, trainings in reasons.items():
            others = f" and {len(trainings) - 1} more wait" if len(trainings) > 1 else " waits"
            self._tell(f"{trainings[0].name}{others} for {reason}", key=reason)
        return begun

    def _tell(self, text: str, key: str | None = None) -> None:
        """Says a sentence, unless it was said lately."""
        now, key = time.monotonic(), key or text
        if now - self._told.get(key, -TELL_SECONDS) >= TELL_SECONDS:
            self._told[key] = now
            self.say(text)

    def collect(self) -> list[Training]:
        """Takes note of the jobs that have ended; returns runs that are to be started again."""
        ended = [(work, ending) for work in self.working if (ending := work.job.ending()) is not None]
        over = {work.training.name for work, _ in ended}
        self.working = [work for work in self.working if work.training.name not in over]
        again = []
        for work, ending in ended:
            training = work.training
            self._release(training)
            if is_done(training, self.evaluations):
                self.say(f"{training.name} is done, after {time.monotonic() - work.begun:.0f} s")
            elif self._is_lost(training, ending):
                self.say(f"{training.name} starts again from its newest checkpoint, because {ending.reason}")
                again.append(training)
            elif is_busy(training):  # another comparison was a moment faster
                again.append(training)
            else:
                self._fail(training, ending)
        return again

    def _is_lost(self, training: Training, ending: Ending) -> bool:
        """Whether to start a run again. One that loses its node over and over would otherwise never end."""
        before = [update for update in self._losses.get(training.name, []) if update >= ending.update]
        self._losses[training.name] = [*before, ending.update]
        return ending.lost and len(before) + 1 < MOST_LOSSES

    def _fail(self, training: Training, ending: Ending) -> None:
        reason = ending.reason
        if ending.lost:
            reason = f"{reason}, {MOST_LOSSES} times without a new checkpoint; {ending.remedy} and rerun the command"
        self.failures.append(Failure(training, reason, training.run.log))
        self.say(f"{training.name} failed: {reason}")

    def _stop(self) -> None:
        """Lets every run write its checkpoint and end; a second Ctrl-C does not wait for that.

        A job whose engine no longer answers is given up; its error is raised once all others have ended.
        """
        failed: list[Exception] = []
        try:
            self._ask_all("stop", failed)
            while None in self._ask_all("ending", failed):
                if self._hurry:
                    self._ask_all("kill", failed)
                    self._hurry = False
                time.sleep(STOP_LOOK_SECONDS)
        finally:
            self.working.clear()
            for claim in self._claims.values():
                os.close(claim)
            self._claims.clear()
        if failed:
            raise failed[0]

    def _ask_all(self, method: Literal["stop", "ending", "kill"], failed: list[Exception]) -> list[Ending | None]:
        answers = []
        for work in [*self.working]:
            try:
                answers.append(getattr(work.job, method)())
            except Exception as error:
                failed.append(error)
                self.working.remove(work)
        return answers


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
