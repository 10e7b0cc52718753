"""Mixing augmentation for vision transformers: any mask x any label rule x any extra loss x mixing inside the network.

Names are imported on first use, so `import vitmix` is fast.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitmix import functional as functional
    from vitmix import models as models
    from vitmix._learner import Learner as Learner
    from vitmix._learner import Output as Output
    from vitmix._mix import Frame as Frame
    from vitmix._mix import Mix as Mix
    from vitmix._mix import Moves as Moves
    from vitmix._mix import Pixels as Pixels
    from vitmix._mixer import Mixer as Mixer
    from vitmix._mixer import Switch as Switch
    from vitmix._mixing import MixedBatch as MixedBatch
    from vitmix._mixing import Mixing as Mixing
    from vitmix._registry import register as register
    from vitmix._sampling import Draw as Draw
    from vitmix._sampling import generator_for as generator_for
    from vitmix._text import create as create
    from vitmix._text import list_methods as list_methods
    from vitmix._token_logits import TokenLabelClassifier as TokenLabelClassifier
    from vitmix.attention.tap import AttentionTap as AttentionTap
    from vitmix.attention.tap import Plan as Plan
    from vitmix.dense.transforms import CopyPaste as CopyPaste
    from vitmix.dense.transforms import DenseBatch as DenseBatch
    from vitmix.dense.transforms import DenseMix as DenseMix
    from vitmix.methods.basic import cutmix as cutmix
    from vitmix.methods.basic import mixup as mixup
    from vitmix.methods.basic import none as none
    from vitmix.methods.smmix import smmix as smmix
    from vitmix.methods.tl_align import tl_align as tl_align
    from vitmix.methods.tokenmix import tokenmix as tokenmix
    from vitmix.methods.tokenmixup import htm as htm
    from vitmix.methods.tokenmixup import vtm as vtm
    from vitmix.methods.transmix import transmix as transmix
    from vitmix.parts.base import Actor as Actor
    from vitmix.parts.base import Composed as Composed
    from vitmix.parts.base import Evidence as Evidence
    from vitmix.parts.base import ExtraLoss as ExtraLoss
    from vitmix.parts.base import HiddenMixing as HiddenMixing
    from vitmix.parts.base import Mask as Mask
    from vitmix.parts.base import Needs as Needs
    from vitmix.parts.base import Normalization as Normalization
    from vitmix.parts.base import Pairing as Pairing
    from vitmix.parts.base import Paste as Paste
    from vitmix.parts.base import Share as Share
    from vitmix.parts.base import Shown as Shown
    from vitmix.parts.base import Unmixed as Unmixed
    from vitmix.parts.base import Weights as Weights
    from vitmix.parts.hidden import HTM as HTM
    from vitmix.parts.hidden import VTM as VTM
    from vitmix.parts.losses import ConsistencyLoss as ConsistencyLoss
    from vitmix.parts.losses import RegionLoss as RegionLoss
    from vitmix.parts.masks import BlockMask as BlockMask
    from vitmix.parts.masks import BoxMask as BoxMask
    from vitmix.parts.masks import ConstantMask as ConstantMask
    from vitmix.parts.masks import NoMask as NoMask
    from vitmix.parts.masks import SalientMask as SalientMask
    from vitmix.parts.masks import ScatteredMask as ScatteredMask
    from vitmix.parts.pairing import Derangement as Derangement
    from vitmix.parts.pairing import Reversed as Reversed
    from vitmix.parts.pairing import Rolled as Rolled
    from vitmix.parts.prior import PriorShare as PriorShare
    from vitmix.parts.shares import ActivationShare as ActivationShare
    from vitmix.parts.shares import AlignedShare as AlignedShare
    from vitmix.parts.shares import AreaShare as AreaShare
    from vitmix.parts.shares import AttentionShare as AttentionShare

__version__ = "0.2.0"

_HOMES = {  # module: its public names
    "attention.tap": ("AttentionTap", "Plan"),
    "dense.transforms": ("CopyPaste", "DenseBatch", "DenseMix"),
    "_learner": ("Learner", "Output"),
    "methods.basic": ("cutmix", "mixup", "none"),
    "methods.smmix": ("smmix",),
    "methods.tl_align": ("tl_align",),
    "methods.tokenmix": ("tokenmix",),
    "methods.tokenmixup": ("htm", "vtm"),
    "methods.transmix": ("transmix",),
    "_mix": ("Frame", "Mix", "Moves", "Pixels"),
    "_mixer": ("Mixer", "Switch"),
    "_mixing": ("MixedBatch", "Mixing"),
    "parts.base": (
        *(
            "Actor",
            "Composed",
            "Evidence",
            "ExtraLoss",
            "HiddenMixing",
            "Mask",
            "Needs",
            "Normalization",
            "Pairing",
            "Paste",
            "Share",
            "Shown",
        ),
        *("Unmixed", "Weights"),
    ),
    "parts.hidden": ("HTM", "VTM"),
    "parts.losses": ("ConsistencyLoss", "RegionLoss"),
    "parts.masks": ("BlockMask", "BoxMask", "ConstantMask", "NoMask", "SalientMask", "ScatteredMask"),
    "parts.pairing": ("Derangement", "Reversed", "Rolled"),
    "parts.prior": ("PriorShare",),
    "parts.shares": ("ActivationShare", "AlignedShare", "AreaShare", "AttentionShare"),
    "_registry": ("register",),
    "_sampling": ("Draw", "generator_for"),
    "_text": ("create", "list_methods"),
    "_token_logits": ("TokenLabelClassifier",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_RENAMED = {"Consistency": "ConsistencyLoss", "Region": "RegionLoss", "SalientBox": "SalientMask"}

__all__ = [*sorted(_HOME), "functional", "models"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in ("attention", "dense", "functional", "methods", "models", "parts"):
        return import_module(f"vitmix.{name}")
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"vitmix.{name} is now vitmix.{new}; the old name will be removed in 0.3", FutureWarning, 2)
        return __getattr__(new)
    if name in _HOME:
        value = getattr(import_module(f"vitmix.{_HOME[name]}"), name)
    elif (value := import_module("vitmix._registry").METHODS.get(name)) is None:
        raise AttributeError(f"module 'vitmix' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
