"""timm's automatic augmentation policies by their names."""

import random
from typing import Any

from PIL import Image
from timm.data import auto_augment as timm_augment
from timm.data.auto_augment import AugmentOp, AugMixAugment, AutoAugment, RandAugment
from timm.data.transforms import str_to_pil_interp

from .augmentation import Augmentation

Policy = RandAugment | AugMixAugment | AutoAugment

# The geometric operations; all others leave an activation map unchanged.
GEOMETRIC = (
    *(timm_augment.rotate, timm_augment.shear_x, timm_augment.shear_y),
    *(timm_augment.translate_x_abs, timm_augment.translate_x_rel),
    *(timm_augment.translate_y_abs, timm_augment.translate_y_rel),
)


def timm_policy(augmentation: Augmentation) -> Policy:
    """timm's automatic augmentation."""
    config = augmentation.auto_augment or ""
    kind = augmentation.interpolation
    resampling = {} if kind == "random" else {"interpolation": str_to_pil_interp(kind)}
    settings = {"translate_const": int(min(augmentation.sides) * 0.45), "img_mean": augmentation.fill, **resampling}
    try:
        if config.startswith("rand"):
            policy = timm_augment.rand_augment_transform(config, settings)
        elif config.startswith("augmix"):
            policy = timm_augment.augment_and_mix_transform(config, settings | {"translate_pct": 0.3})
        else:
            policy = timm_augment.auto_augment_transform(config, settings)
    except (AssertionError, ValueError, KeyError) as problem:
        raise ValueError(
            f"auto_augment {config!r} is not in timm's notation ({problem}); write for example 'rand-m9-mstd0.5-inc1'"
        ) from None
    for operation in _operations(policy):
        if operation.aug_fn is timm_augment.posterize:
            operation.aug_fn = _posterize
    return policy


def map_policy(augmentation: Augmentation) -> Policy:
    """The same policy for an activation map: with the same seed it draws the same numbers and moves the same way.

    Operations that move nothing do nothing. What comes in from outside the image is zero.
    """
    policy = timm_policy(augmentation)
    if isinstance(policy, AugMixAugment):
        raise ValueError(
            f"auto_augment {augmentation.auto_augment!r} blends differently moved images, so that no single "
            "activation map fits; use RandAugment, such as 'rand-m9-mstd0.5-inc1', or give no maps"
        )
    for operation in _operations(policy):
        operation.kwargs["fillcolor"] = 0
        if operation.aug_fn is timm_augment.gaussian_blur_rand:
            operation.aug_fn = _draw_as_blur
        elif operation.aug_fn not in GEOMETRIC:
            operation.aug_fn = _leave
    return policy


def _operations(policy: Policy) -> list[AugmentOp]:
    return [each for pair in policy.policy for each in pair] if isinstance(policy, AutoAugment) else list(policy.ops)


def _leave(image: Image.Image, *arguments: Any, **settings: Any) -> Image.Image:
    return image


def _draw_as_blur(image: Image.Image, *arguments: Any, **settings: Any) -> Image.Image:
    random.random()  # timm draws the radius inside this operation
    return image


def _posterize(image: Image.Image, bits_to_keep: int, **settings: Any) -> Image.Image:
    """timm's posterize, except that zero bits (magnitude 10, which newer Pillow refuses) give a black image."""
    if bits_to_keep == 0:
        return Image.new(image.mode, image.size)
    return timm_augment.posterize(image, bits_to_keep, **settings)
