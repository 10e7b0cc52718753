"""Augmentation of single pictures, as the papers train: timm's transforms as a function of a few whole numbers."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.transforms import RandomResizedCropAndInterpolation
from timm.data.transforms_factory import transforms_imagenet_eval
from torch import Tensor
from torchvision import transforms

from vitmix._checks import check_choice, check_count, check_fraction, check_not_negative
from vitmix._sampling import generator_for

from .decoding import as_rgb
from .policy import fill_color, timm_policy

# Settings of timm's random erasing that no recipe changes.
ERASE_AREA = (0.02, 1 / 3)
ERASE_ASPECT = (0.3, 1 / 0.3)
ATTEMPTS = 10  # to find a box that fits into the picture, for crops and for erasing

MOST_PADDING, MOST_ERASED, LEAST_CROP = 4096, 1000, 0.05
MIN_SIDE = 8  # pixels; smaller pictures are enlarged first, since a crop of one may round to nothing
MAX_ASPECT = 16  # longer strips are cut to their middle: scaled by their shorter side they could fill the memory
SAMPLE = 0x53414D50  # keeps these random numbers apart from others made from the same seed


@dataclass(frozen=True)
class Augmentation:
    """What happens to a picture before the model sees it.

    Args:
        size: of the model's input, one side or (height, width).
        scale: area of the random resized crop, as parts of the picture; `None` takes the middle of the picture.
        ratio: width : height of that crop.
        padding: when positive, a crop at a random place of the picture with this many black pixels added on each side,
            in place of the random resized crop; `scale` must be `None` then.
        color_jitter: strength; only without `auto_augment`, as in timm.
        auto_augment: policy in timm's notation, such as `"rand-m9-mstd0.5-inc1"`.
        interpolation: `"bicubic"`, `"bilinear"`, or `"random"`: one of the two for each operation.
        erasing: probability of random erasing with noise.
        erasing_count: at most this many boxes.
        erase_after_mixing: leaves the erasing to the training step; the loaders give the boxes instead.
        crop_pct: for evaluation: the part of the shorter side that the center crop shows.
    """

    size: int | tuple[int, int] = 224
    scale: tuple[float, float] | None = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: int = 0
    hflip: float = 0.5
    color_jitter: float = 0.0
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    interpolation: str = "bicubic"
    erasing: float = 0.25
    erasing_count: int = 1
    erase_after_mixing: bool = False
    mean: tuple[float, float, float] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, float, float] = IMAGENET_DEFAULT_STD
    crop_pct: float = 0.875

    def __post_init__(self) -> None:
        for name in ("size", "scale", "ratio", "mean", "std"):  # lists, as configuration files give them
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if len(sides) != 2 or any(not isinstance(side, int) or side < 1 for side in sides):
            raise ValueError(f"size must be pixels or (height, width), got {self.size!r}")
        for name in ("scale", "ratio"):
            pair = getattr(self, name)
            if pair is not None and (len(pair) != 2 or not 0 < pair[0] <= pair[1]):
                raise ValueError(f"{name} must be (least, most), both positive, got {pair!r}")
        if self.scale is not None and self.scale[1] > 1:
            raise ValueError(f"scale is a part of the picture, at most 1, got {self.scale!r}")
        check_count("padding", self.padding, least=0)
        check_count("erasing_count", self.erasing_count)
        for name, most in (("padding", MOST_PADDING), ("erasing_count", MOST_ERASED)):
            if getattr(self, name) > most:
                raise ValueError(f"{name} may be at most {most:,}, got {getattr(self, name)}")
        if self.padding and self.scale is not None:
            raise ValueError(f"padding={self.padding} replaces the random resized crop; pass scale=None with it")
        check_fraction("hflip", self.hflip)
        check_fraction("erasing", self.erasing)
        check_not_negative("color_jitter", self.color_jitter)
        check_choice("interpolation", self.interpolation, ("bicubic", "bilinear", "random"))
        if not LEAST_CROP <= self.crop_pct <= 1:  # pictures are scaled to size / crop_pct
            raise ValueError(f"crop_pct must be at least {LEAST_CROP} and at most 1, got {self.crop_pct!r}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean and std must be three numbers each, std positive, got {self.mean!r}, {self.std!r}")
        if not all(abs(value) <= 1e6 for value in self.mean) or not all(1e-6 <= value <= 1e6 for value in self.std):
            raise ValueError(f"mean and std are of pixels in 0..1, got {self.mean!r} and {self.std!r}")
        if self.erase_after_mixing and self.erasing_count > 1:
            raise ValueError(f"erasing after mixing takes one box, got erasing_count={self.erasing_count}; pass 1")
        if self.auto_augment and self.color_jitter:
            raise ValueError(
                f"color_jitter={self.color_jitter} has no effect beside auto_augment={self.auto_augment!r}; "
                "pass color_jitter=0 or auto_augment=None"
            )
        if self.auto_augment:
            timm_policy(self.auto_augment, self.sides, self.mean, self.interpolation)  # a typo should show now

    @property
    def sides(self) -> tuple[int, int]:
        """(height, width)"""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    @property
    def fill(self) -> tuple[int, ...]:
        """The color that rotation and the like leave outside the picture."""
        return fill_color(self.mean)


class Sample(NamedTuple):
    """One augmented picture: `pixels` `(3, H, W)` uint8, and `boxes` `(erasing_count, 4)` to erase, empty ones zero."""

    pixels: Tensor
    boxes: Tensor


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Gives the global generators of Python, NumPy and torch (CPU) back as they were.

    timm's and torchvision's transforms draw from these and take no generator. Seeding them per sample makes an
    augmentation the same in whichever process it is computed, and after a resumption; restoring them keeps the rest of
    the program, such as dropout, from noticing. NumPy takes 70 us for that, so it is done once a batch.
    """
    saved = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
        torch.default_generator.set_state(saved[2])


def seed_global_generators(*numbers: int) -> None:
    """Makes what the global generators give next a function of `numbers`."""
    entropy = [number % 2**64 for number in (SAMPLE, *numbers)]
    first, second, third = (int(word) for word in np.random.SeedSequence(entropy).generate_state(3))
    random.seed(first)
    np.random.seed(second)
    torch.default_generator.manual_seed(third)  # not torch.manual_seed, which would reseed the GPUs too


def augment(image: Image.Image, augmentation: Augmentation, *, seed_numbers: tuple[int, ...]) -> Sample:
    """The picture after every operation on pixels, and the boxes that random erasing will fill.

    Seeds the global generators: to be called inside `global_generators_kept()`.
    """
    transform, is_random = _train_transform(augmentation)
    if is_random or augmentation.erasing:
        seed_global_generators(*seed_numbers)
    pixels = _pixels(transform(_prepare(image)))
    boxes = torch.zeros(augmentation.erasing_count, 4, dtype=torch.long)
    if augmentation.erasing:
        for number, box in enumerate(_erase_boxes(augmentation)):
            boxes[number] = torch.tensor(box)
    return Sample(pixels, boxes)


def normalize(pixels: Tensor, augmentation: Augmentation) -> Tensor:
    """Float32 with the given mean and spread removed, from `(..., 3, H, W)` of 0..255."""
    mean, spread = (
        per_channel([255 * value for value in values], pixels.device)
        for values in (augmentation.mean, augmentation.std)
    )
    return (pixels.float() - mean) / spread


def per_channel(values: Sequence[float], device: torch.device) -> Tensor:
    """`(channels, 1, 1)` on a device; filled there, since a copy from the host would wait for the device."""
    return torch.stack([torch.full((1, 1), value, dtype=torch.float32, device=device) for value in values])


def erase(image: Tensor, boxes: Tensor, *, seed_numbers: tuple[int, ...]) -> None:
    """Fills the boxes of one normalized image `(3, H, W)` with noise, in place."""
    if boxes.any():
        generator = generator_for(SAMPLE, *seed_numbers)
        for top, bottom, left, right in boxes.tolist():
            noise = torch.randn(image.shape[0], bottom - top, right - left, generator=generator)
            image[:, top:bottom, left:right] = noise


def train_sample(image: Image.Image, augmentation: Augmentation, *, seed_numbers: tuple[int, ...]) -> Tensor:
    """The picture as the model sees it in training: augmented, normalized and, unless that comes later, erased."""
    with global_generators_kept():
        sample = augment(image, augmentation, seed_numbers=seed_numbers)
    normalized = normalize(sample.pixels, augmentation)
    if not augmentation.erase_after_mixing:
        erase(normalized, sample.boxes, seed_numbers=seed_numbers)
    return normalized


def eval_pixels(image: Image.Image, augmentation: Augmentation) -> Tensor:
    """The picture scaled and cropped in the middle, `(3, H, W)` uint8."""
    transform = _eval_transform(augmentation.sides, augmentation.crop_pct, augmentation.interpolation)
    return _pixels(transform(_prepare(image)))


def eval_sample(image: Image.Image, augmentation: Augmentation) -> Tensor:
    """The picture as the model sees it in evaluation."""
    return normalize(eval_pixels(image, augmentation), augmentation)


def _prepare(image: Image.Image) -> Image.Image:
    return fit_sides(image if image.mode == "RGB" else as_rgb(image))


def fit_sides(image: Image.Image) -> Image.Image:
    """A picture that is neither too long nor too small to be augmented."""
    width, height = image.size
    shorter = min(width, height)
    if shorter * MAX_ASPECT < max(width, height):
        left, top = max(0, width - shorter * MAX_ASPECT) // 2, max(0, height - shorter * MAX_ASPECT) // 2
        image = image.crop((left, top, width - left, height - top))
    if shorter < MIN_SIDE:
        width, height = (math.ceil(side * MIN_SIDE / shorter) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image


def _pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))


def _erase_boxes(augmentation: Augmentation) -> Iterator[tuple[int, int, int, int]]:
    """The boxes that timm's `RandomErasing` would draw from Python's generator: (top, bottom, left, right)."""
    height, width = augmentation.sides
    if random.random() > augmentation.erasing:
        return
    count = 1 if augmentation.erasing_count == 1 else random.randint(1, augmentation.erasing_count)
    low, high = (math.log(aspect) for aspect in ERASE_ASPECT)
    for _ in range(count):
        for _ in range(ATTEMPTS):
            area = random.uniform(*ERASE_AREA) * height * width / count
            aspect = math.exp(random.uniform(low, high))
            rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if columns < width and rows < height:
                top, left = random.randint(0, height - rows), random.randint(0, width - columns)
                yield top, top + rows, left, left + columns
                break


@lru_cache(maxsize=64)
def _train_transform(augmentation: Augmentation) -> tuple[Callable[[Image.Image], Image.Image], bool]:
    """Everything up to the pixels, and whether it draws random numbers."""
    steps = crop_and_flip(augmentation)
    fixed = 1 if augmentation.scale is None else 0
    if augmentation.auto_augment:
        steps.append(
            timm_policy(augmentation.auto_augment, augmentation.sides, augmentation.mean, augmentation.interpolation)
        )
    if augmentation.color_jitter:
        steps.append(transforms.ColorJitter(*[augmentation.color_jitter] * 3))
    return transforms.Compose(steps), len(steps) > fixed


def crop_and_flip(augmentation: Augmentation) -> list[Any]:
    """The steps that come first: from a picture of any size to one of `augmentation.sides`."""
    if augmentation.scale is not None:
        crop = RandomResizedCropAndInterpolation(
            augmentation.sides, augmentation.scale, augmentation.ratio, augmentation.interpolation
        )
        steps: list[Any] = [crop]
    else:
        steps = [_eval_transform(augmentation.sides, 1.0, augmentation.interpolation)]
    if augmentation.padding:
        steps.append(transforms.RandomCrop(augmentation.sides, padding=augmentation.padding))
    if augmentation.hflip:
        steps.append(transforms.RandomHorizontalFlip(augmentation.hflip))
    return steps


@lru_cache(maxsize=64)
def _eval_transform(
    sides: tuple[int, int], crop_pct: float, interpolation: str
) -> Callable[[Image.Image], Image.Image]:
    if interpolation == "random":
        interpolation = "bicubic"
    whole = transforms_imagenet_eval(
        sides if sides[0] != sides[1] else sides[0], crop_pct=crop_pct, interpolation=interpolation, use_prefetcher=True
    )
    return transforms.Compose(whole.transforms[:-1])  # without the conversion to a tensor
