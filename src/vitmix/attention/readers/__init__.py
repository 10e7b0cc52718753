"""How models are read: their blocks, their token geometry, and what their classifier looks at.

A reader is chosen by the model's exact class, its blocks and its attention. Subclasses and look-alikes may add terms
after the place where queries and keys are read, which would make the statistics wrong without a word, so they are
refused. `register` adds a reader for a class of one's own.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from timm.models.xcit import Xcit
from torch import Tensor, nn

from vitmix.attention.readers import cait, pyramid, sequence, spatial
from vitmix.attention.readers.base import BlockReader as BlockReader
from vitmix.attention.readers.base import FusedBlock as FusedBlock
from vitmix.attention.readers.base import Listener as Listener
from vitmix.attention.readers.base import Reader as Reader
from vitmix.mix import Frame, check_tensor

READERS: dict[type[nn.Module], Callable[[Any], Reader]] = {
    **sequence.READERS,
    **cait.READERS,
    **pyramid.READERS,
    **spatial.READERS,
}

REFUSED: dict[type[nn.Module], str] = {
    Xcit: "its attention is between channels, so it says nothing about tokens",
}

# Readers of packages that are imported only when one of their models comes along.
LATER = {
    "torchvision": "vitmix.attention.readers.torchvision_models",
    "transformers": "vitmix.attention.readers.huggingface",
}


def register(kind: type[nn.Module], reader: Callable[[Any], Reader]) -> None:
    """Makes models of exactly this class readable by `reader(model)`."""
    READERS[kind] = reader


def read_model(model: nn.Module) -> Reader:
    """The reader of a model, compiled or wrapped for data parallelism or not."""
    model = unwrap(model)
    kind = type(model)
    package = _package(kind)
    if kind not in READERS and package in LATER:
        for each, reader in _later_readers(package).items():
            READERS.setdefault(each, reader)  # one's own comes first
    if kind in REFUSED:
        raise ValueError(
            f"{kind.__name__} cannot be read: {REFUSED[kind]}. Methods that need no attention work with it"
        )
    if kind not in READERS:
        known = ", ".join(sorted(f"{_package(kind)}.{kind.__name__}" for kind in READERS))
        raise ValueError(
            f"{package}.{kind.__name__} cannot be read; known classes (matched exactly): {known}, and those of "
            "torchvision and transformers that 'vitmix models' lists. Methods that need no attention work on any "
            "model; docs/adapters.md shows how to add a class"
        )
    return READERS[kind](model)


def _later_readers(package: str) -> dict[type[nn.Module], Callable[[Any], Reader]]:
    try:
        return import_module(LATER[package]).READERS
    except ImportError as error:
        raise ValueError(
            f"this {package} cannot be read: {error}. Methods that need no attention work with it"
        ) from None


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.get_submodule("module")
        if inner is None:
            return model
        model = inner


def logits_of(output: Any) -> Any:
    """The logits in what a model returns: itself, or its `logits` (Hugging Face)."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def frame_of(images: Tensor, reader: Reader | None) -> Frame:
    """The frame of a batch of images `(B, C, H, W)`."""
    check_tensor("images", images)
    if images.ndim != 4:
        raise ValueError(f"images must be (B, C, H, W), got {tuple(images.shape)}; add the batch dimension")
    if len(images) == 0:
        raise ValueError(f"a batch needs an image, got {tuple(images.shape)}; leave empty batches out")
    size = (images.shape[2], images.shape[3])
    dtype = torch.float64 if images.dtype == torch.float64 else torch.float32
    if reader is None:
        return Frame(len(images), size, dtype=dtype)
    return Frame(len(images), size, reader.mask_grid(size), dtype, reader.grids(size)[: reader.patch_depth])
