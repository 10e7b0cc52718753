"""How models are read: their blocks, their token geometry, and what their classifier reads.

A reader is chosen by the exact classes of the model, its blocks and its attention. Subclasses and similar classes may
add terms after the point where queries and keys are read, which would silently make the statistics wrong, so they are
refused. `register_reader` adds a reader for your own class.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._mix import Frame, check_tensor
from vitmix.attention.readers.base import BlockReader as BlockReader
from vitmix.attention.readers.base import FusedBlock as FusedBlock
from vitmix.attention.readers.base import Reader as Reader

__all__ = [
    "BlockReader",
    "FusedBlock",
    "READERS",
    "REFUSED",
    "Reader",
    "frame_of",
    "logits_of",
    "read_model",
    "register_reader",
    "unwrap",
]

# By import path, so that a package is imported only when one of its models is used.
READERS: dict[str, str] = {
    "timm.models.vision_transformer.VisionTransformer": "sequence:read_vit",
    "timm.models.deit.VisionTransformerDistilled": "sequence:read_vit",
    "timm.models.eva.Eva": "sequence:read_eva",
    "timm.models.beit.Beit": "sequence:read_beit",
    "timm.models.cait.Cait": "cait:read_cait",
    "timm.models.swin_transformer.SwinTransformer": "pyramid:read_swin",
    "timm.models.pvt_v2.PyramidVisionTransformerV2": "pyramid:read_pvt2",
    "timm.models.mlp_mixer.MlpMixer": "spatial:read_mixer",
    "timm.models.convnext.ConvNeXt": "spatial:read_convnext",
    "timm.models.resnet.ResNet": "spatial:read_resnet",
    "vitmix.models.cct.CompactTransformer": "sequence:read_compact",
    "vitmix.models.pvt.PyramidVisionTransformer": "pyramid:read_pvt1",
    "torchvision.models.vision_transformer.VisionTransformer": "torchvision_models:read_vit",
    "torchvision.models.swin_transformer.SwinTransformer": "torchvision_models:read_swin",
    "transformers.models.vit.modeling_vit.ViTForImageClassification": "huggingface:read_vit",
    "transformers.models.deit.modeling_deit.DeiTForImageClassification": "huggingface:read_deit",
    "transformers.models.deit.modeling_deit.DeiTForImageClassificationWithTeacher": "huggingface:read_deit_teacher",
    "transformers.models.swin.modeling_swin.SwinForImageClassification": "huggingface:read_swin",
    "transformers.models.dinov2.modeling_dinov2.Dinov2ForImageClassification": "huggingface:read_dinov2",
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers"
    ".Dinov2WithRegistersForImageClassification": "huggingface:read_dinov2_registers",
}

REFUSED: dict[str, str] = {
    "timm.models.xcit.Xcit": "its attention is between channels, not tokens",
}

_REGISTERED: dict[type[nn.Module], Callable[[Any], Reader]] = {}


def register_reader(kind: type[nn.Module], reader: Callable[[Any], Reader]) -> None:
    """Registers `reader(model)` as the reader of models of exactly this class."""
    _REGISTERED[kind] = reader


def read_model(model: nn.Module) -> Reader:
    """The reader of a model, which may be compiled or wrapped for data parallelism."""
    model = unwrap(model)
    kind = type(model)
    if kind in _REGISTERED:
        return _REGISTERED[kind](model)
    path, package = f"{kind.__module__}.{kind.__qualname__}", kind.__module__.partition(".")[0]
    if path in REFUSED:
        raise ValueError(
            f"{kind.__name__} cannot be read: {REFUSED[path]}. Methods that need no attention work with it"
        )
    if path not in READERS:
        known = ", ".join(sorted(f"{each.partition('.')[0]}.{each.rpartition('.')[2]}" for each in READERS))
        raise ValueError(
            f"{package}.{kind.__name__} cannot be read; known classes (matched exactly): {known}. Methods that need no "
            "attention work on any model; docs/adapters.md shows how to add a class"
        )
    module, _, function = READERS[path].partition(":")
    try:
        return getattr(import_module(f"vitmix.attention.readers.{module}"), function)(model)
    except ImportError as error:  # from a version with other import paths
        raise ValueError(
            f"this {package} cannot be read: {error}. Methods that need no attention work with it"
        ) from None


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
    """The logits of a model output: the output itself, or its `logits` (Hugging Face)."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def frame_of(images: Tensor, reader: Reader | None) -> Frame:
    """The frame of a batch of images `(B, C, H, W)`."""
    check_tensor("images", images)
    if images.ndim != 4:
        raise ValueError(f"images must be (B, C, H, W), got {tuple(images.shape)}; add the batch dimension")
    if len(images) == 0:
        raise ValueError(f"a batch needs at least one image, got {tuple(images.shape)}; skip empty batches")
    size = (images.shape[2], images.shape[3])
    dtype = torch.float64 if images.dtype == torch.float64 else torch.float32
    if reader is None:
        return Frame(len(images), size, dtype=dtype)
    return Frame(len(images), size, reader.mask_grid(size), dtype, reader.grids(size)[: reader.patch_depth])
