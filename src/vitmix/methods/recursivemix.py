"""RecursiveMix: Mixing with History (Yang et al., NeurIPS 2022).

Deviations: the history goes on over epochs. The feature map of a transformer is the grid of its final patch tokens.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.history import HistoryLoss, HistoryMask
from vitmix.parts.resized import Interpolation

__all__ = ["recursivemix"]


def recursivemix(
    num_classes: int,
    *,
    most: float = 0.5,
    interpolation: Interpolation = "nearest",
    weight: float = 0.5,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """RecursiveMix: pastes the mixed image of the previous step, reduced into a box, and recognizes it there.

    Args:
        most: the area is drawn from 0 to this part of the image.
        interpolation: "nearest", as in the authors' code, or "bilinear" with a low-pass filter.
        weight: weight of the loss of the box.
        common: `smoothing`, `pairing` (not used) and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=HistoryMask(most, interpolation), extra=(HistoryLoss(weight),), **common)
