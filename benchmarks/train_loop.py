"""Images per second of the whole training loop, of the bare compiled step and of the data alone, and where time goes.

    python benchmarks/train_loop.py --data npz:DIR --settings examples/small_images.yaml --profile profile.txt
    python benchmarks/train_loop.py --data npz:DIR --settings examples/small_images.yaml --rows

Epochs after the first count; the first pays for compilation. With --rows the loop alone, of every row or of those that
are named, one after another, and the baseline's again at the end: so much has the machine itself changed meanwhile.
"""

import argparse
import contextlib
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from vitmix.compare.matrix import Matrix, changed, read_matrix
from vitmix.train.config import TrainConfig
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


def trained(config: TrainConfig) -> tuple[Trainer, list[float]]:
    """A training that has ended, and the images per second of its epochs but the first."""
    torch.cuda.reset_peak_memory_stats()
    with contextlib.redirect_stdout(sys.stderr):
        trainer = Trainer(config)
        trainer.run()
    return trainer, [row["images/s"] for row in trainer.position.history[1:]]


def compare_rows(matrix: Matrix, folder: Path) -> None:
    """Prints the loop of each row: images per second, time and memory beside the baseline's."""
    order = [matrix.reference, *(row for row in matrix.rows if row != matrix.reference), matrix.reference]
    print("row | images/s | epochs | time | GiB", flush=True)
    first = 0.0
    for number, row in enumerate(order):
        cell = matrix.only([row]).cells(folder / str(number))[0]
        trainer, rates = trained(cell.config)
        memory, loop = torch.cuda.max_memory_allocated() / 2**30, statistics.median(rates)
        first = first or loop
        epochs = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(f"{row} | {loop:,.0f} | {epochs} | {first / loop:.3f} | {memory:.2f}", flush=True)
        del trainer  # with its data and its recorded graphs, before the next one's
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


def look_into(config: TrainConfig, profile_to: str | None) -> None:
    """Prints the loop beside the bare step and the data alone, and writes where its time goes."""
    trainer, rates = trained(config)
    loop, bare, data = statistics.median(rates), bare_step(trainer, 400), data_alone(trainer)
    print(f"loop {loop:,.0f} images/s ({', '.join(f'{rate:,.0f}' for rate in rates)})")
    print(f"bare step {bare:,.0f}: the loop takes {bare / loop:.3f} x its time; data alone {data:,.0f}", flush=True)
    if profile_to:
        Path(profile_to).write_text(profile(trainer, 32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="shapes(length=50000)")
    parser.add_argument("--settings", default="examples/cifar10.yaml", help="a comparison whose settings to take")
    parser.add_argument("--recipe", help="instead of the settings' recipe")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--method", default="mixup(alpha=0.8) | cutmix")
    what.add_argument("--rows", nargs="*", help="the comparison's rows instead of a method; all if none is named")
    parser.add_argument("--mode", help="instead of the settings' compile_mode, such as reduce-overhead")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--profile", help="file for the profile of a method")
    given = parser.parse_args()
    if given.epochs < 2:
        parser.error("the first epoch does not count; give --epochs 2 or more")
    settings = {"epochs": given.epochs, "cooldown_epochs": 0, "eval_every": given.epochs, "warmup_epochs": 1}
    settings["log_every"] = 200
    instead = {"recipe": given.recipe, "compile_mode": given.mode}
    settings |= {name: value for name, value in instead.items() if value is not None}
    matrix = changed(
        read_matrix(given.settings),
        methods=[given.method] if given.rows is None else [],
        data=[given.data],
        seeds=[0],
        settings=settings,
    )
    matrix = matrix.only(given.rows) if given.rows else matrix
    measured = given.method if given.rows is None else f"{len(matrix.rows)} rows"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.settings}, {measured}")
    with tempfile.TemporaryDirectory() as folder:
        if given.rows is None:
            look_into(matrix.cells(Path(folder))[0].config, given.profile)
        else:
            compare_rows(matrix, Path(folder))


if __name__ == "__main__":
    main()
