"""Attentive CutMix: An Enhanced Data Augmentation Approach (Walawalkar et al., ICASSP 2020).

Deviations: the number of cells is drawn, as in OpenMixup's AttentiveMix+ (`cells=6` on a grid of 7 x 7 is the paper's).
The cells of the partner are pasted; the released code keeps those of the image, which is the same for the exchanged
pair. The default scores are the attention of the model itself; a guide can be a ResNet, with `scores="features"`.
"""

from typing import Literal, Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.top_cells import TopCellsMask

__all__ = ["attentive_cutmix"]


def attentive_cutmix(
    num_classes: int,
    *,
    alpha: float = 2.0,
    cells: int | None = None,
    scores: Literal["attention", "features"] = "attention",
    blocks: tuple[int, ...] | Literal["all"] = (-1,),
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """Attentive CutMix: pastes the partner's most salient cells; labels by area.

    Args:
        alpha: the part of the cells is drawn from Beta(alpha, alpha).
        cells: a fixed number of cells instead.
        scores: the guide's "attention", or the channel mean of its final "features".
        blocks: whose attention is averaged, numbers or "all".
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=TopCellsMask(alpha, cells, scores, blocks), **common)
