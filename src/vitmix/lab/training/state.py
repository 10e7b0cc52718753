"""The state of a training as a checkpoint holds it, and the way back."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from vitmix.lab.reading import fits, is_count, is_number
from vitmix.lab.training import checkpoints, processes, sharding
from vitmix.lab.training.checkpoints import Checkpoint
from vitmix.lab.training.config import TrainConfig

if TYPE_CHECKING:
    from vitmix.lab.training.engine import Trainer


@dataclass
class Position:
    """Where a training stands: finished epochs, updates of the epoch after them, and what was found so far.

    `seconds` were spent on training alone, `wall` on everything.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    wall: float = 0.0
    skipped: int = 0  # updates whose loss or gradient was not finite
    overflowed: int = 0  # those that the loss scaler of fp16 left out
    broken: list[str] = field(default_factory=list)
    best: dict[str, Any] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


def capture(trainer: "Trainer") -> Checkpoint:
    """Everything that the next update depends on. With several processes, all must call this together.

    Draws and the loaders' order are functions of the position, so they need no state of their own.
    """
    accelerator, scaler = trainer.accelerator, trainer.accelerator.scaler
    sums, count = trainer.tally.total(accelerator)
    trainer.position.broken = broken_images(trainer)
    training = {
        "position": dataclasses.asdict(trainer.position),
        "update": trainer.update,
        "world": trainer.world,
        "tally": {"sums": sums, "count": count},
        "added": sharding.whole(trainer.core.added.state_dict()),
        "optimizer": sharding.whole(trainer.optimizer.state_dict()),
        "scaler": None if scaler is None else scaler.state_dict(),
        "random": processes.random_states(accelerator),
    }
    ema = None if trainer.ema is None else trainer.ema.module.state_dict()
    return Checkpoint(sharding.whole(trainer.core.model.state_dict()), ema, training)


@torch.no_grad()
def nonfinite_part(trainer: "Trainer") -> str | None:
    """What of the state is NaN or infinite, with its verb; all processes must call this together.

    One reduction for all tensors, and the host waits once. Buffers may be infinite, as attention masks are.
    """
    models = {"the weights are": trainer.core}
    if trainer.ema is not None:
        models["the averaged weights are"] = trainer.ema.module
    optimizer, _ = checkpoints.pack(trainer.optimizer.state_dict())
    found = {name: ~torch.isfinite(_largest(model.parameters())) for name, model in models.items()}
    found["the optimizer's state is"] = ~torch.isfinite(_largest(optimizer.values()))
    buffers = [torch.isnan(_largest(model.buffers())) for model in models.values()]
    flags = torch.stack([each.to(trainer.device) for each in (*found.values(), *buffers)]).tolist()
    everywhere = [any(each) for each in zip(*processes.gather(trainer.accelerator, flags), strict=True)]
    names = [*found, *models]
    return next((name for name, flag in zip(names, everywhere, strict=True) if flag), None)


def _largest(tensors: Iterable[Tensor]) -> Tensor:
    """The largest absolute value; NaN if there is one."""
    own = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    return get_total_norm([each for each in own if each.is_floating_point() and each.numel()], math.inf)


def broken_images(trainer: "Trainer") -> list[str]:
    """What could not be read so far, by any process, with what it was for; all must call this together."""
    # The same name can be that of two files, one of each split.
    found = {f"training: {each}" for each in trainer.images.broken.values()}
    found |= {f"evaluation: {each}" for each in trainer.eval_images.broken.values()} | set(trainer.position.broken)
    return sorted(set().union(*processes.gather(trainer.accelerator, found)))


def resume(trainer: "Trainer") -> list[str]:
    """Puts the trainer where its newest complete checkpoint was written; says what was found and what was lost.

    The first process reads and the others are told: their nodes may have disks of their own.
    """
    accelerator, folder = trainer.accelerator, trainer.folder.checkpoints
    path, newest, remarks = processes.on_main(accelerator, lambda: _find(folder, trainer.config.keep))
    if path is None:
        if not trainer.has_initial_weights:
            raise RuntimeError("the checkpoint that was found at the start is gone; run the same command again")
        return remarks
    loaded = vars(checkpoints.load_checkpoint(path)) if accelerator.is_main_process else None
    checkpoint = Checkpoint(**processes.from_main(accelerator, loaded))
    try:
        restore(trainer, checkpoint)
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise checkpoints.Foreign(
            f"{path} is not a checkpoint of this training ({type(problem).__name__}: {reason}); remove it, or give "
            "another --output"
        ) from None
    if trainer.position.best is not None and not processes.on_main(accelerator, trainer.folder.best.exists):
        trainer.position.best = None
        remarks.append(f"{trainer.folder.best} is missing: the best weights are chosen from here on")
    repeated = f"; {newest - trainer.update} updates are computed again" if newest > trainer.update else ""
    remarks.append(
        f"resuming at update {trainer.update} of {trainer.total_updates} (epoch {trainer.position.epoch + 1}){repeated}"
    )
    if checkpoint.training["world"] != trainer.world:
        remarks.append(
            f"the run began on {checkpoint.training['world']} processes and goes on on {trainer.world}: "
            "its numbers will not be those of an uninterrupted run"
        )
    return remarks


def _find(folder: Path, keep: int) -> tuple[Path | None, int, list[str]]:
    """The newest complete checkpoint, the update of the newest one of all, and what there is to say."""
    remarks = [f"the writing of checkpoint {name} was interrupted" for name in checkpoints.settle_partial(folder)]
    newest = max(map(checkpoints.update_of, checkpoints.list_checkpoints(folder)), default=0)
    path, damaged = checkpoints.move_damaged(folder, keep=keep)
    remarks += damaged
    if path is not None:
        checkpoints.remove_older(path, keep=keep)  # a kill may have come before, and after the last one none follows
    elif remarks:
        remarks.append("no complete checkpoint was found: the training starts from the beginning")
    return path, newest, remarks


def restore(trainer: "Trainer", checkpoint: Checkpoint) -> None:
    """Puts the trainer into the state that `capture` saw."""
    training = checkpoint.training
    sharding.load(trainer.core.model, checkpoint.model)
    sharding.load(trainer.core.added, training["added"])
    if trainer.ema is not None and checkpoint.ema is not None:
        trainer.ema.module.load_state_dict(checkpoint.ema)
    sharding.load_optimizer(trainer.optimizer, training["optimizer"])
    if trainer.accelerator.scaler is not None and training["scaler"] is not None:
        trainer.accelerator.scaler.load_state_dict(training["scaler"])
    if trainer.accelerator.is_main_process:  # the others go on from zero: what is stored is the sum over all
        trainer.tally.sums, trainer.tally.count = training["tally"]["sums"], training["tally"]["count"]
    trainer.position = _position(training["position"], trainer.config)
    processes.restore_random_states(trainer.accelerator, training["random"])


def _position(stored: Any, config: TrainConfig) -> Position:
    """The stored position, if it is one."""
    row, best = {"epoch": is_count, "seconds": is_number}, {"epoch": is_count, config.best: is_number}
    shape = {"epoch": is_count, "step": is_count, "seconds": is_number, "wall": is_number, "skipped": is_count}
    shape |= {"overflowed": is_count, "broken": [str], "best": (None, best), "history": [row]}
    right = fits(stored, shape) and len(stored["history"]) == stored["epoch"] <= config.total_epochs
    numbers = right and all(isinstance(value, int | float) for each in stored["history"] for value in each.values())
    ended = right and stored["epoch"] == config.total_epochs
    if not numbers or (ended and not fits(stored["history"][-1], {"accuracy": is_number})):
        raise ValueError("its position is not one")
    return Position(**stored)
