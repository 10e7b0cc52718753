"""The settings of a training run with their help texts, one class for each section."""

from dataclasses import dataclass
from typing import Literal

from vitmix.lab.data.augmentation import AugmentationSettings
from vitmix.lab.environment import available_cores
from vitmix.lab.settings import (
    Count,
    Fraction,
    ModelArgs,
    NotNegative,
    Positive,
    Rate,
    Settings,
    Split,
    Whole,
    Workers,
    option,
)


@dataclass(frozen=True, kw_only=True)
class What(Settings):
    section = "What to train"

    data: str = option(
        "shapes",
        "shapes (built in), imagefolder:DIR, torchvision:NAME:ROOT, npz:DIR, hfds:PLACE or wds:PATTERN, "
        "optionally ?holdout=0.1",
    )
    model: str = option("deit_small_patch16_224", "name of a timm model")
    model_args: ModelArgs = option({}, "settings of the model; reset if a later source changes the model")
    method: str = option("mixup(alpha=0.8) | cutmix", "mixing method, such as 'mixup(alpha=0.8) | tl_align'")
    maps: str | None = option(
        None,
        "a teacher's maps or object masks of this data, written by 'vitmix maps'; for activation labels, token "
        "labeling and OA-CutMix",
    )
    labels: Literal["data", "teacher"] | None = option(
        None,
        "labels of the images: the data's, or from --maps the teacher's of each crop (default: what the method uses)",
    )
    guide: str | None = option(
        None, "another model for SMMix's guide pass: run folder, weights file, or timm model with published weights"
    )
    recipe: str | None = option(None, "settings of a paper; 'help' lists the recipes")
    pretrained: bool = option(False, "start from timm's published weights")
    checkpoint: str | None = option(None, "start from this weights file (safetensors or torch) or run folder")
    reset_head: bool = option(False, "start with a new classifier, even if the weights have one of the same size")
    freeze: bool = option(False, "train the classifier alone; the weights to start from stay as they are")
    lora: Count | None = option(None, "train low-rank additions of this rank to the linear layers, and the classifier")
    num_classes: Count | None = option(None, "outputs of the classifier (default: the data's classes)")
    seed: Whole = option(0, "random seed of initial weights, data order, augmentation and mixing")
    output: str | None = option(None, "run folder (default: runs/NAME)", may_change=True)
    resume: bool | None = option(None, "require an existing run, or an empty folder (default: either)", may_change=True)


@dataclass(frozen=True, kw_only=True)
class Schedule(Settings):
    section = "Optimizer and schedule"

    epochs: Count = option(100, "training epochs, without the cool-down")
    batch: Count = option(256, "images per update, over all processes and micro-batches")
    accumulate: Count = option(1, "micro-batches per update in each process")
    optimizer: str = option("adamw", "name of a timm optimizer")
    lr: Positive = option(5e-4, "peak learning rate, for lr_per images per update")
    lr_per: Count | None = option(
        512, "linear scaling rule: the learning rate is lr * batch / lr_per; none disables it"
    )
    min_lr: Rate = option(1e-5, "learning rate at the end of the schedule and during cool-down")
    warmup_lr: Rate = option(1e-6, "learning rate at the start of warm-up")
    warmup_epochs: NotNegative = option(5.0, "epochs of linear warm-up, included in epochs")
    cooldown_epochs: Whole = option(0, "further epochs at min_lr")
    schedule: Literal["cosine", "constant", "poly", "step"] = option("cosine", "learning rate schedule")
    power: Positive = option(1.0, "power of the poly schedule; 1 is a straight line")
    decay_epochs: tuple[NotNegative, ...] = option(
        (), "epochs at which the step schedule divides the learning rate by 10"
    )
    weight_decay: NotNegative = option(0.05, "weight decay; biases and norms are exempt")
    momentum: NotNegative = option(0.9, "momentum of optimizers that have one")
    betas: tuple[float, float] | None = option(None, "betas of Adam-like optimizers (default: the optimizer's)")
    eps: Positive | None = option(None, "epsilon of Adam-like optimizers (default: the optimizer's)")
    layer_decay: Fraction | None = option(
        None, "layer-wise learning rate decay: factor from each layer to the one below"
    )
    clip_grad: Positive | None = option(None, "clip gradients to this norm")

    @property
    def total_epochs(self) -> int:
        return self.epochs + self.cooldown_epochs

    @property
    def peak_lr(self) -> float:
        return self.lr if self.lr_per is None else self.lr * self.batch / self.lr_per


@dataclass(frozen=True, kw_only=True)
class Regularization(Settings):
    section = "Regularization"

    smoothing: Fraction = option(0.1, "label smoothing, unless the method sets its own value")
    loss: Literal["ce", "bce"] | None = option(
        None, "main loss of every method in the method string (default: the method's)"
    )
    drop: Fraction | None = option(None, "dropout before the classifier (default: the model's)")
    drop_path: Fraction | None = option(None, "stochastic depth (default: the model's)")
    ema: Fraction | None = option(None, "decay of the exponential moving average (EMA) of the weights, such as 0.9999")
    mixing_off_epoch: Whole | None = option(None, "first epoch without image mixing, counted from 0")


@dataclass(frozen=True, kw_only=True)
class Preprocessing(AugmentationSettings):
    section = AugmentationSettings.section

    size: Count | None = option(None, "image side in pixels (default: the model's)")
    balance: bool = option(False, "show every class equally often, for data with rare classes")
    repeats: Count = option(1, "repeated augmentation: how often each image appears in an epoch")
    mean: tuple[float, float, float] | None = option(None, "mean of each color channel (default: the model's)")
    std: tuple[float, float, float] | None = option(
        None, "standard deviation of each color channel (default: the model's)"
    )
    crop_pct: Positive | None = option(None, "evaluation: center crop as a fraction of the side (default: the model's)")


Measure = Literal["accuracy", "accuracy5", "eval_loss", "ema_accuracy", "ema_accuracy5", "ema_eval_loss"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(Settings):
    section = "Evaluation and checkpoints"

    eval_every: Count = option(1, "epochs between evaluations; the last epoch is always evaluated")
    eval_split: Split = option("test", "split to evaluate on")
    eval_batch: Count | None = option(None, "images per evaluation step (default: as in training)")
    best: Measure = option("accuracy", "metric on eval_split that selects the best weights")
    checkpoint_every: str = option(
        "1 epoch", "how often to write a checkpoint: '2 epochs', '500 steps' or '600 seconds'", may_change=True
    )
    keep: Count = option(2, "number of newest checkpoints to keep; the best weights are always kept", may_change=True)
    skip_nonfinite: bool = option(False, "skip updates with a non-finite loss or gradient instead of stopping")
    log_every: Count = option(50, "updates between progress reports", may_change=True)
    track: str = option("auto", "Accelerate trackers, comma-separated; auto: tensorboard if installed", may_change=True)


CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@dataclass(frozen=True, kw_only=True)
class Hardware(Settings):
    section = "Hardware and speed"

    precision: Literal["fp32", "tf32", "bf16", "fp16"] = option("fp32", "numeric precision of the forward pass")
    compile: bool = option(False, "compile the training step", may_change=True)
    compile_mode: CompileMode = option(
        "default", "mode of torch.compile; reduce-overhead uses CUDA graphs, for small models", may_change=True
    )
    grad_checkpointing: bool = option(False, "recompute activations to save memory", may_change=True)
    resident: bool = option(False, "keep the dataset in GPU memory and augment it there, in batches")
    workers: Workers = option(
        min(4, available_cores()), "processes that load images; 0 loads in the training process", may_change=True
    )
    fsdp: bool = option(
        False, "shard weights, gradients and optimizer state over the processes, for large models", may_change=True
    )
    cpu: bool = option(False, "train on the CPU even if there is a GPU")
