"""Images per second of the loop of `vitmix transfer --task segment`, and of its bare compiled step.

    python benchmarks/transfer_loop.py --data "masks:pets128(masks=trimaps, offset=1)"

DPT on DeiT-Tiny at 128 pixels, batch 64, bf16, compiled, with the data in device memory. The first epoch, which has the
compilation in it, does not count. The bare step is forward, backward and optimizer on one fixed batch.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from typing import Any

import torch

from vitmix.lab.dense.config import resolve_transfer
from vitmix.lab.dense.training import TransferTrainer
from vitmix.lab.environment import describe_environment


def bare_step(trainer: TransferTrainer, updates: int) -> float:
    """Images per second on one fixed batch."""
    batch: Any = next(iter(trainer.loader.epoch(0))).to(trainer.device)
    trainer.learner.train()

    def run(count: int) -> None:
        for _ in range(count):
            output = trainer.learner(batch.images, batch.targets)
            trainer.accelerator.backward(output.loss)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()

    run(max(1, updates // 8))
    _wait()
    began = time.perf_counter()
    run(updates)
    _wait()
    return updates * len(batch) / (time.perf_counter() - began)


def data_alone(trainer: TransferTrainer) -> float:
    """Images per second of an epoch's batches, without training."""
    _wait()
    began = time.perf_counter()
    images = sum(len(batch) for batch in trainer.loader.epoch(2))
    _wait()
    return images / (time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True)
    parser.add_argument("--method", default="none")
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--updates", type=int, default=300, help="of the bare step")
    parser.add_argument("--workers", type=int, default=4, help="that read the data, once")
    parser.add_argument("--eager", action="store_true", help="without compilation")
    given = parser.parse_args()
    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            **{"backbone": "deit_tiny_patch16_224", "task": "segment", "head": "dpt", "size": 128, "resident": True},
            **{"data": given.data, "method": given.method, "epochs": given.epochs, "eval_every": given.epochs},
            **{"batch": given.batch, "compile": not given.eager, "compile_mode": given.mode, "workers": given.workers},
            **{"precision": "bf16" if cuda else "fp32", "log_every": 1000, "checkpoint_every": "1000 epochs"},
            **{"track": "none", "output": folder + "/run"},
        }
        with contextlib.redirect_stdout(sys.stderr):
            trainer = TransferTrainer(resolve_transfer(settings))
            trainer.run()
        memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
        rates = [row.values["images/s"] for row in trainer.position.history[1:]]
        loop, bare, data = statistics.median(rates), bare_step(trainer, given.updates), data_alone(trainer)
        again = bare_step(trainer, given.updates)
        facts = describe_environment(trainer.device)
    kind = "eager" if given.eager else given.mode
    print(f"{facts['device']}, torch {torch.__version__}, {kind}, batch {given.batch}, method {given.method}")
    print(f"loop {loop:,.0f} images/s ({', '.join(f'{rate:,.0f}' for rate in rates)})")
    print(f"bare step {bare:,.0f} and {again:,.0f} images/s: the loop takes {bare / loop:.3f} x its time")
    print(f"data alone {data:,.0f} images/s; peak memory {memory:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
