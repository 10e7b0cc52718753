"""FMix: Enhancing Mixed Sample Data Augmentation (Harris et al., 2020).

Deviations: the spectrum takes real and imaginary parts from the two numbers of each frequency; the released code takes
them from the first two rows of frequencies. The share is the mean of the mask, not the drawn number.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.fourier import FourierMask
from vitmix.parts.masks import Per

__all__ = ["fmix"]


def fmix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    decay: float = 3.0,
    max_soft: float = 0.0,
    per: Per = "batch",
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """FMix: pastes irregular regions, by a threshold on low-frequency noise; labels by area.

    Args:
        alpha: parameter of the Beta distribution of the area; 1 is uniform.
        decay: how fast amplitudes fall with frequency; large values give few, smooth regions.
        max_soft: blends up to this part of the pixels on each side of the border.
        per: "batch" draws once per batch, "sample" once per image.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=FourierMask(alpha, decay, max_soft, per), **common)
