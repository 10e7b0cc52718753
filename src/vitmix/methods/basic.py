"""No mixing, MixUp (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019)."""

from typing import Unpack

from vitmix._mix import Grid
from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.masks import BoxMask, ConstantMask, Per

__all__ = ["cutmix", "mixup", "none"]


def none(num_classes: int, **common: Unpack[CommonWithLoss]) -> Mixer:
    """No mixing."""
    return Mixer(num_classes, **common)


def mixup(num_classes: int, *, alpha: float = 0.8, per: Per = "batch", **common: Unpack[CommonWithLoss]) -> Mixer:
    """MixUp: images and labels blended with a share from Beta(alpha, alpha)."""
    return Mixer(num_classes, mask=ConstantMask(alpha, per), **common)


def cutmix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    per: Per = "batch",
    aligned: bool = False,
    grid: Grid | None = None,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """CutMix: a box of the partner, labels by its area. `aligned` draws the box on the token grid."""
    return Mixer(num_classes, mask=BoxMask(alpha, per, aligned, grid), **common)
