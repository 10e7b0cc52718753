"""timm's automatic augmentation policies by their names."""

import random
from typing import Any

from PIL import Image
from timm.data import auto_augment as timm_augment
from timm.data.transforms import str_to_pil_interp

# The operations that move things; all others leave a map of the picture as it is.
GEOMETRIC = (
    timm_augment.rotate,
    timm_augment.shear_x,
    timm_augment.shear_y,
    timm_augment.translate_x_abs,
    timm_augment.translate_x_rel,
    timm_augment.translate_y_abs,
    timm_augment.translate_y_rel,
)


def fill_color(mean: tuple[float, ...]) -> tuple[int, ...]:
    """The color that rotation and the like leave outside the picture: the mean color."""
    return tuple(min(255, round(255 * channel)) for channel in mean)


def timm_policy(config: str, sides: tuple[int, int], mean: tuple[float, ...], interpolation: str) -> Any:
    """timm's automatic augmentation with this configuration."""
    settings: dict[str, Any] = {"translate_const": int(min(sides) * 0.45), "img_mean": fill_color(mean)}
    if interpolation != "random":
        settings["interpolation"] = str_to_pil_interp(interpolation)
    try:
        if config.startswith("rand"):
            policy = timm_augment.rand_augment_transform(config, settings)
            operations = policy.ops
        elif config.startswith("augmix"):
            settings["translate_pct"] = 0.3
            policy = timm_augment.augment_and_mix_transform(config, settings)
            operations = policy.ops
        else:
            policy = timm_augment.auto_augment_transform(config, settings)
            operations = [operation for pair in policy.policy for operation in pair]
    except (AssertionError, ValueError, KeyError) as problem:
        raise ValueError(
            f"auto_augment {config!r} is not in timm's notation ({problem}); write for example 'rand-m9-mstd0.5-inc1'"
        ) from None
    for operation in operations:
        if operation.aug_fn is timm_augment.posterize:
            operation.aug_fn = _posterize
    return policy


def map_policy(config: str, sides: tuple[int, int], interpolation: str) -> Any:
    """The same policy for a map of the picture: seeded alike, it draws alike, moves alike, and leaves all else alone.

    What comes in from outside the picture is zero.
    """
    if config.startswith("augmix"):
        raise ValueError(
            f"auto_augment {config!r} blends pictures that were moved differently, which no single activation map "
            "follows; use RandAugment, such as 'rand-m9-mstd0.5-inc1', or give no maps"
        )
    policy = timm_policy(config, sides, (0.0,), interpolation)
    pairs = policy.ops if config.startswith("rand") else [each for pair in policy.policy for each in pair]
    for operation in pairs:
        operation.kwargs["fillcolor"] = 0
        if operation.aug_fn is timm_augment.gaussian_blur_rand:
            operation.aug_fn = _draw_as_blur
        elif operation.aug_fn not in GEOMETRIC:
            operation.aug_fn = _leave
    return policy


def _leave(image: Image.Image, *arguments: Any, **settings: Any) -> Image.Image:
    return image


def _draw_as_blur(image: Image.Image, *arguments: Any, **settings: Any) -> Image.Image:
    random.random()  # timm draws the radius inside this operation
    return image


def _posterize(image: Image.Image, bits_to_keep: int, **settings: Any) -> Image.Image:
    """timm's posterize for zero bits too, which magnitude 10 asks for and newer Pillow refuses: a black picture."""
    if bits_to_keep == 0:
        return Image.new(image.mode, image.size)
    return timm_augment.posterize(image, bits_to_keep, **settings)
