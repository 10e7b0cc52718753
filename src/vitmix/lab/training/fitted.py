"""Settings that follow from the number of training images, for recipes that fit them.

Each rule is a function of the number of images and of the settings before it in `RULES`, so explicit settings determine
the others: the warm-up depends on the given epochs, the learning rate on the given batch.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from vitmix.lab.training.config import TrainConfig

LEAST_BATCH, MOST_BATCH = 16, 256
UPDATES_PER_EPOCH = 50  # aim: the batch is at most a 50th of the images
UPDATES = 1100  # aim for the whole training
LEAST_EPOCHS, MOST_EPOCHS = 8, 40
RATE, RATE_OF_PARTS, RATE_BATCH = 3e-4, 1e-3, 64  # AdamW's learning rate for a batch of 64


def _batch(images: int, _: TrainConfig) -> int:
    """A power of two: a 50th of the images, within bounds."""
    wanted = min(max(images // UPDATES_PER_EPOCH, LEAST_BATCH), MOST_BATCH, images)
    return 2 ** int(math.log2(max(wanted, 1)))


def _epochs(images: int, config: TrainConfig) -> int:
    """Enough for 1,100 updates, within bounds."""
    return min(max(math.ceil(UPDATES / max(images // config.batch, 1)), LEAST_EPOCHS), MOST_EPOCHS)


def _warmup(_: int, config: TrainConfig) -> float:
    """A tenth of the training."""
    return config.epochs / 10


def _rate(_: int, config: TrainConfig) -> float:
    """Scales with the square root of the batch, as suits Adam; higher if few parameters are trained."""
    rate = RATE_OF_PARTS if config.trains_part else RATE
    return float(f"{rate * math.sqrt(config.batch / RATE_BATCH):.2g}")


def _layer_decay(_: int, config: TrainConfig) -> float | None:
    """Lower layers learn more slowly, unless they are frozen."""
    return None if config.trains_part else 0.75


RULES: dict[str, Callable[[int, TrainConfig], Any]] = {
    "batch": _batch,
    "epochs": _epochs,
    "warmup_epochs": _warmup,
    "lr": _rate,
    "layer_decay": _layer_decay,
}


def fit(config: TrainConfig, names: Sequence[str]) -> TrainConfig:
    """The configuration with these settings fitted to its data."""
    for name in (each for each in RULES if each in names):
        config = dataclasses.replace(config, **{name: RULES[name](_count(config.data), config)})
    return config


@cache
def _count(data: str) -> int:
    from vitmix.lab.data.sources import open_images

    return len(open_images(data, "train"))


def fitted_text(config: TrainConfig, names: Sequence[str], images: int) -> str:
    """What was fitted and what was given, for the first lines of the output."""
    own = [name for name in names if RULES[name](images, config) == getattr(config, name)]
    given = [name for name in names if name not in own]

    def shown(some: Sequence[str]) -> str:
        return ", ".join(f"{name} {_number(getattr(config, name))}" for name in some)

    lines = [f"Fitted to {images:,} images: {shown(own)}"] if own else []
    return "; ".join(lines + ([f"given: {shown(given)}"] if given else [])) + "."


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
