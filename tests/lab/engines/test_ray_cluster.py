"""Comparisons on real Ray clusters of this machine: a lost node, Ctrl-C, files that travel, GPUs, a lost head.

Tests of the command's own cluster come first: later it would join the cluster that is there.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters import Command, check_equal, paused, processes_of, text_of, trainings_of, updates, write_matrix
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.comparison.runner import is_done

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'vitmix[cluster]'"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
MEMORY = 100_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparisons")


@pytest.fixture(scope="module")
def matrix(folder: Path) -> Path:
    return write_matrix(folder)


@pytest.fixture(scope="module")
def reference(folder: Path, matrix: Path) -> list[Training]:
    assert Command(matrix, folder / "jobs", "--jobs", "1").end() == 0
    return trainings_of(matrix, folder / "jobs")


@pytest.fixture(scope="module", autouse=True)
def busy_machine() -> Iterator[None]:
    """Other work beside Ray's: its niceness of 15 would starve, and its monitor would end tasks for others' memory."""
    given = {"RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"}
    os.environ.update(given)
    yield
    for name in given:
        del os.environ[name]


def start_cluster(nodes: int) -> Any:
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": MEMORY})
    for _ in range(nodes):
        found.add_node(num_cpus=1, object_store_memory=MEMORY)
    found.wait_for_nodes()
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    found = start_cluster(2)
    try:
        yield found
    finally:
        found.shutdown()


def node_of(cluster: Any, training: Training) -> Any:
    """The node whose raylet is an ancestor of the training's process."""
    (process,) = processes_of(training)
    ancestors = []
    while process > 1:
        ancestors.append(process)
        process = int(text_of(Path(f"/proc/{process}/stat")).rsplit(")", 1)[1].split()[1])
    return next(node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid in ancestors)


def test_a_cluster_of_the_command_ends_with_it_and_ctrl_c_leaves_what_continues(
    folder: Path, matrix: Path, reference: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    output = folder / "own"
    trainings = trainings_of(matrix, output)
    command = Command(matrix, output, "--on", "ray")
    command.wait_for(lambda: updates(trainings[0]) > 0)
    assert "Ray: 1 node with" in command.said
    assert command.interrupt() == 130 and "Stopped by SIGINT" in command.said
    assert not any(map(processes_of, trainings)) and not is_done(trainings[0])
    assert (again := Command(matrix, output, "--on", "ray")).end() == 0, again.said
    assert f"{trainings[0].name} resumes on node" in again.said
    check_equal(trainings, reference)


def test_a_lost_node_takes_no_training_with_it(
    folder: Path, matrix: Path, reference: list[Training], cluster: Any
) -> None:
    output = folder / "lost"
    one, other = trainings = trainings_of(matrix, output)
    command = Command(matrix, output, "--on", "ray", "--address", cluster.address)
    command.wait_for(lambda: updates(one) > 0 and updates(other) > 0)
    cluster.remove_node(node_of(cluster, one), allow_graceful=False)
    again = f"{one.name} starts again from its newest checkpoint, because the node was lost"
    with paused(other):  # so that the one node left has no room
        command.wait_for(lambda: again in command.said)
        command.wait_for(lambda: "waits for 1 CPU core: none of the 2 nodes has one free" in command.said)
    assert command.end() == 0, command.said
    assert command.said.count(f"{one.name} begins on node") == 1 and f"{one.name} resumes on node" in command.said
    cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    check_equal(trainings, reference)


@pytest.mark.parametrize("kind", ["objects", "file"])
def test_files_travel_and_ctrl_c_leaves_what_continues(
    folder: Path, matrix: Path, reference: list[Training], cluster: Any, kind: str
) -> None:
    output = folder / kind
    trainings = trainings_of(matrix, output)
    store = f"file://{folder}/store" if kind == "file" else kind
    flags = ("--on", "ray", "--address", cluster.address, "--store", store)
    command = Command(matrix, output, *flags)
    assert command.interrupt_in_the_middle(trainings) == 130 and "Stopped by SIGINT" in command.said
    assert all(updates(training) > 0 and not is_done(training) for training in trainings)
    assert (again := Command(matrix, output, *flags)).end() == 0, again.said
    assert all(f"{training.name} resumes on node" in again.said for training in trainings)
    check_equal(trainings, reference)


def test_a_killed_command_leaves_what_continues_and_two_commands_share_the_work(
    folder: Path, matrix: Path, reference: list[Training], cluster: Any
) -> None:
    output = folder / "shared"
    trainings = trainings_of(matrix, output)
    flags = ("--on", "ray", "--address", cluster.address)
    command = Command(matrix, output, *flags)
    command.wait_for(lambda: all(updates(training) > 0 for training in trainings))
    command.process.kill()
    command.process.wait()
    both = [Command(matrix, output, *flags, "--jobs", "1") for _ in range(2)]
    assert [each.end() for each in both] == [0, 0], both[0].said + both[1].said
    said = both[0].said + both[1].said
    assert all(said.count(f"{training.name} resumes on node") == 1 for training in trainings), said
    check_equal(trainings, reference)


def test_a_gpu_that_no_node_has_is_told(folder: Path, matrix: Path, cluster: Any) -> None:
    flags = ("--on", "ray", "--address", cluster.address, "--gpus", "1", "--minutes", "0.5")
    command = Command(matrix, folder / "gpu", *flags)
    assert command.end() == 75
    assert "wait for 1 GPU: none of the 3 nodes has one; add such a node, or ask for less" in command.said, command.said


def test_runs_that_ask_for_a_gpu_take_turns_on_the_node_that_has_one(
    folder: Path, matrix: Path, reference: list[Training], cluster: Any
) -> None:
    """Ray believes in the GPU; the runs train on the CPU."""
    node = cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=MEMORY)
    cluster.wait_for_nodes()
    try:
        output = folder / "with_gpu"
        one, other = trainings = trainings_of(matrix, output)
        command = Command(matrix, output, "--on", "ray", "--address", cluster.address, "--gpus", "1")
        command.wait_for(lambda: any(map(processes_of, trainings)))
        assert [node_of(cluster, each) for each in trainings if processes_of(each)] == [node]
        command.wait_for(lambda: is_done(one) or is_done(other) or all(map(processes_of, trainings)))
        assert not all(map(processes_of, trainings))
        assert command.end() == 0, command.said
        check_equal(trainings, reference)
    finally:
        cluster.remove_node(node)


def test_a_lost_head_is_told_in_a_sentence(folder: Path, matrix: Path) -> None:
    """Last: of this cluster nothing is left."""
    lone = start_cluster(1)
    try:
        output = folder / "headless"
        trainings = trainings_of(matrix, output)
        command = Command(matrix, output, "--on", "ray", "--address", lone.address)
        command.wait_for(lambda: updates(trainings[0]) > 0)
        with paused(trainings[0]):  # which could end before anything is noticed
            lone.head_node.kill_gcs_server()
            assert command.end(300) != 0, command.said  # Ray itself may end the process, after the sentence
        assert "the Ray cluster no longer answers" in command.said and "Traceback" not in command.said, command.said
    finally:
        lone.shutdown()
