"""Optimizer and learning rate schedule, from timm."""

from typing import Any, NotRequired, TypedDict, cast

import torch
from timm.optim._optim_factory import create_optimizer_v2, list_optimizers
from timm.optim._param_groups import param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler.cosine_lr import CosineLRScheduler
from timm.scheduler.multistep_lr import MultiStepLRScheduler
from timm.scheduler.poly_lr import PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from timm.scheduler.step_lr import StepLRScheduler
from torch import nn

from vitmix._checks import unknown_name
from vitmix._learner import Learner
from vitmix.lab.training.config import AnyConfig, TrainConfig


class ParameterGroup(TypedDict):
    """Parameters with their settings; timm's schedules multiply a group's learning rate by `lr_scale`."""

    params: list[nn.Parameter]
    weight_decay: float
    lr_scale: NotRequired[float]


LONGEST = 2**53  # updates of a warm-up; the product of two large numbers would overflow


def make_optimizer(learner: Learner, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of the model's parameters and of those that the method adds."""
    groups = [*parameter_groups(learner.model, config), *parameter_groups(learner.added, config, scaled=False)]
    return optimizer_of(groups, config)


def optimizer_of(groups: list[ParameterGroup], config: AnyConfig) -> torch.optim.Optimizer:
    """The optimizer of these groups of parameters."""
    name = config.optimizer.lower()
    known = [str(each) for each in list_optimizers()]
    if name.removeprefix("lookahead_") not in known:
        raise unknown_name("optimizer", config.optimizer, known)
    settings = {key: value for key in ("betas", "eps") if (value := getattr(config, key)) is not None}
    if name in ("adamw", "adam", "sgd", "momentum") and groups[0]["params"][0].is_cuda:
        settings["fused"] = True  # one launch for all parameters
    settings |= {"lr": config.peak_lr, "weight_decay": 0.0, "momentum": config.momentum}
    try:
        return create_optimizer_v2(cast(Any, groups), config.optimizer, **settings)
    except (AssertionError, ImportError, TypeError) as error:  # of a package that is not installed
        raise ValueError(f"optimizer {config.optimizer!r} is not available: {error}") from None


def parameter_groups(module: nn.Module, config: AnyConfig, *, scaled: bool = True) -> list[ParameterGroup]:
    """Parameters by weight decay and, with `layer_decay`, by layer; no group is empty."""
    exempt = module.no_weight_decay() if hasattr(module, "no_weight_decay") else ()  # pyright: ignore
    if config.layer_decay is not None and scaled:
        groups = param_groups_layer_decay(
            module, config.weight_decay, no_weight_decay_list=exempt, layer_decay=config.layer_decay
        )
    else:
        groups = param_groups_weight_decay(module, config.weight_decay, no_weight_decay_list=exempt)
    return [cast(ParameterGroup, group) for group in groups if group["params"]]


def make_schedule(optimizer: torch.optim.Optimizer, config: AnyConfig, updates_per_epoch: int) -> Scheduler:
    """The learning rate schedule over updates; `step_update(n)` sets the rate of update n."""
    warmup = round(min(config.warmup_epochs * updates_per_epoch, LONGEST))
    common: dict[str, Any] = {"warmup_t": warmup, "warmup_lr_init": config.warmup_lr, "t_in_epochs": False}
    if config.schedule == "constant":
        return StepLRScheduler(optimizer, decay_t=config.total_epochs * updates_per_epoch + 1, **common)
    if config.schedule == "step":
        places = [round(epoch * updates_per_epoch) for epoch in config.decay_epochs]
        return MultiStepLRScheduler(optimizer, decay_t=places, decay_rate=0.1, **common)
    common |= {"t_initial": config.epochs * updates_per_epoch, "lr_min": config.min_lr}
    if config.schedule == "poly":
        return PolyLRScheduler(optimizer, power=config.power, **common)
    return CosineLRScheduler(optimizer, **common)
