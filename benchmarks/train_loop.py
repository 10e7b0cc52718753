"""Images per second of the whole training loop, of the bare compiled step and of the data alone, with a profile.

    python benchmarks/train_loop.py --data npz:DIR --settings examples/small_images.yaml --profile profile.txt
    python benchmarks/train_loop.py --data npz:DIR --settings examples/small_images.yaml --rows

The first epoch, which includes compilation, does not count. --rows measures only the loop, of every row or of the named
ones. Each row is a process. Once all have compiled, they alternate, one epoch each, so that a change of the machine's
speed affects all of them. The last epoch does not count either. The baseline runs twice; the distance of the second
from 1 shows the accuracy of the comparison.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from vitmix.lab.comparison.matrix import RunMatrix, changed, read_matrix
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.engine import Trainer


def bare_step(trainer: Trainer, updates: int) -> float:
    """Images per second of forward, backward and optimizer on one fixed batch."""
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
    """Images per second of loading an epoch's batches, without training."""
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


def rates_of(trainer: Trainer) -> list[float]:
    """Images per second of each epoch of a training except the first."""
    return [row.values["images/s"] for row in trainer.position.history[1:]]


class InTurns(Trainer):
    """A training that reports images per second and GiB before each epoch, and then waits for its turn."""

    def __init__(self, config: TrainConfig, turns: Connection) -> None:
        super().__init__(config)
        self.turns = turns

    def _train_epoch(self, epoch: int) -> None:
        self.turns.send((rates_of(self), torch.cuda.max_memory_allocated() / 2**30))
        self.turns.recv()
        super()._train_epoch(epoch)


def train_in_turns(config: TrainConfig, turns: Connection) -> None:
    """The process of a row; runs until it is ended."""
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        InTurns(config, turns).run()


def measure_rows(configs: list[TrainConfig]) -> Iterator[list[tuple[list[float], float]]]:
    """Yields, after each round, images per second and GiB of trainings that alternate."""
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use the device
    pipes = [spawn.Pipe() for _ in configs]
    processes = [
        spawn.Process(target=train_in_turns, args=(config, theirs), daemon=True)
        for config, (_, theirs) in zip(configs, pipes, strict=True)
    ]
    for process, (_, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()  # otherwise the death of a process goes unnoticed
    try:
        for turns, _ in pipes:  # the first epoch compiles and does not count: all at once
            turns.recv()
            turns.send("go")
        measured = [turns.recv() for turns, _ in pipes]
        rounds = configs[0].epochs - 2  # without the first and the last, after which a process is busy shutting down
        for _ in range(rounds):
            for place, (turns, _) in enumerate(pipes):
                turns.send("go")
                measured[place] = turns.recv()
            yield measured
    finally:
        for process in processes:
            process.kill()


def compare_rows(matrix: RunMatrix, folder: Path) -> None:
    """Prints each round, then images per second, time relative to the baseline, and memory of each row."""
    order = [matrix.reference, *(row for row in matrix.rows if row != matrix.reference), matrix.reference]
    cells = [matrix.only([row]).trainings(folder / str(number))[0] for number, row in enumerate(order)]
    measured = []
    for measured in measure_rows([cell.config for cell in cells]):
        print(*(f"{own[-1]:,.0f}" for own, _ in measured), flush=True)
    baseline, _ = measured[0]
    print("row | images/s | time | middle half | GiB")
    for row, (rates, memory) in zip(order, measured, strict=True):
        times = [first / rate for first, rate in zip(baseline, rates, strict=True)]
        low, middle, high = statistics.quantiles(times, method="inclusive")
        spread = f"{middle:.3f} | {low:.3f} to {high:.3f}"
        print(f"{row} | {statistics.median(rates):,.0f} | {spread} | {memory:.2f}")


def look_into(config: TrainConfig, profile_to: str | None) -> None:
    """Prints the speed of the loop, the bare step and the data alone, and writes the profile."""
    with contextlib.redirect_stdout(sys.stderr):
        trainer = Trainer(config)
        trainer.run()
    rates = rates_of(trainer)
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
    least = 2 if given.rows is None else 4
    if given.epochs < least:
        parser.error(f"not every epoch counts; give --epochs {least} or more")
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
            look_into(matrix.trainings(Path(folder))[0].config, given.profile)
        else:
            compare_rows(matrix, Path(folder))


if __name__ == "__main__":
    main()
