"""What the comparison says of tasks of Ray, without Ray."""

import time
from types import SimpleNamespace
from typing import Any

from vitmix.lab.engines import on_ray
from vitmix.lab.engines.on_ray import RayJob
from vitmix.lab.engines.words import Node


def job(request: dict[str, float], age: float, *, node: str = "") -> RayJob:
    """A task of a cluster of two nodes without free cores, submitted some seconds ago."""
    engine: Any = SimpleNamespace(
        ray=SimpleNamespace(available_resources=lambda: {"CPU": 0.0}),
        nodes=lambda: [Node("a", {"CPU": 2}), Node("b", {"CPU": 2})],
        node_of=lambda attempt: node,
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
