"""The joint augmentation of images and their targets, by torchvision's transforms on `tv_tensors`."""

from collections.abc import Callable
from typing import Any

from torchvision import tv_tensors
from torchvision.transforms import v2

from vitmix.lab.dense.config import DenseAugmentation
from vitmix.lab.dense.task import IGNORED, Sides


def joint_transform(settings: DenseAugmentation, sides: Sides, *, padding: int = IGNORED) -> Callable[..., Any]:
    """Random resizing, crop (padded where the image is smaller), flip and colors, for images and targets alike.

    It takes and returns `tv_tensors.Image` and any structure of `tv_tensors`; label maps are resampled by the nearest
    pixel and padded with `padding`, images with their mean color.
    """
    fill = {tv_tensors.Image: [round(255 * each) for each in sides.mean], tv_tensors.Mask: padding, "others": 0}
    steps: list[Any] = [
        v2.ScaleJitter(sides.size, scale_range=settings.jitter, antialias=True),
        v2.RandomCrop(sides.size, pad_if_needed=True, fill=fill),
    ]
    if settings.hflip:
        steps.append(v2.RandomHorizontalFlip(settings.hflip))
    if settings.distortion:
        steps.append(v2.RandomPhotometricDistort())
    return v2.Compose(steps)
