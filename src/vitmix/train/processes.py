"""What processes share: the accelerator, decisions that all must make alike, signals, random states."""

import importlib.util
import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import Tensor

from vitmix.train.config import TrainConfig


def make_accelerator(config: TrainConfig, folder: Path) -> Accelerator:
    """Accelerate's view of this process: device, rank, precision, trackers."""
    if AcceleratorState._shared_state and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        AcceleratorState._reset_state(reset_partial_state=True)  # an earlier training in this process had its own
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    trackers = [] if config.track == "none" else config.track.replace(" ", "").split(",")
    if config.track == "auto":
        trackers = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    try:
        accelerator = Accelerator(
            mixed_precision=config.precision if config.precision in ("bf16", "fp16") else "no",
            gradient_accumulation_steps=config.accumulate,
            cpu=config.cpu,
            log_with=trackers or None,  # pyright: ignore[reportArgumentType]
            project_dir=folder,
        )
    except ValueError as error:
        raise ValueError(
            f"precision {config.precision!r} or track {config.track!r} cannot be had here: {error}"
        ) from None
    if config.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("precision fp16 needs a GPU, where gradients are scaled; use fp32 or bf16")
    missing = set(trackers) - {str(each) for each in accelerator.log_with}
    if missing:
        raise ValueError(f"track {', '.join(sorted(missing))!r} is not installed; install it, or leave it out")
    return accelerator


def part_of_batch(config: TrainConfig, world: int) -> int:
    """Images of one forward pass of one process."""
    parts = world * config.accumulate
    if config.batch % parts:
        raise ValueError(
            f"batch must be a multiple of {world} processes x {config.accumulate} accumulated parts, "
            f"got {config.batch}; take {math.ceil(config.batch / parts) * parts}"
        )
    return config.batch // parts


def on_main(accelerator: Accelerator, action: Callable[[], None]) -> None:
    """Runs an action in the first process; its refusal is raised in all of them."""
    problem: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            action()
        except ValueError as error:
            problem = [str(error)]
    if accelerator.num_processes > 1:
        broadcast_object_list(problem)
    if problem[0] is not None:
        raise ValueError(problem[0])


def any_process(accelerator: Accelerator, flag: bool) -> bool:
    """Whether the flag is set in any process; with several, all must call this together."""
    if accelerator.num_processes == 1:
        return flag
    total: Any = accelerator.reduce(torch.tensor(float(flag), device=accelerator.device), "sum")
    return bool(total > 0)


def random_states(accelerator: Accelerator) -> dict[str, Tensor]:
    """The states of torch's generators, one row per process: dropout draws from them."""
    states = {"cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(accelerator.device)
    if accelerator.num_processes == 1:
        return {name: state.unsqueeze(0) for name, state in states.items()}
    gathered: dict[str, Any] = {
        name: accelerator.gather(state.unsqueeze(0).to(accelerator.device)) for name, state in states.items()
    }
    return {name: state.cpu() for name, state in gathered.items()}


def restore_random_states(accelerator: Accelerator, states: dict[str, Tensor]) -> None:
    """Continues the generators; a process that was not there before keeps its fresh ones."""
    rank = accelerator.process_index
    if rank < len(states["cpu"]):
        torch.set_rng_state(states["cpu"][rank].clone())  # torch reads a row as if it were the first one
        if "cuda" in states and accelerator.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"][rank].clone(), accelerator.device)


class Stopped(Exception):
    """A signal asked the training to stop; `exit_code` is what a shell reports for a process that it ended."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Stopper:
    """Remembers SIGTERM and SIGINT until the training can stop; a SIGINT after either acts at once."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGTERM:
            return  # a scheduler and a launcher may both pass it on
        self.received = number
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before.pop(signal.SIGINT))
        # Whoever stops a whole job stops its loader workers too; torch would raise an error for them anywhere.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def check(self, accelerator: Accelerator) -> None:
        """Raises `Stopped` if any process received a signal."""
        if any_process(accelerator, bool(self.received)):
            raise Stopped(self.received or signal.SIGTERM)
