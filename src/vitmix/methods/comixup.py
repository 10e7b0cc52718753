"""Co-Mixup: Saliency Guided Joint Mixup with Supermodular Diversity (Kim et al., ICLR 2021).

Deviations: labelings are optimal, in float64; the released solver is approximate in float32. The threshold acts on the
use of an image and those like it; the released code applies it before they are added, which is the same for small
`omega`. The saliency pass is in evaluation mode and gives no gradient; the released code also trains on it.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.joint import JointMask

__all__ = ["comixup"]


def comixup(
    num_classes: int,
    *,
    alpha: float = 2.0,
    blocks: int = 4,
    group: int = 20,
    beta: float = 0.32,
    gamma: float = 1.0,
    threshold: float = 0.83,
    eta: float = 0.05,
    omega: float = 0.001,
    rounds: int = 4,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """Co-Mixup: chooses blocks of all images of a group jointly, salient and unlike each other; labels by area.

    Args:
        alpha: the weights that the prior gives to the images of a group are drawn from Dirichlet(alpha).
        blocks: number of blocks per side.
        group: number of images that are mixed with each other.
        beta: weight of neighboring blocks of different images.
        gamma: weight of images that several mixed images show.
        threshold: part of an image up to which its use by others costs nothing.
        eta: weight of the prior.
        omega: how much images with salient parts in different places count as alike.
        rounds: maximum number of times that each mixed image is relabeled.
        common: `smoothing`, `pairing` (not used) and `loss` of `Mixer`.
    """
    settings = (alpha, blocks, group, beta, gamma, threshold, eta, omega, rounds)
    return Mixer(num_classes, mask=JointMask(*settings), **common)
