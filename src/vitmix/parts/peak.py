"""A box around the most salient pixel of the partner: SaliencyMix."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from vitmix._checks import check_choice, check_finite, check_positive
from vitmix._mix import Frame
from vitmix._registry import register
from vitmix.parts.base import Mask, Normalization, Paste, Unmixed, Values
from vitmix.parts.masks import Per, beta_share, box_mask, box_reach, boxes_within

__all__ = ["PeakMask", "fine_grained_saliency", "gray_levels", "saliency_peak"]

SCALES = (12, 24, 48, 28, 56, 112)  # half sides of the surrounds, in pixels
IMAGENET = Normalization()
GRAY = (9798, 19235, 3735)  # 0.299 of red, 0.587 of green, 0.114 of blue, in units of 2 ** -15, as OpenCV has them


def gray_levels(images: Tensor, weights: tuple[int, ...] = GRAY) -> Tensor:
    """Gray levels 0..255 `(B, H, W)`, as whole numbers, of uint8 images `(B, 3, H, W)`."""
    red, green, blue = (weight * channel for weight, channel in zip(weights, images.int().unbind(1), strict=True))
    return (red + green + blue + 2**14) >> 15


def fine_grained_saliency(gray: Tensor) -> Tensor:
    """Saliency levels 0..255 `(B, H, W)` of gray levels `(B, H, W)`: contrast of each pixel with its surround.

    Six surrounds are compared with the twice blurred pixel. Brighter and darker pixels are summed separately, each sum
    is scaled to 255, and the total is scaled to 255.
    """
    gray = _blurred(_blurred(gray))
    integral = functional.pad(gray.cumsum(1, dtype=gray.dtype).cumsum(2, dtype=gray.dtype), (1, 0, 1, 0))
    brighter, darker = torch.zeros_like(gray), torch.zeros_like(gray)
    for reach in SCALES:
        contrast = gray - _surround_mean(gray, integral, reach)
        brighter = brighter + contrast.clamp_min(0).int()
        darker = darker + (-contrast).clamp_min(0).int()
    return _scaled(_scaled(brighter) + _scaled(darker))


def saliency_peak(saliency: Tensor) -> Tensor:
    """Row and column `(B, 2)` of the first maximum of saliency `(B, H, W)`."""
    index = saliency.flatten(1).argmax(1)
    return torch.stack([index // saliency.shape[2], index % saliency.shape[2]], dim=1)


def _blurred(gray: Tensor) -> Tensor:
    """A 3 x 3 binomial blur of whole numbers, rounded, mirrored at the border."""
    row, column = (_mirrored(side, gray.device) for side in gray.shape[1:])
    rows = gray[:, row[:-2]] + 2 * gray + gray[:, row[2:]]
    return (rows[:, :, column[:-2]] + 2 * rows + rows[:, :, column[2:]] + 8) >> 4


def _mirrored(side: int, device: torch.device) -> Tensor:
    """Positions -1..side, mirrored at the first and last pixel."""
    position = torch.arange(-1, side + 1, device=device).abs()
    return torch.minimum(position, 2 * (side - 1) - position).clamp_min(0)


def _surround_mean(gray: Tensor, integral: Tensor, reach: int) -> Tensor:
    """The mean around each pixel: `reach - 1` pixels up and left, `reach` down and right, without the pixel."""
    _, height, width = gray.shape
    row, column = (torch.arange(side, device=gray.device) for side in (height, width))
    top, bottom = (row - reach + 1).clamp_min(0), (row + reach + 1).clamp_max(height)
    left, right = (column - reach + 1).clamp_min(0), (column + reach + 1).clamp_max(width)
    rows = integral.index_select(1, bottom) - integral.index_select(1, top)
    total = rows.index_select(2, right) - rows.index_select(2, left)
    count = (bottom - top).unsqueeze(1) * (right - left) - 1
    return (total - gray).float() / count.clamp_min(1).float()


def _scaled(levels: Tensor) -> Tensor:
    """Levels with a maximum of 255, truncated."""
    return levels * 255 // levels.amax((1, 2), keepdim=True).clamp_min(1)


@register
@dataclass(frozen=True)
class PeakMask(Mask):
    """A box with an area from Beta(alpha, alpha) around the partner's most salient pixel: SaliencyMix.

    Args:
        alpha: parameter of the Beta distribution; 1 is uniform.
        per: "sample" places the box at the peak of each image's partner, "batch" all boxes at the peak of the first
            image's partner. The area is drawn once per batch.
        order: order of the channels, "rgb" or "bgr", for the gray levels.
        mean, std: with which images that are not uint8 were normalized (default: as in the training's or the model's
            configuration, or else ImageNet's).
    """

    name: ClassVar[str] = "peak_box"
    alpha: float = 1.0
    per: Per = "sample"
    order: Literal["rgb", "bgr"] = "rgb"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_choice("per", self.per, ("batch", "sample"))
        check_choice("order", self.order, ("rgb", "bgr"))
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, tuple) or len(value) != 3):
                raise ValueError(f"{name} must be three numbers, for red, green and blue, got {value!r}")
        check_normalization(self.mean, self.std)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {"reach": box_reach(frame.size, beta_share(1, self.alpha, generator=generator))}

    def ahead(self, images: Tensor, normalization: Normalization) -> dict[str, Tensor]:
        return {"peak": saliency_peak(self.saliency(images, normalization))}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        first = batch.partner[:1] if self.per == "batch" else batch.partner
        if "peak" in values:
            center = values["peak"][first]
        else:
            center = saliency_peak(self.saliency(batch.images[first], batch.normalization))
        return Paste(box_mask(boxes_within(center, batch.frame.size, values["reach"]), batch.frame.size))

    def saliency(self, images: Tensor, normalization: Normalization = IMAGENET) -> Tensor:
        """Saliency levels `(B, H, W)` of images `(B, 3, H, W)`."""
        if images.shape[1] != 3:
            raise ValueError(f"a {self.name} mask needs color images (B, 3, H, W), got {tuple(images.shape)}")
        weights = GRAY if self.order == "rgb" else GRAY[::-1]
        mean, std = self.mean or normalization.mean, self.std or normalization.std
        return fine_grained_saliency(gray_levels(_levels(images, mean, std), weights))


def _levels(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    # Numbers instead of tensors, because creating a tensor would make a GPU wait.
    channels = zip(images.detach().float().unbind(1), mean, std, strict=True)
    levels = torch.stack([(channel * wide + center) * 255 for channel, center, wide in channels], dim=1)
    return levels.round().clamp(0, 255).to(torch.uint8)


def check_normalization(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    """Refuses one of the two alone, and deviations that are not positive."""
    if mean is None and std is None:
        return
    if not isinstance(mean, tuple) or not isinstance(std, tuple) or not len(mean) == len(std) > 0:
        raise ValueError(f"mean and std must be one number per channel, or both none, got {mean!r} and {std!r}")
    for center, wide in zip(mean, std, strict=True):
        check_finite("mean", center)
        check_positive("std", wide)
