"""The packages of vitmix's extras, imported where they are used."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

PACKAGES = {  # by module: its package, and the extra that installs it
    "datasets": ("datasets", "hf"),
    "faster_coco_eval": ("faster-coco-eval", "dense"),
    "fsspec": ("fsspec", "cluster"),
    "imagecorruptions": ("imagecorruptions-imaug", "eval"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "pyautoattack": ("pyautoattack", "eval"),
    "pytorch_grad_cam": ("grad-cam", "eval"),
    "ray": ("ray", "cluster"),
    "segmentation_models_pytorch": ("segmentation-models-pytorch", "dense"),
    "torchmetrics": ("torchmetrics", "dense"),
    "transformers": ("transformers", "hf"),
}


class NotInstalled(ValueError):
    """Raised if a package of an extra is missing; the message says how to install it."""


def need(module: str) -> Any:
    """A module of an extra."""
    package, extra = PACKAGES[module.partition(".")[0]]
    try:
        return import_module(module)
    except ImportError as problem:
        raise NotInstalled(
            f'this needs the package {package} ({problem}); get it with: pip install "vitmix[{extra}]"'
        ) from None


def version_of(module: str) -> str:
    """The package of a module with its version, for stored results that depend on it."""
    package, _ = PACKAGES[module]
    return f"{package} {version(package)}"
