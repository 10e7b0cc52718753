"""Data sets, augmentation and loaders."""

from .augment import Augmentation as Augmentation
from .augment import eval_sample as eval_sample
from .augment import train_sample as train_sample
from .images import ArrayImages as ArrayImages
from .images import BrokenImage as BrokenImage
from .images import ImageSet as ImageSet
from .loader import Batch as Batch
from .loader import EvalLoader as EvalLoader
from .loader import TrainLoader as TrainLoader
from .resident import ResidentEvalLoader as ResidentEvalLoader
from .resident import ResidentLoader as ResidentLoader
from .shapes import Shapes as Shapes
from .shapes import ShapesBatch as ShapesBatch
from .shapes import shapes_batch as shapes_batch
from .sources import open_images as open_images
