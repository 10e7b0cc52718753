"""GridMix as OpenMixup has it, after GridMixup (Dobrynin): holes at equal distances inside a crop.

Deviations: a crop that is larger than the image is cut to it; in OpenMixup such holes wrap around or vanish.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.lattice import LatticeMask

__all__ = ["gridmix"]


def gridmix(
    num_classes: int, *, alpha: float = 1.0, least: int = 2, most: int = 6, **common: Unpack[CommonWithLoss]
) -> Mixer:
    """GridMix: pastes square holes at equal distances inside a random crop; labels by area.

    Args:
        alpha: parameter of the Beta distribution of the holes' part of the crop; 1 is uniform.
        least, most: range of the number of holes per crop width.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=LatticeMask(alpha, least, most), **common)
