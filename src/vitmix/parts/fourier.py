"""Masks from low-frequency noise: FMix."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitmix._checks import check_choice, check_fraction, check_not_negative, check_positive
from vitmix._mix import Frame, Grid
from vitmix._registry import register
from vitmix.parts.base import Mask, Paste, Unmixed, Values
from vitmix.parts.masks import Per, beta_share

__all__ = ["FourierMask", "low_frequency_image", "ranked_mask"]


def low_frequency_image(normals: Tensor, size: Grid, *, decay: float = 3.0) -> Tensor:
    """Gray images `(b, H, W)` in 0..1 whose amplitudes fall with frequency.

    The spectrum is `max(f, 1 / max(H, W)) ** -decay` times complex noise.

    Args:
        normals: `(b, H, W // 2 + 1, 2)` standard normal numbers, the real and imaginary parts of the noise.
    """
    height, width = size
    rows = torch.fft.fftfreq(height, dtype=normals.dtype)
    columns = torch.fft.rfftfreq(width, dtype=normals.dtype)
    frequency = (rows.square().unsqueeze(1) + columns.square()).sqrt()
    amplitude = frequency.clamp_min(1 / max(size)) ** -decay
    image = torch.fft.irfft2(amplitude * torch.view_as_complex(normals.contiguous()), s=size)
    low, high = image.amin((1, 2), keepdim=True), image.amax((1, 2), keepdim=True)
    return (image - low) / (high - low).clamp_min(torch.finfo(image.dtype).tiny)


def ranked_mask(image: Tensor, share: Tensor, up: Tensor, *, max_soft: float = 0.0) -> Tensor:
    """The partner's part `(b, H, W)` of each pixel: the brightest pixels of `image` `(b, H, W)` stay original.

    Args:
        share: `(b,)` the partner's part of the area.
        up: `(b,)` bool, whether the number of original pixels is rounded up.
        max_soft: the mask falls linearly, in the order of brightness, over up to this part of the pixels on each side
            of the border.
    """
    pixels = image[0].numel()
    own = (1 - share) * pixels
    kept = torch.where(up, own.ceil(), own.floor())
    if max_soft == 0:
        return image < _darkest_kept(image, kept).view(-1, 1, 1)
    rank = image.flatten(1).argsort(dim=1, descending=True).argsort(dim=1).to(share.dtype)
    soft = torch.minimum(torch.minimum(share, 1 - share), torch.full_like(share, max_soft))
    band = (soft * pixels).floor()
    first = (kept - band).clamp_min(0).unsqueeze(1)
    last = (kept + band).clamp_max(pixels).unsqueeze(1)  # of a band of `last - first` pixels
    falling = ((rank - first) / (last - first - 1).clamp_min(1)).clamp_min(0)
    return torch.where(rank < last, falling, 1).view(image.shape)


def _darkest_kept(image: Tensor, kept: Tensor) -> Tensor:
    """The brightness `(b,)` of the last of `kept` `(b,)` brightest pixels; selection is faster than sorting."""
    counts = (image[0].numel() - kept + 1).long().tolist()
    found = [
        each.flatten().kthvalue(count).values if count <= each.numel() else each.new_tensor(float("inf"))
        for each, count in zip(image, counts, strict=True)
    ]
    return torch.stack(found)


@register
@dataclass(frozen=True)
class FourierMask(Mask):
    """A threshold of low-frequency noise, with an area from Beta(alpha, alpha): FMix.

    Args:
        alpha: parameter of the Beta distribution; 1 is uniform.
        decay: how fast amplitudes fall with frequency; large values give few, smooth regions.
        max_soft: blends up to this part of the pixels on each side of the border.
        per: "batch" draws once per batch, "sample" once per image.
    """

    name: ClassVar[str] = "fourier"
    alpha: float = 1.0
    decay: float = 3.0
    max_soft: float = 0.0
    per: Per = "batch"

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_not_negative("decay", self.decay)
        check_fraction("max_soft", self.max_soft)
        check_choice("per", self.per, ("batch", "sample"))

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        count, (height, width) = 1 if self.per == "batch" else frame.batch, frame.size
        share = beta_share(count, self.alpha, generator=generator)
        normals = torch.randn(count, height, width // 2 + 1, 2, generator=generator, dtype=torch.float64)
        up = torch.rand(count, generator=generator) < 0.5
        image = low_frequency_image(normals, frame.size, decay=self.decay)
        mask = ranked_mask(image, share, up, max_soft=self.max_soft)
        return {"mask": mask.float() if self.max_soft else mask}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(values["mask"])
