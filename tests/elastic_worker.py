"""One process of a training under torchrun: notes what it resumed from and read, and dies or stops where it is told to.

Run by test_elastic.py as `elastic_worker.py FOLDER SETTINGS`, with settings as JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from training import tiny
from vitmix.lab.data.loader import Batch
from vitmix.lab.training import checkpoints, sharding
from vitmix.lab.training.engine import Trainer


def main(folder: Path, *, die_at: int | None = None, stop_at: int | None = None, **settings: Any) -> int:
    """Args:
    die_at: the last process kills itself after this update, unless it was restarted.
    stop_at: the run is told to stop after this update.
    """
    trainer = Trainer(tiny(folder / "run", **settings))
    last, first_start = trainer.rank == trainer.world - 1, os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    load, learn, epoch = trainer.state.load, trainer._learn, trainer.loader.epoch

    def load_and_note(path: Path) -> int:
        world = load(path)
        save_file(state_of(trainer), folder / f"loaded-{trainer.world}-{trainer.rank}.safetensors")
        return world

    def learn_and_end(*given: Any) -> None:
        learn(*given)
        if trainer.update == die_at and last and first_start:
            os.kill(os.getpid(), signal.SIGKILL)
        if trainer.update == stop_at:
            trainer.stopper.received = signal.SIGTERM

    def epoch_and_note(number: int, start: int = 0) -> Iterator[Batch]:
        for place, batch in enumerate(epoch(number, start), start):
            with open(folder / f"seen-{trainer.world}-{trainer.rank}.jsonl", "a") as file:
                file.write(json.dumps([number, place, batch.indices.tolist()]) + "\n")
            yield batch

    trainer.state.load, trainer._learn, trainer.loader.epoch = load_and_note, learn_and_end, epoch_and_note
    code = trainer.run()
    return 0 if stop_at is not None and code == 128 + signal.SIGTERM else code


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Every tensor that a checkpoint holds of the training, whole."""
    found = {f"model.{name}": each for name, each in trainer.core.model.state_dict().items()}
    found |= checkpoints.pack({"optimizer": trainer.optimizer.state_dict(), "added": trainer.core.added.state_dict()})[
        0
    ]
    if trainer.ema is not None:
        found |= {f"ema.{name}": each for name, each in trainer.ema.module.state_dict().items()}
    return {name: sharding.whole(each).clone() for name, each in found.items()}


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    if code == 0:
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(
        code
    )  # torch keeps the mesh, and with it threads of the connection, which may abort an end in the usual way
