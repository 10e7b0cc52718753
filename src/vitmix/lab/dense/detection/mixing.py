"""Mixing a batch of images with boxes and masks: any method that mixes pixels, and copy-paste."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vitmix.dense import DenseMix, copy_paste, draw_objects
from vitmix.lab.dense.task import Mixing
from vitmix.parts.pairing import Reversed

COPY_PASTE = re.compile(r"copy_paste(?:\(\s*(?:probability\s*=\s*)?([0-9.]+)?\s*\))?")
PROBABILITY = 0.5  # of each object of the partner to be pasted
OURS = ("boxes", "labels", "masks")


def needs_masks(method: str) -> bool:
    """Whether a method pastes objects by their masks."""
    return COPY_PASTE.fullmatch(method.strip()) is not None


def detection_mixing(method: str, classes: int) -> Mixing:
    """What `--method` does to a batch: `copy_paste(probability=0.5)`, or the mask of a method such as `cutmix`."""
    pasting = COPY_PASTE.fullmatch(method.strip())
    if pasting:
        return _Pasting(float(pasting[1] or PROBABILITY))
    if method == "none":
        return lambda images, targets, generator: (images, targets)
    return _Masking(method, classes)


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


class _Pasting:
    def __init__(self, probability: float) -> None:
        if not 0 < probability <= 1:
            raise ValueError(f"copy_paste takes a probability above 0 and at most 1, got {probability:g}")
        self.probability = probability

    def __call__(
        self, images: Tensor, targets: Sequence[dict[str, Any]], generator: torch.Generator
    ) -> tuple[Tensor, Any]:
        partner = Reversed().draw(len(images), generator)
        counts = [len(targets[other]["boxes"]) for other in partner.tolist()]
        chosen = draw_objects(counts, self.probability, generator=generator)
        images, mixed = copy_paste(images, fitted(targets, images), partner.to(images.device), chosen)
        return images, [{key: each[key] for key in OURS} for each in mixed]


class _Masking:
    def __init__(self, method: str, classes: int) -> None:
        self.mix = DenseMix(method, num_classes=classes, seed=0)

    def __call__(
        self, images: Tensor, targets: Sequence[dict[str, Any]], generator: torch.Generator
    ) -> tuple[Tensor, Any]:
        batch = self.mix.mix(images, fitted(targets, images), generator=generator)
        return batch.images, [{key: each[key] for key in OURS if key in each} for each in batch.targets]
