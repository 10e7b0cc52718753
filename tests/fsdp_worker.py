"""One of two processes that train with and without spread weights, and resume. Run by test_large_data.py."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from training import Crash, tiny
from vitmix.lab.training.engine import Trainer

# Every kind of part: statistics from hooks, the guide's head outside the model, added parameters, tokens inside.
METHODS = ["tl_align | smmix", "(mixup | cutmix) + htm(block=1) + vtm(block=1, tokens=2)"]
# 25 images: one process has a batch more to evaluate than the other.
DATA = "shapes(size=16, length=48, test_length=25)"
SETTINGS: dict[str, Any] = {"data": DATA, "epochs": 1, "clip_grad": 1.0, "checkpoint_every": "2 steps"}


def main(folder: Path) -> None:
    facts: dict[str, Any] = {}
    for number, method in enumerate(METHODS):
        for fsdp in (False, True):
            trainer = run(folder / f"{number}-{fsdp}", method=method, fsdp=fsdp, grad_checkpointing=number == 0)
            if fsdp:
                held = sum(each.to_local().numel() for each in trainer.core.parameters())
                facts["held"] = held / sum(each.numel() for each in trainer.core.parameters())
    run(folder / "resumed", until=3, method=METHODS[1], fsdp=True)
    if trainer.rank == 0:
        shutil.copytree(folder / "resumed", folder / "left")
    run(folder / "resumed", method=METHODS[1], fsdp=True)
    run(folder / "stopped", stop_at=6, method=METHODS[1], fsdp=True)
    run(folder / "stopped", method=METHODS[1], fsdp=True)
    if trainer.rank == 0:
        (folder / "facts.json").write_text(json.dumps(facts))


def run(output: Path, *, until: int | None = None, stop_at: int | None = None, **changes: Any) -> Trainer:
    """A training, up to the end or until it crashes or is told to stop after this many updates."""
    trainer = Trainer(tiny(output, **SETTINGS, **changes))
    trainer.accelerator.end_training = lambda: None  # which would end the processes' connection
    learn = trainer._learn

    def learn_and_crash(*given: Any) -> None:
        learn(*given)
        if trainer.update == until:
            raise Crash
        if trainer.update == stop_at:
            trainer.stopper.received = signal.SIGTERM

    trainer._learn = learn_and_crash
    try:
        assert (trainer.run() == 0) == (stop_at is None)
    except Crash:
        assert until is not None
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch keeps the mesh, and with it threads of the connection, which may abort an end in the usual way
