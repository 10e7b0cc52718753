"""Runs as tasks of a Ray cluster: one that is running, or one that is started on this machine.

Ray's own retries are off: the runner starts lost runs again, and says so. An actor beside the command, the desk, knows
which node has which run, and keeps the files of runs whose node does not see the output folder.
"""

import math
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base import Ending, Engine, NoRoom, Say, beginning
from .home import Home, cores_of
from .node import JobSpec, NodeReport, run
from .stores import FolderStore, need
from .words import UNITS, Node, too_much, waiting_for

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import Training

OBJECTS = "objects"  # as --store: files travel through Ray's object store in any case
LOOK_SECONDS = 1.0
PATIENCE_SECONDS, START_SECONDS = 6.0, 60.0  # before it is said what a run waits for: more than there is, or room
CONNECT_SECONDS = 5.0
HEAD_LOOK_SECONDS, HEAD_SECONDS = 5.0, 40.0  # Ray ends the whole process 60 s after it has lost the head
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
TRACEBACK = "Traceback (most recent call last)"
OBJECT_MEMORY = 300_000_000  # of a cluster on this machine; files are the only objects, and do not stay


class Desk:
    """An actor on the machine of the command."""

    def __init__(self, runs: str) -> None:
        self._store, self._nodes = FolderStore(Path(runs)), dict[str, str]()

    def begin(self, attempt: str, node: str) -> None:
        self._nodes[attempt] = node

    def nodes(self) -> dict[str, str]:
        """The node of each run that has begun, by attempt."""
        return self._nodes

    def call(self, method: str, *arguments: Any) -> Any:
        """What the store of this machine answers."""
        return getattr(self._store, method)(*arguments)


class DeskStore:
    """The desk's files, as a node sees them."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk

    def files(self, run: str) -> dict[str, str]:
        return self._ask("files", run)

    def read(self, run: str, path: str) -> bytes:
        return self._ask("read", run, path)

    def write(self, run: str, path: str, content: bytes) -> None:
        self._ask("write", run, path, content)

    def remove(self, run: str, path: str) -> None:
        self._ask("remove", run, path)

    def _ask(self, *arguments: Any) -> Any:
        ray = need("ray")
        try:
            return ray.get(self.desk.call.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


def train(spec: JobSpec, desk: Any) -> NodeReport:
    """The task."""
    # Waits for the answer: a task that has not reported must be one that did not begin.
    need("ray").get(desk.begin.remote(spec.attempt, socket.gethostname()))
    return run(spec, carried=DeskStore(desk))


class RayCluster(Engine):
    """The engine `--on ray`.

    Args:
        runs: the folder of the run folders.
        gpus: of each run; None is one, if the cluster has any and the run uses it.
        store: a URL, OBJECTS, or None: the folder where the node sees it, otherwise Ray's object store.
    """

    def __init__(
        self,
        runs: Path,
        *,
        jobs: int | None = None,
        address: str | None = None,
        cpus: int | None = None,
        gpus: float | None = None,
        store: str | None = None,
    ) -> None:
        # The comparison tells of lost nodes in a sentence; Ray would add the raylet's last pages. Read at import.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "Raylet is terminated|has been marked dead")
        self.ray = need("ray")
        self.jobs, self.address, self.cpus, self.gpus = jobs, address, cpus, gpus
        self.home, self.look = Home(runs, None if store == OBJECTS else store), store != OBJECTS
        self._looked, self._nodes = 0.0, dict[str, str]()
        self._desk: Any = None
        self.head, self._head_looked, self._silent_since = "", -math.inf, 0.0

    def __enter__(self) -> "RayCluster":
        connect(self.ray, self.address)
        here, self.head = self.ray.get_runtime_context().get_node_id(), self.ray.get_runtime_context().gcs_address
        near = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        # Ray ends processes when memory runs out, this one too; runs must not end with it.
        again = {"max_restarts": -1, "max_task_retries": -1}
        kind = self.ray.remote(num_cpus=0, scheduling_strategy=near, **again)(Desk)
        with self.asking():
            self._desk = kind.remote(str(self.home.runs))
        return self

    def __exit__(self, *error: object) -> None:
        # Without the head it waits, until Ray ends the process: our error must be told before. Ray calls it at the end.
        if not self._silent_since:
            self.ray.shutdown()

    def head_answers(self, *, look: bool = False) -> bool:
        """Whether the cluster can be asked now; ValueError if its head has been silent for long.

        Args:
            look: before a question that Ray would wait for, until it ends the process.
        """
        now = time.monotonic()
        if self.head and (look or now - self._head_looked > HEAD_LOOK_SECONDS):
            self._head_looked = now
            try:
                _knock(self.head)
                self._silent_since = 0.0
            except OSError:
                self._silent_since = self._silent_since or now
        if self._silent_since and now - self._silent_since > HEAD_SECONDS:
            raise ValueError(_no_longer(f"at {self.head}"))
        return not self._silent_since

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While Ray itself is asked: its errors are not those of the command, which would end without a word."""
        try:
            yield
        except self.ray.exceptions.RayError as error:
            raise ValueError(_no_longer(_line(error))) from None

    def prepare(self, trainings: "Sequence[Training]", say: Say) -> None:
        nodes = self.nodes()
        totals = {kind: sum(node.total.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU")}
        cpus, gpus = (f"{amount:g} {UNITS[kind][amount != 1]}" for kind, amount in totals.items())
        say(f"Ray: {len(nodes)} node{'s' * (len(nodes) != 1)} with {cpus} and {gpus}.")
        self.home.bring_results(trainings, say)

    def start(self, training: "Training", flags: Sequence[str], say: Say) -> "RayJob":
        if not self.head_answers(look=True):
            raise NoRoom(f"the head of the Ray cluster does not answer at {self.head}; waiting for it")
        request = {"CPU": float(cores_of(training.config, self.cpus)), "GPU": self._gpus(training)}
        spec = self.home.hand_over(training, flags, int(request["CPU"]), look=self.look)
        options = {"num_cpus": request["CPU"], "num_gpus": request["GPU"], "max_retries": 0, "name": training.name}
        with self.asking():
            task = self.ray.remote(**options)(train).remote(spec, self._desk)
        return RayJob(self, training, spec.attempt, task, request, say)

    def _gpus(self, training: "Training") -> float:
        if self.gpus is not None:
            return self.gpus
        return float(not training.config.cpu and any(node.total.get("GPU", 0) >= 1 for node in self.nodes()))

    def nodes(self) -> list[Node]:
        """Those that are alive, by host name."""
        with self.asking():
            alive = [each for each in self.ray.nodes() if each["Alive"]]
        return [Node(each["NodeManagerHostname"], each["Resources"]) for each in alive]

    def node_of(self, attempt: str, *, now: bool = False) -> str:
        """The node that has begun a run; empty while it waits. Asked at most every second, unless it must be `now`."""
        if attempt not in self._nodes and (now or time.monotonic() - self._looked > LOOK_SECONDS):
            self._looked = time.monotonic()
            with suppress(self.ray.exceptions.RayError):  # it is being started again
                self._nodes |= self.ray.get(self._desk.nodes.remote(), timeout=CONNECT_SECONDS)
        return self._nodes.get(attempt, "")


class RayJob:
    """A run as a task."""

    def __init__(
        self,
        engine: RayCluster,
        training: "Training",
        attempt: str,
        task: Any,
        request: dict[str, float],
        say: Say,
    ) -> None:
        self.engine, self.training, self.attempt, self.task, self.request = engine, training, attempt, task, request
        self.begun, self.say, self.verb, self._told = time.monotonic(), say, beginning(training), False
        self._ending: Ending | None = None

    def ending(self) -> Ending | None:
        if self._ending is not None or not self.engine.head_answers():
            return self._ending
        node = self.engine.node_of(self.attempt)
        if node and not self._told:
            self._told = True
            self.say(f"{self.training.name} {self.verb} on node {node}")
        with self.engine.asking():
            ended, _ = self.engine.ray.wait([self.task], timeout=0)
        if not ended:
            self.engine.home.glance(self.training)
            return None
        self._ending = self._ended(node or self.engine.node_of(self.attempt, now=True))
        return self._ending

    def _ended(self, node: str) -> Ending:
        """Args: node: that on which the task began; empty if it did not begin."""
        errors, home = self.engine.ray.exceptions, self.engine.home
        where, on_node, again = (
            f" ({node})" if node else "",
            f" on node {node}" if node else "",
            "and rerun the command",
        )
        try:
            report: NodeReport = self.engine.ray.get(self.task)
            failed = home.try_fetch(self.training)
            return Ending(failed or f"{report.reason} (on node {report.node})")
        except errors.TaskCancelledError:
            return Ending(home.try_fetch(self.training) or "it was stopped")
        except errors.RayTaskError as error:
            said = _line(error.cause)
            if node:
                return Ending(f"node {node} could not run it: {said}")
            install = f"install the same version of vitmix[cluster] on every node, {again}"
            return Ending(f"a node could not begin it ({said}); {install}")
        except errors.RuntimeEnvSetupError as error:
            correct = f"correct the runtime environment of Ray, {again}"
            return Ending(f"Ray could not prepare a node for it ({_line(error)}); {correct}")
        except errors.TaskUnschedulableError as error:
            return Ending(f"Ray found no node for it ({_line(error)}); see 'ray status', {again}")
        except errors.OutOfMemoryError:
            fewer = "set a larger --cpus, so that fewer runs share a node, or a smaller batch"
            return self._lost(f"Ray ended it when memory ran out{on_node}", remedy=fewer)
        except errors.WorkerCrashedError:
            return self._lost(f"its process ended{where}")
        except (errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError):
            return self._lost(f"the node was lost{where}")
        except errors.RayError as error:
            return self._lost(f"Ray ended it{on_node} ({_line(error)})", remedy="see 'ray status' and the logs of Ray")

    def _lost(self, reason: str, **remedy: str) -> Ending:
        return Ending(reason, lost=True, update=self.engine.home.update(self.training), **remedy)

    def waiting(self) -> str:
        age = time.monotonic() - self.begun
        if age < PATIENCE_SECONDS or self._ending is not None:
            return ""
        if not self.engine.head_answers(look=True):
            return f"the head of the Ray cluster, which does not answer at {self.engine.head}"
        if self.engine.node_of(self.attempt):
            return ""
        nodes = self.engine.nodes()
        # A run that is about to begin already holds what it needs, so nothing tells it from one that finds no room.
        if age < START_SECONDS and not too_much(self.request, nodes):
            return ""
        with self.engine.asking():
            return waiting_for(self.request, nodes, self.engine.ray.available_resources())

    def stop(self) -> None:
        with self.engine.asking():
            self.engine.ray.cancel(self.task)

    def kill(self) -> None:
        with self.engine.asking():
            self.engine.ray.cancel(self.task, force=True)


def connect(ray: Any, address: str | None) -> None:
    """Joins a running cluster, that of the address or of this machine; starts one here if there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of clusters that start here; nobody agreed to send any
    address = address or os.environ.get("RAY_ADDRESS")
    check_address(address)
    try:
        if address != "local":
            ray.init(address=address or "auto", **QUIET)
            return
    except Exception as error:  # Ray raises errors of every kind, plain ones too
        if address is not None or not isinstance(error, ConnectionError):
            here = "this machine must be one of its nodes ('ray start --address HOST:PORT' makes it one)"
            where = address or "this machine"
            raise ValueError(f"cannot join the Ray cluster at {where}: {_line(error)}; {here}") from None
    _start_here(ray)


def _start_here(ray: Any, attempts: int = 2) -> None:
    """Starts a cluster of this machine alone. Ray gives a node 30 seconds, which a busy machine can miss once."""
    for left in reversed(range(attempts)):
        try:
            ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_MEMORY, **QUIET)
            return
        except Exception as error:
            ray.shutdown()
            if not left:
                busy = "the machine may be too busy; try again, or start Ray yourself with 'ray start --head'"
                raise ValueError(f"Ray did not start on this machine ({_line(error)}); {busy}") from None


def check_address(address: str | None) -> None:
    """Refuses an address that does not answer; Ray itself would take minutes and end the process."""
    if address in (None, "local", "auto"):
        return
    if address.startswith("ray://"):
        there = "run the command on a node of the cluster, for example with 'ray job submit', and give HOST:PORT"
        raise ValueError(f"{address} is the address of a Ray client, which cannot transfer files; {there}")
    host, _, port = address.rpartition(":")
    ask = "'ray status' shows it for a running cluster; leave --address out to start one here"
    if not host or not port.isdecimal():
        raise ValueError(f"--address needs HOST:PORT, got {address!r}; {ask}")
    try:
        _knock(address)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"no Ray cluster answers at {address} ({why}); {ask}") from None


def _knock(address: str) -> None:
    """Raises an OSError if nobody answers at HOST:PORT."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def _no_longer(why: str) -> str:
    return f"the Ray cluster no longer answers ({why}); restart Ray and rerun the command to resume"


def _line(error: BaseException | None) -> str:
    """What an error says; of a traceback in it, as of a module that a node does not have, the last line."""
    text = str(error).strip()
    if TRACEBACK in text:
        text = text.splitlines()[-1]
    return " ".join(text.split())[:400] or type(error).__name__
