"""What a training run prints before its first and after its last epoch, and the header of its weights."""

import shlex
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.images import ImageSet
from vitmix.lab.environment import describe_environment
from vitmix.lab.reading import JsonObject
from vitmix.lab.runs import Run
from vitmix.lab.settings import ModelArgs
from vitmix.lab.training import processes
from vitmix.lab.training.config import AnyConfig, TrainConfig
from vitmix.lab.training.fitted import fitted_text
from vitmix.lab.training.partial import trained_parameters
from vitmix.lab.training.progress import duration
from vitmix.lab.training.recipes import read_recipe
from vitmix.lab.training.state import Position

UNEVEN = 10  # ratio of class sizes from which a note is printed
NAMED = 5  # how many empty classes or unreadable images are named


def opening(
    config: TrainConfig,
    images: ImageSet,
    held_out: ImageSet,
    model: nn.Module,
    *,
    device: torch.device,
    world: int,
) -> list[str]:
    """Data, model, device and method, then fitted settings and classes that cannot be learned."""
    divided = "held out" in held_out.description and "holdout=" not in config.data
    why = ", as the data has no other split" if divided else ""
    lines = [
        data_text(images, held_out, why),
        f"Model {config.model} with {size_of(model)}, on {place_of(device, world)} in {config.precision}; "
        f"method {config.method}.",
    ]
    lines += _fitted(config, len(images)) + _balance(config, images)
    folders = [getattr(each, "root", None) for each in (images, held_out)]
    held_out_of_it = folders[0] is not None and folders[0] == folders[1]  # the same files are beside both
    lines += _skipped(images) + ([] if held_out_of_it else _skipped(held_out))
    unseen = np.setdiff1d(np.arange(len(images.classes)), images.labels)
    lines += _note("training", unseen, images)
    return lines + _note("evaluation", np.setdiff1d(images.labels, held_out.labels), images)


def data_text(images: ImageSet, held_out: ImageSet, why: str = "") -> str:
    """What a training learns from and is evaluated on, and `why` on that."""
    return (
        f"Training on {len(images):,} images of {len(images.classes):,} classes: {images.description}; "
        f"evaluating on {len(held_out):,}: {held_out.description}{why}."
    )


def size_of(model: nn.Module) -> str:
    """The parameters of a model, and how many of them are trained if not all are."""
    parameters, trained = sum(each.numel() for each in model.parameters()), trained_parameters(model)
    return f"{parameters:,} parameters" + ("" if trained == parameters else f" ({trained:,} trained)")


def score_text(name: str, value: float) -> str:
    """A score for display: in percent, unless it is a loss."""
    return f"{value:.4f}" if name.endswith("loss") else f"{100 * value:.2f} %"


def place_of(device: torch.device, world: int) -> str:
    """Where a training runs."""
    name = describe_environment(device)["device"]
    return name if world == 1 else f"{world} processes, the first on {name},"


def _skipped(images: ImageSet) -> list[str]:
    """A note on files beside the images that are not images of a known kind."""
    if not images.skipped:
        return []
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(images.skipped.items()))
    count = sum(images.skipped.values())
    files = "1 file was skipped" if count == 1 else f"{count:,} files were skipped"
    return [f"Note: {files} in {images.description}: {kinds}."]


def _fitted(config: TrainConfig, images: int) -> list[str]:
    names = () if config.recipe is None else read_recipe(config.recipe).fitted
    return [fitted_text(config, names, images)] if names else []


def _balance(config: TrainConfig, images: ImageSet) -> list[str]:
    """A note on class balance, if class sizes differ much."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    least, most = counts[counts > 0].min(), counts.max()
    if config.balance:
        return [f"Balanced: classes of {least:,} to {most:,} images are shown equally often."]
    uneven = most >= UNEVEN * least
    return [f"Note: classes have {least:,} to {most:,} images; --balance shows them equally often."] if uneven else []


def _note(purpose: str, labels: np.ndarray, images: ImageSet) -> list[str]:
    """A note on classes without images."""
    more = f" and {len(labels) - NAMED:,} more classes" if len(labels) > NAMED else ""
    named = ", ".join(images.classes[label] for label in labels[:NAMED])
    return [f"Note: no {purpose} image shows {named}{more}."] if len(labels) else []


def other_world(config: TrainConfig, before: int, now: int) -> str:
    """What stays and what changes if another number of processes continues a run."""
    first, then = (processes.BatchPart.of(config, world) for world in (before, now))
    augmented = "are augmented and mixed" if config.resident else "are mixed"
    return (
        f"the checkpoint was written by {before} process{'es' * (before != 1)} and {now} continue{'s' * (now == 1)}: "
        f"weights, optimizer and the images of every batch of {config.batch:,} stay the same, but images {augmented} "
        f"{then} at a time instead of {first}, with other random numbers"
    )


def header_facts(
    config: TrainConfig, settings: ModelArgs, augmentation: Augmentation, classes: Sequence[str]
) -> JsonObject:
    """What the header of a weights file says, besides the epoch."""
    names = ("size", "mean", "std", "crop_pct", "interpolation")  # how images reach the model in evaluation
    preprocessing = {name: getattr(augmentation, name) for name in names}
    facts = {"model": config.model, "model_settings": settings, "preprocessing": preprocessing}
    return {**facts, "classes": list(classes), "method": config.method}


def unusable(count: int) -> str:
    return "1 image could not be used" if count == 1 else f"{count:,} images could not be used"


def closing(config: AnyConfig, run: Run, position: Position, settings: ModelArgs | None, data: str) -> str:
    """The results, the problems on the way, and how to use the weights.

    Args:
        settings: what timm's `create_model` takes besides the name; None if it does not build such a model.
        data: the evaluation data.
    """
    best, last, broken = position.best, position.history[-1], position.broken
    score = config.headline
    shown, weights, named = "", run.last, f"{run.last} (final)"
    if best is not None:
        shown = f"; best {config.best} {score_text(config.best, best.values[config.best])} (epoch {best.number})"
        weights, named = run.best, f"{run.best} (best), {run.last.name} (final)"
    lines = [
        f"Trained   {config.total_epochs} epoch{'s' * (config.total_epochs != 1)} in {duration(position.wall)}, "
        "evaluation and checkpoints included",
        f"{'Accuracy' if score == 'accuracy' else score:<8}  {score_text(score, last.values[score])} on {data}{shown}",
        f"Weights   {named}",
    ]
    if settings is not None:
        given = {**settings, "checkpoint_path": str(weights)}
        arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
        lines.append(f"Load      timm.create_model({config.model!r}, {arguments})")
    if position.skipped:
        lines.append(f"Skipped   {position.skipped} updates whose loss or gradient was not finite")
    if position.overflowed:
        lines.append(f"Overflow  {position.overflowed} updates skipped while fp16 lowered its loss scale")
    if broken:
        more = f" and {len(broken) - NAMED} more, in summary.json" if len(broken) > NAMED else ""
        lines.append(f"Left out  {unusable(len(broken))}: {'; '.join(broken[:NAMED])}{more}")
    lines.append(f"Next      vitmix report {shlex.quote(str(run.path))}")
    return "\n".join(lines)
