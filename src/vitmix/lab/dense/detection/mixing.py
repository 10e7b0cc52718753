"""Mixing a batch of images with boxes and masks: any method that mixes pixels, and copy-paste."""

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from vitmix.lab.dense.task import Mixing

COPY_PASTE = re.compile(r"copy_paste(?:\(\s*(?:probability\s*=\s*)?(\d*\.?\d+)?\s*\))?")
PROBABILITY = 0.5  # of each object of the partner to be pasted
OURS = ("boxes", "labels", "masks")


def pasting(method: str) -> float | None:
    """The probability of `copy_paste(probability=0.5)`; None for other methods."""
    found = COPY_PASTE.fullmatch(method.strip())
    return None if found is None else float(found[1] or PROBABILITY)


class FittedMixing:
    """A mixing of images that were padded to one size: masks are padded alike, and only what is learned is kept."""

    def __init__(self, inner: Mixing) -> None:
        self.inner = inner

    @property
    def step(self) -> int:
        return self.inner.step

    @step.setter
    def step(self, value: int) -> None:
        self.inner.step = value

    def __call__(self, images: Tensor, targets: Sequence[dict[str, Any]]) -> tuple[Tensor, list[dict[str, Any]]]:
        images, mixed = self.inner(images, fitted(targets, images))
        return images, [{key: each[key] for key in OURS if key in each} for each in mixed]


def fitted(targets: Sequence[dict[str, Any]], images: Tensor) -> list[dict[str, Any]]:
    """Targets whose masks are padded as the images of the batch are."""
    height, width = images.shape[-2:]
    return [
        {
            key: pad(each, (0, width - each.shape[2], 0, height - each.shape[1])) if key == "masks" else each
            for key, each in target.items()
        }
        for target in targets
    ]
