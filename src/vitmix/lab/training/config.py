"""The configuration of a training: one typed value from defaults, a recipe, a YAML file and flags, in this order."""

# Help texts come from this module, so what imports torch is imported where it is used.
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vitmix._checks import (
    check_choice,
    check_count,
    check_fraction,
    check_not_negative,
    check_positive,
    check_workers,
)
from vitmix._grammar import spelled
from vitmix.lab.environment import available_cores
from vitmix.lab.reading import MOST_YAML, parse_yaml, read_bytes
from vitmix.lab.training.recipes import load_recipe

CONFIG = "config.yaml"  # of a run folder
MODEL = ("model", "model_args", "size")  # what weights say of themselves
DEFAULT_RECIPE = "shapes"  # of a training for which neither data nor model is named
TRAIN, SCHEDULE, REGULARIZE, AUGMENT, MEASURE, RUN = (
    "What to train",
    "Optimizer and schedule",
    "Regularization",
    "Augmentation",
    "Evaluation and checkpoints",
    "Hardware and speed",
)


def option(
    default: Any, section: str, help: str, *, choices: tuple[str, ...] | None = None, may_change: bool = False
) -> Any:
    """A documented field. `may_change` marks what a resumed run may set differently: it decides no number."""
    metadata = {"section": section, "help": help, "choices": choices, "may_change": may_change}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training. Field names are the flags' names and the keys of YAML files."""

    data: str = option(
        "shapes",
        TRAIN,
        "shapes (built in), imagefolder:DIR, torchvision:NAME:ROOT, npz:DIR, hfds:PLACE or wds:PATTERN, "
        "optionally ?holdout=0.1",
    )
    model: str = option("deit_small_patch16_224", TRAIN, "name of a timm model")
    model_args: dict[str, Any] = option(
        {}, TRAIN, "further settings of the model as KEY=VALUE; dropped where a later layer names another model"
    )
    method: str = option("mixup(alpha=0.8) | cutmix", TRAIN, "mixing method, such as 'mixup(alpha=0.8) | tl_align'")
    maps: str | None = option(
        None,
        TRAIN,
        "folder of activation maps that 'vitmix maps' made of this data, for methods with activation labels",
    )
    guide: str | None = option(
        None,
        TRAIN,
        "another model to look at unmixed images for SMMix: a run folder, a file of weights, or a timm model with its "
        "published ones",
    )
    recipe: str | None = option(None, TRAIN, "a paper's settings; 'help' lists the recipes")
    pretrained: bool = option(False, TRAIN, "start from timm's published weights")
    checkpoint: str | None = option(None, TRAIN, "start from the weights in this file (.safetensors, or torch's)")
    num_classes: int | None = option(None, TRAIN, "outputs of the classifier; as many as the data has classes if none")
    seed: int = option(0, TRAIN, "decides initial weights, order, augmentation and mixing")
    output: str | None = option(None, TRAIN, "run folder; runs/NAME if none", may_change=True)
    resume: bool | None = option(
        None, TRAIN, "insist on continuing, or on starting anew; if none, continues where possible", may_change=True
    )

    epochs: int = option(100, SCHEDULE, "passes over the data, cool-down not counted")
    batch: int = option(256, SCHEDULE, "images per update, over all processes and accumulated parts")
    accumulate: int = option(1, SCHEDULE, "parts that each process's share of the batch is computed in")
    optimizer: str = option("adamw", SCHEDULE, "name of a timm optimizer")
    lr: float = option(5e-4, SCHEDULE, "peak learning rate, for lr_per images per update")
    lr_per: int | None = option(512, SCHEDULE, "scale lr by batch / lr_per; none leaves lr as it is")
    min_lr: float = option(1e-5, SCHEDULE, "learning rate at the end of the cosine and during cool-down")
    warmup_lr: float = option(1e-6, SCHEDULE, "learning rate at the start of warm-up")
    warmup_epochs: float = option(5.0, SCHEDULE, "epochs of linear warm-up, counted in epochs")
    cooldown_epochs: int = option(0, SCHEDULE, "epochs at min_lr after the last one")
    schedule: str = option("cosine", SCHEDULE, "course of the learning rate", choices=("cosine", "constant"))
    weight_decay: float = option(0.05, SCHEDULE, "weight decay; biases and norms are exempt")
    momentum: float = option(0.9, SCHEDULE, "momentum of optimizers that have one")
    betas: tuple[float, ...] | None = option(None, SCHEDULE, "betas of Adam-like optimizers; the optimizer's if none")
    eps: float | None = option(None, SCHEDULE, "epsilon of Adam-like optimizers; the optimizer's if none")
    layer_decay: float | None = option(None, SCHEDULE, "factor on the learning rate from each layer to the one below")
    clip_grad: float | None = option(None, SCHEDULE, "largest gradient norm")

    smoothing: float = option(0.1, REGULARIZE, "label smoothing, where the method's text gives none")
    loss: str | None = option(
        None, REGULARIZE, "main loss of every method in the text; their own if none", choices=("ce", "bce")
    )
    drop: float | None = option(None, REGULARIZE, "dropout before the classifier; the model's if none")
    drop_path: float | None = option(None, REGULARIZE, "stochastic depth; the model's if none")
    ema: float | None = option(None, REGULARIZE, "decay of an averaged copy of the weights, such as 0.9999")
    mixing_off_epoch: int | None = option(None, REGULARIZE, "epoch from which images are mixed no more")

    size: int | None = option(None, AUGMENT, "image side in pixels; the model's if none")
    scale: tuple[float, ...] | None = option(
        (0.08, 1.0), AUGMENT, "random crop: smallest and largest part of the area; none takes the middle"
    )
    ratio: tuple[float, ...] = option((3 / 4, 4 / 3), AUGMENT, "random crop: smallest and largest aspect ratio")
    padding: int = option(0, AUGMENT, "random crop of the picture with this black border instead; needs scale none")
    hflip: float = option(0.5, AUGMENT, "probability of a horizontal flip")
    color_jitter: float = option(0.0, AUGMENT, "strength of color jitter")
    auto_augment: str | None = option(
        "rand-m9-mstd0.5-inc1", AUGMENT, "timm's RandAugment or AutoAugment policy, or none"
    )
    interpolation: str = option("bicubic", AUGMENT, "resampling of images", choices=("bicubic", "bilinear", "random"))
    erasing: float = option(0.0, AUGMENT, "probability of random erasing")
    erasing_count: int = option(1, AUGMENT, "regions erased at most")
    erase_after_mixing: bool = option(False, AUGMENT, "erase from mixed images instead of before mixing")
    repeats: int = option(1, AUGMENT, "repeated augmentation: times each image appears among an epoch's draws")
    mean: tuple[float, ...] | None = option(None, AUGMENT, "channel means to subtract; the model's if none")
    std: tuple[float, ...] | None = option(None, AUGMENT, "channel deviations to divide by; the model's if none")
    crop_pct: float | None = option(None, AUGMENT, "evaluation: part of the side that is kept; the model's if none")

    eval_every: int = option(1, MEASURE, "epochs between evaluations; the last epoch is always evaluated")
    eval_split: str = option("test", MEASURE, "split to evaluate on", choices=("train", "val", "test"))
    eval_batch: int | None = option(None, MEASURE, "images per evaluation step; those of a training step if none")
    best: str = option(
        "accuracy",
        MEASURE,
        "measure of eval_split by which the best weights are chosen",
        choices=("accuracy", "accuracy5", "eval_loss", "ema_accuracy", "ema_accuracy5", "ema_eval_loss"),
    )
    checkpoint_every: str = option(
        "1 epoch", MEASURE, "between checkpoints: '2 epochs', '500 steps' or '600 seconds'", may_change=True
    )
    keep: int = option(2, MEASURE, "newest checkpoints to keep; the best weights are kept besides", may_change=True)
    skip_nonfinite: bool = option(False, MEASURE, "skip updates whose loss is not finite instead of stopping")
    log_every: int = option(50, MEASURE, "updates between progress reports", may_change=True)
    track: str = option(
        "auto", MEASURE, "Accelerate trackers by name, comma-separated; auto: tensorboard if installed", may_change=True
    )

    precision: str = option("fp32", RUN, "arithmetic of the forward pass", choices=("fp32", "tf32", "bf16", "fp16"))
    compile: bool = option(False, RUN, "compile the training step", may_change=True)
    compile_mode: str = option(
        "default",
        RUN,
        "mode of torch.compile; reduce-overhead uses CUDA graphs, for small models",
        choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        may_change=True,
    )
    grad_checkpointing: bool = option(False, RUN, "recompute activations to save memory", may_change=True)
    resident: bool = option(False, RUN, "keep the data set in device memory and augment it there, in batches")
    workers: int = option(
        min(4, available_cores()), RUN, "processes that load images; 0 loads in the training process", may_change=True
    )
    fsdp: bool = option(
        False, RUN, "spread weights and optimizer over the processes, for models too large for one", may_change=True
    )
    cpu: bool = option(False, RUN, "train on the CPU even where there is a GPU")

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", spelled(self.method))  # so that equal texts name equal runs
        for each in dataclasses.fields(self):
            value, choices = getattr(self, each.name), each.metadata["choices"]
            if choices is not None and value is not None:
                check_choice(each.name, value, choices)
        for name in ("epochs", "batch", "accumulate", "repeats", "eval_every", "keep", "log_every", "erasing_count"):
            check_count(name, getattr(self, name))
        for name in ("num_classes", "lr_per", "size", "eval_batch"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.mixing_off_epoch is not None:
            check_count("mixing_off_epoch", self.mixing_off_epoch, least=0)
        check_workers(self.workers)
        for name in ("cooldown_epochs", "seed", "padding"):
            check_count(name, getattr(self, name), least=0)
        for name in ("min_lr", "warmup_lr", "warmup_epochs", "weight_decay", "momentum", "color_jitter"):
            check_not_negative(name, getattr(self, name))
        for name in ("smoothing", "hflip", "erasing", "drop", "drop_path", "ema", "layer_decay"):
            if getattr(self, name) is not None:
                check_fraction(name, getattr(self, name))
        for name in ("lr", "clip_grad", "eps", "crop_pct"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name, length in (("scale", 2), ("ratio", 2), ("betas", 2), ("mean", 3), ("std", 3)):
            value = getattr(self, name)
            if value is not None and len(value) != length:
                raise ValueError(f"{name} takes {length} numbers, got {len(value)}: {list(value)}")
        if self.best.startswith("ema_") and self.ema is None:
            raise ValueError(f"best is {self.best!r} but there is no averaged copy; set ema, for example to 0.9999")
        if self.pretrained and self.checkpoint is not None:
            raise ValueError("pretrained and checkpoint both name initial weights; give one of them")
        if self.compile and self.accumulate > 1 and self.compile_mode in ("reduce-overhead", "max-autotune"):
            raise ValueError(
                f"compile_mode {self.compile_mode!r} uses CUDA graphs, which overwrite the gradients that accumulate="
                f"{self.accumulate} adds up; use compile_mode 'default' or 'max-autotune-no-cudagraphs'"
            )
        checkpoint_interval(self.checkpoint_every)

    @property
    def total_epochs(self) -> int:
        return self.epochs + self.cooldown_epochs

    @property
    def peak_lr(self) -> float:
        return self.lr if self.lr_per is None else self.lr * self.batch / self.lr_per


FIELDS = {each.name: each for each in dataclasses.fields(TrainConfig)}
KINDS = typing.get_type_hints(TrainConfig)


def checkpoint_interval(text: str) -> tuple[float, str]:
    """`"500 steps"` as `(500.0, "steps")`; units are epochs, steps and seconds."""
    count, _, unit = text.strip().partition(" ")
    unit = unit.strip().rstrip("s") + "s"
    try:
        number = float(count)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf") or unit not in ("epochs", "steps", "seconds"):
        raise ValueError(f"checkpoint_every must read like '1 epoch', '500 steps' or '600 seconds', got {text!r}")
    return number, unit


def resolve(flags: Mapping[str, Any] | None = None, file: str | Path | None = None) -> TrainConfig:
    """The configuration from defaults, then a recipe, then a YAML file, then flags; later layers win.

    Without a recipe, and with neither data nor model named, it is the built-in example. With weights to start from, and
    neither recipe nor model named, the model is the one that those weights say they are of.
    """
    given = dict(flags or {})
    stored = read_yaml(file) if file is not None else {}
    layers: list[tuple[str, Mapping[str, Any]]] = [("the flags", given), (str(file), stored)]

    def named(name: str) -> Any:
        return next((checked_setting(name, layer[name], source) for source, layer in layers if name in layer), None)

    recipe, checkpoint = named("recipe"), named("checkpoint")
    own: dict[str, Any] = {}
    if recipe is None and checkpoint is not None and named("model") is None:
        own = _model_of(checkpoint, named("output"), named("model_args") or {})
        layers.append((checkpoint, own))
    if recipe is None and not {"data", "model", "recipe"} & (given.keys() | stored.keys()):
        recipe = DEFAULT_RECIPE
    if recipe is not None:
        taken = MODEL if own else ()
        settings = {key: value for key, value in load_recipe(recipe).items() if key not in taken}
        layers.append((f"recipe {recipe}", settings))
    values: dict[str, Any] = {}
    for source, layer in reversed(layers):
        checked = {name: checked_setting(name, value, source) for name, value in layer.items()}
        if checked.get("model", values.get("model")) != values.get("model"):
            values.pop("model_args", None)
        arguments = values.get("model_args", {}) | checked.get("model_args", {})
        values |= checked | ({"model_args": arguments} if arguments else {})
    values["recipe"] = None if own else recipe  # whose model_args would join those of the weights, read again
    return TrainConfig(**values)


def _model_of(checkpoint: str, output: str | None, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """Model and image size of weights to start from; of a run that began from them, its own: they may be gone."""
    begun = Path(output) / CONFIG if output is not None else None
    stored = read_yaml(begun) if begun is not None and begun.is_file() else {}
    if stored.get("checkpoint") == checkpoint:
        return {name: stored[name] for name in MODEL if name in stored}
    from vitmix.lab.training.checkpoints import weights_file
    from vitmix.lab.training.header import read_header

    if not weights_file(checkpoint).is_file():
        raise ValueError(f"there is no file of weights {weights_file(checkpoint)}")
    found = read_header(weights_file(checkpoint)).as_settings()
    return {name: value for name, value in found.items() if name != "size" or "img_size" not in model_args}


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        content = parse_yaml(read_bytes(path, MOST_YAML).decode())
    except FileNotFoundError:
        raise ValueError(f"there is no configuration file {path}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; name the file in it, as {Path(path) / 'config.yaml'}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start})") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML{_yaml_problem(error)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read as settings: {reason}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold settings as 'name: value' lines, got {type(content).__name__}")
    return content


def _yaml_problem(error: yaml.YAMLError) -> str:
    """Where in the file what is wrong, in one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ": " + " ".join(str(error).split())
    begun = error.context_mark.line + 1 if error.context_mark is not None else 0
    where = f" in line {error.problem_mark.line + 1}"
    if error.context is None:
        return f"{where}: {error.problem}"
    since = f" that begins in line {begun}" if begun and begun != error.problem_mark.line + 1 else ""
    return f"{where}: {error.problem} {error.context}{since}"


def to_yaml(config: TrainConfig) -> str:
    """Every setting, section by section, so that the text alone repeats the training."""
    lines = ["# The resolved configuration; `vitmix train --config THIS_FILE --output OTHER` repeats the training."]
    section = None
    for name, each in FIELDS.items():
        if each.metadata["section"] != section:
            section = each.metadata["section"]
            lines += ["", f"# {section}"]
        lines.append(setting_yaml(config, name))
    return "\n".join(lines) + "\n"


def setting_yaml(config: TrainConfig, name: str) -> str:
    """One setting as YAML has it."""
    value = getattr(config, name)
    return yaml.safe_dump({name: list(value) if isinstance(value, tuple) else value}, width=1000).rstrip()


def differences(old: TrainConfig, new: TrainConfig) -> list[str]:
    """What keeps a run of `old` from being continued as `new`, as `name: old -> new`."""
    from vitmix._text import same_method

    return [
        f"{name}: {getattr(old, name)!r} -> {getattr(new, name)!r}"
        for name, each in FIELDS.items()
        if not each.metadata["may_change"] and getattr(old, name) != getattr(new, name)
        if name != "method" or not same_method(old.method, new.method, smoothing=new.smoothing)
    ]


def unknown_setting(name: str, source: str) -> ValueError:
    close = difflib.get_close_matches(name.replace("-", "_"), FIELDS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ValueError(f"unknown setting {name!r} in {source}; {hint}'vitmix train --help' lists them all")


def checked_setting(name: Any, value: Any, source: str) -> Any:
    """The value of a setting as its type has it; `source` says where it stands, for the error."""
    if name not in FIELDS:
        raise unknown_setting(str(name), source)
    try:
        return _fit(KINDS[name], value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} in {source} must be {_described(KINDS[name])}, got {value!r}") from None


def _fit(kind: Any, value: Any) -> Any:
    """`value`, from YAML or a flag's text, as a value of the annotated type."""
    if isinstance(kind, types.UnionType):
        if value is None or value == "none" or value == ["none"]:
            return None
        return _fit(next(each for each in typing.get_args(kind) if each is not types.NoneType), value)
    if typing.get_origin(kind) is tuple:
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        return tuple(_fit(typing.get_args(kind)[0], item) for item in items)
    if typing.get_origin(kind) is dict:
        if not all(isinstance(key, str) for key in dict(value)):
            raise TypeError
        return dict(value)
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind in (bool, str):
        if isinstance(value, kind):
            return value
        raise TypeError
    if isinstance(value, bool) or value is None:
        raise TypeError
    number = kind(value)
    if kind is int and isinstance(value, float) and number != value:
        raise ValueError
    return number


def _described(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        inner = next(each for each in typing.get_args(kind) if each is not types.NoneType)
        return f"{_described(inner)} or none"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if typing.get_origin(kind) is tuple:
        return "a list of numbers"
    return names.get(kind, "KEY=VALUE settings")
