"""SaliencyMix: A Saliency Guided Data Augmentation Strategy for Better Regularization (Uddin et al., ICLR 2021).

Deviations: saliency is computed from pixels. The released programs hand OpenCV floating-point numbers, of which it
reads single bytes, so their boxes have centers unrelated to saliency. Each image has a box at the peak of its own
partner, as in the paper; `per="batch"` has one box for the batch, as released.
"""

from typing import Literal, Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.masks import Per
from vitmix.parts.peak import PeakMask

__all__ = ["saliencymix"]


def saliencymix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    per: Per = "sample",
    order: Literal["rgb", "bgr"] = "rgb",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """SaliencyMix: pastes a box around the most salient pixel of the partner; labels by area.

    Args:
        alpha: parameter of the Beta distribution of the area; 1 is uniform.
        per: "sample" places each box at the peak of its partner, "batch" all at that of the first image's partner.
        order: order of the channels, "rgb" or "bgr", for the gray levels.
        mean, std: with which images that are not uint8 were normalized (default: as configured, or else ImageNet's).
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=PeakMask(alpha, per, order, mean, std), **common)
