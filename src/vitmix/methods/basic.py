"""No mixing, MixUp (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019)."""

from typing import Unpack

from vitmix._mix import Grid
from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.masks import BoxMask, ConstantMask, Per

__all__ = ["cutmix", "mixup", "none"]


def none(num_classes: int, **common: Unpack[CommonWithLoss]) -> Mixer:
    """No mixing.

    Args:
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, **common)


def mixup(num_classes: int, *, alpha: float = 0.8, per: Per = "batch", **common: Unpack[CommonWithLoss]) -> Mixer:
    """MixUp: blends images and labels with a share from Beta(alpha, alpha).

    Args:
        alpha: parameter of the Beta distribution; small values blend less.
        per: "batch" draws once per batch, "sample" once per image.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
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
    """CutMix: pastes a box of the partner; area labels.

    Args:
        alpha: parameter of the Beta distribution of the area; 1 is uniform.
        per: "batch" draws once per batch, "sample" once per image.
        aligned: draws the box on the token grid instead of on pixels.
        grid: rows and columns of that grid (default: the attached model's).
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, mask=BoxMask(alpha, per, aligned, grid), **common)
