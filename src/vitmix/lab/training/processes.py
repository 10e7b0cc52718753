"""Several processes: the accelerator, decisions that all must make alike, signals, random states."""

import importlib.util
import math
import os
import re
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import (
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    LoggerType,
    ProjectConfiguration,
    broadcast,
    broadcast_object_list,
    gather_object,
)
from torch import Tensor

from vitmix._checks import unknown_name
from vitmix.lab.environment import try_convolutions
from vitmix.lab.training.checkpoints import pack, unpack
from vitmix.lab.training.config import TrainConfig

Result = TypeVar("Result")
LONGEST_WAIT = timedelta(hours=2)  # of processes for one that downloads or reads a large data set


def make_accelerator(config: TrainConfig, folder: Path) -> Accelerator:
    """Accelerate's view of this process: device, rank, precision, trackers."""
    # An earlier run in this process had its own; the group of processes is one for all runs.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    try_convolutions()
    trackers = [] if config.track == "none" else config.track.replace(" ", "").split(",")
    if config.track == "auto":
        trackers = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    for name in trackers:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise unknown_name("tracker", name, LOGGER_TYPE_TO_CLASS)
    # Those that a program registered itself are not among Accelerate's available ones.
    own = set(LOGGER_TYPE_TO_CLASS) - set(LoggerType.list())
    if missing := set(trackers) - own - {str(each) for each in get_available_trackers()}:
        raise ValueError(f"track {', '.join(sorted(missing))!r} is not installed; install it, or leave it out")
    try:
        accelerator = Accelerator(
            mixed_precision=config.precision if config.precision in ("bf16", "fp16") else "no",
            gradient_accumulation_steps=config.accumulate,
            cpu=config.cpu,
            log_with=trackers or None,  # pyright: ignore[reportArgumentType]
            project_config=ProjectConfiguration(str(folder), logging_dir=str(folder / "logs")),
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=LONGEST_WAIT),
                # Heads read maps within a backbone, so its last norm has no gradient.
                DistributedDataParallelKwargs(find_unused_parameters=config.command == "transfer"),
            ],
        )
    except ValueError as error:
        raise ValueError(f"precision {config.precision!r} is not available here: {error}") from None
    if config.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("precision fp16 needs a GPU, because it uses a gradient scaler; use fp32 or bf16")
    return accelerator


class BatchPart(NamedTuple):
    """What a process computes at once: `batch` images, and one more in the first `extra` processes."""

    batch: int
    extra: int

    @classmethod
    def of(cls, config: TrainConfig, world: int) -> "BatchPart":
        return cls(*divmod(config.batch // config.accumulate, world))

    def __str__(self) -> str:
        return f"{self.batch} or {self.batch + 1}" if self.extra else str(self.batch)


def part_of_batch(config: TrainConfig, world: int) -> BatchPart:
    """The part of each process in a micro-batch. The global batch stays as it is for any number of processes."""
    if config.batch % config.accumulate:
        raise ValueError(
            f"batch must be a multiple of {config.accumulate} micro-batches, "
            f"got {config.batch}; take {math.ceil(config.batch / config.accumulate) * config.accumulate}"
        )
    part = BatchPart.of(config, world)
    if part.batch == 0:
        raise ValueError(
            f"a batch of {config.batch} in {config.accumulate} micro-batches leaves some of the {world} processes "
            "without an image; start fewer processes, or enlarge batch"
        )
    return part


class Refused(ValueError):
    """An error that every process raises, so that one of them can print it for all."""


def together(accelerator: Accelerator, action: Callable[[], Result]) -> Result:
    """Runs an action in every process; an error in one of them is raised in all. All must call this together."""
    result, problem = _attempt(accelerator, action)
    problems = gather(accelerator, problem)
    ranks = [rank for rank, each in enumerate(problems) if each is not None]
    if ranks:
        where = "" if ranks[0] == 0 else f"process {ranks[0]}: "
        raise Refused(f"{where}{problems[ranks[0]]}")
    return cast(Result, result)


def on_main(accelerator: Accelerator, action: Callable[[], Result]) -> Result:
    """Runs an action in the first process; all get its result, or raise its error."""
    result, problem = _attempt(accelerator, action) if accelerator.is_main_process else (None, None)
    if accelerator.num_processes > 1:
        problem, result = broadcast_object_list([problem, result])
    if problem is not None:
        raise Refused(problem)
    return cast(Result, result)


def _attempt(accelerator: Accelerator, action: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """The result of an action, or its error message; a single process raises its errors at once."""
    try:
        return action(), None
    except (ValueError, OSError) as error:
        if accelerator.num_processes == 1:
            raise
        return None, str(error)


def in_turn(accelerator: Accelerator, action: Callable[[], Result]) -> Result:
    """Runs an action in the first process, then in the first one of every node, then in the others.

    So files are downloaded once, whether or not the nodes share their disks.
    """
    turn = 0 if accelerator.is_main_process else 1 if accelerator.is_local_main_process else 2
    results = [together(accelerator, lambda now=now: action() if now == turn else None) for now in range(3)]
    return cast(Result, results[turn])


def check_alike(accelerator: Accelerator, value: Any, problem: Callable[[Any, Any], str]) -> None:
    """Raises an error if a value differs between processes; `problem` describes the first value and the other one."""
    values = gather(accelerator, value)
    for rank, each in enumerate(values):
        if each != values[0]:
            raise Refused(f"process {rank} does not match process 0: {problem(values[0], each)}")


def fails_first() -> bool:
    """Whether this process prints why the run failed: the first one to ask does; the others fail because of it."""
    if not torch.distributed.is_initialized():
        return os.environ.get("LOCAL_RANK", "0") == "0"
    own = str(torch.distributed.get_rank())
    try:
        store = torch.distributed.distributed_c10d._get_default_store()
        return store.compare_set("vitmix/failed", "", own).decode() == own
    except RuntimeError:  # the store was the first process's, which is gone
        return False


def is_lost_connection(error: Exception) -> bool:
    """Whether an error says that another process is gone."""
    backend = isinstance(error, torch.distributed.DistError)
    return backend or (isinstance(error, RuntimeError) and re.search("by peer|Socket closed", str(error)) is not None)


def gather(accelerator: Accelerator, value: Any) -> list[Any]:
    """A plain value of each process."""
    return [value] if accelerator.num_processes == 1 else gather_object([value])


def from_main(accelerator: Accelerator, tree: Any) -> Any:
    """The first process's nested value of tensors and plain values, with its tensors on the host."""
    if accelerator.num_processes == 1:
        return tree
    tensors, skeleton = pack(tree)
    kinds = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    skeleton, kinds = on_main(accelerator, lambda: (skeleton, kinds))
    received = {}
    for name, (shape, dtype) in kinds.items():
        own = tensors[name] if accelerator.is_main_process else torch.empty(shape, dtype=dtype)
        received[name] = broadcast(own.to(accelerator.device).contiguous()).cpu()  # pyright: ignore
    return unpack(received, skeleton)


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
    rows: Any = accelerator.gather({name: state[None].to(accelerator.device) for name, state in states.items()})
    return {name: row.cpu() for name, row in rows.items()}


def restore_random_states(accelerator: Accelerator, states: dict[str, Tensor]) -> None:
    """Restores the generators; a process that was not there before keeps its new ones."""
    rank = accelerator.process_index
    if rank < len(states["cpu"]):
        torch.set_rng_state(states["cpu"][rank].clone())  # torch reads a row as if it were the first one
        if "cuda" in states and accelerator.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"][rank].clone(), accelerator.device)


class Stopped(Exception):
    """The run has to stop after an update; the text says why, and `exit_code` is that of the program."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class Stopper:
    """Remembers SIGTERM, SIGINT and lost loader workers until the run can stop; a second SIGINT acts at once.

    Attributes:
        received: the signal, or 0.
        lost: how a worker of this process ended, or nothing.
    """

    def __init__(self) -> None:
        self.received, self.lost = 0, ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
            if hasattr(signal, "SIGCHLD"):  # torch's handler raises an error for a lost worker anywhere in an update
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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

    def check(self, accelerator: Accelerator) -> None:
        """Raises `Stopped` if any process has a reason to stop."""
        if not any_process(accelerator, bool(self.received or self.lost)):
            return
        found = gather(accelerator, (self.received, self.lost))
        if any(received for received, _ in found):  # whoever stops a whole job stops its loader workers too
            number = self.received or signal.SIGTERM
            raise Stopped(f"by {signal.Signals(number).name}", 128 + number)
        rank, lost = next((rank, lost) for rank, (_, lost) in enumerate(found) if lost)
        where = f" of process {rank}" if rank else ""
        raise Stopped(f"because {lost}{where}; if that happens again, lower --workers", 1)
