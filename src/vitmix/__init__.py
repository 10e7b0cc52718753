"""Mixing augmentations for vision transformers: any mask x any label rule x any extra loss."""

from vitmix import functional as functional
from vitmix import models as models
from vitmix.draws import Draw as Draw
from vitmix.draws import generator_for as generator_for
from vitmix.inner import HTM as HTM
from vitmix.inner import VTM as VTM
from vitmix.learner import Learner as Learner
from vitmix.learner import Output as Output
from vitmix.losses import Consistency as Consistency
from vitmix.losses import Region as Region
from vitmix.masks import BlockMask as BlockMask
from vitmix.masks import BoxMask as BoxMask
from vitmix.masks import ConstantMask as ConstantMask
from vitmix.masks import NoMask as NoMask
from vitmix.masks import SalientBox as SalientBox
from vitmix.masks import ScatteredMask as ScatteredMask
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
from vitmix.pairing import Derangement as Derangement
from vitmix.pairing import Reversed as Reversed
from vitmix.pairing import Rolled as Rolled
from vitmix.shares import ActivationShare as ActivationShare
from vitmix.shares import AlignedShare as AlignedShare
from vitmix.shares import AreaShare as AreaShare
from vitmix.shares import AttentionShare as AttentionShare
from vitmix.spec import create as create
from vitmix.spec import list_methods as list_methods
from vitmix.tap import AttentionTap as AttentionTap

__version__ = "0.1.0"
