"""TokenMixup: Efficient Attention-guided Token-level Data Augmentation for Transformers (Choi et al., NeurIPS 2022).

Deviations of the released program that are not ours: it compares every easy sample with the first one's saliency,
reorders the batch, and with a class token picks vertical tokens one place too early.
"""

from typing import Literal, Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.hidden import HTM, VTM

__all__ = ["htm", "vtm"]


def htm(
    num_classes: int,
    *,
    block: int = 2,
    tau: float = 0.2,
    rho: float = 0.005,
    score_weight: float = 0.001,
    stop_gradient: bool = False,
    choose: Literal["salient", "random_samples", "random_tokens"] = "salient",
    score_at: Literal["block", "last"] = "block",
    rollout: int = 0,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """Horizontal TokenMixup alone: inside one block, easy samples take a partner's more salient tokens.

    Args:
        block: at whose input tokens are exchanged.
        tau: a sample is easy if its difficulty (a tenth of the score net's cross-entropy) is at most this.
        rho: how much more salient the partner's token must be.
        score_weight: weight of the score net's loss; `stop_gradient` keeps it from reaching the tokens.
        choose: "salient" is the method, "random_samples" and "random_tokens" are the paper's baselines.
        score_at: "block", or "last" to judge difficulty by the last block of an extra, unmixed pass.
        rollout: how many earlier blocks the saliency is rolled out through.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    part = HTM(block, tau, rho, score_weight, stop_gradient, choose, score_at, rollout)
    return Mixer(num_classes, inner=(part,), **common)


def vtm(
    num_classes: int,
    *,
    block: int = 2,
    tokens: int = 5,
    choose: Literal["salient", "random"] = "salient",
    rollout: int = 0,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """Vertical TokenMixup alone: one block also attends to the most salient tokens of every earlier block.

    Args:
        block: whose keys and values are added to.
        tokens: how many are taken from each earlier block (the paper's kappa).
        choose: "salient" is the method; "random" takes tokens at random.
        rollout: how many earlier blocks each saliency is rolled out through.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, inner=(VTM(block, tokens, choose, rollout),), **common)
