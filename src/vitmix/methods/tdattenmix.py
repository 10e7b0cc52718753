"""TdAttenMix: Top-Down Attention Guided Mixup (AAAI 2025).

Deviations: the scores are a guide's attention, by default of the model itself; the authors ask a gaze network that
knows the label, which can be the guide (`vitmix.models.AbsViT`). The share is of each pair, from the partner's own map;
the released code has one share per batch and reads the window in the wrong map.
"""

from typing import Literal, Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.guided import GuidedShare
from vitmix.parts.losses import ConsistencyLoss, RegionLoss
from vitmix.parts.masks import SalientMask

__all__ = ["tdattenmix"]


def tdattenmix(
    num_classes: int,
    *,
    low: float = 0.25,
    high: float = 0.75,
    blocks: tuple[int, ...] | Literal["all"] = (-1,),
    blend: float = 0.5,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """TdAttenMix: pastes the most attended window over the least attended one; labels by area and visible attention.

    Args:
        low, high: range of the window's height, as a fraction of the grid's, one of its integers.
        blocks: whose attention scores are averaged, numbers or "all".
        blend: weight of attention in the label; the rest is area.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    mask = SalientMask(low=low, high=high, sizes="discrete", blocks=blocks)
    extra = (RegionLoss(head="separate"), ConsistencyLoss(by="label"))
    return Mixer(num_classes, mask=mask, share=GuidedShare(blend, blocks), extra=extra, **common)
