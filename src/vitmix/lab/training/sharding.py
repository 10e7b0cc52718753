"""Weights, gradients and optimizer state sharded over the processes (FSDP), for models too large for one device.

Torch's `fully_shard` works in place and module by module: each block of the model is gathered before it runs and freed
afterwards. Checkpoints hold the shards (`vitmix.lab.training.sharded`), weights files the whole tensors (`gathered`).
The state of an optimizer is stored by the number of the parameter, not by its name as torch's functions for this do, so
that checkpoints with and without FSDP are alike.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vitmix._learner import Learner
from vitmix.lab.training.checkpoints import MODEL, OptimizerState, pack
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.sharded import check_torch


def shard(learner: Learner, config: TrainConfig, accelerator: Accelerator) -> None:
    """Shards the learner's parameters over the processes; the optimizer must be made after this."""
    if accelerator.num_processes == 1:
        raise ValueError("fsdp needs several processes; start with torchrun or accelerate")
    for name, set_ in (("ema", config.ema is not None), ("compile", config.compile)):
        if set_:
            raise ValueError(f"{name} cannot be combined with fsdp; leave one of them out")
    if config.precision == "fp16":
        raise ValueError("precision fp16 cannot be combined with fsdp; use bf16")
    check_torch()
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for block in blocks(learner.model):
        fully_shard(block, mesh=mesh)
    # Not freed between forward and backward: what lies outside the blocks is small, and SMMix's loss uses the head.
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


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor of a shard; any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensors: Mapping[str, Tensor], accelerator: Accelerator) -> dict[str, Tensor]:
    """Whole tensors, in the first process only; sharded ones are gathered one by one."""
    found = {}
    for name, tensor in tensors.items():
        each = tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
        if accelerator.is_main_process:
            found[name] = each
    return found


def sharded_tensors(learner: Learner, optimizer: torch.optim.Optimizer) -> Callable[[str], Tensor | None]:
    """A function from a name in a checkpoint to the tensor whose sharding its content gets, if there is one."""
    known = {f"{MODEL}{name}": each for name, each in learner.model.state_dict().items()}
    known |= pack({"added": learner.added.state_dict()})[0]
    parameters = _parameters(optimizer)

    def like(name: str) -> Tensor | None:
        number = re.fullmatch(r"state\.optimizer\.state\.([0-9]+)\..*", name)
        if number is None:
            return known.get(name)
        return parameters[int(number[1])] if int(number[1]) < len(parameters) else None

    return like


def load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """`load_state_dict` from whole tensors."""
    own = module.state_dict()
    module.load_state_dict({name: _sharded_like(value, own[name]) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: OptimizerState) -> None:
    """`load_state_dict` of an optimizer from whole tensors."""
    parameters = _parameters(optimizer)
    sharded = {
        number: {name: _sharded_like(value, parameters[int(number)]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": sharded})


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """An optimizer's parameters, in the order of their numbers in its state."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _sharded_like(value: Any, like: Any) -> Any:
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    if isinstance(value, DTensor):  # every process read its own shard
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
