"""Models from where users have them: a run folder, a file of weights, timm's published weights, or none at all."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import timm
from torch import nn

from vitmix.data.augment import Augmentation
from vitmix.train.checkpoints import load_weights
from vitmix.train.config import TrainConfig, resolve
from vitmix.train.prepare import build_augmentation, build_model


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, how its pictures are prepared, and the names of its classes where they are known."""

    name: str
    model: nn.Module
    augmentation: Augmentation
    classes: list[str] | None
    origin: str
    trained: bool = True


def load_run(folder: str | Path) -> Loaded:
    """The best weights of a run of `vitmix train`, or the newest there are."""
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{str(folder)!r} is no run folder: there is no config.yaml; give a folder of 'vitmix train'")
    config = resolve(file=folder / "config.yaml")
    weights = next((path for name in ("best", "last") if (path := folder / f"{name}.safetensors").is_file()), None)
    if weights is None:
        raise ValueError(f"the run in {str(folder)!r} has no weights yet; wait for its first evaluation")
    try:
        with safetensors.safe_open(weights, "pt") as stored:
            about = json.loads((stored.metadata() or {})["vitmix"])
    except (safetensors.SafetensorError, KeyError, ValueError) as problem:
        raise ValueError(f"{str(weights)!r} is not a file of weights that 'vitmix train' wrote ({problem})") from None
    count = about["model_settings"]["num_classes"]
    model, _ = build_model(replace(config, checkpoint=None, pretrained=False), count)
    if load_weights(model, weights):
        raise ValueError(f"the classifier in {str(weights)!r} is not that of the run's config.yaml")
    augmentation = build_augmentation(config, model)
    return Loaded(config.model, model.eval(), augmentation, about["classes"], f"trained, {folder.name}")


def load_named(
    name: str,
    *,
    checkpoint: str | None = None,
    pretrained: bool = False,
    num_classes: int | None = None,
    guesses: Iterable[int] = (),
    model_args: dict[str, Any] | None = None,
    size: int | None = None,
) -> Loaded:
    """A timm model by name.

    Args:
        guesses: further numbers of classes to try when the weights do not fit timm's own and none is given.
    """
    config = TrainConfig(model=name, pretrained=pretrained, model_args=model_args or {}, size=size)
    counts = [num_classes] if num_classes is not None else list(dict.fromkeys([None, *guesses]))
    tried = []
    for count in counts:
        tried.append(_own_classes(name) if count is None else count)
        model, _ = build_model(config, tried[-1])
        if checkpoint is None or not load_weights(model, checkpoint):
            origin = "timm's weights" if pretrained else "untrained"
            origin = origin if checkpoint is None else f"weights of {Path(checkpoint).name}"
            trained = checkpoint is not None or pretrained
            return Loaded(name, model.eval(), build_augmentation(config, model), None, origin, trained)
    raise ValueError(
        f"the classifier in {checkpoint} has another number of classes than {' or '.join(map(str, tried))}; "
        "give --num-classes"
    )


def _own_classes(name: str) -> int:
    try:
        cfg = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError:
        return 1000  # an unknown model: building it says so
    return cfg.num_classes if cfg is not None else 1000
