"""Runs as jobs of a Slurm cluster, one job each, which Slurm itself puts back into the queue if it loses the node.

Jobs outlive the command: one that is killed leaves them at work, and the next command takes them over.
"""

import dataclasses
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.lab.reading import read_json
from vitmix.lab.writing import write_file

from . import slurm_commands as slurm
from .base import Ending, Engine, NoRoom, Say, beginning
from .home import Home, cores_of
from .local import reason_of
from .node import REPORT, UNSEEN, UNSENT, JobSpec, NodeReport, unseen
from .slurm_commands import JobState
from .words import Node

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import Training

LOOK_SECONDS, NODES_SECONDS = 5.0, 30.0
PATIENCE_SECONDS = 10.0  # in which a job begins if there is room
FORGOTTEN_SECONDS = 60.0  # after which a job that squeue does not list is gone
JOB = ".job"  # of a run folder: its JobNote
OURS = ("job-name", "output", "open-mode", "parsable", "array", "wrap", "error", "input")
GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
WAITS = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED", "STOPPED"}
LOST = {
    "NODE_FAIL": "its node was lost",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "another job took its place",
    "TIMEOUT": "its time was over before it had stopped",
    "REVOKED": "Slurm took it back",
}
ENDED = {*LOST, "COMPLETED", "FAILED", "CANCELLED", "DEADLINE", "OUT_OF_MEMORY"}
STOPPED = 143  # the exit code of a run that SIGTERM stopped at a checkpoint


@dataclass(frozen=True)
class JobNote:
    """What a run folder says of its job: squeue finds it by a name that is noted before Slurm is asked to take it.

    Attributes:
        answered: whether Slurm has said that it takes the job.
    """

    attempt: str
    answered: bool = False

    def write(self, training: "Training") -> None:
        write_file(training.run.path / JOB, json.dumps(dataclasses.asdict(self)).encode())


class SlurmCluster(Engine):
    """The engine `--on slurm`.

    Args:
        runs: the folder of the run folders.
        gpus: of each run; None is one, if the partition has any and the run uses it.
        options: options of sbatch by their long names: partition, gres, time, account, ...
        store: a URL through which files travel; None is the folder, which nodes must see.
    """

    def __init__(
        self,
        runs: Path,
        *,
        jobs: int | None = None,
        cpus: int | None = None,
        gpus: float | None = None,
        options: Mapping[str, str] | None = None,
        store: str | None = None,
    ) -> None:
        slurm.check_installed()
        self.jobs, self.cpus, self.gpus, self.options = jobs, cpus, gpus, dict(options or {})
        for name in self.options:
            if name in OURS:
                raise ValueError(f"--slurm {name} is decided by the comparison; leave it out")
        if gpus is not None and gpus != math.floor(gpus):
            raise ValueError(f"Slurm gives whole GPUs to a job, got --gpus {gpus:g}; give a whole number")
        self.home = Home(runs, store)
        self.jobs_at_work: set[str] = set()
        self._states: dict[str, JobState] = {}
        self.nodes: list[Node] = []
        self._looked = self._saw_nodes = self._refused = -math.inf
        self._silent_since, self._taken = 0.0, False

    def __enter__(self) -> "SlurmCluster":
        try:
            known = slurm.partitions()
            self.nodes = slurm.nodes(self.options.get("partition"))
        except slurm.Silent as error:
            raise ValueError(
                f"Slurm does not answer here ({error}); when 'sinfo' works, run the command again"
            ) from None
        for name in filter(None, self.options.get("partition", "").split(",")):
            if known and name not in known:
                raise ValueError(f"Slurm has no partition {name!r}; give --slurm partition= one of {', '.join(known)}")
        return self

    def prepare(self, trainings: "Sequence[Training]", say: Say) -> None:
        self.home.bring_results(trainings, say)

    def has_room(self, working: int) -> bool:
        return super().has_room(working) and time.monotonic() - self._refused > LOOK_SECONDS

    def knows(self, training: "Training") -> bool:
        try:
            return bool(self._at_work(training))
        except slurm.Silent:  # then somebody has the run, and the comparison asks again
            return False

    def _at_work(self, training: "Training") -> str:
        """The number of a run's job, if it waits or runs."""
        note = self._note(training)
        if note is None:
            return ""
        found = slurm.named(job_name(training, note.attempt))
        return next((number for number, state in found.items() if state.state not in ENDED), "")

    def _note(self, training: "Training") -> "JobNote | None":
        try:
            note = JobNote(**read_json(self.home.runs / training.name / JOB))
        except (OSError, ValueError, TypeError):
            return None
        return note if isinstance(note.attempt, str) else None

    def start(self, training: "Training", flags: Sequence[str], say: Say) -> "SlurmJob":
        note = self._note(training)
        try:
            number = self._at_work(training)
        except slurm.Silent as error:
            raise self._no_room(f"Slurm's controller does not answer ({error})") from None
        if number and note is not None:
            say(f"{training.name} continues as job {number} of an earlier command")
            return self._job(training, number, note.attempt, say)
        spec = self.home.hand_over(training, flags, self._cpus(training))
        if note is not None and not note.answered:  # so a job that appears late has the name that is looked for
            spec = dataclasses.replace(spec, attempt=note.attempt)
        JobNote(spec.attempt).write(training)
        try:
            number = slurm.submit(script(spec), self._options(training, spec.attempt))
        except slurm.Silent as error:
            raise self._no_room(f"Slurm has not said whether it takes {training.name} ({error})") from None
        except slurm.Rejected as error:
            if self._taken:  # so the settings are right, and a limit is reached
                raise self._no_room(f"Slurm takes no further job now ({error})") from None
            raise ValueError(f"Slurm refused {training.name}: {error}; check --slurm, --gpus and --cpus") from None
        self._taken = True
        JobNote(spec.attempt, answered=True).write(training)
        say(f"{training.name} is job {number}")
        return self._job(training, number, spec.attempt, say)

    def _no_room(self, why: str) -> NoRoom:
        self._refused = time.monotonic()
        return NoRoom(f"{why}; trying again")

    def _job(self, training: "Training", number: str, attempt: str, say: Say) -> "SlurmJob":
        self.jobs_at_work.add(number)
        self.look_again()
        return SlurmJob(self, training, number, attempt, say)

    def _cpus(self, training: "Training") -> int:
        asked = self.options.get("cpus-per-task", "")
        return int(asked) if asked.isdigit() else cores_of(training.config, self.cpus)

    def gpus_of(self, training: "Training") -> int:
        if self.gpus is not None:
            return int(self.gpus)
        return int(not training.config.cpu and any(node.total.get("GPU", 0) >= 1 for node in self.nodes))

    def _options(self, training: "Training", attempt: str) -> dict[str, str]:
        # Without a shared folder a node has no place for the log; the run's own log travels with its files.
        log = "/dev/null" if self.home.url else str(training.run.log.absolute())
        options = {
            "job-name": job_name(training, attempt),
            "output": log.replace("%", "%%"),
            "open-mode": "append",
            "requeue": "",
            "signal": "B:TERM@120",  # two minutes before the time is over, for a checkpoint
            "cpus-per-task": str(self._cpus(training)),
        }
        if self.gpus_of(training) and not any(name in self.options for name in GPU_OPTIONS):
            options["gres"] = f"gpu:{self.gpus_of(training)}"
        return options | self.options

    def request(self, training: "Training") -> dict[str, float]:
        return {"CPU": self._cpus(training), "GPU": self.gpus_of(training)}

    def state(self, number: str, say: Say) -> JobState | None:
        """A job's state, of at most a few seconds ago; None if Slurm does not know it."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                self._states = slurm.states(sorted(self.jobs_at_work))
                self._silent_since = 0.0
            except slurm.Silent as error:
                if not self._silent_since:
                    say(f"Slurm's controller does not answer ({error}); jobs continue, and the comparison waits for it")
                self._silent_since = self._silent_since or time.monotonic()
        return self._states.get(number)

    def look_again(self) -> None:
        """Makes the next question about a job a new one."""
        self._looked = -math.inf

    def current_nodes(self) -> list[Node]:
        """The nodes, of at most half a minute ago."""
        if time.monotonic() - self._saw_nodes > NODES_SECONDS:
            self._saw_nodes = time.monotonic()
            with suppress(slurm.Silent):
                self.nodes = slurm.nodes(self.options.get("partition"))
        return self.nodes

    @property
    def answers(self) -> bool:
        return not self._silent_since


class SlurmJob:
    """A run as a job."""

    def __init__(self, engine: SlurmCluster, training: "Training", number: str, attempt: str, say: Say) -> None:
        self.engine, self.training, self.number, self.attempt, self.say = engine, training, number, attempt, say
        self.verb, self._node, self._restarts = beginning(training), "", 0
        self._ending: Ending | None = None
        self.begun = self._seen = self._ordered = time.monotonic()
        self._stopping = self._heard = False

    def ending(self) -> Ending | None:
        if self._ending is not None:
            return self._ending
        state = self.engine.state(self.number, self.say)
        if state is not None or not self.engine.answers:
            self._seen = time.monotonic()
        if state is not None:
            self._tell(state)
        forgotten = time.monotonic() - self._seen > FORGOTTEN_SECONDS
        if forgotten or (state is not None and state.state in ENDED):
            self.engine.jobs_at_work.discard(self.number)
            self._ending = self._ended(state)
        else:
            self._repeat_stop(state)
            self.engine.home.glance(self.training)
        return self._ending

    def _tell(self, state: JobState) -> None:
        """Says on which node the run begins, and where it was lost."""
        if state.restarts > self._restarts:
            self._restarts = state.restarts
            node, self._node = self._node, ""
            lost = f"lost its place{f' on node {node}' * bool(node)} and is back in the queue as job {self.number}"
            self.say(f"{self.training.name} {lost}; it resumes from its newest checkpoint")
        if state.state == "RUNNING" and not self._node:
            self._node = state.node
            self.say(f"{self.training.name} {'resumes' if self._restarts else self.verb} on node {state.node}")

    def _repeat_stop(self, state: JobState | None) -> None:
        """A job that Slurm was about to put back into the queue has not heard that it must stop."""
        late = time.monotonic() - self._ordered > LOOK_SECONDS
        if self._stopping and late and state is not None and (state.state in WAITS or not self._heard):
            self.stop()

    def _ended(self, state: JobState | None) -> Ending:
        home = self.engine.home
        failed = home.try_fetch(self.training)
        if failed:
            return Ending(failed)
        update = home.update(self.training)
        if state is None:
            return Ending(f"Slurm no longer knows job {self.number}", lost=True, update=update)
        where = f"job {self.number}" + (f" on node {state.node}" if state.node else "")
        if state.state in LOST:
            return Ending(f"{LOST[state.state]} ({where})", lost=True, update=update)
        if state.state == "CANCELLED":
            return Ending(f"{where} was cancelled in Slurm; rerun the command to resume from its newest checkpoint")
        if state.state == "OUT_OF_MEMORY":
            return Ending(f"memory ran out ({where}); give more with --slurm mem=32G, or set a smaller batch")
        if state.code == STOPPED and not self._stopping:
            return Ending(f"its time was over ({where})", lost=True, update=update)
        return Ending(self._failure(state, where))

    def _failure(self, state: JobState, where: str) -> str:
        home = self.engine.home
        if state.reason == "JobLaunchFailure" or state.code == UNSEEN:
            return f"{where} {unseen(home.runs, home.url)}"
        if state.code == UNSENT:
            if home.url is None:
                return (
                    f"{where} cannot read or write the folder {home.runs}; check its disk space and permissions there"
                )
            return f"{where} cannot read or write the store {home.url}; check its address and your credentials there"
        try:
            report = NodeReport.from_json((home.store or home.here).read(self.training.name, REPORT))
        except OSError:
            report = None
        if report is not None and report.attempt == self.attempt:
            return f"{report.reason} ({where})"
        said = "" if home.url else f": {reason_of(state.code, self.training.run.log)}"
        install = f"check that {sys.executable} and vitmix are installed there"
        return f"{where} ended with code {state.code} before the run began{said}; {install}"

    def waiting(self) -> str:
        state = self.engine.state(self.number, self.say)
        new = time.monotonic() - self.begun < PATIENCE_SECONDS
        if new or self._ending is not None or state is None or state.state not in WAITS:
            return ""
        return slurm.waits_for(state, self.number, self.engine.request(self.training), self.engine.current_nodes)

    def stop(self) -> None:
        self._stopping = True
        state = self.engine.state(self.number, self.say)
        begun = state is not None and state.state not in WAITS
        self._order(slurm.stop if begun else slurm.cancel)

    def kill(self) -> None:
        self._order(slurm.cancel)

    def _order(self, order: Callable[[str], bool]) -> None:
        """Gives Slurm an order; if nobody takes it, the job is left to the next command."""
        self._ordered = time.monotonic()
        try:
            self._heard = order(self.number)
            self.engine.look_again()
        except slurm.Silent:
            continues = "so the job continues; rerun the command to take it over"
            self._ending = Ending(f"Slurm's controller does not answer, {continues}")
            self.say(f"{self.training.name} (job {self.number}): {self._ending.reason}")


def job_name(training: "Training", attempt: str) -> str:
    """Different for each job, so that squeue can look for it."""
    return f"{training.name}-{attempt[:8]}"


def script(spec: JobSpec) -> str:
    """The job: Slurm copies its script to the node, and so the spec."""
    text = json.dumps(dataclasses.asdict(spec))  # one line, so no line of it can end the document
    python = shlex.join([sys.executable, "-m", "vitmix.lab.engines.node"])
    return f"#!/bin/sh\nexec {python} <<'END_OF_SPEC'\n{text}\nEND_OF_SPEC\n"
