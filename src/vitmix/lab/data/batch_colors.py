"""Pillow's color operations on a whole batch at once, each sample with its own argument.

Images and compilation are as in `vitmix.lab.data.batch_geometry`. As in Pillow, operations on single pixels are tables
of 256 levels, one per sample and channel, so one look-up applies all of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

TOP = 255  # the lightest level


def _blend(base: Tensor | int, images: Tensor, factor: Tensor) -> Tensor:
    """`Image.blend`: `base` at factor 0, `images` at 1, extrapolated beyond."""
    return (base + factor * (images - base)).clamp(0, TOP).floor()


def _gray(images: Tensor) -> Tensor:
    """`(B, 1, H, W)` brightness, as `convert("L")` computes it."""
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).unsqueeze(1).to(images.dtype)


def _mean_gray(images: Tensor) -> Tensor:
    """`(B, 1, 1)` mean brightness, rounded."""
    count = images.shape[2] * images.shape[3]
    total = _gray(images).long().sum((2, 3), keepdim=True).squeeze(1)
    return ((2 * total + count) // (2 * count)).to(images.dtype)


def _smooth(images: Tensor) -> Tensor:
    """Pillow's smoothing, which leaves the outermost pixels unchanged."""
    height, width = images.shape[2:]
    lines = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    sums = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:] + 4 * images[:, :, 1:-1, 1:-1]
    row = torch.arange(height, device=images.device).unsqueeze(1)
    column = torch.arange(width, device=images.device)
    inner = (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    return torch.where(inner, pad((sums / 13 + 0.5).floor(), (1, 1, 1, 1)), images)


def _auto_contrast(images: Tensor, levels: Tensor, _: Tensor) -> Tensor:
    """Darkest level of each channel to 0, lightest to 255."""
    # Pillow truncates a product that is often nearly a whole number, so the rounding must be the same.
    exact = torch.float32 if images.device.type == "mps" else torch.float64
    dark, light = images.amin((2, 3)).to(exact).unsqueeze(2), images.amax((2, 3)).to(exact).unsqueeze(2)
    scale = torch.full_like(dark, TOP) / (light - dark).clamp_min(1)  # a plain 255 / x is 255 * (1 / x) in torch
    stretched = (levels.to(exact) * scale + -dark * scale).trunc().clamp(0, TOP)
    return torch.where(light > dark, stretched.to(levels.dtype), levels)


def _equalize(images: Tensor, levels: Tensor, _: Tensor) -> Tensor:
    """The level of each channel that makes all levels equally frequent."""
    pixels = images.flatten(2).long()
    counts = torch.zeros(*pixels.shape[:2], TOP + 1, dtype=torch.long, device=images.device)
    counts = counts.scatter_add(2, pixels, torch.ones_like(pixels))
    lightest = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - lightest) // TOP
    below = counts.cumsum(2) - counts
    spread = ((step // 2 + below) // step.clamp_min(1)).clamp_max(TOP)
    return torch.where(step > 0, spread.to(levels.dtype), levels)


def _posterize(images: Tensor, levels: Tensor, bits: Tensor) -> Tensor:
    """The `bits` highest bits of each level."""
    step = torch.exp2(8 - bits).round()
    return (levels / step).floor() * step


# By timm's names: images from images and their arguments `(B, 1, 1, 1)`.
BLENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Color": lambda images, factor: _blend(_gray(images), images, factor),
    "Sharpness": lambda images, factor: _blend(_smooth(images), images, factor),
}
# Tables `(B, 3 or 1, 256)` from images, the unchanged table `(1, 1, 256)`, and arguments `(B, 1, 1)`.
TABLES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
    "Invert": lambda images, levels, _: TOP - levels,
    "Posterize": _posterize,
    "Solarize": lambda images, levels, threshold: torch.where(levels < threshold, levels, TOP - levels),
    "SolarizeAdd": lambda images, levels, added: torch.where(levels < 128, (levels + added).clamp_max(TOP), levels),
    "Contrast": lambda images, levels, factor: _blend(_mean_gray(images), levels, factor),
    "Brightness": lambda images, levels, factor: _blend(0, levels, factor),
}


def apply_tables(images: Tensor, number: Tensor, argument: Tensor) -> Tensor:
    """Each image through the table of its operation, which is one of `TABLES` by number."""
    levels = torch.arange(TOP + 1, device=images.device).to(images.dtype).view(1, 1, -1)
    number, argument, table = number.view(-1, 1, 1), argument.view(-1, 1, 1), levels
    for own, make in enumerate(TABLES.values()):
        table = torch.where(number == own, make(images, levels, argument), table)
    return table.expand(len(images), images.shape[1], -1).gather(2, images.flatten(2).long()).view_as(images)
