"""The augmentation of `joint_transform` for a batch on its device: images and label maps of one size.

Every sample has its own numbers, drawn on the host. Images are resized by a product with two matrices, which is exactly
torchvision's bilinear filter with anti-aliasing; label maps by the nearest pixel. Torchvision rounds images to whole
levels after each step; here they stay fractions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitmix.lab.data.augment import per_channel
from vitmix.lab.dense.config import DenseAugmentation
from vitmix.lab.dense.task import Sides

GRAY = (0.2989, 0.587, 0.114)  # torchvision's weights of the channels
FACTORS = {"brightness": (0.875, 1.125), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5), "hue": (-0.05, 0.05)}
PERMUTATIONS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
# Columns of the numbers: rows and columns of the resized image, where the crop begins in it, and whether to flip; then
# the factors in the order above, whether contrast comes first, and the order of the channels.
HEIGHT, WIDTH, TOP, LEFT, FLIP, COLORS, FIRST, ORDER = 0, 1, 2, 3, 4, 5, 9, 10
UNIFORM = 4 + 2 * len(FACTORS) + 3  # random numbers of a sample


def draw_numbers(uniform: Tensor, settings: DenseAugmentation, source: tuple[int, int], sides: Sides) -> Tensor:
    """The numbers `(B, 11)` of samples from `(B, UNIFORM)` random ones in 0..1."""
    low, high = settings.jitter
    ratio = min(sides.size[0] / source[0], sides.size[1] / source[1])
    factor = ratio * (low + (high - low) * uniform[:, 0])
    columns = [(side * factor).floor().clamp_min(1) for side in source]
    for side, resized, place in zip(sides.size, tuple(columns), (1, 2), strict=True):
        room = resized - side  # negative where the image is smaller: it then lies anywhere within the crop
        columns.append((uniform[:, place] * (room.abs() + 1)).floor() + room.clamp_max(0))
    columns.append((uniform[:, 3] < settings.hflip).double())
    place = 4
    for name, (low, high) in FACTORS.items():
        drawn, none = low + (high - low) * uniform[:, place + 1], 0.0 if name == "hue" else 1.0
        columns.append(torch.where((uniform[:, place] < 0.5) & settings.distortion, drawn, none))
        place += 2
    columns.append((uniform[:, place] < 0.5).double())
    order = (uniform[:, place + 2] * len(PERMUTATIONS)).floor()
    columns.append(torch.where((uniform[:, place + 1] < 0.5) & settings.distortion, order, 0.0))
    return torch.stack(columns, dim=1).float()


def augment_dense(images: Tensor, maps: Tensor, numbers: Tensor, sides: Sides, padding: int) -> tuple[Tensor, Tensor]:
    """Normalized images `(B, 3, H, W)` and label maps `(B, H, W)` from uint8 images and whole-number maps."""
    mean, std = (per_channel(each, images.device) for each in (sides.mean, sides.std))
    moved, seen = _resized_crop(images.float() / 255, numbers, sides.size)
    moved = moved + (1 - seen) * (mean * 255).round() / 255  # as torchvision pads: with whole levels
    return (_distorted(moved, numbers) - mean) / std, _nearest_crop(maps, numbers, sides.size, padding)


# Places


def _resized_crop(images: Tensor, numbers: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The images within the crop, zero outside; and `(B, 1, H, W)` 1 within."""
    rows = _weights(numbers[:, HEIGHT], numbers[:, TOP], images.shape[2], size[0])
    columns = _weights(numbers[:, WIDTH], numbers[:, LEFT], images.shape[3], size[1])
    columns = torch.where(numbers[:, FLIP].view(-1, 1, 1) > 0, columns.flip(1), columns)
    moved = rows.unsqueeze(1) @ (images @ columns.transpose(1, 2).unsqueeze(1))
    seen = (rows.sum(2) > 0).unsqueeze(2) & (columns.sum(2) > 0).unsqueeze(1)
    return moved, seen.unsqueeze(1).to(images.dtype)


def _weights(length: Tensor, start: Tensor, source: int, target: int) -> Tensor:
    """`(B, target, source)`: the weight of each pixel of the image in each of the crop; all zero outside the image."""
    length, start = length.view(-1, 1, 1), start.view(-1, 1, 1)
    step = source / length
    place = torch.arange(target, device=length.device).view(1, -1, 1) + start
    center, pixel = (place + 0.5) * step, torch.arange(source, device=length.device) + 0.5
    weights = (1 - ((pixel - center) / step.clamp_min(1)).abs()).clamp_min(0)
    weights = weights / weights.sum(2, keepdim=True).clamp_min(1e-6)
    return torch.where((place >= 0) & (place < length), weights, 0)


def _nearest_crop(maps: Tensor, numbers: Tensor, size: tuple[int, int], padding: int) -> Tensor:
    down, seen_down = _nearest(numbers[:, HEIGHT], numbers[:, TOP], maps.shape[1], size[0])
    across, seen_across = _nearest(numbers[:, WIDTH], numbers[:, LEFT], maps.shape[2], size[1])
    flipped = numbers[:, FLIP].view(-1, 1) > 0
    across, seen_across = (torch.where(flipped, each.flip(1), each) for each in (across, seen_across))
    found = maps.gather(1, down.unsqueeze(2).expand(-1, -1, maps.shape[2]))
    found = found.gather(2, across.unsqueeze(1).expand(-1, size[0], -1))
    return found.masked_fill(~(seen_down.unsqueeze(2) & seen_across.unsqueeze(1)), padding)


def _nearest(length: Tensor, start: Tensor, source: int, target: int) -> tuple[Tensor, Tensor]:
    """`(B, target)`: the nearest pixel of the image, and whether there is one."""
    place = torch.arange(target, device=length.device) + start.unsqueeze(1)
    nearest = (place * (source / length.unsqueeze(1))).floor().clamp(0, source - 1)
    return nearest.long(), (place >= 0) & (place < length.unsqueeze(1))


# Colors, in 0..1


def _distorted(images: Tensor, numbers: Tensor) -> Tensor:
    brightness, contrast, saturation, hue = numbers[:, COLORS:FIRST].view(-1, 4, 1, 1, 1).unbind(1)
    first = numbers[:, FIRST].view(-1, 1, 1, 1) > 0
    images = (images * brightness).clamp(0, 1)
    images = torch.where(first, _contrasted(images, contrast), images)
    images = _blend(_gray(images), images, saturation)
    images = torch.where(hue != 0, _hue_shifted(images, hue.squeeze(1)), images)
    images = torch.where(first, images, _contrasted(images, contrast))
    orders = torch.stack([_order(each, images.device) for each in PERMUTATIONS])
    order = orders[numbers[:, ORDER].long()].view(-1, 3, 1, 1)
    return images.gather(1, order.expand_as(images))


def _order(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.stack([torch.full((), value, dtype=torch.long, device=device) for value in values])


def _gray(images: Tensor) -> Tensor:
    return (images * per_channel(GRAY, images.device)).sum(1, keepdim=True)


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    return (base + factor * (images - base)).clamp(0, 1)


def _contrasted(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(_gray(images).mean((2, 3), keepdim=True), images, factor)


def _hue_shifted(images: Tensor, shift: Tensor) -> Tensor:
    """The hue turned by `(B, 1, 1)` of a whole turn."""
    red, green, blue = images.unbind(1)
    value, least = images.amax(1), images.amin(1)
    spread = value - least
    safe = torch.where(spread > 0, spread, 1)
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = sixths + 6 * shift

    def channel(offset: int) -> Tensor:
        place = torch.remainder(sixths + offset, 6)
        return value - spread * torch.minimum(place, 4 - place).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim=1)
