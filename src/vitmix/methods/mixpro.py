"""MixPro: Data Augmentation with MaskMix and Progressive Attention Labeling for Vision Transformer (Zhao et al., 2023).

Deviations: the area counts visible tokens, also where cells are cut at the border. Each image keeps at least one cell
and gets at least one. The share is a constant: no gradient through the similarity.
"""

from typing import Unpack

from vitmix._mix import Grid
from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.progressive import CellMask, ProgressiveShare

__all__ = ["mixpro"]


def mixpro(
    num_classes: int,
    *,
    alpha: float = 1.0,
    tokens: int = 4,
    clamp: bool = True,
    grid: Grid | None = None,
    block: int = -1,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """MixPro: pastes large cells at random; labels by area at first, by attention as the prediction improves.

    Args:
        alpha: the original part of the cells is drawn from Beta(alpha, alpha).
        tokens: tokens per side of a cell.
        clamp: keeps at least one cell of each image.
        grid: rows and columns of tokens (default: the attached model's).
        block: whose attention is read.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=CellMask(alpha, tokens, clamp, grid), share=ProgressiveShare(block), **common)
