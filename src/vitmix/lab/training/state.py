"""The state of a training run: capturing it for a checkpoint, and restoring it."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from vitmix._learner import Learner
from vitmix._mixing import per_process
from vitmix.lab.reading import is_count
from vitmix.lab.runs import Epoch
from vitmix.lab.runs.records import Record
from vitmix.lab.training import checkpoints, processes, sharded, sharding
from vitmix.lab.training.checkpoints import Checkpoint, OptimizerState, TrainingValues
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.losses import LossTally


@dataclass
class Position(Record):
    """The position of a training run: finished epochs, updates in the current epoch, and results so far.

    `seconds` is the training time alone, `wall` the total time.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    wall: float = 0.0
    skipped: int = 0  # updates whose loss or gradient was not finite
    overflowed: int = 0  # updates that the loss scaler of fp16 skipped
    broken: tuple[str, ...] = ()
    best: Epoch | None = None
    history: tuple[Epoch, ...] = ()

    @classmethod
    def stored(cls, value: Any, config: TrainConfig) -> "Position":
        """A stored position; ValueError if it does not fit this run."""
        if not isinstance(value, dict) or value.keys() != {each.name for each in dataclasses.fields(cls)}:
            raise ValueError("its position does not fit")
        found = cls.from_json(value)
        right = len(found.history) == found.epoch <= config.total_epochs
        right = right and all(epoch.get("seconds") is not None for epoch in found.history)
        right = right and (found.best is None or found.best.get(config.best) is not None)
        if not right or (found.epoch == config.total_epochs and found.history[-1].get(config.headline) is None):
            raise ValueError("its position does not fit")
        return found


@dataclass
class TrainState:
    """Everything that the next update depends on, besides the configuration and the data.

    Draws and the order of the data are functions of the position, so they need no state. With several
    processes, all must call each of these methods together.
    """

    config: TrainConfig
    accelerator: Accelerator
    core: Learner
    optimizer: torch.optim.Optimizer
    tally: LossTally
    ema: ModelEmaV3 | None
    position: Position = field(default_factory=Position)

    def capture(self, update: int) -> Checkpoint:
        """The state as a checkpoint; sharded tensors stay sharded."""
        scaler = self.accelerator.scaler
        sums, count = self.tally.total(self.accelerator)
        training: TrainingValues = {
            "position": self.position.to_json(),
            "update": update,
            "world": self.accelerator.num_processes,
            "tally": {"sums": sums, "count": count},
            "added": self.core.added.state_dict(),
            "own": self._own_tensors(),
            "optimizer": cast(OptimizerState, self.optimizer.state_dict()),
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": processes.random_states(self.accelerator),
        }
        ema = None if self.ema is None else self.ema.module.state_dict()
        return Checkpoint(self.core.model.state_dict(), ema, training)

    def load(self, path: Path) -> int:
        """Restores a checkpoint; returns the number of processes of the run that wrote it."""
        checkpoint = self._read(path)
        try:
            self.restore(checkpoint)
            world = checkpoint.training["world"]
            if not is_count(world) or world == 0:
                raise ValueError("its number of processes does not fit")
            return world
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as problem:
            if _is_of_machine(problem):
                raise
            reason = " ".join(str(problem).split())[:200]
            raise checkpoints.Foreign(
                f"{path} is not a checkpoint of this run ({type(problem).__name__}: {reason}); remove it, or give "
                "another --output"
            ) from None

    def _read(self, path: Path) -> Checkpoint:
        """With FSDP, every process reads its own shards; otherwise the first one reads, and sends to the others.

        Their nodes may have other disks.
        """
        in_shards = processes.on_main(self.accelerator, lambda: checkpoints.is_sharded(path))
        if in_shards and self.config.fsdp:
            return sharded.load_checkpoint(path.absolute(), sharding.sharded_tensors(self.core, self.optimizer))
        read = sharded.load_checkpoint if in_shards else checkpoints.load_checkpoint
        loaded = vars(read(path)) if self.accelerator.is_main_process else None
        return Checkpoint(**processes.from_main(self.accelerator, loaded))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores the state that `capture` returned."""
        training, scaler = checkpoint.training, self.accelerator.scaler
        sharding.load(self.core.model, checkpoint.model)
        sharding.load(self.core.added, {**training["added"], **self._own_part(training)})
        if self.ema is not None and checkpoint.ema is not None:
            self.ema.module.load_state_dict(checkpoint.ema)
        sharding.load_optimizer(self.optimizer, training["optimizer"])
        if scaler is not None and training["scaler"] is not None:
            scaler.load_state_dict(training["scaler"])
        if self.accelerator.is_main_process:  # the others start from zero, because the stored value is the sum over all
            self.tally.sums, self.tally.count = training["tally"]["sums"], training["tally"]["count"]
        self.position = Position.stored(training["position"], self.config)
        processes.restore_random_states(self.accelerator, training["random"])

    def _own_tensors(self) -> list[dict[str, Tensor]]:
        """What the method keeps in each process, such as RecursiveMix's last batch, whose size may differ."""
        if self.accelerator.num_processes == 1 or not (names := per_process(self.core.added)):
            return []
        state = self.core.added.state_dict()
        return processes.gather(self.accelerator, {name: state[name].cpu() for name in names})

    def _own_part(self, training: TrainingValues) -> dict[str, Tensor]:
        """What this process kept; nothing is left of it if the number of processes has changed."""
        if training["world"] != self.accelerator.num_processes:
            return dict.fromkeys(per_process(self.core.added), torch.empty(0))
        own = training.get("own", [])
        return own[self.accelerator.process_index] if own else {}

    @torch.no_grad()
    def nonfinite_part(self) -> str | None:
        """What is NaN or infinite, with its verb.

        One reduction for all tensors, and the host waits once. Buffers may be infinite, as attention masks are.
        """
        models = {"the weights are": self.core}
        if self.ema is not None:
            models["the EMA weights are"] = self.ema.module
        optimizer, _ = checkpoints.pack(self.optimizer.state_dict())
        found = {name: ~torch.isfinite(_largest(model.parameters())) for name, model in models.items()}
        found["the optimizer's state is"] = ~torch.isfinite(_largest(optimizer.values()))
        buffers = [torch.isnan(_largest(model.buffers())) for model in models.values()]
        flags = torch.stack([each.to(self.accelerator.device) for each in (*found.values(), *buffers)]).tolist()
        everywhere = [any(each) for each in zip(*processes.gather(self.accelerator, flags), strict=True)]
        names = [*found, *models]
        return next((name for name, flag in zip(names, everywhere, strict=True) if flag), None)


def _largest(tensors: Iterable[Tensor]) -> Tensor:
    """The largest absolute value; NaN if there is one."""
    own = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    return get_total_norm([each for each in own if each.is_floating_point() and each.numel()], math.inf)


def _is_of_machine(problem: Exception) -> bool:
    """Whether an error is of a GPU, of memory or of the other processes, and says nothing about a checkpoint."""
    kinds = (torch.OutOfMemoryError, torch.distributed.DistError, getattr(torch, "AcceleratorError", MemoryError))
    # Older versions of torch, and gloo, have no kinds of their own.
    said = str(problem)
    return isinstance(problem, kinds) or (
        isinstance(problem, RuntimeError) and any(each in said for each in ("CUDA error", "gloo", "NCCL", "onnection"))
    )


def find_checkpoint(folder: Path, keep: int) -> tuple[Path | None, int, list[str]]:
    """The newest complete checkpoint, the update of the newest checkpoint of all, and notes."""
    remarks = [f"writing checkpoint {name} was interrupted" for name in checkpoints.settle_partial(folder)]
    newest = max(map(checkpoints.update_of, checkpoints.list_checkpoints(folder)), default=0)
    path, damaged = checkpoints.move_damaged(folder, keep=keep)
    remarks += damaged
    if path is not None:
        checkpoints.remove_older(path, keep=keep)  # a killed process may not have removed them
    elif remarks:
        remarks.append("no complete checkpoint was found; the run starts from the beginning")
    return path, newest, remarks
