"""The parts of methods, and the base classes for your own parts."""

from vitmix.parts.base import (
    Actor,
    Evidence,
    Exchange,
    ExtraLoss,
    Guidance,
    HiddenMixing,
    Mask,
    Needs,
    Pairing,
    Part,
    Paste,
    Share,
    Shown,
    Unmixed,
    Weights,
)
from vitmix.parts.hidden import HTM, VTM
from vitmix.parts.losses import ConsistencyLoss, RegionLoss
from vitmix.parts.masks import BlockMask, BoxMask, ConstantMask, NoMask, SalientMask, ScatteredMask
from vitmix.parts.pairing import Derangement, Reversed, Rolled
from vitmix.parts.prior import PriorShare
from vitmix.parts.shares import ActivationShare, AlignedShare, AreaShare, AttentionShare

__all__ = [
    "HTM",
    "VTM",
    "ActivationShare",
    "Actor",
    "AlignedShare",
    "AreaShare",
    "AttentionShare",
    "BlockMask",
    "BoxMask",
    "ConsistencyLoss",
    "ConstantMask",
    "Derangement",
    "Evidence",
    "Exchange",
    "ExtraLoss",
    "Guidance",
    "HiddenMixing",
    "Mask",
    "Needs",
    "NoMask",
    "Pairing",
    "Part",
    "Paste",
    "PriorShare",
    "RegionLoss",
    "Reversed",
    "Rolled",
    "SalientMask",
    "ScatteredMask",
    "Share",
    "Shown",
    "Unmixed",
    "Weights",
]
