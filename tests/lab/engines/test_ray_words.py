"""What the comparison says of tasks of Ray, without Ray."""

import socket
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitmix.lab.engines import NoRoom, on_ray
from vitmix.lab.engines.on_ray import RayCluster, RayJob
from vitmix.lab.engines.words import Node


def job(request: dict[str, float], age: float, *, node: str = "") -> RayJob:
    """A task of a cluster of two nodes without free cores, submitted some seconds ago."""
    engine: Any = SimpleNamespace(
        ray=SimpleNamespace(available_resources=lambda: {"CPU": 0.0}),
        nodes=lambda: [Node("a", {"CPU": 2}), Node("b", {"CPU": 2})],
        node_of=lambda attempt: node,
        asking=nullcontext,
        head_answers=lambda **_: True,
    )
    run: Any = SimpleNamespace(is_trained=False, exists=False)
    found = RayJob(engine, SimpleNamespace(name="run", run=run), "attempt", None, request, print)  # type: ignore[arg-type]
    found.begun = time.monotonic() - age
    return found


def test_a_run_that_is_about_to_begin_is_not_said_to_wait() -> None:
    """Its own request makes the cluster look full while its process starts."""
    full = "1 CPU core: none of the 2 nodes has one free"
    assert job({"CPU": 1}, on_ray.PATIENCE_SECONDS + 1).waiting() == ""
    assert job({"CPU": 1}, on_ray.START_SECONDS + 1).waiting() == full
    assert job({"CPU": 1}, on_ray.START_SECONDS + 1, node="a").waiting() == ""


def test_a_request_that_no_node_can_meet_is_told_soon() -> None:
    asked = {"CPU": 1.0, "GPU": 1.0}
    assert job(asked, 0).waiting() == ""
    assert job(asked, on_ray.PATIENCE_SECONDS + 1).waiting().startswith("1 GPU: none of the 2 nodes has one; add such")


class Errors:
    """Stands for ray.exceptions."""

    class RayError(Exception): ...

    class TaskCancelledError(RayError): ...

    class OutOfMemoryError(RayError): ...

    class RuntimeEnvSetupError(RayError): ...

    class TaskUnschedulableError(RayError): ...

    class WorkerCrashedError(RayError): ...

    class NodeDiedError(RayError): ...

    class LocalRayletDiedError(RayError): ...

    class ObjectLostError(RayError): ...

    class RayTaskError(RayError):
        def __init__(self, cause: Exception) -> None:
            super().__init__()
            self.cause = cause


class Ray:
    """Stands for ray: every question ends with an error, apart from those whose answers are given."""

    exceptions = Errors

    def __init__(self, error: Exception, **answers: Any) -> None:
        self.error, self.answers = error, answers

    def __getattr__(self, name: str) -> Any:
        def ask(*_: Any, **__: Any) -> Any:
            if name in self.answers:
                return self.answers[name]
            raise self.error

        return ask


def cluster(ray: Ray, folder: Path, monkeypatch: pytest.MonkeyPatch, *, node: str = "") -> RayCluster:
    monkeypatch.setattr(on_ray, "need", lambda name: ray)
    found = RayCluster(folder)
    monkeypatch.setattr(found, "node_of", lambda attempt, **_: node)
    return found


def handed(engine: RayCluster) -> RayJob:
    run: Any = SimpleNamespace(is_trained=False, exists=False)
    training: Any = SimpleNamespace(name="run", run=run)
    return RayJob(engine, training, "attempt", "task", {"CPU": 1}, lambda text: None)


MISSING = """The remote function failed to import on the worker. This may be because needed library dependencies
are not installed in the worker environment or cannot be found from sys.path ['/usr/lib']:

Traceback (most recent call last):
  File "function_manager.py", line 1, in fetch_and_register_remote_function
ModuleNotFoundError: No module named 'vitmix'
"""


@pytest.mark.parametrize(
    ("error", "node", "reason", "lost"),
    [
        (Errors.RayTaskError(OSError("no space")), "n2", "node n2 could not run it: no space", False),
        (
            Errors.RayTaskError(RuntimeError(MISSING)),
            "",
            "a node could not begin it (ModuleNotFoundError: No module named 'vitmix'); install the same version of "
            "vitmix[cluster] on every node, and rerun the command",
            False,
        ),
        (
            Errors.RuntimeEnvSetupError("Failed to set up\nruntime environment."),
            "",
            "Ray could not prepare a node for it (Failed to set up runtime environment.); correct the runtime "
            "environment of Ray, and rerun the command",
            False,
        ),
        (
            Errors.TaskUnschedulableError("The task is not schedulable"),
            "",
            "Ray found no node for it (The task is not schedulable); see 'ray status', and rerun the command",
            False,
        ),
        (Errors.WorkerCrashedError(), "n2", "its process ended (n2)", True),
        (Errors.NodeDiedError(), "n2", "the node was lost (n2)", True),
        (Errors.LocalRayletDiedError(), "", "the node was lost", True),
        (Errors.ObjectLostError(), "n2", "the node was lost (n2)", True),
        (Errors.RayError("out of order"), "n2", "Ray ended it on node n2 (out of order)", True),
    ],
)
def test_why_a_task_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, node: str, reason: str, lost: bool
) -> None:
    ending = handed(cluster(Ray(error, wait=([1], [])), tmp_path, monkeypatch, node=node)).ending()
    assert ending is not None and (ending.reason, ending.lost) == (reason, lost)


def test_memory_that_runs_out_is_no_matter_of_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(Errors.OutOfMemoryError(), wait=([1], []))
    ending = handed(cluster(ray, tmp_path, monkeypatch, node="n2")).ending()
    assert ending is not None and ending.lost
    assert ending.reason == "Ray ended it when memory ran out on node n2"
    assert ending.remedy == "set a larger --cpus, so that fewer runs share a node, or a smaller batch"


@pytest.mark.parametrize("ask", ["ending", "waiting", "stop", "kill"])
def test_a_lost_cluster_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    found = handed(cluster(Ray(Errors.RayError("GCS is\nunavailable")), tmp_path, monkeypatch))
    found.begun -= on_ray.START_SECONDS + 1
    words = r"^the Ray cluster no longer answers \(GCS is unavailable\); restart Ray and rerun the command to resume$"
    with pytest.raises(ValueError, match=words):
        getattr(found, ask)()


def test_a_silent_head_is_waited_for_and_then_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would end the whole command, after a minute without its head."""
    engine = cluster(Ray(Errors.RayError("must not be asked")), tmp_path, monkeypatch)
    found = handed(engine)
    found.begun -= on_ray.START_SECONDS + 1
    monkeypatch.setattr(on_ray, "HEAD_LOOK_SECONDS", -1.0)
    with socket.create_server(("127.0.0.1", 0)) as head:
        engine.head = f"127.0.0.1:{head.getsockname()[1]}"
        assert engine.head_answers()
    assert found.ending() is None
    with pytest.raises(NoRoom, match="the head of the Ray cluster does not answer at"):
        engine.start(found.training, [], print)
    assert found.waiting() == f"the head of the Ray cluster, which does not answer at {engine.head}"
    monkeypatch.setattr(on_ray, "HEAD_SECONDS", -1.0)
    words = rf"the Ray cluster no longer answers \(at {engine.head}\); restart Ray and rerun the command to resume"
    for ask in (found.ending, found.waiting):
        with pytest.raises(ValueError, match=words):
            ask()


def test_what_a_cluster_has_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True, "NodeManagerHostname": "a", "Resources": {"CPU": 1.0, "GPU": 1.0}}]
    for alive, words in ((nodes, "Ray: 1 node with 1 CPU core and 1 GPU."), (nodes * 2, "2 nodes with 2 CPU cores")):
        said = list[str]()
        cluster(Ray(Errors.RayError(), nodes=alive), tmp_path, monkeypatch).prepare([], said.append)
        assert len(said) == 1 and words in said[0]


def test_a_cluster_lost_before_a_run_begins_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = cluster(Ray(Errors.RayError("GCS is unavailable")), tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="the Ray cluster no longer answers"):
        engine.prepare([], print)
