"""TL-Align: Token-Label Alignment for Vision Transformers (Xiao et al., ICCV 2023).

Deviation: boxes are drawn on pixels, as the paper describes CutMix; `aligned=True` draws them on the token grid, as the
released program does. One number per token is carried instead of a row of K classes; the two are equal because
attention rows sum to one.
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
    """TL-Align: a CutMix box, labels carried through every block by its attention.

    Args:
        alpha: of the Beta distribution that the box's area follows.
        per: "batch" draws once for the whole batch, "sample" for each image.
        aligned: draws the box on the token grid, as the released program does, instead of on pixels.
        blocks: limits the alignment to these blocks; the others pass shares on unchanged.
        normalize: averages carried shares with those of the residual connection.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=BoxMask(alpha, per, aligned), share=AlignedShare(blocks, normalize), **common)
