"""What a training is about to do, said before its first epoch."""

from typing import TYPE_CHECKING

import numpy as np

from vitmix.data.images import ImageSet
from vitmix.environment import describe_environment

if TYPE_CHECKING:
    from vitmix.train.engine import Trainer

NAMED = 5  # classes without a picture that are named


def opening(trainer: "Trainer") -> list[str]:
    """Data, model, device and method in two lines, and a third where classes cannot be evaluated."""
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
    missing = missing_classes(images, held_out)
    if missing:
        more = f" and {len(missing) - NAMED:,} more classes" if len(missing) > NAMED else ""
        lines.append(f"Note: none of the images to evaluate on shows {', '.join(missing[:NAMED])}{more}.")
    return lines


def missing_classes(images: ImageSet, held_out: ImageSet) -> list[str]:
    """The classes that are trained on and not evaluated."""
    return [images.classes[label] for label in np.setdiff1d(images.labels, held_out.labels)]


def _device(trainer: "Trainer") -> str:
    name = describe_environment(trainer.device)["device"]
    return name if trainer.world == 1 else f"{trainer.world} processes, the first on {name},"
