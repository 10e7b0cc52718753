"""Mixing augmentations for vision transformers: any mask x any label rule x any extra loss."""

from vitmix import functional as functional
from vitmix import models as models
from vitmix.attention.tap import AttentionTap as AttentionTap
from vitmix.learner import Learner as Learner
from vitmix.learner import Output as Output
from vitmix.methods import cutmix as cutmix
from vitmix.methods import htm as htm
from vitmix.methods import mixup as mixup
from vitmix.methods import none as none
from vitmix.methods import smmix as smmix
from vitmix.methods import tl_align as tl_align
from vitmix.methods import tokenmix as tokenmix
from vitmix.methods import transmix as transmix
from vitmix.methods import vtm as vtm
from vitmix.mix import Frame as Frame
from vitmix.mix import Mix as Mix
from vitmix.mixer import Mixer as Mixer
from vitmix.mixer import Switch as Switch
from vitmix.mixing import MixedBatch as MixedBatch
from vitmix.mixing import Mixing as Mixing
from vitmix.parts.hidden import HTM as HTM
from vitmix.parts.hidden import VTM as VTM
from vitmix.parts.losses import Consistency as Consistency
from vitmix.parts.losses import Region as Region
from vitmix.parts.masks import BlockMask as BlockMask
from vitmix.parts.masks import BoxMask as BoxMask
from vitmix.parts.masks import ConstantMask as ConstantMask
from vitmix.parts.masks import NoMask as NoMask
from vitmix.parts.masks import SalientBox as SalientBox
from vitmix.parts.masks import ScatteredMask as ScatteredMask
from vitmix.parts.pairing import Derangement as Derangement
from vitmix.parts.pairing import Reversed as Reversed
from vitmix.parts.pairing import Rolled as Rolled
from vitmix.parts.shares import ActivationShare as ActivationShare
from vitmix.parts.shares import AlignedShare as AlignedShare
from vitmix.parts.shares import AreaShare as AreaShare
from vitmix.parts.shares import AttentionShare as AttentionShare
from vitmix.sampling import Draw as Draw
from vitmix.sampling import generator_for as generator_for
from vitmix.text import create as create
from vitmix.text import list_methods as list_methods

__version__ = "0.1.0"
