"""MergeMix: A Unified Augmentation Paradigm for Visual and Multi-Modal Understanding (Jin et al., 2025).

Deviations: attention is spread back to the patches by the merging before it, not by that of all blocks; saliency is the
class token's row, not its column; the share is the area. The second batch of every step, Mixup's, is left to a switch.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.merged import MergedMask

__all__ = ["mergemix"]


def mergemix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    merged: float = 0.5,
    block: int | None = None,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """MergeMix: images keep their most salient tokens, found by a guide pass that merges tokens; labels by area.

    Args:
        alpha: the part that is kept is drawn from Beta(alpha, alpha).
        merged: the part of the tokens that all blocks together would merge in the guide pass; 0 merges none.
        block: whose attention is read (default: the one after three quarters of them).
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=MergedMask(alpha, merged, block), **common)
