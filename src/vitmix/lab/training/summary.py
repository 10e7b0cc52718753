"""The end of a training in short: what was reached, what went wrong on the way, and how to use the result."""

import json
from typing import TYPE_CHECKING, Any

import torch

from vitmix.lab.environment import describe_environment
from vitmix.lab.training import prepare
from vitmix.lab.training.progress import duration, finite
from vitmix.lab.training.state import broken_images

if TYPE_CHECKING:
    from vitmix.lab.training.engine import Trainer


def summarize(trainer: "Trainer") -> dict[str, Any]:
    """The results as plain values; `text` is what a person reads. With several processes, all must call this."""
    config, position = trainer.config, trainer.position
    if not trainer.folder.best.exists():  # removed meanwhile, or never written
        position.best = None
    broken = broken_images(trainer)
    last = position.history[-1]
    return {
        "text": _text(trainer, broken),
        "accuracy": last["accuracy"],
        "best": position.best and finite(position.best),
        "last": finite(last),
        "epochs": config.total_epochs,
        "updates": trainer.total_updates,
        "seconds": position.wall,
        "training_seconds": position.seconds,
        "skipped_updates": position.skipped,
        "overflowed_updates": position.overflowed,
        "broken_images": broken,
        "model": config.model,
        "model_settings": prepare.model_settings(config, trainer.classes),
        "classes": trainer.images.classes,
        "processes": trainer.world,
        "peak_memory": torch.cuda.max_memory_allocated(trainer.device) if trainer.device.type == "cuda" else None,
        "environment": describe_environment(trainer.device),
    }


def about(trainer: "Trainer") -> dict[str, str]:
    """What a file of weights says about itself, as safetensors has it: texts by name."""
    config = trainer.config
    facts: dict[str, Any] = {"model": config.model, "model_settings": prepare.model_settings(config, trainer.classes)}
    augmentation = prepare.build_augmentation(config, trainer.core.model)
    names = ("size", "mean", "std", "crop_pct", "interpolation")  # how images reach the model in evaluation
    facts["preprocessing"] = {name: getattr(augmentation, name) for name in names}
    return {"vitmix": json.dumps({**facts, "classes": trainer.images.classes, "method": config.method})}


def is_better(name: str, new: float, old: float) -> bool:
    return new < old if name.endswith("loss") else new > old


def _text(trainer: "Trainer", broken: list[str]) -> str:
    config, position = trainer.config, trainer.position
    best, last, folder = position.best, position.history[-1], trainer.folder
    shown, weights, named = "", folder.last, f"{folder.last} (final)"
    if best is not None:
        value = best[config.best]
        number = f"{value:.4f}" if config.best.endswith("loss") else f"{100 * value:.2f} %"
        shown = f"; best {config.best} {number} (epoch {best['epoch']})"
        weights, named = folder.best, f"{folder.best} (best), {folder.last.name} (final)"
    settings = {**prepare.model_settings(config, trainer.classes), "checkpoint_path": str(weights)}
    arguments = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    lines = [
        f"Trained   {config.total_epochs} epoch{'s' * (config.total_epochs != 1)} in {duration(position.wall)}, "
        "evaluation and checkpoints included",
        f"Accuracy  {100 * last['accuracy']:.2f} % on {trainer.eval_images.description}{shown}",
        f"Weights   {named}",
        f"Load      timm.create_model({config.model!r}, {arguments})",
    ]
    if position.skipped:
        lines.append(f"Skipped   {position.skipped} updates whose loss or gradient was not finite")
    if position.overflowed:
        lines.append(f"Overflow  {position.overflowed} updates left out while fp16 lowered the scale of its loss")
    if broken:
        more = f" and {len(broken) - 5} more, in summary.json" if len(broken) > 5 else ""
        lines.append(f"Unread    {len(broken)} images that could not be read: {'; '.join(broken[:5])}{more}")
    return "\n".join(lines)
