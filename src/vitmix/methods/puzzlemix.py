"""Puzzle Mix: Exploiting Saliency and Local Statistics for Optimal Mixup (Kim et al., ICML 2020).

Deviations: the cut is exact in float64; the released solver overflows on peaked saliency and can miss the optimum with
three labels. Any number of blocks that divides the image works. The loss is soft cross-entropy; the released code uses
binary cross-entropy of softmax probabilities.
"""

from typing import Unpack

from vitmix._mixer import Mixer
from vitmix.methods._common import CommonWithLoss
from vitmix.parts.puzzle import PuzzleMask

__all__ = ["puzzlemix"]


def puzzlemix(
    num_classes: int,
    *,
    alpha: float = 1.0,
    blocks: tuple[int, ...] = (2, 4, 8, 16),
    labels: int = 3,
    beta: float = 1.2,
    gamma: float = 0.5,
    eta: float = 0.2,
    neighborhood: int = 4,
    transport: bool = True,
    cost: float = 0.8,
    cell: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    **common: Unpack[CommonWithLoss],
) -> Mixer:
    """Puzzle Mix: chooses blocks of both images by a minimum cut of gradient saliency and moves them; labels by area.

    Args:
        alpha: the share that the prior prefers is drawn from Beta(alpha, alpha).
        blocks: numbers of blocks per side, one is drawn per batch; those that do not divide the image are left out.
        labels: number of steps of a block, from the original to the partner.
        beta: weight of smooth borders; `gamma` is the part of it for jumps in color.
        eta: weight of the prior.
        neighborhood: pixels over which colors are averaged.
        transport: whether hidden salient blocks move to visible places; `cost` is the price of distance.
        cell: pixels of a transported block, if it is smaller and images are square (default: the blocks of the mask).
        mean, std: with which the images were normalized (default: as configured, or else ImageNet's).
        common: `smoothing`, `pairing` and `loss` of `Mixer`.
    """
    settings = (alpha, blocks, labels, beta, gamma, eta, neighborhood, transport, cost, cell, mean, std)
    return Mixer(num_classes, mask=PuzzleMask(*settings), **common)
