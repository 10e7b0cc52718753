"""Two processes on the CPU: the same gradients as one process with the same global batch and the same draws."""

import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ddp_worker import EXACT, METHODS, gradient_settings
from training import one_thread, tiny, train, weights  # noqa: F401
from vitmix.draws import generator_for
from vitmix.train.engine import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes left their results."""
    folder, here = tmp_path_factory.mktemp("pair"), Path(__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(2):
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(here / "ddp_worker.py"), str(folder)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        running.append(subprocess.Popen(command, env=environment, cwd=here, **pipes))  # type: ignore[call-overload]
    for process in running:
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
    return folder


@pytest.mark.parametrize("number", range(len(METHODS)), ids=METHODS)
def test_gradients_equal_those_of_one_process(pair: Path, tmp_path: Path, number: int) -> None:
    """One process goes through the two halves of the batch with the draws of the two ranks.

    So HTM is included too: each process assigns partners within its own part of the batch, as documented.
    """
    trainer = Trainer(tiny(tmp_path / "one", **gradient_settings(METHODS[number])))
    trainer.learner.train()
    batch, seed = next(trainer.loader.epoch(0)), trainer.config.seed
    for rank in range(2):
        images, labels = batch.images[rank::2], batch.labels[rank::2]
        own, shared = generator_for(seed, 0, 1 + rank), generator_for(seed, 0, 0)
        draw = trainer.method.draw(trainer.core.mixing.frame(images), own, shared=shared)
        (trainer.core(images, labels, draw=draw).loss / 2).backward()
    expected = {name: each.grad for name, each in trainer.core.named_parameters() if each.grad is not None}
    for rank in range(2):
        found = load_file(pair / f"gradients{number}-{rank}.safetensors")
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-5)


def test_whole_training_equals_that_of_one_process(pair: Path, tmp_path: Path) -> None:
    assert [json.loads((pair / f"code-{rank}.json").read_text()) for rank in range(2)] == [0, 0]
    train(tmp_path / "one", ema=0.9, **EXACT)
    for name in ("last", "best"):
        one, two = weights(tmp_path / "one", name), weights(pair / "two", name)
        for key in one:
            torch.testing.assert_close(two[key], one[key], atol=1e-5, rtol=1e-4)
    tables = []
    for output in (tmp_path / "one", pair / "two"):
        with open(output / "metrics.csv", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    assert [row["epoch"] for row in tables[1]] == ["1", "2"]
    for one_row, two_row in zip(*tables, strict=True):
        for measure in ("loss", "accuracy", "eval_loss", "ema_accuracy"):
            assert float(two_row[measure]) == pytest.approx(float(one_row[measure]), abs=1e-5)


def test_batch_must_divide(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 1 processes x 3 accumulated parts, got 8; take 9"):
        Trainer(tiny(tmp_path / "run", accumulate=3))
