"""Images per second of the whole training loop, of the bare compiled step and of the data alone, and where time goes.

    python benchmarks/train_loop.py --data npz:DIR --settings examples/small_images.yaml --profile profile.txt

Epochs after the first count; the first pays for compilation.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import yaml

from vitmix.train.config import resolve
from vitmix.train.engine import Trainer


def bare_step(trainer: Trainer, updates: int) -> float:
    """Images per second of forward, backward and optimizer on one batch that stays where it is."""
    batch = next(iter(trainer.loader.epoch(0))).to(trainer.device)
    draws = [trainer._draw(batch.images, 0, step) for step in range(16)]
    erase = None if batch.erase is None else (batch.erase, torch.randn_like(batch.images))
    trainer.learner.train()

    def run(count: int) -> None:
        for number in range(count):
            output = trainer.learner(batch.images, batch.labels, draw=draws[number % len(draws)], erase=erase)
            trainer.accelerator.backward(output.loss)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()

    run(48)
    torch.cuda.synchronize()
    began = time.perf_counter()
    run(updates)
    torch.cuda.synchronize()
    return updates * len(batch) / (time.perf_counter() - began)


def data_alone(trainer: Trainer) -> float:
    """Images per second of an epoch's batches that nothing is done with."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    images = sum(len(batch) for batch in trainer.loader.epoch(2))
    torch.cuda.synchronize()
    return images / (time.perf_counter() - began)


def profile(trainer: Trainer, updates: int) -> str:
    """A table of the loop's operations, and how often the host waited for the device."""
    batches = trainer.loader.epoch(1)
    trainer.learner.train()
    for _ in range(8):
        trainer._learn(batches, epoch=1)
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as record:
        for _ in range(updates):
            trainer._learn(batches, epoch=1)
        torch.cuda.synchronize()
    found = record.key_averages()
    waits = {event.key: event.count for event in found if "Synchronize" in event.key}
    tables = [found.table(sort_by=key, row_limit=40) for key in ("self_cuda_time_total", "self_cpu_time_total")]
    return f"waits in {updates} updates, the last one being ours: {waits}\n" + "\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="shapes(length=50000)")
    parser.add_argument("--settings", default="examples/cifar10.yaml", help="a comparison whose settings to take")
    parser.add_argument("--recipe", help="instead of the settings' recipe")
    parser.add_argument("--method", default="mixup(alpha=0.8) | cutmix")
    parser.add_argument("--mode", help="instead of the settings' compile_mode, such as reduce-overhead")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--profile", help="file for the profile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = yaml.safe_load(Path(given.settings).read_text())["settings"]
        settings |= {"data": given.data, "method": given.method, "output": str(Path(folder) / "run")}
        settings |= {"epochs": given.epochs, "cooldown_epochs": 0, "eval_every": given.epochs, "warmup_epochs": 1}
        instead = {"recipe": given.recipe, "compile_mode": given.mode}
        settings |= {name: value for name, value in instead.items() if value is not None}
        trainer = Trainer(resolve({**settings, "track": "none", "log_every": 200}))
        trainer.run()
        rates = [row["images/s"] for row in trainer.position.history[1:]]
        loop, bare, data = statistics.median(rates), bare_step(trainer, 400), data_alone(trainer)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.settings}, {given.method}")
        print(f"loop {loop:,.0f} images/s ({', '.join(f'{rate:,.0f}' for rate in rates)})")
        print(f"bare step {bare:,.0f}: the loop takes {bare / loop:.3f} x its time; data alone {data:,.0f}", flush=True)
        if given.profile:
            Path(given.profile).write_text(profile(trainer, 32))


if __name__ == "__main__":
    main()
