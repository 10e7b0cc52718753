"""What a training is about to do, said before its first epoch."""

from typing import TYPE_CHECKING

import numpy as np

from vitmix.lab.data.images import ImageSet
from vitmix.lab.environment import describe_environment

if TYPE_CHECKING:
    from vitmix.lab.training.engine import Trainer

NAMED = 5  # classes without a picture that are named


def opening(trainer: "Trainer") -> list[str]:
    """Data, model, device and method in two lines, and more where classes cannot be learned or evaluated."""
    config, images, held_out = trainer.config, trainer.images, trainer.eval_images
    divided = "held out" in held_out.description and "holdout=" not in config.data
    why = ", as the data has no other split" if divided else ""
    parameters = sum(each.numel() for each in trainer.core.model.parameters())
    lines = [
        f"Training on {len(images):,} images of {len(images.classes):,} classes: {images.description}; "
        f"evaluating on {len(held_out):,}: {held_out.description}{why}.",
        f"Model {config.model} with {parameters:,} parameters, on {_device(trainer)} in {config.precision}; "
        f"method {config.method}.",
    ]
    unseen = np.setdiff1d(np.arange(len(images.classes)), images.labels)
    lines += _note("train", unseen, images)
    lines += _note("evaluate", np.setdiff1d(images.labels, held_out.labels), images)
    return lines


def _note(purpose: str, labels: np.ndarray, images: ImageSet) -> list[str]:
    """A sentence on classes that no image shows."""
    more = f" and {len(labels) - NAMED:,} more classes" if len(labels) > NAMED else ""
    named = ", ".join(images.classes[label] for label in labels[:NAMED])
    return [f"Note: none of the images to {purpose} on shows {named}{more}."] if len(labels) else []


def _device(trainer: "Trainer") -> str:
    name = describe_environment(trainer.device)["device"]
    return name if trainer.world == 1 else f"{trainer.world} processes, the first on {name},"
