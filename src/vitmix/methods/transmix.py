"""TransMix: Attend to Mix for Vision Transformers (Chen et al., CVPR 2022).

Deviation: if the classifier reads no class token, the column mean replaces the class row.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.masks import BoxMask, Per
from vitmix.parts.shares import AttentionShare

__all__ = ["transmix"]


def transmix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    per: Per = "batch",
    blend: float = 0.5,
    block: int = -1,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """TransMix: pastes a CutMix box; the label is the mean of area and the class token's attention to the box.

    Args:
        alpha: parameter of the Beta distribution of the box's area.
        per: "batch" draws once per batch, "sample" once per image.
        blend: weight of attention in the label; the rest is area.
        block: the block whose attention is read.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=BoxMask(alpha, per), share=AttentionShare(blend, block), **common)
