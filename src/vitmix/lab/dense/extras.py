"""Packages of the extra `vitmix[dense]`, imported where they are used."""

from importlib import import_module
from typing import Any

PACKAGES = {
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "torchmetrics": "torchmetrics",
    "faster_coco_eval": "faster-coco-eval",
}


def need(module: str) -> Any:
    """A module of the extra, or an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as problem:
        package = PACKAGES[module.partition(".")[0]]
        raise ValueError(
            f'this needs the package {package} ({problem}); install it with: pip install "vitmix[dense]"'
        ) from None
