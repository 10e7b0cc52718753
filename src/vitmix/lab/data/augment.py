"""Augmentation of single images with timm's transforms, as in the papers: a function of a few integers."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation
from timm.data.transforms_factory import transforms_imagenet_eval
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from torchvision import transforms

from vitmix._sampling import generator_for

from .augmentation import Augmentation
from .decoding import as_rgb
from .policy import map_policy, timm_policy

# Settings of timm's random erasing that no recipe changes.
ERASE_AREA = (0.02, 1 / 3)
ERASE_ASPECT = (0.3, 1 / 0.3)
ATTEMPTS = 10  # to find a box that fits into the image, for crops and for erasing

MIN_SIDE = 8  # pixels; smaller images are enlarged first, since a crop of one may round to nothing
MAX_ASPECT = 16  # longer strips are cut to their center: scaled by their shorter side they could fill the memory
SAMPLE = 0x53414D50  # separates these random numbers from others made from the same seed

Size = tuple[int, int]
Transform = Callable[[Image.Image], Image.Image]


class AugmentedImage(NamedTuple):
    """One augmented image: `pixels` `(3, H, W)` uint8, and `boxes` `(erasing_count, 4)` to erase, empty ones zero."""

    pixels: Tensor
    boxes: Tensor


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Restores the global generators of Python, NumPy and torch (CPU) at the end.

    timm's and torchvision's transforms draw from these and take no generator. Seeding them per sample makes an
    augmentation the same in every process and after a resumption; restoring them hides that from the rest of the
    program, such as dropout. NumPy takes 70 us for it, so it is done once per batch.
    """
    saved = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
        torch.default_generator.set_state(saved[2])


def seed_global_generators(*numbers: int) -> None:
    """Seeds the global generators of Python, NumPy and torch (CPU) by some integers."""
    entropy = [number % 2**64 for number in (SAMPLE, *numbers)]
    first, second, third = (int(word) for word in np.random.SeedSequence(entropy).generate_state(3))
    random.seed(first)
    np.random.seed(second)
    torch.default_generator.manual_seed(third)  # not torch.manual_seed, which would reseed the GPUs too


def augment(image: Image.Image, augmentation: Augmentation, *, seed_numbers: tuple[int, ...]) -> AugmentedImage:
    """The image after every operation on pixels, and the boxes that random erasing will fill.

    Seeds the global generators: call it inside `global_generators_kept()`.
    """
    if augmentation.is_random:  # seeding takes half the time of a small image
        seed_global_generators(*seed_numbers)
    pixels = _pixels(_train_transform(augmentation)(_prepare(image)))
    boxes = torch.zeros(augmentation.erasing_count, 4, dtype=torch.long)
    if augmentation.erasing:
        for number, box in enumerate(_erase_boxes(augmentation)):
            boxes[number] = torch.tensor(box)
    return AugmentedImage(pixels, boxes)


def augment_map(activation: Tensor, size: Size, augmentation: Augmentation, *, seed_numbers: tuple[int, ...]) -> Tensor:
    """The activation map `(H, W)` of the image that `augment` makes with the same numbers.

    The map's transform has the steps of the image's and draws the same numbers, but applies only the geometric ones. So
    both move together, and the image is the same with and without a map. Seeds the global generators, as `augment`
    does.

    Args:
        activation: `(h, w)` over the whole image, on a grid of any size.
        size: height and width of the image.
    """
    seed_global_generators(*seed_numbers)
    return _map_tensor(_train_transform(augmentation, of_map=True)(_map_image(activation, size)))


def augment_places(size: Size, augmentation: Augmentation, *, seed_numbers: tuple[int, ...]) -> Tensor:
    """Where each pixel of the image that `augment` makes comes from: `(3, H, W)`, as of `places_of`.

    An image of places goes through the transform of a map, so one pass serves maps of any number of classes.

    Args:
        size: height and width of the image.
    """
    seed_global_generators(*seed_numbers)
    return _pixels(_train_transform(augmentation, of_map=True)(_places_image(size))) / 255


def centered_places(size: Size, augmentation: Augmentation) -> Tensor:
    """The same for the center of the image, which is trained on where `scale` is `None`."""
    return _pixels(_center(augmentation.sides, 1.0, augmentation.interpolation)(_places_image(size))) / 255


def places_of(size: Size) -> Tensor:
    """Row and column of each pixel, as fractions of the image, and ones: `(3, H, W)`. All are 0 outside the image."""
    row, column = ((torch.arange(side) + 0.5) / side for side in size)
    return torch.stack([*torch.meshgrid(row, column, indexing="ij"), torch.ones(size)])


def cell_places(places: Tensor, grid: Size) -> Tensor:
    """Row and column of the part of each cell that is inside the image, and how much that is, `(B, 3, *grid)`.

    Args:
        places: `(B, 3, H, W)` of pixels.
    """
    pooled = adaptive_avg_pool2d(places, grid)
    inside = pooled[:, 2:].clamp(0, 1)
    return torch.cat([(pooled[:, :2] / inside.clamp_min(1e-3)).clamp(0, 1), inside], dim=1)


def _places_image(size: Size) -> Image.Image:
    # 256 levels are enough: a cell averages many pixels, and three channels go through Pillow at once.
    levels = (places_of(size) * 255).round().byte()
    return _fit_sides(Image.fromarray(levels.permute(1, 2, 0).contiguous().numpy()))


def centered_map(activation: Tensor, size: Size, augmentation: Augmentation) -> Tensor:
    """The map `(H, W)` of the center of the image, which is used for training if `scale` is `None`."""
    return _map_tensor(_center(augmentation.sides, 1.0, augmentation.interpolation)(_map_image(activation, size)))


def check_maps(
    maps: Tensor | None, count: int, description: str, augmentation: Augmentation, *, places: bool = False
) -> None:
    """Refuses maps that cannot belong to `count` images, and augmentation that maps or places cannot follow."""
    if maps is not None and (maps.ndim != 3 or len(maps) != count):
        raise ValueError(f"maps must be ({count}, h, w), one per image of {description}, got {tuple(maps.shape)}")
    if maps is not None or places:
        _train_transform(augmentation, of_map=True)


def normalize(pixels: Tensor, augmentation: Augmentation) -> Tensor:
    """Float32, normalized by the given mean and std, from `(..., 3, H, W)` of 0..255."""
    mean, std = (
        per_channel([255 * value for value in values], pixels.device)
        for values in (augmentation.mean, augmentation.std)
    )
    return (pixels.float() - mean) / std


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


def eval_pixels(image: Image.Image, augmentation: Augmentation) -> Tensor:
    """The image scaled and center-cropped, `(3, H, W)` uint8."""
    return _pixels(_center(augmentation.sides, augmentation.crop_pct, augmentation.interpolation)(_prepare(image)))


def _prepare(image: Image.Image) -> Image.Image:
    return _fit_sides(image if image.mode == "RGB" else as_rgb(image))


def _fit_sides(image: Image.Image) -> Image.Image:
    """The image, cut or enlarged if it is too long or too small to be augmented."""
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


def _map_image(activation: Tensor, size: Size) -> Image.Image:
    image = Image.fromarray(activation.float().contiguous().numpy())
    return _fit_sides(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _map_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image, dtype=np.float32))


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
def _train_transform(augmentation: Augmentation, *, of_map: bool = False) -> Transform:
    """Everything up to the pixels, for an image or for its activation map."""
    sides, interpolation = augmentation.sides, augmentation.interpolation
    steps: list[Any] = [_center(sides, 1.0, interpolation)]
    if augmentation.scale is not None:
        steps = [RandomResizedCropAndInterpolation(sides, augmentation.scale, augmentation.ratio, interpolation)]
    if augmentation.padding:
        steps.append(transforms.RandomCrop(sides, padding=augmentation.padding))
    if augmentation.hflip:
        steps.append(transforms.RandomHorizontalFlip(augmentation.hflip))
    if augmentation.auto_augment:
        steps.append(map_policy(augmentation) if of_map else timm_policy(augmentation))
    if augmentation.color_jitter and not of_map:
        steps.append(transforms.ColorJitter(*[augmentation.color_jitter] * 3))
    return transforms.Compose(steps)


@lru_cache(maxsize=64)
def _center(sides: Size, crop_pct: float, interpolation: str) -> Transform:
    """timm's scaling and center crop for evaluation, without the conversion to a tensor."""
    whole = transforms_imagenet_eval(
        sides if sides[0] != sides[1] else sides[0],
        crop_pct=crop_pct,
        interpolation="bicubic" if interpolation == "random" else interpolation,
        use_prefetcher=True,
    )
    return transforms.Compose(whole.transforms[:-1])
