"""DecoupleMix: Harnessing Hard Mixed Samples with Decoupled Regularizer (Liu et al., NeurIPS 2023).

Deviations: with `scaled=True`, the weights follow the images; the released code hands them out in the order of the
classes. The regularizer stays at a share of one half, where the released code drops it.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.decoupled import DecoupledLoss
from vitmix.parts.masks import BoxMask, Per

__all__ = ["decouplemix"]


def decouplemix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    per: Per = "batch",
    weight: float = 0.1,
    scaled: bool = False,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """DecoupleMix: CutMix with a regularizer that keeps the two classes of an image from competing.

    Args:
        alpha: parameter of the Beta distribution of the box's area.
        per: "batch" draws once per batch, "sample" once per image.
        weight: weight of the regularizer (the paper's eta).
        scaled: weights its two terms by the two parts of the target.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=BoxMask(alpha, per), extra=(DecoupledLoss(weight, scaled),), **common)
