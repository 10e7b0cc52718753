"""Shapes: an image classification dataset that is computed, not stored.

One colored object on a textured background; the class is the object's shape. Color, texture, area and rotation have
the same distribution for every class, so only the outline reveals the label. The true object mask of every image is
known, so the error of a label rule can be measured.

A sample is a pure function of (seed, split, index): `draw_scenes` hashes these numbers into a scene, `render_scenes`
renders scenes at any size. A scene lives in the square [-1, 1] x [-1, 1] with y pointing up.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

SPLITS = ("train", "test")
AREA = (0.11, 0.25)  # of the image; the same for every class, so that area does not reveal the label
MAX_ROTATION = math.radians(15)
MARGIN = 0.05  # between object and image border
BACK_LIGHTNESS = (0.26, 0.40)  # half the images are inverted afterwards
TEXTURE_CONTRAST = 0.045  # lightness of either background color against their mean
OBJECT_CONTRAST = (0.40, 0.48)  # lightness of the object against that mean: the object is always visible
CHUNK = 2**18  # pixels rendered at once, so that the working tensors stay in the cache


class Scenes(NamedTuple):
    """The content of B images, before any pixel is rendered."""

    label: Tensor  # (B,) long
    center: Tensor  # (B, 2)
    scale: Tensor  # (B,)
    axis: Tensor  # (B, 2): direction of the object's x axis, a unit vector
    object_color: Tensor  # (B, 3)
    object_shade: Tensor  # (B, 2): slope of the object's lightness
    back_colors: Tensor  # (B, 2, 3)
    texture: Tensor  # (B,) long, into TEXTURES
    waves: Tensor  # (B, 6, 2): cycles per unit length along x and y
    phases: Tensor  # (B, 6): cycles


class ShapesBatch(NamedTuple):
    """Images with their labels and the true place of the object."""

    images: Tensor  # (B, 3, size, size) float32 in 0..1, in steps of 1/255
    labels: Tensor  # (B,) long
    masks: Tensor  # (B, size, size) bool: pixels whose center lies on the object

    def pixels(self) -> np.ndarray:
        """`(B, size, size, 3)` uint8."""
        return (self.images * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


# Outlines: signed distance to the edge, negative inside. Every shape is its own mirror image, so a horizontal flip is
# a fair augmentation. Per pixel only correctly rounded operations are used (no sin, no exp): a sample has the same
# bits in every batch.


def _norm(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y).sqrt()


def _box(x: Tensor, y: Tensor, width: float, height: float) -> Tensor:
    return torch.maximum(x.abs() - width, y.abs() - height)


def _fifths(radius: float) -> list[tuple[float, float]]:
    angles = [math.pi / 2 + 2 * math.pi * k / 5 for k in range(5)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]


def _star(x: Tensor, y: Tensor) -> Tensor:
    # Five lines bound a pentagon; beyond exactly one of them is a tip. So the second largest distance decides.
    first = second = torch.full_like(x, -math.inf)
    for cos, sin in _fifths(1):
        distance = x * cos + y * sin - 0.4
        second = torch.maximum(second, torch.minimum(first, distance))
        first = torch.maximum(first, distance)
    return second


def _heart(x: Tensor, y: Tensor) -> Tensor:
    # A square on its corner, with a half disk on each of the two upper sides.
    along, across = (x.abs() + y) * math.sqrt(0.5), (y - x.abs()) * math.sqrt(0.5)
    return torch.minimum(_box(along, across, 1, 1), _norm(along - 1, across) - 1)


def _arrow(x: Tensor, y: Tensor) -> Tensor:
    head = torch.maximum(-y, (x.abs() + y - 1) * math.sqrt(0.5))
    return torch.minimum(head, _box(x, y + 0.4, 0.34, 0.6))  # the shaft reaches into the head, else a seam shows


def _flower(x: Tensor, y: Tensor) -> Tensor:
    distance = _norm(x, y) - 0.5
    for left, up in _fifths(0.62):
        distance = torch.minimum(distance, _norm(x - left, y - up) - 0.36)
    return distance


OUTLINES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disk": lambda x, y: _norm(x, y) - 1,
    "ring": lambda x, y: (_norm(x, y) - 0.75).abs() - 0.25,
    "square": lambda x, y: _box(x, y, 1, 1),
    "diamond": lambda x, y: (x.abs() * 5 + y.abs() * 3 - 5) / math.hypot(5, 3),
    "triangle": lambda x, y: torch.maximum(-y, x.abs() * math.sqrt(0.75) + y * 0.5) - 0.5,
    "cross": lambda x, y: torch.minimum(_box(x, y, 1, 0.34), _box(x, y, 0.34, 1)),
    "star": _star,
    "heart": _heart,
    "crescent": lambda x, y: torch.maximum(_norm(x, y) - 1, 0.8 - _norm(x, y - 0.55)),
    "arrow": _arrow,
    "hourglass": lambda x, y: torch.maximum(y.abs() - 1, (x.abs() - y.abs() * 0.75 - 0.1) * 0.8),
    "flower": _flower,
}
CLASSES = tuple(OUTLINES)


# Textures: the second background color's part of each pixel, 0..1.


def _cycles(x: Tensor, y: Tensor, wave: Tensor, phase: Tensor) -> Tensor:
    return x * wave[:, 0, None, None] + y * wave[:, 1, None, None] + phase[:, None, None]


def _bands(x: Tensor, y: Tensor, wave: Tensor, phase: Tensor, pixel: float) -> Tensor:
    """Square wave in -1..1 with edges one pixel wide."""
    cycles = _cycles(x, y, wave, phase)
    edge = _norm(wave[:, 0], wave[:, 1])[:, None, None] * pixel
    return (((cycles - cycles.floor() - 0.5).abs() - 0.25) * 2 / edge).clamp(-1, 1)


def _stripes(x: Tensor, y: Tensor, waves: Tensor, phases: Tensor, pixel: float) -> Tensor:
    return _bands(x, y, waves[:, 0], phases[:, 0], pixel) * 0.5 + 0.5


def _checkers(x: Tensor, y: Tensor, waves: Tensor, phases: Tensor, pixel: float) -> Tensor:
    turned = torch.stack((-waves[:, 0, 1], waves[:, 0, 0]), dim=1)
    bands = _bands(x, y, waves[:, 0], phases[:, 0], pixel) * _bands(x, y, turned, phases[:, 1], pixel)
    return bands * 0.5 + 0.5


def _gradient(x: Tensor, y: Tensor, waves: Tensor, phases: Tensor, pixel: float) -> Tensor:
    slope = waves[:, 0] * (0.4 / _norm(waves[:, 0, 0], waves[:, 0, 1]))[:, None]
    return _cycles(x, y, slope, torch.full_like(phases[:, 0], 0.5)).clamp(0, 1)


def _clouds(x: Tensor, y: Tensor, waves: Tensor, phases: Tensor, pixel: float) -> Tensor:
    blend = torch.full((), 0.5)
    for wave, phase in zip(waves.unbind(dim=1), phases.unbind(dim=1), strict=True):
        cycles = _cycles(x, y, wave * 0.5, phase)
        part = (cycles - cycles.floor()) * 2 - 1
        blend = blend + part * (1 - part.abs()) * 0.8  # 4u(1 - |u|) is close to sin(pi u)
    return blend.clamp(0, 1)


TEXTURES = (_stripes, _checkers, _gradient, _clouds)


# Sampling: every random number is a hash of (seed, split, index, slot), so no sample depends on another.


def _scramble(numbers: Tensor) -> Tensor:
    """The finalizer of splitmix64: a one-to-one map of the 64-bit integers without visible patterns."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        # torch's >> copies the sign bit; the mask drops the copies.
        numbers = (numbers ^ ((numbers >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return numbers


def _uniform(rows: Tensor, *, seed: int, stream: int, slots: int) -> Tensor:
    """(len(rows), slots) float64 in [0, 1)."""
    key = _scramble(_scramble(torch.tensor(seed)) + stream)
    keys = _scramble(_scramble(key + rows)[:, None] + torch.arange(slots))
    return ((keys >> 11) & (2**53 - 1)).double() * 2.0**-53


def _unit(angle: Tensor) -> Tensor:
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


def _color(lightness: Tensor, chroma: Tensor, hue: Tensor) -> Tensor:
    """RGB with mean `lightness` whatever the hue, so that a contrast in lightness survives any choice of hues."""
    chroma = torch.minimum(chroma, torch.minimum(lightness, 1 - lightness))
    turns = hue[:, None] + torch.arange(3).double() / 3
    return lightness[:, None] + chroma[:, None] * (turns * 2 * math.pi).cos()


@lru_cache(maxsize=1)
def _measures() -> tuple[Tensor, Tensor]:
    """Area (classes,) and reach (classes, 360) of each outline: its extent in the direction of each degree."""
    line = torch.linspace(-2.5, 2.5, 501, dtype=torch.float64)
    y, x = torch.meshgrid(line, line, indexing="ij")
    directions = _unit(torch.arange(360).double().deg2rad())
    areas, reaches = [], []
    for outline in OUTLINES.values():
        distance = outline(x, y)
        areas.append((distance < 0).sum() * (line[1] - line[0]) ** 2)
        rim = (distance < 0) & (distance > -0.05)
        reaches.append((torch.stack((x[rim], y[rim]), dim=1) @ directions.T).amax(dim=0))
    return torch.stack(areas), torch.stack(reaches)


def draw_scenes(indices: Tensor, *, seed: int = 0, split: str = "train") -> Scenes:
    """The scenes of these samples."""
    side, count = SPLITS.index(split), len(CLASSES)
    # Each run of 12 indices holds every class once, in random order.
    order = _uniform(indices // count * 2 + side, seed=seed, stream=0, slots=count)
    label = (order < order.gather(1, (indices % count)[:, None])).sum(dim=1)
    # 2 * index + side is one-to-one and so is the scrambling: the splits have no key in common.
    draws = iter(_uniform(indices * 2 + side, seed=seed, stream=1, slots=33).unbind(dim=1))

    def between(low: float | Tensor, high: float | Tensor) -> Tensor:
        return low + (high - low) * next(draws)

    areas, reaches = _measures()
    scale = (4 * between(*AREA) / areas[label]).sqrt()
    angle = between(-MAX_ROTATION, MAX_ROTATION)
    degrees = (torch.arange(4) * 90 - angle.rad2deg().round().long()[:, None]) % 360
    right, top, left, bottom = (scale[:, None] * reaches[label[:, None], degrees] + MARGIN).unbind(dim=1)
    center = torch.stack((between(left - 1, 1 - right), between(bottom - 1, 1 - top)), dim=1)

    back_lightness = between(*BACK_LIGHTNESS)
    lightness = back_lightness + between(*OBJECT_CONTRAST)
    # Objects are as often darker as lighter: a linear classifier on raw pixels then gets no more than 17 % right.
    negative = between(0, 1) < 0.5
    back_lightness = torch.where(negative, 1 - back_lightness, back_lightness)
    lightness = torch.where(negative, 1 - lightness, lightness)
    object_color = _color(lightness, between(0.15, 0.4), between(0, 1))
    object_shade = _unit(between(0, 2 * math.pi)) * between(0, 0.1)[:, None]
    chroma, hue = between(0.05, 0.18), between(0, 1)
    dark = _color(back_lightness - TEXTURE_CONTRAST, chroma, hue)
    light = _color(back_lightness + TEXTURE_CONTRAST, chroma, hue + between(-0.25, 0.25))

    texture = between(0, len(TEXTURES)).long()
    waves = torch.stack([_unit(between(0, 2 * math.pi)) * between(0.7, 2.0)[:, None] for _ in range(6)], dim=1)
    phases = torch.stack([between(0, 1) for _ in range(6)], dim=1)
    back_colors = torch.stack((dark, light), dim=1)
    scenes = (label, center, scale, _unit(angle), object_color, object_shade, back_colors, texture, waves, phases)
    return Scenes(*(field.float() if field.is_floating_point() else field for field in scenes))


def render_scenes(scenes: Scenes, size: int) -> ShapesBatch:
    """Images, labels and object masks; another size shows the same scenes at another resolution."""
    chunks = zip(*(field.split(max(1, CHUNK // size**2)) for field in scenes), strict=True)
    parts = [_render_chunk(Scenes(*fields), size) for fields in chunks]
    return ShapesBatch(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def _render_chunk(scenes: Scenes, size: int) -> ShapesBatch:
    pixel = 2 / size
    line = (torch.arange(size) + 0.5) * pixel - 1
    x, y = line[None, None, :], -line[None, :, None]
    # (B, 1, 1) each, to broadcast over rows and columns
    center_x, center_y, cos, sin, shade_x, shade_y = torch.cat(
        (scenes.center, scenes.axis, scenes.object_shade), dim=1
    )[..., None, None].unbind(dim=1)
    scale = scenes.scale[:, None, None]

    dx, dy = x - center_x, y - center_y
    own_x, own_y = (dx * cos + dy * sin) / scale, (dy * cos - dx * sin) / scale
    distance, blend = torch.empty_like(own_x), torch.empty_like(own_x)
    for label, outline in enumerate(OUTLINES.values()):
        rows = (scenes.label == label).nonzero()[:, 0]
        distance[rows] = outline(own_x[rows], own_y[rows])
    for kind, texture in enumerate(TEXTURES):
        rows = (scenes.texture == kind).nonzero()[:, 0]
        blend[rows] = texture(x, y, scenes.waves[rows], scenes.phases[rows], pixel)

    dark, light = scenes.back_colors[..., None, None].unbind(dim=1)
    back = dark + (light - dark) * blend[:, None]
    front = scenes.object_color[..., None, None] + (dx * shade_x + dy * shade_y)[:, None]
    cover = (0.5 - distance * scale / pixel).clamp(0, 1)[:, None]
    images = (back + (front - back) * cover).clamp(0, 1)
    # Rounded to eight bits here, so that tensors and PIL images are equal.
    return ShapesBatch((images * 255).round() / 255, scenes.label, distance < 0)


def _check_settings(size: int, split: str) -> None:
    if size < 8:
        raise ValueError(f"size must be at least 8 pixels to distinguish the shapes, got {size}; pass size=32")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}; pass split='train' or split='test'")


def shapes_batch(
    indices: Sequence[int] | Tensor, *, size: int = 32, seed: int = 0, split: str = "train"
) -> ShapesBatch:
    """The samples at these indices, rendered at once: the same as one by one, and much faster."""
    _check_settings(size, split)
    rows = torch.as_tensor(indices, dtype=torch.long)
    if rows.ndim != 1 or len(rows) == 0 or rows.min() < 0:
        raise ValueError(f"indices must be a list of integers, 0 or more, got {indices!r}; pass for example range(64)")
    return render_scenes(draw_scenes(rows, seed=seed, split=split), size)


class Shapes(Dataset[tuple[Any, int]]):
    """Pairs of a PIL image and a label, as torchvision's datasets give them.

    Args:
        length: Samples in this split. A longer dataset starts with the samples of a shorter one.
        transform: Called with the PIL image.
    """

    classes = CLASSES

    def __init__(
        self,
        *,
        size: int = 32,
        length: int = 10_000,
        split: str = "train",
        seed: int = 0,
        transform: Callable[[Image.Image], Any] | None = None,
    ) -> None:
        _check_settings(size, split)
        if length <= 0:
            raise ValueError(f"length must be a number of samples, 1 or more, got {length}; pass length=10_000")
        self.size, self.length, self.split, self.seed, self.transform = size, length, split, seed, transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int]]:
        """Several samples; torch's DataLoader fetches a batch this way, so it is rendered at once."""
        batch = self.batch(indices)
        images = [Image.fromarray(pixels) for pixels in batch.pixels()]
        if self.transform is not None:
            images = [self.transform(image) for image in images]
        return list(zip(images, batch.labels.tolist(), strict=True))

    def batch(self, indices: Sequence[int] | Tensor) -> ShapesBatch:
        """Images, labels and masks as tensors; `transform` is not called."""
        rows = torch.as_tensor(indices, dtype=torch.long)
        outside = rows[(rows < 0) | (rows >= self.length)]
        if len(outside):
            raise IndexError(f"index must be in 0..{self.length - 1}, got {int(outside[0])}; pass a larger length?")
        return shapes_batch(rows, size=self.size, seed=self.seed, split=self.split)
