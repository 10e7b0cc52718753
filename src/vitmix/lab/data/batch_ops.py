"""Pillow's operations on a whole batch at once, each sample with its own settings.

Images are float tensors `(B, 3, H, W)` of whole numbers in 0..255; results are rounded as Pillow rounds. Nothing here
waits for the device, indexes by a condition or has a shape that depends on values, so all of it can be compiled.

`cubic` chooses bicubic or bilinear interpolation for all samples, or per sample where it is a `(B,)` tensor.
With `levels=False`, values are any numbers, such as those of an activation map, and are not rounded.

Operations that treat each pixel alone are tables of 256 levels, one per sample and channel, as they are in Pillow.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from .augment import per_channel

LEVELS = 256
Cubic = bool | Tensor


def resized_crop(
    images: Tensor, crop: Tensor, flipped: Tensor, size: tuple[int, int], *, cubic: Cubic, levels: bool = True
) -> Tensor:
    """Cropped, scaled to `size` with `Image.resize`'s filter (which smooths when it shrinks), and flipped where asked.

    Args:
        crop: `(B, 4)` top, left, height and width of the part to keep.
        flipped: `(B,)` 1 for a horizontal flip.
    """
    top, left, height, width = crop.unbind(1)
    rows = _resize_weights(top, height, images.shape[2], size[0], cubic=cubic)
    columns = _resize_weights(left, width, images.shape[3], size[1], cubic=cubic)
    return _apply_weights(images, rows, columns, flipped, levels=levels)


def shifted_crop(
    images: Tensor, crop: Tensor, flipped: Tensor, size: tuple[int, int], *, levels: bool = True
) -> Tensor:
    """The part that starts at `crop`'s (top, left), which may lie outside; outside the image is black."""
    top, left = crop.unbind(1)[:2]
    rows = _shift_weights(top, images.shape[2], size[0]).to(images.dtype)
    columns = _shift_weights(left, images.shape[3], size[1]).to(images.dtype)
    return _apply_weights(images, rows, columns, flipped, levels=levels)


def _resize_weights(start: Tensor, length: Tensor, source: int, target: int, *, cubic: Cubic) -> Tensor:
    """`(B, target, source)`: the weight of each source pixel in each target pixel."""
    step = (length / target).view(-1, 1, 1)
    spread = step.clamp_min(1)
    place = torch.arange(source, device=start.device) + 0.5 - start.view(-1, 1, 1)
    center = (torch.arange(target, device=start.device) + 0.5).view(1, -1, 1) * step
    distance = ((place - center) / spread).abs()
    weights = _choose(cubic, lambda: _cubic_filter(distance), lambda: (1 - distance).clamp_min(0))
    inside = (place > 0) & (place < length.view(-1, 1, 1))  # Pillow crops first: pixels outside the crop have no weight
    weights = torch.where(inside, weights, 0)
    return weights / weights.sum(2, keepdim=True)


def _cubic_filter(distance: Tensor) -> Tensor:
    """Keys' filter with a = -1/2, which `Image.resize` uses."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))


def _choose(cubic: Cubic, if_cubic: Callable[[], Tensor], if_linear: Callable[[], Tensor]) -> Tensor:
    if isinstance(cubic, bool):
        return if_cubic() if cubic else if_linear()
    first = if_cubic()
    return torch.where(cubic.view(-1, *[1] * (first.ndim - 1)) > 0, first, if_linear())


def _shift_weights(start: Tensor, source: int, target: int) -> Tensor:
    place = torch.arange(target, device=start.device).view(1, -1, 1) + start.view(-1, 1, 1)
    return place == torch.arange(source, device=start.device)


def _apply_weights(images: Tensor, rows: Tensor, columns: Tensor, flipped: Tensor, *, levels: bool) -> Tensor:
    """Columns first and in whole levels in between, as in Pillow; newer versions may begin with rows that shrink."""
    columns = torch.where(flipped.view(-1, 1, 1) > 0, columns.flip(1), columns)
    narrowed = images @ columns.transpose(1, 2).unsqueeze(1)
    if not levels:
        return rows.unsqueeze(1) @ narrowed
    return _to_level(rows.unsqueeze(1) @ _to_level(narrowed))


def _to_level(values: Tensor) -> Tensor:
    return (values + 0.5).floor().clamp(0, LEVELS - 1)


def affine(images: Tensor, matrix: Tensor, fill: tuple[int, ...], *, cubic: Cubic, levels: bool = True) -> Tensor:
    """`Image.transform` with six numbers per sample, which map a place in the result to one in the source."""
    count, channels, height, width = images.shape
    a, b, c, d, e, f = matrix.view(count, 6, 1, 1).unbind(1)
    column = torch.arange(width, device=images.device) + 0.5
    row = (torch.arange(height, device=images.device) + 0.5).unsqueeze(1)
    x, y = a * column + b * row + c, d * column + e * row + f
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = (x - 0.5 - left).unsqueeze(1), (y - 0.5 - top).unsqueeze(1)
    pixels = images.flatten(2)
    taps = (0, 1) if cubic is False else (-1, 0, 1, 2)

    def tap(row_step: int, column_step: int) -> Tensor:
        near_row = (top + row_step).clamp(0, height - 1)
        near_column = (left + column_step).clamp(0, width - 1)
        place = (near_row * width + near_column).long().view(count, 1, -1).expand(-1, channels, -1)
        return pixels.gather(2, place).view_as(images)

    lines = [_between([tap(row_step, column_step) for column_step in taps], across, cubic) for row_step in taps]
    values = _between(lines, down, cubic)
    values = values.clamp(0, LEVELS - 1).floor() if levels else values
    return torch.where(inside.unsqueeze(1), values, per_channel(fill, images.device))


def _between(values: list[Tensor], part: Tensor, cubic: Cubic) -> Tensor:
    return _choose(cubic, lambda: _cubic_between(values, part), lambda: _linear_between(values, part))


def _linear_between(values: list[Tensor], part: Tensor) -> Tensor:
    first, second = values if len(values) == 2 else values[1:3]
    return first + (second - first) * part


def _cubic_between(values: list[Tensor], part: Tensor) -> Tensor:
    """Keys' filter with a = -1, which `Image.transform` uses. Of differences, so that a plain area stays unchanged."""
    before, first, second, after = values
    slope = second - before
    bend = 2 * (before - first) + second - after
    twist = first - before + after - second
    return first + part * (slope + part * (bend + part * twist))


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """`Image.blend`: `base` at factor 0, `images` at 1, extrapolated beyond."""
    return (base + factor * (images - base)).clamp(0, LEVELS - 1).floor()


def gray(images: Tensor) -> Tensor:
    """`(B, 1, H, W)` brightness, as `convert("L")` computes it."""
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).unsqueeze(1).to(images.dtype)


def color(images: Tensor, factor: Tensor) -> Tensor:
    return blend(gray(images), images, _per_sample(factor))


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Against a smoothed image; Pillow's smoothing leaves the outermost pixels unchanged."""
    height, width = images.shape[2:]
    lines = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    sums = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:] + 4 * images[:, :, 1:-1, 1:-1]
    row = torch.arange(height, device=images.device).unsqueeze(1)
    column = torch.arange(width, device=images.device)
    inner = (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    smooth = torch.where(inner, pad((sums / 13 + 0.5).floor(), (1, 1, 1, 1)), images)
    return blend(smooth, images, _per_sample(factor))


def apply_table(images: Tensor, table: Tensor) -> Tensor:
    """Each level replaced by its entry in the table `(B, 3 or 1, 256)` of its sample and channel."""
    table = table.to(images.dtype).expand(-1, images.shape[1], -1)
    return table.gather(2, images.flatten(2).long()).view_as(images)


def brightness_table(factor: Tensor) -> Tensor:
    levels = _levels(factor)
    return blend(torch.zeros_like(levels), levels, factor.view(-1, 1, 1))


def contrast_table(images: Tensor, factor: Tensor) -> Tensor:
    """Against the mean brightness of the image."""
    count = images.shape[2] * images.shape[3]
    total = gray(images).long().sum((1, 2, 3))
    mean = (2 * total + count) // (2 * count)  # rounded
    return blend(mean.to(factor.dtype).view(-1, 1, 1), _levels(factor), factor.view(-1, 1, 1))


def invert_table(like: Tensor) -> Tensor:
    return LEVELS - 1 - _levels(like)


def posterize_table(bits: Tensor) -> Tensor:
    """The `bits` highest bits of each level."""
    step = torch.exp2(8 - bits).round().view(-1, 1, 1)
    return (_levels(bits) / step).floor() * step


def solarize_table(threshold: Tensor) -> Tensor:
    levels = _levels(threshold)
    return torch.where(levels < threshold.view(-1, 1, 1), levels, LEVELS - 1 - levels)


def solarize_add_table(amount: Tensor) -> Tensor:
    levels = _levels(amount)
    return torch.where(levels < 128, (levels + amount.view(-1, 1, 1)).clamp_max(LEVELS - 1), levels)


def autocontrast_table(images: Tensor) -> Tensor:
    """Darkest level of each channel to 0, lightest to 255."""
    # Pillow truncates a product that is often nearly a whole number, so the rounding must be the same.
    exact = torch.float32 if images.device.type == "mps" else torch.float64
    dark, light = images.amin((2, 3)).to(exact).unsqueeze(2), images.amax((2, 3)).to(exact).unsqueeze(2)
    levels = torch.arange(LEVELS, device=images.device).to(exact)
    scale = torch.full_like(dark, LEVELS - 1) / (light - dark).clamp_min(1)  # a plain 255 / x is 255 * (1 / x) in torch
    stretched = (levels * scale + -dark * scale).trunc().clamp(0, LEVELS - 1)
    return torch.where(light > dark, stretched, levels).to(images.dtype)


def equalize_table(images: Tensor) -> Tensor:
    """The level of each channel that makes all levels equally frequent."""
    pixels = images.flatten(2).long()
    counts = torch.zeros(*pixels.shape[:2], LEVELS, dtype=torch.long, device=images.device)
    counts = counts.scatter_add(2, pixels, torch.ones_like(pixels))
    lightest = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - lightest) // (LEVELS - 1)
    below = counts.cumsum(2) - counts
    spread = ((step // 2 + below) // step.clamp_min(1)).clamp_max(LEVELS - 1)
    return torch.where(step > 0, spread.to(images.dtype), _levels(images[:, 0, 0, 0]))


def _levels(like: Tensor) -> Tensor:
    """`(B, 1, 256)`: the table that changes nothing."""
    return torch.arange(LEVELS, device=like.device).to(like.dtype).expand(len(like), 1, LEVELS)


def _per_sample(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
