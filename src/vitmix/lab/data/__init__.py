"""Data sets, augmentation and loaders. Names are imported on first use, so that settings do not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .augmentation import Augmentation as Augmentation
    from .images import ArrayImages as ArrayImages
    from .loader import EvalLoader as EvalLoader
    from .loader import TrainLoader as TrainLoader
    from .shapes import Shapes as Shapes
    from .sources import open_images as open_images

_HOMES = {"Augmentation": "augmentation", "ArrayImages": "images", "EvalLoader": "loader", "TrainLoader": "loader"}
_HOMES |= {"Shapes": "shapes", "open_images": "sources"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
