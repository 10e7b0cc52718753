"""TransMix: Attend to Mix for Vision Transformers (Chen et al., CVPR 2022).

Deviation: on models whose classifier reads no class token, the column mean takes the place of the class row.
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
    """TransMix: a CutMix box, labels half by its area and half by the class token's attention to it.

    Args:
        alpha: of the Beta distribution that the box's area follows.
        per: "batch" draws once for the whole batch, "sample" for each image.
        blend: weight of the attention in the label; the rest is the area's.
        block: whose attention is read.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=BoxMask(alpha, per), share=AttentionShare(blend, block), **common)
