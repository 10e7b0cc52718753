"""Mixing a batch of images with boxes and masks: any method that mixes pixels, and copy-paste."""

import re
from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from vitmix.lab.dense.task import BatchMixing

from .records import TrainingTarget

COPY_PASTE = re.compile(r"copy_paste(?:\(\s*(?:probability\s*=\s*)?(\d*\.?\d+)?\s*\))?")
PROBABILITY = 0.5  # of each object of the partner to be pasted


def pasting(method: str) -> float | None:
    """The probability of `copy_paste(probability=0.5)`; None for other methods."""
    found = COPY_PASTE.fullmatch(method.strip())
    return None if found is None else float(found[1] or PROBABILITY)


class FittedMixing:
    """A mixing of images that were padded to one size: masks are padded alike, and only what is learned is kept."""

    def __init__(self, inner: BatchMixing) -> None:
        self.inner = inner

    @property
    def step(self) -> int:
        return self.inner.step

    @step.setter
    def step(self, value: int) -> None:
        self.inner.step = value

    def __call__(self, images: Tensor, targets: Sequence[TrainingTarget]) -> tuple[Tensor, list[TrainingTarget]]:
        images, mixed = self.inner(images, [_padded(each, images) for each in targets])
        return images, [_learned(each) for each in mixed]


def _learned(target: TrainingTarget) -> TrainingTarget:
    found: TrainingTarget = {"boxes": target["boxes"], "labels": target["labels"]}
    return {**found, "masks": target["masks"]} if "masks" in target else found


def _padded(target: TrainingTarget, images: Tensor) -> TrainingTarget:
    """With masks of the size of the batch's images."""
    if "masks" not in target:
        return target
    height, width = (whole - own for whole, own in zip(images.shape[-2:], target["masks"].shape[1:], strict=True))
    return {**target, "masks": pad(target["masks"], (0, width, 0, height))}
