"""Augmentation of a whole batch on its device, with the numbers drawn by `vitmix.lab.data.batch_draws`."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vitmix.parts.masks import box_mask

from . import batch_geometry as geometry
from .augment import normalize
from .augmentation import Augmentation
from .batch_colors import BLENDS, apply_tables
from .batch_draws import CROP, CUBIC, FIRST_BLEND, FIRST_TABLE, FLIP, LAYERS, MATRIX, PER_LAYER, BatchSettings

Rows = Tensor | slice
Operation = Callable[[Tensor, Rows], Tensor]  # from images and the rows to change


def augment_batch(images: Tensor, numbers: Tensor, noise: Tensor | None, settings: BatchSettings) -> Tensor:
    """Normalized float32 `(B, 3, H, W)` from uint8 images `(B, 3, h, w)`.

    Args:
        numbers: rows of `draw`, on the images' device.
        noise: `(B, 3, H, W)` to fill erased boxes with; `None` leaves the boxes to the training step.
    """
    augmentation = settings.augmentation
    images = _crop_and_flip(images.float(), numbers, augmentation, levels=True)
    for columns in _layers(numbers, settings):
        images = apply_operation(images, columns, settings)
    images = normalize(images, augmentation)
    if noise is not None:
        for box in numbers[:, settings.boxes].split(4, dim=1):
            images = torch.where(box_mask(box, augmentation.sides).unsqueeze(1), noise, images)
    return images


def augment_maps(maps: Tensor, numbers: Tensor, settings: BatchSettings) -> Tensor:
    """Activation maps `(B, H, W)`, moved like their images in `augment_batch`, zero where the images are filled.

    Args:
        maps: `(B, h, w)`, each over its whole image, on a grid of any size.
        numbers: those given to `augment_batch`.
    """
    maps = maps.float().unsqueeze(1)
    if (maps.shape[2], maps.shape[3]) != settings.source:
        maps = interpolate(maps, settings.source, mode="bilinear", antialias=True)
    return _moved(maps, numbers, settings).squeeze(1)


def augment_places(places: Tensor, numbers: Tensor, settings: BatchSettings) -> Tensor:
    """Where the pixels of `augment_batch` come from: `(B, 3, H, W)`, as of `augment.places_of`.

    Args:
        places: `(3, h, w)` of the images before.
        numbers: those given to `augment_batch`.
    """
    return _moved(places.expand(len(numbers), -1, -1, -1), numbers, settings)


def _moved(maps: Tensor, numbers: Tensor, settings: BatchSettings) -> Tensor:
    maps = _crop_and_flip(maps, numbers, settings.augmentation, levels=False)
    for columns in _layers(numbers, settings):
        maps = _move(maps, columns, settings, fill=(0,) * maps.shape[1], levels=False)
    return maps


def _layers(numbers: Tensor, settings: BatchSettings) -> list[Tensor]:
    starts = [LAYERS + PER_LAYER * layer for layer in range(settings.layers)]
    return [numbers[:, start : start + PER_LAYER] for start in starts]


def _crop_and_flip(images: Tensor, numbers: Tensor, augmentation: Augmentation, *, levels: bool) -> Tensor:
    crop, flipped = numbers[:, CROP], numbers[:, FLIP]
    if augmentation.scale is not None:
        cubic = _cubic(numbers[:, CUBIC], augmentation)
        return geometry.resized_crop(images, crop, flipped, augmentation.sides, cubic=cubic, levels=levels)
    if augmentation.padding:
        return geometry.shifted_crop(images, crop, flipped, augmentation.sides, levels=levels)
    if augmentation.hflip:
        return torch.where(flipped.view(-1, 1, 1, 1) > 0, images.flip(3), images)
    return images


def apply_operation(images: Tensor, columns: Tensor, settings: BatchSettings) -> Tensor:
    """One layer of RandAugment: each sample's own operation."""
    images = _move(images, columns, settings, fill=settings.augmentation.fill, levels=True)
    code, argument = columns[:, 0], columns[:, 1].view(-1, 1, 1, 1)
    for number, blend in enumerate(BLENDS.values(), start=FIRST_BLEND):
        images = _replace(images, code == number, lambda own, rows, do=blend: do(own, argument[rows]), settings)

    def tables(own: Tensor, rows: Rows) -> Tensor:
        return apply_tables(own, code[rows] - FIRST_TABLE, argument[rows])

    return _replace(images, code >= FIRST_TABLE, tables, settings)


def _move(images: Tensor, columns: Tensor, settings: BatchSettings, *, fill: tuple[int, ...], levels: bool) -> Tensor:
    """All geometric operations."""

    def affine(own: Tensor, rows: Rows) -> Tensor:
        cubic = _cubic(columns[rows, 8], settings.augmentation)
        return geometry.affine(own, columns[rows, 2:8], fill, cubic=cubic, levels=levels)

    return _replace(images if settings.dense else images.clone(), columns[:, 0] == MATRIX, affine, settings)


def _replace(images: Tensor, chosen: Tensor, operation: Operation, settings: BatchSettings) -> Tensor:
    """The images with an operation applied to the chosen ones, possibly in place."""
    if settings.dense:
        return torch.where(chosen.view(-1, 1, 1, 1), operation(images, slice(None)), images)
    rows = chosen.nonzero()[:, 0]
    if len(rows):
        images[rows] = operation(images[rows], rows)
    return images


def _cubic(column: Tensor, augmentation: Augmentation) -> bool | Tensor:
    return column if augmentation.interpolation == "random" else augmentation.interpolation == "bicubic"
