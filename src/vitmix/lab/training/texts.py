"""What a training says before its first epoch and after its last one, and what its weights say of themselves."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.images import ImageSet
from vitmix.lab.environment import describe_environment
from vitmix.lab.runs import Run
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.progress import duration
from vitmix.lab.training.state import Position

NAMED = 5  # classes without an image, or images that cannot be read, that are named


def opening(
    config: TrainConfig, images: ImageSet, held_out: ImageSet, *, parameters: int, device: torch.device, world: int
) -> list[str]:
    """Data, model, device and method in two lines, and more where classes cannot be learned or evaluated."""
    divided = "held out" in held_out.description and "holdout=" not in config.data
    why = ", as the data has no other split" if divided else ""
    name = describe_environment(device)["device"]
    place = name if world == 1 else f"{world} processes, the first on {name},"
    lines = [
        f"Training on {len(images):,} images of {len(images.classes):,} classes: {images.description}; "
        f"evaluating on {len(held_out):,}: {held_out.description}{why}.",
        f"Model {config.model} with {parameters:,} parameters, on {place} in {config.precision}; "
        f"method {config.method}.",
    ]
    unseen = np.setdiff1d(np.arange(len(images.classes)), images.labels)
    lines += _note("train", unseen, images)
    return lines + _note("evaluate", np.setdiff1d(images.labels, held_out.labels), images)


def _note(purpose: str, labels: np.ndarray, images: ImageSet) -> list[str]:
    """A sentence on classes that no image shows."""
    more = f" and {len(labels) - NAMED:,} more classes" if len(labels) > NAMED else ""
    named = ", ".join(images.classes[label] for label in labels[:NAMED])
    return [f"Note: none of the images to {purpose} on shows {named}{more}."] if len(labels) else []


def header_texts(
    config: TrainConfig, settings: dict[str, Any], augmentation: Augmentation, classes: Sequence[str]
) -> dict[str, str]:
    """What a weights file says about itself, in the form of safetensors: texts by name."""
    names = ("size", "mean", "std", "crop_pct", "interpolation")  # how images reach the model in evaluation
    preprocessing = {name: getattr(augmentation, name) for name in names}
    facts = {"model": config.model, "model_settings": settings, "preprocessing": preprocessing}
    return {"vitmix": json.dumps({**facts, "classes": list(classes), "method": config.method})}


def closing(config: TrainConfig, run: Run, position: Position, settings: dict[str, Any], data: str) -> str:
    """What was reached, what went wrong on the way, and how to use the result.

    Args:
        settings: what timm's `create_model` takes besides the name.
        data: what was evaluated on.
    """
    best, last, broken = position.best, position.history[-1], position.broken
    shown, weights, named = "", run.last, f"{run.last} (final)"
    if best is not None:
        value = best.values[config.best]
        number = f"{value:.4f}" if config.best.endswith("loss") else f"{100 * value:.2f} %"
        shown = f"; best {config.best} {number} (epoch {best.number})"
        weights, named = run.best, f"{run.best} (best), {run.last.name} (final)"
    arguments = ", ".join(f"{key}={value!r}" for key, value in {**settings, "checkpoint_path": str(weights)}.items())
    lines = [
        f"Trained   {config.total_epochs} epoch{'s' * (config.total_epochs != 1)} in {duration(position.wall)}, "
        "evaluation and checkpoints included",
        f"Accuracy  {100 * last.values['accuracy']:.2f} % on {data}{shown}",
        f"Weights   {named}",
        f"Load      timm.create_model({config.model!r}, {arguments})",
    ]
    if position.skipped:
        lines.append(f"Skipped   {position.skipped} updates whose loss or gradient was not finite")
    if position.overflowed:
        lines.append(f"Overflow  {position.overflowed} updates left out while fp16 lowered the scale of its loss")
    if broken:
        more = f" and {len(broken) - NAMED} more, in summary.json" if len(broken) > NAMED else ""
        lines.append(f"Unread    {len(broken)} images that could not be read: {'; '.join(broken[:NAMED])}{more}")
    return "\n".join(lines)
