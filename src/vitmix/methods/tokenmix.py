"""TokenMix: Rethinking Image Mixing for Data Augmentation in Vision Transformers (Liu et al., ECCV 2022).

Deviations: blocks have at least one token and nothing is added to the count, which keeps the share exact and the blocks
separate (`preset` has the paper's and the released settings). Labels follow the area unless `label="activation"`, which
needs a teacher's maps with every batch; negative targets are then set to zero.
"""

from typing import Literal, Unpack

from vitmix._mix import Grid
from vitmix._mixer import Mixer
from vitmix.methods._common import Common
from vitmix.parts.masks import BlockMask, Per
from vitmix.parts.shares import ActivationShare, AreaShare

__all__ = ["tokenmix"]


def tokenmix(
    num_classes: int,
    *,
    share: float = 0.5,
    alpha: float | None = None,
    preset: Literal["separate", "paper", "released"] = "separate",
    label: Literal["area", "activation"] = "area",
    per: Per = "batch",
    grid: Grid | None = None,
    loss: Literal["ce", "bce"] = "bce",
    **common: Unpack[Common],
) -> Mixer:
    """TokenMix: pastes several blocks of the partner's tokens; area labels, or labels from a teacher's activation maps.

    Args:
        share: fraction of the tokens to take from the partner.
        alpha: if given, the share is drawn from Beta(alpha, alpha) instead.
        preset: how blocks are drawn: "separate", "paper" or "released", see `BlockMask`.
        label: the label rule: "area", or "activation", which needs a teacher's maps with every batch.
        per: "batch" draws once per batch, "sample" once per image.
        grid: rows and columns of tokens (default: the attached model's).
        loss: the main loss, "bce" or "ce".
        common: `smoothing` and `pairing` of `Mixer`.
    """
    labels = {"area": AreaShare(), "activation": ActivationShare()}
    if label not in labels:
        raise ValueError(f"label must be 'area' or 'activation', got {label!r}")
    return Mixer(num_classes, mask=BlockMask(share, alpha, preset, per, grid), share=labels[label], loss=loss, **common)
