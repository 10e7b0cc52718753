"""SMMix: Self-Motivated Image Mixing for Vision Transformers (Chen et al., ICCV 2023).

Deviations: window sides are clamped to [1, side - 1], because an empty region has no mean. The consistency target
averages logits, as the released code does; the paper says probabilities (`ConsistencyLoss(average=...)`).
"""

from typing import Literal, Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.losses import ConsistencyLoss, RegionLoss
from vitmix.parts.masks import Destination, Per, SalientMask, Source

__all__ = ["smmix"]


def smmix(
    num_classes: int,
    *,
    source: Source = "max",
    destination: Destination = "min",
    low: float = 0.25,
    high: float = 0.75,
    sizes: Literal["paper", "discrete"] = "paper",
    blocks: tuple[int, ...] | Literal["all"] = (-1,),
    per: Per = "batch",
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """SMMix: pastes the most attended window over the least attended one; adds region and consistency losses.

    Args:
        source: which window of the partner is cut out: that with the "max" or "min" score, or "random".
        destination: where it is pasted: "max", "min", "random", or "same", the position of the source.
        low, high: range of the window's sides, as fractions of the grid's sides.
        sizes: "paper" draws the side from the range, "discrete" draws one of its integer heights.
        blocks: blocks whose attention scores the patches, numbers or "all"; `[]` draws random scores.
        per: "batch" draws once per batch, "sample" once per image.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    mask = SalientMask(source, destination, low, high, sizes, blocks, per)
    return Mixer(num_classes, mask=mask, extra=(RegionLoss(), ConsistencyLoss()), **common)
