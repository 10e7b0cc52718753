"""Weights, gradients and optimizer state spread over the processes (FSDP), for models too large for one device.

Torch's `fully_shard` works in place and module by module: each block of the model is gathered when it runs and given up
after it. Whatever reads or writes a whole state passes through `whole` and `load`, in all processes together. They are
not `torch.distributed.checkpoint.state_dict`: that names an optimizer's state by parameter, and checkpoints number it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vitmix._learner import Learner
from vitmix.lab.training.config import TrainConfig


def shard(learner: Learner, config: TrainConfig, accelerator: Accelerator) -> None:
    """Spreads the learner's parameters over the processes; the optimizer must be made after this."""
    if accelerator.num_processes == 1:
        raise ValueError("fsdp needs several processes; start with torchrun or accelerate")
    for name, set_ in (("ema", config.ema is not None), ("compile", config.compile)):
        if set_:
            raise ValueError(f"{name} cannot be combined with fsdp; leave one of them out")
    if config.precision == "fp16":
        raise ValueError("precision fp16 cannot be combined with fsdp; use bf16")
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for block in blocks(learner.model):
        fully_shard(block, mesh=mesh)
    # Kept whole between forward and backward: what lies outside the blocks is small, and SMMix's loss uses the head.
    fully_shard(learner.model, mesh=mesh, reshard_after_forward=False)
    fully_shard(learner, mesh=mesh, reshard_after_forward=False)
    learner.forward = accelerator.autocast()(learner.forward)  # as Accelerate does for other models


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that timm calls blocks: `Block`, `SwinTransformerBlock`, ..."""
    for child in model.children():
        if type(child).__name__.endswith("Block"):
            yield child
        else:
            yield from blocks(child)


def whole(tree: Any) -> Any:
    """The same nested value with gathered tensors in place of spread ones. Without FSDP it is the value itself."""
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, Mapping):
        return {key: whole(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(whole(value) for value in tree)
    return tree


def load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """`load_state_dict` from whole tensors."""
    own = module.state_dict()
    module.load_state_dict({name: _spread_like(value, own[name]) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`load_state_dict` of an optimizer from whole tensors."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    spread = {
        number: {name: _spread_like(value, parameters[int(number)]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": spread})


def _spread_like(value: Any, like: Any) -> Any:
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
