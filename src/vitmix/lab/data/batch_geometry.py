"""Pillow's geometric operations on a whole batch at once, each sample with its own settings.

Images are float tensors `(B, 3, H, W)` of whole numbers in 0..255; results are rounded as Pillow rounds. Nothing here
waits for the device, indexes by a condition or has a shape that depends on values, so all of it can be compiled.

`cubic` chooses bicubic or bilinear interpolation for all samples, or per sample where it is a `(B,)` tensor.
With `levels=False`, values may be any numbers, such as an activation map, and are not rounded.
"""

from collections.abc import Callable

import torch
from torch import Tensor

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
    first, second = values if len(values) == 2 else values[1:3]
    return _choose(cubic, lambda: _cubic_between(values, part), lambda: first + (second - first) * part)


def _cubic_between(values: list[Tensor], part: Tensor) -> Tensor:
    """Keys' filter with a = -1, which `Image.transform` uses. From differences, so that constants stay."""
    before, first, second, after = values
    slope = second - before
    bend = 2 * (before - first) + second - after
    twist = first - before + after - second
    return first + part * (slope + part * (bend + part * twist))
