"""Activation maps through the augmentation of their pictures.

A map is augmented by a twin of the picture's transform: the same steps, seeded with the same numbers, with every
operation that moves nothing left out. So the two move together, and a picture is what it would be without a map.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from .augment import Augmentation, crop_and_flip, fit_sides, seed_global_generators
from .images import ImageSet
from .policy import map_policy

Size = tuple[int, int]


def augment_map(activation: Tensor, size: Size, augmentation: Augmentation, *, seed_numbers: tuple[int, ...]) -> Tensor:
    """The map `(H, W)` of the picture that `augment` makes with the same numbers.

    Seeds the global generators: to be called inside `global_generators_kept()`.

    Args:
        activation: `(h, w)` over the whole picture, on a grid of any size.
        size: height and width of the picture.
    """
    seed_global_generators(*seed_numbers)
    return _tensor(_transform(augmentation)(_at_picture_size(activation, size)))


def centered_map(activation: Tensor, size: Size, augmentation: Augmentation) -> Tensor:
    """The map `(H, W)` of the middle of the picture, as it is trained on where `scale` is `None`."""
    first = crop_and_flip(augmentation)[0]
    return _tensor(first(_at_picture_size(activation, size)))


def check_maps(maps: Tensor | None, images: ImageSet, augmentation: Augmentation) -> None:
    """Refuses maps that cannot belong to these pictures, and augmentation that maps cannot follow."""
    if maps is None:
        return
    if maps.ndim != 3 or len(maps) != len(images):
        raise ValueError(
            f"maps must be ({len(images)}, h, w), one per picture of {images.description}, got {tuple(maps.shape)}"
        )
    _transform(augmentation)


@lru_cache(maxsize=64)
def _transform(augmentation: Augmentation) -> Callable[[Image.Image], Image.Image]:
    steps = crop_and_flip(augmentation)
    if augmentation.auto_augment:
        steps.append(map_policy(augmentation.auto_augment, augmentation.sides, augmentation.interpolation))
    return transforms.Compose(steps)


def _at_picture_size(activation: Tensor, size: Size) -> Image.Image:
    picture = Image.fromarray(activation.float().contiguous().numpy())
    return fit_sides(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture, dtype=np.float32))
