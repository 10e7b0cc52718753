"""What a transfer says before its first epoch."""

from torch import nn

from vitmix.lab.data.images import ImageSet
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.training.texts import data_text, size_of


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
