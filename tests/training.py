"""Trainings small enough for tests."""

import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitmix.lab import environment
from vitmix.lab.training.config import TrainConfig, resolve
from vitmix.lab.training.engine import Trainer

TINY: dict[str, Any] = {
    "data": "shapes(size=16, length=48, test_length=24)",
    "model": "vit_tiny_patch16_224",
    "model_args": {"patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "size": 16,
    "method": "mixup(alpha=0.8) | tl_align",
    "epochs": 2,
    "batch": 8,
    "lr": 0.003,
    "lr_per": None,
    "warmup_epochs": 0.5,
    "drop": 0.1,
    "drop_path": 0.2,
    "auto_augment": None,
    "crop_pct": 1.0,
    "workers": 0,
    "log_every": 2,
    "track": "none",
    "cpu": True,
}


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, and lose much where processes share the cores."""
    with environment.one_thread():
        yield


def tiny(output: Path | str, **changes: Any) -> TrainConfig:
    return resolve({**TINY, "output": str(output), **changes})


def train(output: Path | str, **changes: Any) -> Trainer:
    """A finished training."""
    trainer = Trainer(tiny(output, **changes))
    assert trainer.run() == 0
    return trainer


class Crash(Exception):
    """Stands for the end of the process."""


def train_until(output: Path | str, update: int, **changes: Any) -> None:
    """A training that ends abruptly after this many updates."""
    trainer = Trainer(tiny(output, **changes))
    learn = trainer._learn

    def learn_and_crash(*arguments: Any) -> None:
        learn(*arguments)
        if trainer.update >= update:
            raise Crash

    trainer._learn = learn_and_crash
    try:
        trainer.run()
    except Crash:
        return
    raise AssertionError(f"the training ended before update {update}")


def poison(trainer: Trainer, update: int) -> None:
    """Makes the loss of one update infinite."""
    forward = trainer.core._forward_mixed

    def poisoned(*arguments: Any) -> object:
        output = forward(*arguments)
        if trainer.update == update:
            object.__setattr__(output, "loss", output.loss * math.inf)
        return output

    trainer.core._step = poisoned  # type: ignore[assignment]


def poison_gradient(trainer: Trainer, update: int) -> None:
    """Makes a gradient of one update NaN while its loss stays finite."""
    apply = trainer.stepper.apply

    def poisoned() -> None:
        if trainer.update == update:
            gradient = next(each.grad for each in trainer.core.model.parameters() if each.grad is not None)
            gradient[0] = math.nan
        apply()

    trainer.stepper.apply = poisoned


def look_often(patch: pytest.MonkeyPatch) -> None:
    """Lets torch's loaders look ten times a second whether their workers live, instead of every five seconds."""
    waiting = torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data
    patch.setattr(waiting, "__defaults__", (0.1,))


def weights(output: Path | str, name: str = "last") -> dict[str, Tensor]:
    return load_file(Path(output) / f"{name}.safetensors")


def replace_file(checkpoint: Path, name: str, content: bytes, *, write: bool = True) -> None:
    """Puts content into a file of a checkpoint, and into its manifest as if it had been written so."""
    if write:
        (checkpoint / name).write_bytes(content)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def same_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def whole_run(factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run that others are held against."""
    output = factory.mktemp("run") / "whole"
    train(output, ema=0.9)
    return output


def rows(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def run_pair(worker: str, folder: Path) -> None:
    """Runs a script of this folder as two processes that are connected; what they say is shown if one of them fails."""
    here = Path(__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running, logs = [], [folder / f"log{rank}" for rank in range(2)]
    for rank, log in enumerate(logs):
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}  # an abort says where, and loses no line
        command = [sys.executable, str(here / worker), str(folder)]
        with open(log, "wb") as file:
            running.append(subprocess.Popen(command, env=environment, cwd=here, stdout=file, stderr=file))
    end = time.monotonic() + 240
    while any(process.poll() is None for process in running) and not any(process.poll() for process in running):
        assert time.monotonic() < end
        time.sleep(0.1)
    for process in running:
        process.kill()
        process.wait()
    assert [process.returncode for process in running] == [0, 0], "\n".join(log.read_text() for log in logs)
