"""Joint augmentation of images, boxes and masks by torchvision's v2 transforms.

By default, images are resized by a random factor (`jitter`) of what fits into a square of `size` pixels, then cropped
or padded to it: large-scale jitter, as ViTDet trains. With `short_sides`, they are resized so that the shorter side has
one of these lengths and the longer one at most `long_side`, as the papers train on COCO; batches are padded. With
several lengths, half of the images are cropped before, as in DETR and Swin.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from vitmix.lab.dense.config import DenseAugmentation
from vitmix.lab.dense.task import Sides
from vitmix.lab.dense.transforms import joint_transform

from .outlines import draw_mask
from .records import Target, TrainingTarget

CROP = (0.48, 0.75)  # of the largest shorter side: 384 to 600 pixels of 800
BEFORE_CROP = (0.5, 0.625, 0.75)  # 400, 500 and 600 pixels of 800
LEAST = 1.0  # pixels of a box's side; what a crop leaves of smaller ones is dropped


class Augment:
    """From an image and its target to those of training, with masks if asked for.

    Args:
        longest: most pixels of the longer side, with `short_sides`.
    """

    def __init__(self, settings: DenseAugmentation, sides: Sides, longest: int, *, masks: bool = False) -> None:
        self.masks = masks
        if not settings.short_sides:
            self.steps = [joint_transform(settings, sides, padding=0)]
        else:
            self.steps: list[Any] = [v2.RandomHorizontalFlip(settings.hflip)] if settings.hflip else []
            self.steps += [v2.RandomPhotometricDistort()] if settings.distortion else []
            self.steps.append(_multi_scale(list(settings.short_sides), longest))
        self.steps.append(v2.SanitizeBoundingBoxes(LEAST, labels_getter=_labels))

    def __call__(self, image: tv_tensors.Image, target: Target) -> tuple[tv_tensors.Image, TrainingTarget]:
        moving: TrainingTarget = {"boxes": target.boxes, "labels": target.labels}
        if self.masks:
            moving["masks"] = _drawn(target)
        for step in self.steps:
            image, moving = step(image, moving)
        return image, moving


def _labels(sample: Any) -> torch.Tensor:
    return sample[1]["labels"]


def _drawn(target: Target) -> tv_tensors.Mask:
    size = target.truth.size
    outlines = [outline for outline in target.outlines if outline is not None]
    if len(outlines) < len(target.outlines):
        raise ValueError("an object has no mask; use --head fasterrcnn, or data with masks")
    masks = [draw_mask(outline, size) for outline in outlines]
    return tv_tensors.Mask(torch.from_numpy(np.stack(masks) if masks else np.zeros((0, *size), dtype=bool)))


def _multi_scale(sides: list[int], longest: int) -> nn.Module:
    resize = v2.RandomShortestSize(sides, longest)
    if len(sides) == 1:
        return resize
    largest = max(sides)
    before = v2.RandomShortestSize([round(part * largest) for part in BEFORE_CROP], longest)
    crop = RandomSizeCrop(round(CROP[0] * largest), round(CROP[1] * largest))
    return v2.RandomChoice([resize, v2.Compose([before, crop, resize])])


class RandomSizeCrop(v2.Transform):
    """A crop whose height and width are drawn from `least`..`most` pixels, at most those of the image."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__()
        self.least, self.most = least, most

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = v2.query_size(flat_inputs)
        sides = [min(side, _uniform(min(side, self.least), min(side, self.most))) for side in (height, width)]
        corner = [_uniform(0, whole - side) for whole, side in zip((height, width), sides, strict=True)]
        return dict(top=corner[0], left=corner[1], height=sides[0], width=sides[1])

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self._call_kernel(v2.functional.crop, inpt, **params)


def _uniform(low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, ()))
