"""Models that timm does not have. Importing this package registers their names with `timm.create_model`."""

from vitmix.models.absvit import AbsViT as AbsViT
from vitmix.models.absvit import TopDown as TopDown
from vitmix.models.cct import CompactBlock as CompactBlock
from vitmix.models.cct import CompactTransformer as CompactTransformer
from vitmix.models.cct import ConvTokenizer as ConvTokenizer
from vitmix.models.cct import checkpoint_filter_fn as checkpoint_filter_fn
from vitmix.models.cct import sine_positions as sine_positions
from vitmix.models.pvt import PvtAttention as PvtAttention
from vitmix.models.pvt import PvtBlock as PvtBlock
from vitmix.models.pvt import PvtStage as PvtStage
from vitmix.models.pvt import PyramidVisionTransformer as PyramidVisionTransformer

__all__ = [
    "AbsViT",
    "CompactBlock",
    "CompactTransformer",
    "ConvTokenizer",
    "PvtAttention",
    "PvtBlock",
    "PvtStage",
    "PyramidVisionTransformer",
    "TopDown",
    "checkpoint_filter_fn",
    "sine_positions",
]
