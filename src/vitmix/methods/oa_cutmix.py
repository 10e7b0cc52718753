"""OA-CutMix: object-aware labels for CutMix (tobna/oa-cutmix, 2026).

Deviations: where no object is visible, the label is by area; the released code gives one half to each image.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.masks import BoxMask, Per
from vitmix.parts.objects import ObjectShare

__all__ = ["oa_cutmix"]


def oa_cutmix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    per: Per = "batch",
    relative: float = 0.0,
    blend: float = 1.0,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """OA-CutMix: pastes a CutMix box; labels by how much of each object is visible. Object masks come as `maps`.

    Args:
        alpha: parameter of the Beta distribution of the box's area.
        per: "batch" draws once per batch, "sample" once per image.
        relative: weight of the share of visible fractions of each object; the rest is the share of visible pixels.
        blend: weight of the object share; the rest is area.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=BoxMask(alpha, per), share=ObjectShare(relative, blend), **common)
