"""The random numbers of a batch of augmented images, drawn on the host before the device applies them.

RandAugment is timm's: its operations, probabilities, magnitude noise and mapping from magnitude to argument.
"""

import math
from dataclasses import dataclass

import torch
from timm.data.auto_augment import RandAugment
from torch import Tensor

from vitmix.lab.environment import one_thread

from .augment import ATTEMPTS, ERASE_AREA, ERASE_ASPECT, Size
from .augmentation import Augmentation
from .batch_colors import BLENDS, TABLES
from .policy import timm_policy

LEVEL_END = 10.0  # timm's magnitudes run from 0 to 10

# What the device does, by number. Every geometric operation is a matrix.
OPERATIONS = ("Nothing", "Matrix", *BLENDS, *TABLES)
NOTHING, MATRIX, FIRST_BLEND = 0, 1, 2
FIRST_TABLE = FIRST_BLEND + len(BLENDS)
# The argument of geometric operations at the highest magnitude: degrees, and parts of a side.
FARTHEST = {"Rotate": 30, "ShearX": 0.3, "ShearY": 0.3, "TranslateXRel": 0.45, "TranslateYRel": 0.45}

# Columns of the drawn numbers.
CROP = slice(0, 4)  # top, left, height, width
FLIP = 4
CUBIC = 5  # 1 where the crop is interpolated bicubically, 0 bilinearly
LAYERS = 6  # the first column of the first layer; the boxes to erase follow the last
PER_LAYER = 9  # operation, argument, six numbers of a matrix, and bicubic or not

# Uniform numbers that a box takes: area and shape of each attempt, then the place.
PER_BOX = 2 * ATTEMPTS + 2


def operation_code(name: str) -> int | None:
    """The number of one of timm's operations; None if there is no batch version."""
    if name in FARTHEST:
        return MATRIX
    plain = name.removesuffix("Increasing")
    return OPERATIONS.index(plain) if plain in OPERATIONS else None


@dataclass(frozen=True)
class BatchSettings:
    """An `Augmentation` for images of one size.

    Args:
        source: (height, width) of the images.
        dense: computes every operation for every sample and then selects, so that shapes are fixed; otherwise each
            operation sees only its own samples, which is faster on a CPU.
    """

    augmentation: Augmentation
    source: Size
    policy: RandAugment | None
    dense: bool

    @property
    def layers(self) -> int:
        return 0 if self.policy is None else self.policy.num_layers

    @property
    def boxes(self) -> slice:
        start = LAYERS + PER_LAYER * self.layers
        return slice(start, start + 4 * self.augmentation.erasing_count)


def batch_settings(augmentation: Augmentation, source: Size, *, dense: bool) -> BatchSettings:
    """Checks that an augmentation can be applied to whole batches, and collects its settings."""
    try:
        return BatchSettings(augmentation, source, _batch_policy(augmentation), dense)
    except ValueError as problem:
        raise ValueError(f"{problem}; leave --resident out (TrainLoader in a program)") from None


def _batch_policy(augmentation: Augmentation) -> RandAugment | None:
    config = augmentation.auto_augment
    if augmentation.color_jitter:
        raise ValueError(f"augmentation in batches has no color_jitter, got {augmentation.color_jitter}")
    if not config:
        return None
    policy = timm_policy(augmentation)
    if not isinstance(policy, RandAugment):
        raise ValueError(f"augmentation in batches has RandAugment only, got auto_augment={config!r}")
    if policy.choice_weights is not None or None in map(operation_code, _names(policy)):
        raise ValueError(f"augmentation in batches lacks operations of auto_augment={config!r}")
    return policy


def _names(policy: RandAugment) -> list[str]:
    return [operation.name for operation in policy.ops]


def uniforms_per_sample(settings: BatchSettings) -> int:
    """How many uniform numbers `draw` takes for one sample."""
    return PER_BOX + 2 + 5 * settings.layers + 2 + settings.augmentation.erasing_count * PER_BOX


@one_thread()
def draw(uniform: Tensor, settings: BatchSettings) -> Tensor:
    """`(N, columns)` float32: everything random about N samples, from `(N, uniforms_per_sample)` in [0, 1).

    Computed on the host in float64, for many batches at once, because it takes a hundred small operations.
    """
    augmentation = settings.augmentation
    used = 0

    def take(count: int) -> Tensor:
        nonlocal used
        used += count
        return uniform[:, used - count : used].contiguous()

    columns = [*_draw_crop(take(PER_BOX), settings), (take(1)[:, 0] < augmentation.hflip).double()]
    columns.append((take(1)[:, 0] < 0.5).double())
    for _ in range(settings.layers):
        columns += [*_draw_operation(take(4), settings), (take(1)[:, 0] < 0.5).double()]
    if not augmentation.erasing:
        columns += [torch.zeros_like(columns[0])] * (4 * augmentation.erasing_count)
        return torch.stack(columns, dim=1).float()
    erased = take(1)[:, 0] <= augmentation.erasing
    count = (take(1)[:, 0] * augmentation.erasing_count).floor() + 1
    for number in range(augmentation.erasing_count):
        edges = _draw_box(take(PER_BOX), count, augmentation.sides)
        columns += [torch.where(erased & (number < count), edge, 0.0) for edge in edges]
    return torch.stack(columns, dim=1).float()


def _between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform


def _attempts(pixels: Tensor, ratio: tuple[float, float], shape: Tensor) -> tuple[Tensor, Tensor]:
    """The sides of boxes of this many pixels: the first side is `ratio` times the second."""
    aspect = _between(math.log(ratio[0]), math.log(ratio[1]), shape).exp()
    return (pixels * aspect).sqrt().round(), (pixels / aspect).sqrt().round()


def _first(fits: Tensor, values: Tensor, otherwise: float) -> Tensor:
    """For each row the value of the first attempt that fits."""
    found = values.gather(1, fits.int().argmax(1, keepdim=True))[:, 0]
    return torch.where(fits.any(1), found, otherwise)


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
    widths, heights = _attempts(pixels, augmentation.ratio, shape)
    fits = (widths <= source_width) & (heights <= source_height) & (widths > 0) & (heights > 0)
    low, high = augmentation.ratio
    own = source_width / source_height  # none fits: the largest centered crop of a permitted shape
    center_width = round(source_height * high) if own > high else source_width
    center_height = round(source_width / low) if own < low else source_height
    height, width = _first(fits, heights, center_height), _first(fits, widths, center_width)
    top = (place[:, 0] * (source_height - height + 1)).floor()
    left = (place[:, 1] * (source_width - width + 1)).floor()
    top = torch.where(fits.any(1), top, float((source_height - center_height) // 2))
    left = torch.where(fits.any(1), left, float((source_width - center_width) // 2))
    return top, left, height, width


def _draw_box(uniform: Tensor, count: Tensor, sides: Size) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, bottom, left, right, as timm's `RandomErasing` draws them; all zero where no attempt fits."""
    height, width = sides
    area, shape, place = uniform[:, :ATTEMPTS], uniform[:, ATTEMPTS:-2], uniform[:, -2:]
    pixels = _between(*ERASE_AREA, area) * (height * width) / count.unsqueeze(1)
    heights, widths = _attempts(pixels, ERASE_ASPECT, shape)
    fits = (widths < width) & (heights < height)
    rows, columns = _first(fits, heights, 0.0), _first(fits, widths, 0.0)
    top = (place[:, 0] * (height - rows + 1)).floor()
    left = (place[:, 1] * (width - columns + 1)).floor()
    return top, top + rows, left, left + columns


def _draw_operation(uniform: Tensor, settings: BatchSettings) -> list[Tensor]:
    """Operation, argument and matrix of one layer of RandAugment."""
    assert settings.policy is not None
    first, names, sides = settings.policy.ops[0], _names(settings.policy), settings.augmentation.sides
    choice, applied, noise, side = uniform.unbind(1)
    index = (choice * len(names)).long()
    if math.isinf(first.magnitude_std):
        magnitude = first.magnitude * noise
    elif first.magnitude_std > 0:
        magnitude = first.magnitude + first.magnitude_std * torch.special.ndtri(noise)
    else:
        magnitude = torch.full_like(noise, first.magnitude)
    level = magnitude.clamp(0, first.magnitude_max or LEVEL_END)
    sign = torch.where(side > 0.5, -1.0, 1.0)
    arguments = torch.stack([operation_argument(name, level, sign) for name in names], dim=1)
    argument = arguments.gather(1, index.unsqueeze(1))[:, 0]
    matrix = operation_matrix("", argument, sides)
    for number, name in enumerate(names):
        if name in FARTHEST:
            matrix = torch.where((index == number).unsqueeze(1), operation_matrix(name, argument, sides), matrix)
    code = torch.tensor([operation_code(name) for name in names])[index]
    code = torch.where(applied <= first.prob, code, NOTHING)
    return [code.double(), argument, *matrix.unbind(1)]


def operation_argument(name: str, level: Tensor, sign: Tensor) -> Tensor:
    """timm's argument for an operation at a magnitude of 0..10; `sign` is its random direction, 1 or -1."""
    part = level / LEVEL_END
    if name in FARTHEST:
        return part * FARTHEST[name] * sign
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


def operation_matrix(name: str, argument: Tensor, sides: Size) -> Tensor:
    """`(N, 6)`: where each pixel of the result comes from, as `Image.transform` takes it.

    The identity for operations that move nothing.
    """
    height, width = sides
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
