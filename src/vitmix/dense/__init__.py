"""Mixing for segmentation and detection: label maps, boxes and instance masks follow the pixels of the images."""

from vitmix.dense.boxes import mix_boxes as mix_boxes
from vitmix.dense.masks import mask_cross_entropy as mask_cross_entropy
from vitmix.dense.masks import mix_masks as mix_masks
from vitmix.dense.pasting import copy_paste as copy_paste
from vitmix.dense.pasting import draw_objects as draw_objects
from vitmix.dense.transforms import CopyPaste as CopyPaste
from vitmix.dense.transforms import DenseBatch as DenseBatch
from vitmix.dense.transforms import DenseMix as DenseMix

__all__ = [
    "CopyPaste",
    "DenseBatch",
    "DenseMix",
    "copy_paste",
    "draw_objects",
    "mask_cross_entropy",
    "mix_boxes",
    "mix_masks",
]
