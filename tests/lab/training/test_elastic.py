"""Trainings that another number of processes continues: the order of the images, the state, and torchrun's restarts."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from comparing import wait_for
from slurm_cluster import free_ports
from training import same_weights, tiny, train, weights
from vitmix.lab.data.plan import EpochPlan
from vitmix.lab.training import checkpoints, processes, sharded
from vitmix.lab.training.config import to_yaml
from vitmix.lab.training.texts import other_world

TESTS = Path(__file__).parents[2]


# The order of the images


def plans(length: int, total: int, world: int, **settings: Any) -> list[EpochPlan]:
    batch, extra = divmod(total, world)
    return [EpochPlan(length, batch, 7, rank=rank, world=world, extra=extra, **settings) for rank in range(world)]


@given(
    length=st.integers(20, 90),
    total=st.integers(5, 20),
    repeats=st.sampled_from([1, 3]),
    balanced=st.booleans(),
    stages=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_an_epoch_shows_the_same_batches_to_any_numbers_of_processes(
    length: int, total: int, repeats: int, balanced: bool, stages: list[tuple[int, int]]
) -> None:
    """Each stage is a number of processes and of batches; the last one ends the epoch. Slow twin: one process."""
    settings: dict[str, Any] = {"repeats": repeats, "labels": np.arange(length) % 3 if balanced else None}
    (one,) = plans(length, total, 1, **settings)
    expected = [sorted(keys) for keys in one.keys(4, 0)]
    seen: list[list[Any]] = []
    for number, (world, batches) in enumerate(stages):
        end = one.batches if number == len(stages) - 1 else min(one.batches, len(seen) + batches)
        ranks = [[*plan.keys(4, len(seen))] for plan in plans(length, total, world, **settings)]
        assert {len(rank) for rank in ranks} == {one.batches - len(seen)}
        seen += [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)][: end - len(seen)]
    assert seen == expected
    if repeats == 1 and not balanced:
        assert max(Counter(index for keys in seen for _, index, _ in keys).values()) == 1


def test_parts_of_an_uneven_batch() -> None:
    config = tiny("run", batch=14, accumulate=2)
    assert processes.part_of_batch(config, 3) == (2, 1) and str(processes.part_of_batch(config, 3)) == "2 or 3"
    assert [plan.size for plan in plans(30, 7, 3)] == [3, 2, 2]
    with pytest.raises(
        ValueError, match="14 in 2 micro-batches leaves some of the 8 processes without an image; start fewer"
    ):
        processes.part_of_batch(config, 8)


def test_one_sentence_says_what_stays() -> None:
    said = other_world(tiny("run", batch=8), 2, 3)
    assert said == (
        "the checkpoint was written by 2 processes and 3 continue: weights, optimizer and the images of every batch of "
        "8 stay the same, but images are mixed 2 or 3 at a time instead of 4, with other random numbers"
    )
    assert "2 processes and 1 continues" in other_world(tiny("run"), 2, 1)
    assert "are augmented and mixed 8 at a time" in other_world(tiny("run", resident=True), 2, 1)


# Under torchrun


def launch(folder: Path, number: int, *, restarts: int = 0, **settings: Any) -> str:
    """Trains in so many processes; returns what they said."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    command += ["--max-restarts", str(restarts), "--monitor-interval", "0.1"]
    command += [str(TESTS / "elastic_worker.py"), str(folder), json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else a restart may read the addresses of dead processes
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def stored(folder: Path, update: int) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, named as elastic_worker.py names those that it loaded."""
    path = folder / "run" / "checkpoints" / f"update-{update:09d}"
    read = sharded.load_checkpoint if checkpoints.is_sharded(path) else checkpoints.load_checkpoint
    checkpoint = read(path)
    found = {f"model.{name}": each for name, each in checkpoint.model.items()}
    found |= {f"ema.{name}": each for name, each in (checkpoint.ema or {}).items()}
    kept = {name: checkpoint.training[name] for name in ("optimizer", "added")}
    return {**found, **checkpoints.pack(kept)[0]}


def seen(folder: Path) -> list[tuple[int, int, int]]:
    """Epoch, batch and index of each image that any process read."""
    rows = [json.loads(line) for path in folder.glob("seen-*.jsonl") for line in path.read_text().splitlines()]
    return [(epoch, place, index) for epoch, place, indices in rows for index in indices]


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
def test_torchrun_replaces_a_dead_worker(tmp_path: Path, fsdp: bool) -> None:
    settings = {"checkpoint_every": "2 steps", "fsdp": fsdp, **({} if fsdp else {"ema": 0.9})}
    said = launch(tmp_path / "killed", 2, restarts=1, die_at=5, **settings)
    assert "resuming at update 4 of 12" in said and "continue" not in said
    launch(tmp_path / "whole", 2, **settings)
    for name in ("last", "best"):
        assert same_weights(weights(tmp_path / "whole" / "run", name), weights(tmp_path / "killed" / "run", name))
    assert same_weights(stored(tmp_path / "whole", 12), stored(tmp_path / "killed", 12))


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_processes_continues(tmp_path: Path, before: int, now: int, fsdp: bool) -> None:
    """Eight images do not divide by three processes: two of them compute three."""
    settings: dict[str, Any] = {"keep": 9, "method": "mixup | smmix", **({} if fsdp else {"ema": 0.9})}
    launch(tmp_path, before, stop_at=4, fsdp=fsdp and before > 1, **settings)
    said = launch(tmp_path, now, fsdp=fsdp and now > 1, **settings)
    assert said.count(other_world(tiny("run"), before, now)) == 1 and "resuming at update 4 of 12" in said
    expected = stored(tmp_path, 4)
    assert any(name.startswith("state.optimizer") for name in expected) and (fsdp or "ema.cls_token" in expected)
    for rank in range(now):
        assert same_weights(load_file(tmp_path / f"loaded-{now}-{rank}.safetensors"), expected)
    assert Counter(seen(tmp_path)).most_common(1)[0][1] == 1
    assert len(seen(tmp_path)) == 2 * 48 and {index for _, _, index in seen(tmp_path)} == set(range(48))


@pytest.mark.slow
def test_a_machine_is_lost_and_another_joins(tmp_path: Path) -> None:
    """The documented command, with an agent of torchrun for each machine; the first has the rendezvous."""
    (port,) = free_ports(1)
    with ExitStack() as agents:
        first = agents.enter_context(Agent(tmp_path, "first", port))
        wait_for(lambda: answers(port))
        second = agents.enter_context(Agent(tmp_path, "second", port))
        wait_for(lambda: updates(tmp_path) > 0)
        assert "on 2 processes" in first.said
        second.kill()
        alone = other_world(tiny("run"), 2, 1)
        wait_for(lambda: alone in first.said)
        lost = updates(tmp_path)
        wait_for(lambda: updates(tmp_path) > lost)
        agents.enter_context(Agent(tmp_path, "third", port))
        wait_for(lambda: other_world(tiny("run"), 1, 2) in first.said)
    stopped = next(
        line for line in first.said.splitlines() if line.startswith("Stopped by SIGTERM. Checkpoint of update")
    )
    assert f"resuming at update {stopped.split()[6]} of" in first.said  # nothing is lost when a machine joins


@pytest.mark.slow
def test_a_machine_falls_silent(tmp_path: Path) -> None:
    """Without power: its connections stay open. The other machine waits until its process is ended, as documented."""
    (port,) = free_ports(1)
    with ExitStack() as agents:
        first = agents.enter_context(Agent(tmp_path, "first", port))
        wait_for(lambda: answers(port))
        second = agents.enter_context(Agent(tmp_path, "second", port))
        wait_for(lambda: updates(tmp_path) > 0)
        second.send(signal.SIGSTOP)
        time.sleep(5)  # for what was under way
        silent = updates(tmp_path)
        time.sleep(20)
        assert updates(tmp_path) == silent and first.process.poll() is None
        first.send(signal.SIGKILL, agent=False)
        alone = other_world(tiny("run"), 2, 1)
        wait_for(lambda: alone in first.said)
        wait_for(lambda: updates(tmp_path) > silent)


class Agent:
    """`torchrun ... -m vitmix train ...` on one machine of one or two, with one process."""

    def __init__(self, folder: Path, name: str, port: int) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"]
        command += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "RUN"]
        command += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "last_call_timeout=20"]
        settings = tiny("run", epochs=2000, checkpoint_every="20 steps")
        (folder / "settings.yaml").write_text(to_yaml(settings))
        command += ["-m", "vitmix", "train", "--config", str(folder / "settings.yaml"), "--output", str(folder / "run")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.file = folder / f"{name}.txt"
        with open(self.file, "wb") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    @property
    def said(self) -> str:
        return self.file.read_text()

    def kill(self) -> None:
        """Agent and worker at once, as when a machine is lost."""
        self.send(signal.SIGKILL)
        self.process.wait()

    def send(self, number: int, *, agent: bool = True) -> None:
        """A signal to the worker and, first, to the agent."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for process in (*([self.process.pid] if agent else []), *map(int, children)):
            os.kill(process, number)

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def updates(folder: Path) -> int:
    """Of the newest checkpoint."""
    names = [path.name for path in (folder / "run" / "checkpoints").glob("update-*")]
    return max((int(name.removeprefix("update-")) for name in names), default=0)


@pytest.mark.slow
def test_uneven_processes_train_as_one(tmp_path: Path) -> None:
    """Without mixing, the gradient of a batch does not depend on who computes which part."""
    settings: dict[str, Any] = {"method": "none", "drop": 0.0, "drop_path": 0.0, "optimizer": "momentum", "lr": 0.1}
    launch(tmp_path, 3, **settings)
    train(tmp_path / "one", **settings)
    one, three = weights(tmp_path / "one"), weights(tmp_path / "run")
    for name in one:
        torch.testing.assert_close(three[name], one[name], atol=1e-5, rtol=1e-4)
    (first, *_), (other, *_) = (
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("one", "run")
    )
    assert other["loss"] == pytest.approx(first["loss"], abs=1e-5)
