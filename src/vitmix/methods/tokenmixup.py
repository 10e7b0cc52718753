"""TokenMixup: Efficient Attention-guided Token-level Data Augmentation for Transformers (Choi et al., NeurIPS 2022).

Errors of the released code that are corrected here: it compares every easy sample with the saliency of the first one,
reorders the batch, and with a class token picks vertical tokens one position too early.
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
    """Horizontal TokenMixup alone: inside one block, easy samples take more salient tokens from a partner.

    Args:
        block: the block at whose input tokens are exchanged.
        tau: a sample is easy if its difficulty (a tenth of the score net's cross-entropy) is at most this.
        rho: how much more salient the partner's token must be.
        score_weight: weight of the score net's loss; `stop_gradient` keeps its gradient from the tokens.
        choose: "salient" is the method, "random_samples" and "random_tokens" are the paper's baselines.
        score_at: "block", or "last" to measure difficulty after the last block of an extra, unmixed pass.
        rollout: number of earlier blocks through which saliency is rolled out.
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
        block: the block whose keys and values grow.
        tokens: number of tokens from each earlier block (the paper's kappa).
        choose: "salient" is the method; "random" takes random tokens.
        rollout: number of earlier blocks through which each saliency is rolled out.
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    return Mixer(num_classes, inner=(VTM(block, tokens, choose, rollout),), **common)
