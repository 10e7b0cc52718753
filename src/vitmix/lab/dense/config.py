"""The configuration of a transfer: one typed value from defaults, a recipe, a YAML file and flags, in this order."""

# Help texts come from this module, so what imports torch is imported where it is used.
import dataclasses
import math
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from vitmix._checks import check_choice
from vitmix._grammar import spelled
from vitmix.lab.dense.tasks import TASKS
from vitmix.lab.settings import (
    Count,
    Fraction,
    ModelArgs,
    Name,
    NotNegative,
    Positive,
    Rate,
    Settings,
    SettingValues,
    Whole,
    option,
)
from vitmix.lab.training.config import check_loop, checked_setting, read_yaml
from vitmix.lab.training.options import EvaluationOptions, Hardware, Schedule
from vitmix.lab.training.recipes import laid_over, recipe_for


@dataclass(frozen=True, kw_only=True)
class WhatToTransfer(Settings):
    section = "What to train"

    backbone: Annotated[str, "RUN|FILE|NAME"] | None = option(
        None, "run folder, weights file, or name of a timm model", positional=True
    )
    task: Literal["segment", "detect"] = option("segment", "what the model learns: a label map, or boxes")
    data: str = option(
        "",
        "images with targets: masks:DIR, voc:DIR or ade20k:DIR (segment), coco:DIR (detect), optionally with settings",
    )
    arch: Name | None = option(None, "timm model of a weights file, if its header does not name it")
    model_args: ModelArgs = option({}, "settings of the timm model")
    weights: Literal["best", "last"] = option("best", "which weights of a run to start from")
    pretrained: bool = option(False, "start from timm's published weights")
    head: str = option(
        "auto", f"head on the backbone: {'; '.join(', '.join(each.heads) for each in TASKS.values())}; auto fits it"
    )
    head_args: SettingValues = option({}, "settings of the head")
    freeze: bool = option(False, "train the head alone; the backbone's weights stay as they are")
    method: str = option("none", "mixing method for images and targets, such as cutmix")
    recipe: str | None = option(None, "settings of a paper; 'help' lists the recipes")
    seed: Whole = option(0, "random seed of initial weights, data order, augmentation and mixing")
    output: str | None = option(None, "run folder (default: runs/NAME)", may_change=True)
    resume: bool | None = option(None, "require an existing run, or an empty folder (default: either)", may_change=True)


@dataclass(frozen=True, kw_only=True)
class TransferSchedule(Schedule):
    section = Schedule.section

    epochs: Count = option(20, "training epochs, without the cool-down")
    batch: Count = option(16, "images per update, over all processes and micro-batches")
    lr: Positive = option(1e-4, "peak learning rate, for lr_per images per update")
    lr_per: Count | None = option(
        None, "linear scaling rule: the learning rate is lr * batch / lr_per; none disables it"
    )
    min_lr: Rate = option(0.0, "learning rate at the end of the schedule and during cool-down")
    warmup_epochs: NotNegative = option(1.0, "epochs of linear warm-up, included in epochs")
    schedule: Literal["cosine", "constant", "poly", "step"] = option("poly", "learning rate schedule")
    steps: Count | None = option(None, "training updates instead of epochs; rounded up to epochs of equal length")
    warmup_steps: Whole | None = option(None, "updates of linear warm-up instead of epochs")
    head_lr: Positive = option(1.0, "the head's learning rate as a multiple of the backbone's")


@dataclass(frozen=True, kw_only=True)
class TransferRegularization(Settings):
    section = "Regularization"

    drop_path: Fraction | None = option(None, "stochastic depth of the backbone (default: the model's)")
    ema: Fraction | None = option(None, "decay of the exponential moving average (EMA) of the weights, such as 0.9999")
    mixing_off_epoch: Whole | None = option(None, "first epoch without mixing, counted from 0")


@dataclass(frozen=True, kw_only=True)
class DenseAugmentation(Settings):
    """How training images and their targets are changed together."""

    section = "Augmentation"

    size: Count | None = option(None, "image side in pixels (default: the backbone's)")
    jitter: tuple[float, float] = option((0.5, 2.0), "random resizing: smallest and largest factor, before a crop")
    short_sides: tuple[Count, ...] = option(
        (), "detect: draw the shorter side from these lengths, without a crop, such as 800 (default: jitter)"
    )
    long_side: Count | None = option(None, "detect: largest longer side in pixels (default: 5/3 of the shorter one)")
    hflip: Fraction = option(0.5, "probability of a horizontal flip")
    distortion: bool = option(True, "random brightness, contrast, saturation and hue")


@dataclass(frozen=True, kw_only=True)
class TransferEvaluation(EvaluationOptions):
    section = EvaluationOptions.section

    best: str = option("", "metric on eval_split that selects the best weights (default: the task's first)")  # pyright: ignore[reportIncompatibleVariableOverride]


@dataclass(frozen=True, kw_only=True)
class TransferConfig(
    Hardware, TransferEvaluation, DenseAugmentation, TransferRegularization, TransferSchedule, WhatToTransfer
):
    """Everything that decides a transfer. Field names are the flags' names and the keys of YAML files."""

    command: ClassVar[str] = "transfer"

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        object.__setattr__(self, "method", spelled(self.method))  # so that equal texts name equal runs
        if not self.best:
            object.__setattr__(self, "best", self.headline)
        super().__post_init__()
        if self.fsdp:
            raise ValueError("fsdp is not available for transfer; leave it out")
        for name in ("resident", "compile"):
            if getattr(self, name) and self.task != "segment":
                raise ValueError(f"{name} is available for --task segment only; leave it out")
        if self.backbone is None and self.arch is None:
            raise ValueError("no backbone is named; give a run folder, a weights file or the name of a timm model")
        if not self.data:
            raise ValueError("no data is named; give --data, such as masks:DIR")
        check_choice("head", self.head, ("auto", *TASKS[self.task].heads))
        scores = TASKS[self.task].scores
        check_choice("best", self.best, (*scores, *(f"ema_{name}" for name in scores if self.ema is not None)))
        if not 0 < self.jitter[0] <= self.jitter[1]:
            raise ValueError(f"jitter takes two factors above 0, the smaller first, got {list(self.jitter)}")
        if self.task == "segment" and (self.short_sides or self.long_side):
            raise ValueError("short_sides and long_side are settings of --task detect; use size and jitter")
        check_loop(self)

    @property
    def headline(self) -> str:
        """The score that every evaluated epoch has."""
        return TASKS[self.task].scores[0]

    @property
    def trains_part(self) -> bool:
        """Whether some of the weights stay as they are."""
        return self.freeze

    @property
    def model(self) -> str:
        """The backbone in a word: its timm name, or the name of its run folder or file."""
        return self.arch or re.sub(r"\.\w+$", "", Path(self.backbone or "").name)


def resolve_transfer(flags: SettingValues | None = None, file: str | Path | None = None) -> TransferConfig:
    """The configuration from defaults, then a recipe, then a YAML file, then flags; later layers win."""
    given, stored = dict(flags or {}), read_yaml(file) if file is not None else {}
    layers: list[tuple[str, SettingValues]] = [("the flags", given), (str(file), stored)]
    recipe = given.get("recipe", stored.get("recipe"))
    if recipe is not None:
        layers.append((f"recipe {recipe}", recipe_for("transfer", recipe).settings))
    values: SettingValues = {}
    for source, layer in reversed(layers):
        checked = {name: checked_setting(name, value, source, TransferConfig) for name, value in layer.items()}
        values = laid_over(values, checked)
    config = TransferConfig(**values)
    explicit = given.keys() | stored.keys()
    return config if {"epochs", "warmup_epochs"} <= explicit else _in_epochs(config, explicit)


def _in_epochs(config: TransferConfig, explicit: Set[str]) -> TransferConfig:
    """With the epochs that its steps make of the data."""
    if config.steps is None and config.warmup_steps is None:
        return config
    from vitmix.lab.dense.tasks import task_named

    updates = max(1, len(task_named(config.task).open_data(config.data, "train")) // config.batch)
    if config.steps is not None and "epochs" not in explicit:
        config = dataclasses.replace(config, epochs=math.ceil(config.steps / updates))
    if config.warmup_steps is not None and "warmup_epochs" not in explicit:
        length = updates_per_epoch(config, updates)
        config = dataclasses.replace(config, warmup_epochs=config.warmup_steps / length)
    return config


def updates_per_epoch(config: TransferConfig, batches: int) -> int:
    """Of the batches of an epoch, those that are used: `steps` are divided among the epochs."""
    return batches if config.steps is None else min(batches, math.ceil(config.steps / config.epochs))
