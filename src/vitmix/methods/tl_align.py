"""TL-Align: Token-Label Alignment for Vision Transformers (Xiao et al., ICCV 2023).

Deviation: boxes are drawn on pixels, as the paper describes CutMix; `aligned=True` draws them on the token grid, as the
released code does. Each token carries one number instead of a row of K classes, which is equivalent because attention
rows sum to one.
"""

from typing import Literal, Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.masks import BoxMask, Per
from vitmix.parts.shares import AlignedShare

__all__ = ["tl_align"]


def tl_align(
    num_classes: int,
    *,
    alpha: float = 1.0,
    per: Per = "batch",
    aligned: bool = False,
    blocks: tuple[int, ...] | Literal["all"] = "all",
    normalize: bool = True,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """TL-Align: pastes a CutMix box; the attention of every block mixes the per-token labels.

    Args:
        alpha: parameter of the Beta distribution of the box's area.
        per: "batch" draws once per batch, "sample" once per image.
        aligned: draws the box on the token grid, as the released code does, instead of on pixels.
        blocks: aligns at these blocks only; the others do not change shares.
        normalize: averages the shares that attention carries with those of the residual connection.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=BoxMask(alpha, per, aligned), share=AlignedShare(blocks, normalize), **common)
