"""The settings of augmentation and preprocessing: names, defaults and checks, for the configuration and the loaders."""

# Help texts come from these classes, so what imports torch is imported where it is used.
from dataclasses import dataclass
from typing import Literal

from vitmix.lab.settings import Count, Fraction, NotNegative, Settings, Whole, option

MOST_PADDING, MOST_ERASED, LEAST_CROP, MOST_RATIO = 4096, 1000, 0.05, 1000


@dataclass(frozen=True, kw_only=True)
class AugmentationSettings(Settings):
    """How training images are changed before they are mixed."""

    section = "Augmentation"

    scale: tuple[float, float] | None = option(
        (0.08, 1.0), "random crop: smallest and largest fraction of the area; none crops the center"
    )
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), "random crop: smallest and largest aspect ratio")
    padding: Whole = option(0, "pad the image with this many black pixels and crop at random; needs scale none")
    hflip: Fraction = option(0.5, "probability of a horizontal flip")
    color_jitter: NotNegative = option(0.0, "strength of color jitter; only without auto_augment, as in timm")
    auto_augment: str | None = option("rand-m9-mstd0.5-inc1", "timm's RandAugment or AutoAugment policy, or none")
    interpolation: Literal["bicubic", "bilinear", "random"] = option(
        "bicubic", "resampling filter; random picks one for each operation"
    )
    erasing: Fraction = option(0.0, "probability of random erasing")
    erasing_count: Count = option(1, "largest number of erased boxes")
    erase_after_mixing: bool = option(False, "erase after mixing instead of before")


@dataclass(frozen=True)
class Augmentation(AugmentationSettings):
    """What happens to an image before the model sees it.

    With `erase_after_mixing` the loaders give the boxes, and the training step erases them.

    Args:
        size: side of the model's input, or (height, width).
        mean, std: of pixels in 0..1, by channel (default: ImageNet's).
        crop_pct: in evaluation, the fraction of the shorter side that the center crop shows.
    """

    size: int | tuple[int, int] = 224
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    crop_pct: float = 0.875

    def __post_init__(self) -> None:
        for name in ("size", "scale", "ratio", "mean", "std"):  # lists, as configuration files give them
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.sides) != 2 or any(not isinstance(side, int) or side < 1 for side in self.sides):
            raise ValueError(f"size must be pixels or (height, width), got {self.size!r}")
        self._check_crop()
        super().__post_init__()
        for name, most in (("padding", MOST_PADDING), ("erasing_count", MOST_ERASED)):
            if getattr(self, name) > most:
                raise ValueError(f"{name} may be at most {most:,}, got {getattr(self, name)}")
        if self.padding and self.scale is not None:
            raise ValueError(f"padding={self.padding} replaces the random resized crop; pass scale=None with it")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean and std must be three numbers each, std positive, got {self.mean!r}, {self.std!r}")
        if not all(abs(value) <= 1e6 for value in self.mean) or not all(1e-6 <= value <= 1e6 for value in self.std):
            raise ValueError(f"mean and std are of pixels in 0..1, got {self.mean!r} and {self.std!r}")
        if self.erase_after_mixing and self.erasing_count > 1:
            raise ValueError(f"erasing after mixing takes one box, got erasing_count={self.erasing_count}; pass 1")
        if self.auto_augment:
            self._check_policy()

    def _check_crop(self) -> None:
        for name in ("scale", "ratio"):
            pair = getattr(self, name)
            if pair is not None and (len(pair) != 2 or not 0 < pair[0] <= pair[1]):
                raise ValueError(f"{name} must be (least, most), both positive, got {pair!r}")
        if self.scale is not None and self.scale[1] > 1:
            raise ValueError(f"scale is a fraction of the image, at most 1, got {self.scale!r}")
        if not 1 / MOST_RATIO <= self.ratio[0] <= self.ratio[1] <= MOST_RATIO:  # or a side of the crop overflows
            raise ValueError(f"ratio must lie between 1/{MOST_RATIO} and {MOST_RATIO}, got {self.ratio!r}")
        if not LEAST_CROP <= self.crop_pct <= 1:  # images are scaled to size / crop_pct
            raise ValueError(f"crop_pct must be at least {LEAST_CROP} and at most 1, got {self.crop_pct!r}")

    def _check_policy(self) -> None:
        if self.color_jitter:
            raise ValueError(
                f"color_jitter={self.color_jitter} has no effect beside auto_augment={self.auto_augment!r}; "
                "pass color_jitter=0 or auto_augment=None"
            )
        from .policy import timm_policy

        timm_policy(self)  # which refuses a typo

    @property
    def sides(self) -> tuple[int, int]:
        """(height, width)"""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    @property
    def is_random(self) -> bool:
        """Whether training images are changed at random."""
        return bool(self.scale or self.padding or self.hflip or self.auto_augment or self.color_jitter or self.erasing)

    @property
    def fill(self) -> tuple[int, ...]:
        """The fill color for rotation and similar operations: the mean color."""
        return tuple(min(255, round(255 * channel)) for channel in self.mean)
