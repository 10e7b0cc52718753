"""Augmentation of a whole batch on its device, with the numbers drawn by `vitmix.lab.data.batch_draws`."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vitmix.parts.masks import box_mask

from . import batch_draws as drawn
from . import batch_ops as ops
from .augment import normalize
from .augmentation import Augmentation
from .batch_draws import LAYERS, PER_LAYER, BatchSettings

Rows = Tensor | slice
Family = tuple[Tensor, Callable[[Tensor, Rows], Tensor]]  # which samples, and what is done to them


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
    """Activation maps `(B, H, W)`, moved as `augment_batch` moves their images, zero where those are filled.

    Args:
        maps: `(B, h, w)`, each over its whole image, on a grid of any size.
        numbers: those given to `augment_batch`.
    """
    maps = maps.float().unsqueeze(1)
    if (maps.shape[2], maps.shape[3]) != settings.source:
        maps = interpolate(maps, settings.source, mode="bilinear", antialias=True)
    maps = _crop_and_flip(maps, numbers, settings.augmentation, levels=False)
    for columns in _layers(numbers, settings):
        maps = _apply_families(maps, (_geometry(columns, settings, fill=(0,), levels=False),), settings)
    return maps.squeeze(1)


def _layers(numbers: Tensor, settings: BatchSettings) -> list[Tensor]:
    starts = [LAYERS + PER_LAYER * layer for layer in range(settings.policy.layers)]
    return [numbers[:, start : start + PER_LAYER] for start in starts]


def _crop_and_flip(images: Tensor, numbers: Tensor, augmentation: Augmentation, *, levels: bool) -> Tensor:
    crop, flipped = numbers[:, drawn.CROP], numbers[:, drawn.FLIP]
    if augmentation.scale is not None:
        cubic = _cubic(numbers[:, drawn.CUBIC], augmentation)
        return ops.resized_crop(images, crop, flipped, augmentation.sides, cubic=cubic, levels=levels)
    if augmentation.padding:
        return ops.shifted_crop(images, crop, flipped, augmentation.sides, levels=levels)
    if augmentation.hflip:
        return torch.where(flipped.view(-1, 1, 1, 1) > 0, images.flip(3), images)
    return images


def apply_operation(images: Tensor, columns: Tensor, settings: BatchSettings) -> Tensor:
    """One layer of RandAugment: each sample's own operation."""
    code, argument = columns[:, 0], columns[:, 1]
    families: tuple[Family, ...] = (
        _geometry(columns, settings, fill=settings.augmentation.fill, levels=True),
        (code == drawn.COLOR, lambda own, rows: ops.color(own, argument[rows])),
        (code == drawn.SHARPNESS, lambda own, rows: ops.sharpness(own, argument[rows])),
        (code >= drawn.FIRST_TABLE, lambda own, rows: ops.apply_table(own, _table(own, code[rows], argument[rows]))),
    )
    return _apply_families(images, families, settings)


def _geometry(columns: Tensor, settings: BatchSettings, *, fill: tuple[int, ...], levels: bool) -> Family:
    """All operations that move things."""
    matrix, interpolation = columns[:, 2:8], columns[:, 8]

    def affine(own: Tensor, rows: Rows) -> Tensor:
        cubic = _cubic(interpolation[rows], settings.augmentation)
        return ops.affine(own, matrix[rows], fill, cubic=cubic, levels=levels)

    return columns[:, 0] == drawn.MATRIX, affine


def _apply_families(images: Tensor, families: tuple[Family, ...], settings: BatchSettings) -> Tensor:
    """Each family of operations on the samples it is chosen for."""
    if settings.dense:
        everything = slice(None)
        for chosen, operation in families:
            images = torch.where(chosen.view(-1, 1, 1, 1), operation(images, everything), images)
        return images
    images = images.clone()
    for chosen, operation in families:
        rows = chosen.nonzero()[:, 0]
        if len(rows):
            images[rows] = operation(images[rows], rows)
    return images


def _cubic(column: Tensor, augmentation: Augmentation) -> bool | Tensor:
    return column if augmentation.interpolation == "random" else augmentation.interpolation == "bicubic"


def _table(images: Tensor, code: Tensor, argument: Tensor) -> Tensor:
    """The table `(B, 3, 256)` of each sample's operation."""
    tables = {
        drawn.AUTOCONTRAST: ops.autocontrast_table(images),
        drawn.EQUALIZE: ops.equalize_table(images),
        drawn.INVERT: ops.invert_table(argument),
        drawn.POSTERIZE: ops.posterize_table(argument),
        drawn.SOLARIZE: ops.solarize_table(argument),
        drawn.SOLARIZE_ADD: ops.solarize_add_table(argument),
        drawn.CONTRAST: ops.contrast_table(images, argument),
        drawn.BRIGHTNESS: ops.brightness_table(argument),
    }
    chosen = tables[drawn.AUTOCONTRAST]
    for number, table in tables.items():
        chosen = torch.where((code == number).view(-1, 1, 1), table, chosen)
    return chosen
