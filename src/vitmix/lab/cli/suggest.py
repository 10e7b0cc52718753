"""`vitmix suggest`: which method to use for some images and a model, from what was measured."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitmix.lab.cli._parser import Command, flag
from vitmix.lab.settings import Count, File, ModelArgs, Name, Positive, Settings, option

if TYPE_CHECKING:
    from torch import nn

    from vitmix.lab.advice.choice import Advice
    from vitmix.lab.training.config import TrainConfig

MODEL = "deit_small_patch16_224"
MOST_EPOCHS = 300  # of a training from scratch, as the papers train
STEPS = {"cpu": (1, 2), "cuda": (10, 20)}  # untimed and timed, to measure the speed


@dataclass(frozen=True, kw_only=True)
class Suggest(Settings):
    """Recommend a method for your images, from measured results."""

    epilog = "docs/which_method.md explains the answer. Without --hours, the length is that of the recipe."

    data: str = option(..., "your images, written as for vitmix train")
    model: Name | None = option(None, f"name of a timm model (default: the weights file's, or {MODEL})")
    model_args: ModelArgs = option({}, "settings of the model")
    size: Count | None = option(None, "image side in pixels (default: the model's)")
    pretrained: bool = option(False, "you start from timm's published weights")
    checkpoint: File | None = option(None, "you start from this weights file")
    hours: Positive | None = option(None, "time you have on this machine; measures a few steps")
    epochs: Count | None = option(None, "passes over the data that you plan")
    batch: Count | None = option(None, "images per update that you plan")
    cpu: bool = option(False, "use the CPU even if there is a GPU")


def run(settings: Suggest) -> int:
    from vitmix import create
    from vitmix.lab.advice.choice import PlannedTraining, choose
    from vitmix.lab.advice.evidence import SCRATCH, WEIGHTS, stored
    from vitmix.lab.advice.words import STARTS, shown
    from vitmix.lab.data.sources import open_images
    from vitmix.lab.fitting import refusal
    from vitmix.lab.training.prepare import build_augmentation

    images = open_images(settings.data, "train")
    config = _config(settings, len(images))
    if config.batch > len(images):
        raise ValueError(f"a batch of {config.batch} is more than the {len(images)} training images; lower --batch")
    model = _model(config, len(images.classes))
    sides = build_augmentation(config, model).sides
    rate = None if settings.hours is None else _images_per_second(model, config, sides)
    evidence = stored()

    def planned(method: str) -> tuple[PlannedTraining, int]:
        """The training as long as time allows with a method, and its epochs."""
        speed = None if rate is None else rate / (evidence.cost.of(method) or 1.0)
        epochs = _epochs(settings, config, len(images), speed)
        start = WEIGHTS if settings.pretrained or settings.checkpoint else SCRATCH
        refuses = lambda text: refusal(model, create(text, 2), sides)  # noqa: E731
        built_in, updates = settings.data.startswith("shapes"), len(images) // config.batch * epochs
        return PlannedTraining(len(images), updates, start, built_in, sides[0], config.model, refuses), epochs

    # The method decides how long a step takes, and the length decides the method.
    method = _method(choose(evidence, planned("none")[0]))
    plan, epochs = planned(method)
    method = _method(choose(evidence, plan))
    seconds = 0.0 if rate is None else len(images) * epochs * (evidence.cost.of(method) or 1.0) / rate
    time = "" if rate is None else _time(seconds, rate, config, settings.hours)
    print(
        f"{len(images):,} images of {len(images.classes):,} classes, {config.model}, {STARTS[plan.start]}, {epochs} "
        f"epochs of batch {config.batch}: {plan.updates:,} updates"
    )
    print(shown(evidence, plan, command=_command(settings, config, method, epochs), note=time))
    return 0


def _method(advice: "Advice") -> str:
    return "none" if advice.chosen is None else advice.chosen.method


def _config(settings: Suggest, images: int) -> "TrainConfig":
    """The training as the recipe has it: fine-tuning with weights to start from, the defaults otherwise."""
    from vitmix.lab.training.config import resolve
    from vitmix.lab.training.fitted import RULES

    names = ("data", "model", "model_args", "size", "pretrained", "checkpoint", "epochs", "batch", "cpu")
    given = {name: getattr(settings, name) for name in names}
    given = {name: value for name, value in given.items() if value not in (None, {}, False)}
    if settings.checkpoint is None:  # which names its model itself
        given.setdefault("model", MODEL)
    if settings.pretrained or settings.checkpoint:
        return resolve({"recipe": "finetune", **given})
    config = resolve(given)
    return config if settings.batch else resolve({**given, "batch": RULES["batch"](images, config)})


def _model(config: "TrainConfig", classes: int) -> "nn.Module":
    """The model; published weights are not downloaded for an answer, a file is read as the training will."""
    import dataclasses

    from vitmix.lab.training.prepare import build_model

    return build_model(dataclasses.replace(config, pretrained=False), max(classes, 2))[0]


def _epochs(settings: Suggest, config: "TrainConfig", images: int, rate: float | None) -> int:
    """The planned epochs or, with hours, as many of the recipe's as fit; from scratch, at most 300."""
    if settings.epochs is not None or rate is None or settings.hours is None:
        return config.epochs
    most = config.epochs if config.recipe == "finetune" else MOST_EPOCHS
    return min(max(int(settings.hours * 3600 * rate / images), 1), most)


def _images_per_second(model: "nn.Module", config: "TrainConfig", sides: tuple[int, int]) -> float:
    """Of forward and backward passes here, with the batch and the precision of the training."""
    import torch

    from vitmix.lab.bench.clock import DTYPES, milliseconds

    device = torch.device("cpu" if config.cpu or not torch.cuda.is_available() else "cuda")
    images = max(config.batch // config.accumulate, 1)
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    dtype = DTYPES.get(config.precision, torch.float32)
    untimed, timed = STEPS[device.type]
    try:
        model, batch = model.train().to(device), torch.randn(images, 3, *sides, device=device)

        def step() -> None:
            model.zero_grad()
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                scores = model(batch)
            scores.float().sum().backward()

        milliseconds(step, untimed, device)
        return images * 1000 / milliseconds(step, timed, device)
    except torch.OutOfMemoryError:
        raise ValueError(
            f"a step of {images} images does not fit into the memory of {device}; give a smaller --batch"
        ) from None
    finally:
        torch.set_float32_matmul_precision(kept)
        model.cpu()


def _time(seconds: float, rate: float, config: "TrainConfig", hours: float | None) -> str:
    said = (
        f"about {seconds / 3600:.1f} hours at {rate:.0f} images/s, measured here without loading, on steps of "
        f"{max(config.batch // config.accumulate, 1)} images in {config.precision}"
    )
    return said if hours is None or seconds <= 3600 * hours else f"{said}; not even one epoch fits into {hours:g} hours"


def _command(settings: Suggest, config: "TrainConfig", method: str, epochs: int) -> str:
    tuning = config.recipe == "finetune"
    words = ["vitmix", "train", *(["--recipe", "finetune"] if tuning else [])]
    given = {name: getattr(settings, name) for name in ("data", "model", "checkpoint", "size")}
    given["model"] = config.model if settings.checkpoint is None else settings.model
    for name, value in given.items():
        words += [flag(name), str(value)] if value is not None else []
    words += ["--pretrained"] if settings.pretrained else []
    if settings.model_args:
        words += ["--model-args", *(f"{key}={value}" for key, value in settings.model_args.items())]
    if not tuning or method != config.method:
        words += ["--method", method]
    if not tuning or settings.epochs or epochs != config.epochs:
        words += ["--epochs", str(epochs)]
    if not tuning or settings.batch:
        words += ["--batch", str(config.batch)]
    return shlex.join(words)


COMMAND = Command(Suggest, run)
