"""Predictions of whole images by a model of a fixed input size: overlapping windows, averaged."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_WINDOWS = 16  # in one forward pass, unless a single image has more
Size = tuple[int, int]


class ImageWindows(NamedTuple):
    """The windows `(n, 3, h, w)` of an image, where each begins, and the size of the image that they cover."""

    pixels: Tensor
    places: list[Size]
    covered: Size


def predict(model: nn.Module, images: Sequence[Tensor], size: Size, shapes: Sequence[Size]) -> Iterator[Tensor]:
    """For each image `(3, H, W)` its logits `(K, *shape)`.

    An image is resized until it just covers the input size. Windows of that size, with a stride of at most two thirds
    of it, cover the image; where they overlap, logits are averaged.
    """
    waiting: list[tuple[ImageWindows, Size]] = []
    for image, shape in zip(images, shapes, strict=True):
        windows = cut(image, size)
        if waiting and sum(len(each.pixels) for each, _ in waiting) + len(windows.pixels) > MOST_WINDOWS:
            yield from _predicted(model, waiting)
            waiting = []
        waiting.append((windows, shape))
    yield from _predicted(model, waiting)


def cut(image: Tensor, size: Size) -> ImageWindows:
    """The windows of an image."""
    height, width = image.shape[-2:]
    factor = max(size[0] / height, size[1] / width)
    covered = (max(size[0], round(height * factor)), max(size[1], round(width * factor)))
    if covered != (height, width):
        image = functional.interpolate(image[None], covered, mode="bilinear", align_corners=False, antialias=True)[0]
    places = [(top, left) for top in starts(covered[0], size[0]) for left in starts(covered[1], size[1])]
    pixels = [image[:, top : top + size[0], left : left + size[1]] for top, left in places]
    return ImageWindows(torch.stack(pixels), places, covered)


def starts(length: int, window: int) -> list[int]:
    """Where windows begin that cover a length, evenly, with a stride of at most two thirds of a window."""
    count = 1 + -(-(length - window) * 3 // (2 * window))
    return [round(number * (length - window) / max(count - 1, 1)) for number in range(count)]


def _predicted(model: nn.Module, waiting: Sequence[tuple[ImageWindows, Size]]) -> Iterator[Tensor]:
    if not waiting:
        return
    logits = model(torch.cat([windows.pixels for windows, _ in waiting])).float()
    for (windows, shape), own in zip(waiting, logits.split([len(each.pixels) for each, _ in waiting]), strict=True):
        whole = own[0] if len(own) == 1 else _averaged(own, windows)
        if tuple(whole.shape[-2:]) != shape:
            whole = functional.interpolate(whole[None], shape, mode="bilinear", align_corners=False)[0]
        yield whole


def _averaged(logits: Tensor, windows: ImageWindows) -> Tensor:
    height, width = logits.shape[-2:]
    total, times = logits.new_zeros(logits.shape[1], *windows.covered), logits.new_zeros(windows.covered)
    for (top, left), each in zip(windows.places, logits, strict=True):
        total[:, top : top + height, left : left + width] += each
        times[top : top + height, left : left + width] += 1
    return total / times
