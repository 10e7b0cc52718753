"""The parts of methods, and the base classes for your own parts.

Every module of this package is imported here, so a new module registers its parts without another line.
"""

from importlib import import_module
from pkgutil import iter_modules

from vitmix.parts.base import (
    Actor,
    Composed,
    Evidence,
    Exchange,
    ExtraLoss,
    Guidance,
    HiddenMixing,
    Mask,
    Needs,
    Normalization,
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
    "Composed",
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
    "Normalization",
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

for _module in sorted(each.name for each in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
