"""Data sets that need no download."""

from .shapes import Shapes as Shapes
from .shapes import ShapesBatch as ShapesBatch
from .shapes import shapes_batch as shapes_batch
