"""What a transfer says before its first epoch and after its last one."""

from pathlib import Path

from torch import nn

from vitmix.lab.data.images import ImageSet
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.training.progress import duration
from vitmix.lab.training.state import Position
from vitmix.lab.training.texts import data_text, score_text, size_of

NAMED = 3  # images that could not be used, by name


def unusable(count: int) -> str:
    return "1 image could not be used" if count == 1 else f"{count:,} images could not be used"


def opening(
    config: TransferConfig,
    images: ImageSet,
    held_out: ImageSet,
    model: nn.Module,
    *,
    backbone: str,
    size: tuple[int, int],
    place: str,
    updates: int,
) -> list[str]:
    """Data, model, device and method in two lines, and notes on the data."""
    head = getattr(model, "head_name", config.head)
    lines = [
        data_text(images, held_out),
        f"{config.task}: {backbone} with {head}, {size_of(model)}, images of {size[0]} × {size[1]} pixels, on {place} "
        f"in {config.precision}; method {config.method}; {updates:,} updates.",
    ]
    return lines + [f"Note: {note}" for each in (images, held_out) for note in getattr(each, "notes", ())]


def closing(config: TransferConfig, folder: Path, position: Position, data: str) -> str:
    """What was reached, what went wrong on the way, and how to use the result; `data` was evaluated on."""
    lines = [f"Finished after {duration(position.wall)}."]
    score = None if position.best is None else position.best.get(config.best)
    if position.best is not None and score is not None:
        lines.append(f"Best {config.best} {score_text(config.best, score)} in epoch {position.best.number}, on {data}.")
    if position.broken:
        more = f" and {len(position.broken) - NAMED:,} more" if len(position.broken) > NAMED else ""
        lines.append(f"{unusable(len(position.broken))}: {'; '.join(position.broken[:NAMED])}{more}.")
    if position.skipped:
        lines.append(f"{position.skipped:,} updates were skipped, because loss or gradient was not finite.")
    lines.append(f"'vitmix report {folder}' makes a page of it; 'vitmix eval {folder}' evaluates it again.")
    return "\n".join(lines)
