"""Comparisons on a real Slurm cluster of this machine: a cancelled job, a drained node, a killed command, a store."""

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_cluster
from clusters import Command, check_equal, moto_server, paused, trainings_of, updates, write_matrix
from comparing import wait_for
from slurm_cluster import ask
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.comparison.runner import is_done

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not() or "never"),
]
ON = ("--on", "slurm", "--cpus", "1")


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
def cluster() -> Iterator[Path]:
    with slurm_cluster.slurm_cluster() as found:
        yield found


def job_of(training: Training, command: Command) -> str:
    line = next(line for line in command.said.splitlines() if line.startswith(f"{training.name} is job "))
    return line.rpartition(" ")[2]


def node_of(job: str) -> str:
    return ask("squeue", "--noheader", "--format=%N", f"--jobs={job}")


def change(node: str, state: str) -> None:
    reason = ["reason=bad fan"] if state == "drain" else []
    subprocess.run(["scontrol", "update", f"nodename={node}", f"state={state}", *reason], check=True)


def test_a_cancelled_job_and_a_drained_node(folder: Path, matrix: Path, reference: list[Training]) -> None:
    output = folder / "cancelled"
    one, other = trainings = trainings_of(matrix, output)
    command = Command(matrix, output, *ON)
    command.wait_for(lambda: updates(one) > 0 and updates(other) > 0)
    job, drained = job_of(one, command), node_of(job_of(other, command))
    change(drained, "drain")  # what runs there goes on
    subprocess.run(["scancel", job], check=True)
    assert command.end() == 1
    assert f"{one.name} failed: job {job} on node" in command.said and "was cancelled in Slurm; rerun" in command.said
    assert is_done(other) and not is_done(one)
    left = next(node for node in slurm_cluster.NODES if node != drained)
    try:
        again = Command(matrix, output, *ON)
        again.wait_for(lambda: f"{one.name} resumes on node {left}" in again.said)
        assert again.end() == 0, again.said
    finally:
        change(drained, "resume")
    check_equal(trainings, reference)


def test_a_job_that_waits_and_a_killed_command(folder: Path, matrix: Path, reference: list[Training]) -> None:
    output = folder / "killed"
    trainings = trainings_of(matrix, output)
    for node in slurm_cluster.NODES:
        change(node, "drain")
    try:
        command = Command(matrix, output, *ON)
        why = "no node takes jobs now (n1 is drained: bad fan; n2 is drained: bad fan)"
        command.wait_for(lambda: f"1 CPU core: {why}" in command.said)
    finally:
        for node in slurm_cluster.NODES:
            change(node, "resume")
    command.wait_for(lambda: updates(trainings[0]) > 0)
    jobs = [job_of(training, command) for training in trainings]
    command.process.kill()
    command.process.wait()
    assert ask("squeue", "--noheader", "--format=%T", f"--jobs={jobs[0]}") == "RUNNING"  # jobs outlive the command
    again = Command(matrix, output, *ON)
    with paused(trainings[0]):  # which would otherwise end before the command has begun
        again.wait_for(lambda: f"{trainings[0].name} continues as job {jobs[0]} of an earlier command" in again.said)
    assert again.end() == 0, again.said
    check_equal(trainings, reference)


def test_a_requeued_job_resumes_and_ctrl_c_stops_jobs(folder: Path, matrix: Path, reference: list[Training]) -> None:
    output = folder / "requeued"
    one, other = trainings = trainings_of(matrix, output)
    command = Command(matrix, output, *ON)
    command.wait_for(lambda: updates(one) > 0 and updates(other) > 0)
    job = job_of(one, command)
    subprocess.run(["scontrol", "requeue", job], check=True)  # what Slurm does when it loses the node
    command.wait_for(lambda: f"and is back in the queue as job {job}; it resumes" in command.said)
    assert command.interrupt() == 130 and "Stopped by SIGINT" in command.said
    wait_for(lambda: ask("squeue", "--noheader") == "")
    assert updates(other) > 0 and not is_done(one)
    assert (again := Command(matrix, output, *ON)).end() == 0, again.said
    assert f"{one.name} resumes on node" in again.said
    check_equal(trainings, reference)


@pytest.mark.skipif(
    importlib.util.find_spec("moto") is None or importlib.util.find_spec("s3fs") is None,
    reason="needs s3fs and moto[server]",
)
def test_files_travel_through_s3(folder: Path, matrix: Path, reference: list[Training]) -> None:
    output = folder / "travelled"
    trainings = trainings_of(matrix, output)
    with moto_server("bucket") as url:
        flags = (*ON, "--store", url)
        command = Command(matrix, output, *flags)
        assert command.interrupt_in_the_middle(trainings) == 130
        assert all(updates(training) > 0 for training in trainings)  # everything has come home
        assert (again := Command(matrix, output, *flags)).end() == 0, again.said
        assert f"{trainings[0].name} resumes on node" in again.said
    check_equal(trainings, reference)


def test_wrong_settings_are_refused_in_a_sentence(folder: Path, matrix: Path) -> None:
    for option, words in {
        "partition=gpus": "Slurm has no partition 'gpus'; give --slurm partition= one of debug",
        "gres=gpu:1": "Invalid generic resource (gres) specification; check --slurm",
        "nodelist=nowhere": "Invalid node name specified",
    }.items():
        command = Command(matrix, folder / "refused", *ON, "--slurm", option)
        assert command.end() == 2 and words in command.said and command.said.count("error") == 1, command.said
