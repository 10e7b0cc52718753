"""Settings of the augmentation of single images, shared by the training's configuration and its loaders."""

from dataclasses import dataclass
from typing import Literal

from vitmix.lab.settings import Count, Fraction, NotNegative, Settings, Whole, option


@dataclass(frozen=True, kw_only=True)
class AugmentationSettings(Settings):
    """How training images are changed before they are mixed."""

    section = "Augmentation"

    scale: tuple[float, float] | None = option(
        (0.08, 1.0), "random crop: smallest and largest part of the area; none takes the center"
    )
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), "random crop: smallest and largest aspect ratio")
    padding: Whole = option(0, "random crop of the image with this black border instead; needs scale none")
    hflip: Fraction = option(0.5, "probability of a horizontal flip")
    color_jitter: NotNegative = option(0.0, "strength of color jitter; only without auto_augment, as in timm")
    auto_augment: str | None = option("rand-m9-mstd0.5-inc1", "timm's RandAugment or AutoAugment policy, or none")
    interpolation: Literal["bicubic", "bilinear", "random"] = option(
        "bicubic", "resampling of images; random takes either for each operation"
    )
    erasing: Fraction = option(0.0, "probability of random erasing")
    erasing_count: Count = option(1, "most boxes that are erased")
    erase_after_mixing: bool = option(False, "erase from mixed images instead of before mixing")
