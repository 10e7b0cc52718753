"""Kills a small training with SIGKILL at random moments and lets it resume: `python tests/kill_runs.py FOLDER 20`.

Each training runs in a forked process of its own, so that the imports are paid once. Prints what was found as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from training import same_weights, tiny, weights
from vitmix.lab.training import checkpoints
from vitmix.lab.training.engine import Trainer

SETTINGS: dict[str, Any] = {"epochs": 6, "ema": 0.9, "data": "shapes(size=16, length=160, test_length=48)"}
MIXED = {**SETTINGS, "checkpoint_every": "3 steps", "method": "mixup | smmix | cutmix + htm(block=1)"}


def start(output: Path, workers: int) -> int:
    """The process id of a training."""
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        os._exit(Trainer(tiny(output, workers=workers, **MIXED)).run())
    except BaseException as error:
        print(f"the training failed: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


def finish(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    assert finish(start(folder / "warm", 0)) == 0
    began = time.monotonic()
    assert finish(start(folder / "whole", 0)) == 0
    length = time.monotonic() - began
    whole, chance, found = weights(folder / "whole"), random.Random(0), []
    for number in range(4 * kills):
        if len(found) == kills:
            break
        output, workers = folder / f"run{number}", 2 * (number % 2)
        child, moment = start(output, workers), chance.uniform(0, length)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        if finish(child) != -signal.SIGKILL:
            continue  # it had finished before its moment came
        newest, _ = checkpoints.newest_checkpoint(output / "checkpoints")
        resumed = finish(start(output, workers)) == 0
        rows = (output / "metrics.csv").read_text().splitlines() if resumed else []
        found.append(
            {
                "seconds": round(moment, 3),
                "workers": workers,
                "from": newest.name if newest else None,
                "resumed": resumed,
                "equal": resumed and same_weights(whole, weights(output)),
                "rows": [int(row.split(",")[0]) for row in rows[1:]],
            }
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
