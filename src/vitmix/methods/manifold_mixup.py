"""Manifold Mixup: Better Representations by Interpolating Hidden States (Verma et al., ICML 2019).

Deviations: the loss is soft cross-entropy, as in the paper; the released code uses binary cross-entropy of softmax
probabilities. The paper has no transformers: the default places, pixels and the first third of the blocks, are ours.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.manifold import Manifold

__all__ = ["manifold_mixup"]


def manifold_mixup(
    num_classes: int,
    *,
    alpha: float = 2.0,
    blocks: tuple[int, ...] | None = None,
    pixels: bool = True,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """Manifold Mixup: blends the images or the hidden states at the input of a random block, and the labels.

    Args:
        alpha: the share is drawn from Beta(alpha, alpha).
        blocks: the blocks at whose inputs tokens may be blended (default: the first third of them).
        pixels: whether the images themselves are one of the places.
        common: `smoothing`, `pairing` and `loss` of `Mixer`; partners are a random permutation, whatever the pairing.
    """
    return Mixer(num_classes, inner=(Manifold(alpha, blocks, pixels),), **common)
