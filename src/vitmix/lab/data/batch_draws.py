"""What is random about a batch of augmented images, drawn on the host before the device applies it.

RandAugment is timm's: its operations, probabilities, noise of the magnitude and maps from magnitude to argument.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vitmix.lab.environment import one_thread

from .augment import ATTEMPTS, ERASE_AREA, ERASE_ASPECT, Augmentation
from .policy import timm_policy

LEVEL_END = 10.0  # timm's magnitudes run from 0 to 10

# What the device does, by number. All geometric operations are one: a matrix.
NOTHING, AFFINE, COLOR, SHARPNESS, AUTOCONTRAST, EQUALIZE, INVERT = range(7)
POSTERIZE, SOLARIZE, SOLARIZE_ADD, CONTRAST, BRIGHTNESS = range(7, 12)
FIRST_TABLE = AUTOCONTRAST  # this and all after it are tables
CODES = {
    "AutoContrast": AUTOCONTRAST,
    "Equalize": EQUALIZE,
    "Invert": INVERT,
    "Rotate": AFFINE,
    "Posterize": POSTERIZE,
    "PosterizeIncreasing": POSTERIZE,
    "Solarize": SOLARIZE,
    "SolarizeIncreasing": SOLARIZE,
    "SolarizeAdd": SOLARIZE_ADD,
    "Color": COLOR,
    "ColorIncreasing": COLOR,
    "Contrast": CONTRAST,
    "ContrastIncreasing": CONTRAST,
    "Brightness": BRIGHTNESS,
    "BrightnessIncreasing": BRIGHTNESS,
    "Sharpness": SHARPNESS,
    "SharpnessIncreasing": SHARPNESS,
    "ShearX": AFFINE,
    "ShearY": AFFINE,
    "TranslateXRel": AFFINE,
    "TranslateYRel": AFFINE,
}

# Columns of the drawn numbers.
CROP = slice(0, 4)  # top, left, height, width
FLIP = 4
CUBIC = 5  # 1 where the crop is to be interpolated bicubically, 0 bilinearly
LAYERS = 6  # the first column of the first layer; the boxes to erase follow the last
PER_LAYER = 9  # operation, argument, six numbers of a matrix, and bicubic or not


@dataclass(frozen=True)
class RandPolicy:
    """RandAugment's settings, read off timm's own object."""

    names: tuple[str, ...] = ()
    layers: int = 0
    probability: float = 0.5
    magnitude: float = 9.0
    spread: float = 0.0
    most: float = LEVEL_END


@dataclass(frozen=True)
class BatchSettings:
    """An `Augmentation` for pictures of one size.

    Args:
        source: (height, width) of the pictures.
        dense: computes every operation for every sample and then selects, so that shapes are fixed; otherwise each
            operation sees only its own samples, which is faster on a CPU.
    """

    augmentation: Augmentation
    source: tuple[int, int]
    policy: RandPolicy
    dense: bool

    @property
    def boxes(self) -> slice:
        start = LAYERS + PER_LAYER * self.policy.layers
        return slice(start, start + 4 * self.augmentation.erasing_count)


def batch_settings(augmentation: Augmentation, source: tuple[int, int], *, dense: bool) -> BatchSettings:
    """Checks that an augmentation can be done in batch, and gathers what that takes."""
    problem = batch_problem(augmentation)
    if problem is not None:
        raise ValueError(f"{problem}; leave --resident out (TrainLoader in a program)")
    return BatchSettings(augmentation, source, _rand_policy(augmentation), dense)


def batch_problem(augmentation: Augmentation) -> str | None:
    """Why this augmentation cannot be done in batch, or `None`."""
    if augmentation.color_jitter:
        return f"color_jitter={augmentation.color_jitter} is not done in batch"
    config = augmentation.auto_augment
    if config and not config.startswith("rand"):
        return f"only RandAugment is done in batch, got auto_augment={config!r}"
    if config and (_timm_policy(augmentation).choice_weights is not None or not _rand_policy(augmentation).names):
        return f"the operations of auto_augment={config!r} are not all done in batch"
    return None


@lru_cache(maxsize=64)
def _timm_policy(augmentation: Augmentation) -> Any:
    assert augmentation.auto_augment is not None
    return timm_policy(augmentation.auto_augment, augmentation.sides, augmentation.mean, augmentation.interpolation)


def _rand_policy(augmentation: Augmentation) -> RandPolicy:
    """Without names when an operation is not known here."""
    if not augmentation.auto_augment:
        return RandPolicy()
    policy = _timm_policy(augmentation)
    first = policy.ops[0]
    names = tuple(operation.name for operation in policy.ops)
    return RandPolicy(
        names=names if set(names) <= CODES.keys() else (),
        layers=policy.num_layers,
        probability=first.prob,
        magnitude=first.magnitude,
        spread=first.magnitude_std,
        most=first.magnitude_max or LEVEL_END,
    )


def uniforms_per_sample(settings: BatchSettings) -> int:
    """How many uniform numbers `draw` takes for one sample."""
    boxes = settings.augmentation.erasing_count
    return (2 * ATTEMPTS + 2) + 2 + 5 * settings.policy.layers + 2 + boxes * (2 * ATTEMPTS + 2)


@one_thread()
def draw(uniform: Tensor, settings: BatchSettings) -> Tensor:
    """`(N, columns)` float32: everything that is random about N samples, from `(N, uniforms_per_sample)` in [0, 1).

    On the host and in float64, for many batches at once: these are a hundred small operations.
    """
    augmentation, policy = settings.augmentation, settings.policy
    height, width = augmentation.sides
    used = 0

    def take(count: int) -> Tensor:
        nonlocal used
        used += count
        return uniform[:, used - count : used].contiguous()

    columns = [*_draw_crop(take(2 * ATTEMPTS + 2), settings), (take(1)[:, 0] < augmentation.hflip).double()]
    columns.append((take(1)[:, 0] < 0.5).double())
    for _ in range(policy.layers):
        columns += [*_draw_operation(take(4), policy, height, width), (take(1)[:, 0] < 0.5).double()]
    if not augmentation.erasing:
        columns += [torch.zeros_like(columns[0])] * (4 * augmentation.erasing_count)
        return torch.stack(columns, dim=1).float()
    erased = take(1)[:, 0] <= augmentation.erasing
    count = (take(1)[:, 0] * augmentation.erasing_count).floor() + 1
    for number in range(augmentation.erasing_count):
        edges = _draw_box(take(2 * ATTEMPTS + 2), count, height, width)
        columns += [torch.where(erased & (number < count), edge, 0.0) for edge in edges]
    return torch.stack(columns, dim=1).float()


def _between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform


def _first(fits: Tensor, values: Tensor) -> Tensor:
    """For each row the value at the first place that fits."""
    return values.gather(1, fits.int().argmax(1, keepdim=True))[:, 0]


def _draw_crop(uniform: Tensor, settings: BatchSettings) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height, width, as timm's `RandomResizedCropAndInterpolation` draws them."""
    source_height, source_width = settings.source
    augmentation = settings.augmentation
    area, shape, place = uniform[:, :ATTEMPTS], uniform[:, ATTEMPTS:-2], uniform[:, -2:]
    if augmentation.scale is None:
        padding = augmentation.padding
        full = torch.full_like(place[:, 0], 1.0)
        top, left = ((step * (2 * padding + 1)).floor() - padding for step in place.unbind(1))
        return top, left, full * source_height, full * source_width
    pixels = _between(*augmentation.scale, area) * (source_height * source_width)
    low, high = augmentation.ratio
    aspect = _between(math.log(low), math.log(high), shape).exp()
    widths, heights = (pixels * aspect).sqrt().round(), (pixels / aspect).sqrt().round()
    fits = (widths <= source_width) & (heights <= source_height) & (widths > 0) & (heights > 0)
    own = source_width / source_height  # none fits: the largest centered crop of a permitted shape
    middle_width = round(source_height * high) if own > high else source_width
    middle_height = round(source_width / low) if own < low else source_height
    found = fits.any(1)
    height = torch.where(found, _first(fits, heights), float(middle_height))
    width = torch.where(found, _first(fits, widths), float(middle_width))
    top = (place[:, 0] * (source_height - height + 1)).floor()
    left = (place[:, 1] * (source_width - width + 1)).floor()
    top = torch.where(found, top, float((source_height - middle_height) // 2))
    left = torch.where(found, left, float((source_width - middle_width) // 2))
    return top, left, height, width


def _draw_box(uniform: Tensor, count: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, bottom, left, right, as timm's `RandomErasing` draws them; all zero where no attempt fits."""
    area, shape, place = uniform[:, :ATTEMPTS], uniform[:, ATTEMPTS:-2], uniform[:, -2:]
    pixels = _between(*ERASE_AREA, area) * (height * width) / count.unsqueeze(1)
    low, high = ERASE_ASPECT
    aspect = _between(math.log(low), math.log(high), shape).exp()
    heights, widths = (pixels * aspect).sqrt().round(), (pixels / aspect).sqrt().round()
    fits = (widths < width) & (heights < height)
    found = fits.any(1)
    rows = torch.where(found, _first(fits, heights), 0.0)
    columns = torch.where(found, _first(fits, widths), 0.0)
    top = (place[:, 0] * (height - rows + 1)).floor()
    left = (place[:, 1] * (width - columns + 1)).floor()
    return top, top + rows, left, left + columns


def _draw_operation(uniform: Tensor, policy: RandPolicy, height: int, width: int) -> list[Tensor]:
    """Operation, argument and matrix of one layer of RandAugment."""
    choice, applied, noise, side = uniform.unbind(1)
    index = (choice * len(policy.names)).long()
    if math.isinf(policy.spread):
        magnitude = policy.magnitude * noise
    elif policy.spread > 0:
        magnitude = policy.magnitude + policy.spread * torch.special.ndtri(noise)
    else:
        magnitude = torch.full_like(noise, policy.magnitude)
    level = magnitude.clamp(0, policy.most)
    sign = torch.where(side > 0.5, -1.0, 1.0)
    arguments = torch.stack([operation_argument(name, level, sign) for name in policy.names], dim=1)
    argument = arguments.gather(1, index.unsqueeze(1))[:, 0]
    matrix = operation_matrix("", argument, height, width)
    for number, name in enumerate(policy.names):
        if CODES[name] == AFFINE:
            own = operation_matrix(name, argument, height, width)
            matrix = torch.where((index == number).unsqueeze(1), own, matrix)
    code = torch.tensor([CODES[name] for name in policy.names])[index]
    code = torch.where(applied <= policy.probability, code, NOTHING)
    return [code.double(), argument, *matrix.unbind(1)]


def operation_argument(name: str, level: Tensor, sign: Tensor) -> Tensor:
    """timm's argument for an operation at a magnitude of 0..10; `sign` is its random direction, 1 or -1."""
    part = level / LEVEL_END
    if name == "Rotate":
        return part * 30 * sign
    if name in ("ShearX", "ShearY"):
        return part * 0.3 * sign
    if name in ("TranslateXRel", "TranslateYRel"):
        return part * 0.45 * sign
    if name.startswith("Posterize"):
        bits = (part * 4).floor()
        return 4 - bits if name.endswith("Increasing") else bits
    if name == "SolarizeAdd":
        return (part * 110).floor().clamp_max(128)
    if name.startswith("Solarize"):
        threshold = (part * 256).floor().clamp_max(256)
        return 256 - threshold if name.endswith("Increasing") else threshold
    if name.endswith("Increasing"):
        return (1 + part * 0.9 * sign).clamp_min(0.1)
    return part * 1.8 + 0.1  # Color, Contrast, Brightness, Sharpness; the others take no argument


def operation_matrix(name: str, argument: Tensor, height: int, width: int) -> Tensor:
    """`(N, 6)`: where each pixel of the result comes from, as `Image.transform` takes it.

    That is the same place for operations that move nothing.
    """
    one, none = torch.ones_like(argument), torch.zeros_like(argument)
    if name == "Rotate":
        angle = -argument.deg2rad()
        cos, sin = angle.cos(), angle.sin()
        x, y = width / 2, height / 2
        return torch.stack([cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y], dim=1)
    shear_x = argument if name == "ShearX" else none
    shear_y = argument if name == "ShearY" else none
    move_x = argument * width if name == "TranslateXRel" else none
    move_y = argument * height if name == "TranslateYRel" else none
    return torch.stack([one, shear_x, move_x, shear_y, one, move_y], dim=1)
