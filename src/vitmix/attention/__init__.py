"""Reads attention, shares and tokens of a model's blocks from outside, while the model runs."""

from vitmix.attention.flow import (
    ClassOnly,
    Flow,
    Given,
    Matrix,
    Pooled,
    Products,
    Reduced,
    Steps,
    Windows,
)
from vitmix.attention.groups import Followed, Groups, Merging, Overlapping
from vitmix.attention.readers import BlockReader, FusedBlock, Reader, read_model, register_reader
from vitmix.attention.tap import AttentionTap, Plan, Tape

__all__ = [
    "AttentionTap",
    "BlockReader",
    "ClassOnly",
    "Flow",
    "Followed",
    "FusedBlock",
    "Given",
    "Groups",
    "Matrix",
    "Merging",
    "Overlapping",
    "Plan",
    "Pooled",
    "Products",
    "Reader",
    "Reduced",
    "Steps",
    "Tape",
    "Windows",
    "read_model",
    "register_reader",
]
