"""What a transfer says before its first epoch and after its last one."""

from typing import TYPE_CHECKING

from vitmix.lab.training.progress import duration
from vitmix.lab.training.texts import place_of, score_text, size_of

if TYPE_CHECKING:
    from vitmix.lab.dense.training import TransferTrainer

NAMED = 3  # images that could not be used, by name


def unusable(count: int) -> str:
    return "1 image could not be used" if count == 1 else f"{count:,} images could not be used"


def opening(trainer: "TransferTrainer") -> list[str]:
    """Data, model, device and method in two lines, and notes on the data."""
    config, train, held_out = trainer.settings, trainer.images, trainer.eval_images
    model, place = trainer.core.model, place_of(trainer.device, trainer.world)
    head = getattr(model, "head_name", config.head)
    lines = [
        f"Training on {len(train):,} images of {len(train.classes):,} classes: {train.description}; "
        f"evaluating on {len(held_out):,}: {held_out.description}.",
        f"{config.task}: {trainer.backbone.name} with {head}, {size_of(model)}, images of "
        f"{trainer.sides.size[0]} × {trainer.sides.size[1]} pixels, on {place} in {config.precision}; "
        f"method {config.method}; {trainer.total_updates:,} updates.",
    ]
    return lines + [f"Note: {note}" for each in (train, held_out) for note in getattr(each, "notes", ())]


def closing(trainer: "TransferTrainer") -> str:
    """What was reached, what went wrong on the way, and how to use the result."""
    position, config, folder = trainer.position, trainer.settings, trainer.folder.path
    lines = [f"Finished after {duration(position.wall)}."]
    score = None if position.best is None else position.best.get(config.best)
    if position.best is not None and score is not None:
        lines.append(
            f"Best {config.best} {score_text(config.best, score)} in epoch {position.best.number}, "
            f"on {trainer.eval_images.description}."
        )
    if position.broken:
        more = f" and {len(position.broken) - NAMED:,} more" if len(position.broken) > NAMED else ""
        lines.append(f"{unusable(len(position.broken))}: {'; '.join(position.broken[:NAMED])}{more}.")
    if position.skipped:
        lines.append(f"{position.skipped:,} updates were skipped, because loss or gradient was not finite.")
    lines.append(f"'vitmix report {folder}' makes a page of it; 'vitmix eval {folder}' evaluates it again.")
    return "\n".join(lines)
