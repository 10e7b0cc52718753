"""Token labeling: All Tokens Matter (Jiang et al., NeurIPS 2021), with MixToken; ReLabel (Yun et al., CVPR 2021).

Deviations: crops of the maps use rows as rows; both released programs exchange them with columns. A token that shows
pixels of both images has a blend of their labels. Smoothed rows sum to one.
"""

from typing import Unpack

from vitmix._checks import check_switch
from vitmix._mix import Grid
from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.embedded import Embedded
from vitmix.parts.masks import BoxMask, Per
from vitmix.parts.token_labels import TokenLabelLoss

__all__ = ["token_labeling"]


def token_labeling(
    num_classes: int,
    *,
    alpha: float = 1.0,
    per: Per = "batch",
    aligned: bool = True,
    grid: Grid | None = None,
    weight: float = 0.5,
    embedded: bool = True,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """Token labeling: pastes a box of whole tokens (MixToken); every token also predicts a teacher's label.

    Args:
        alpha: parameter of the Beta distribution of the box's area.
        per: "batch" draws once per batch, "sample" once per image.
        aligned: draws the box on the token grid instead of on pixels.
        grid: rows and columns of that grid (default: the attached model's).
        weight: weight of the tokens' loss.
        embedded: mixes embedded tokens instead of pixels, which differs in models whose patches overlap.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    check_switch("embedded", embedded)
    inner = (Embedded(),) if embedded else ()
    mask, extra = BoxMask(alpha, per, aligned, grid), (TokenLabelLoss(weight),)
    return Mixer(num_classes, mask=mask, extra=extra, inner=inner, **common)
