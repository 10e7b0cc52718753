"""ResizeMix: Mixing Data with Preserved Object Information and True Labels (Qin et al., 2020).

Deviations: none with `interpolation="nearest"`. "bilinear" filters the image first, which the released code does not.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.resized import Interpolation, ResizedMask

__all__ = ["resizemix"]


def resizemix(
    num_classes: int,
    *,
    low: float = 0.1,
    high: float = 0.8,
    interpolation: Interpolation = "nearest",
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """ResizeMix: pastes the whole partner, reduced to a box inside the image; labels by area.

    Args:
        low, high: range of the scale, one per batch; each image has its own position.
        interpolation: "nearest", as in the authors' code, or "bilinear" with a low-pass filter.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=ResizedMask(low, high, interpolation), **common)
