"""timm's automatic augmentation policies by their names."""

from typing import Any

from PIL import Image
from timm.data import auto_augment as timm_augment
from timm.data.transforms import str_to_pil_interp


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


def _posterize(image: Image.Image, bits_to_keep: int, **settings: Any) -> Image.Image:
    """timm's posterize for zero bits too, which magnitude 10 asks for and newer Pillow refuses: a black picture."""
    if bits_to_keep == 0:
        return Image.new(image.mode, image.size)
    return timm_augment.posterize(image, bits_to_keep, **settings)
