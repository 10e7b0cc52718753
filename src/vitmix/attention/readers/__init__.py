"""How models are read: their blocks, their token geometry, and what their classifier reads.

A reader is chosen by the exact classes of the model, its blocks and its attention. Similar classes, and subclasses that
override a computation, may add terms after the point where queries and keys are read, which would silently make the
statistics wrong, so they are refused. `register_reader` adds a reader for your own class.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._mix import Frame, Grid, check_tensor
from vitmix.attention.readers.base import BlockReader as BlockReader
from vitmix.attention.readers.base import FusedBlock as FusedBlock
from vitmix.attention.readers.base import Reader as Reader
from vitmix.attention.readers.inside import as_if_pooled, backbones, logits_of, read_inside
from vitmix.attention.readers.patches import grid_by_patches, rest_of_patches
from vitmix.attention.readers.wrappers import (
    WholePass,
    check_wrappers,
    known_base,
    overridden,
    unsharded_classes,
    unwrap,
)

__all__ = [
    "BlockReader",
    "FusedBlock",
    "READERS",
    "REFUSED",
    "Reader",
    "backbone_of",
    "frame_of",
    "logits_of",
    "mask_grid",
    "read_model",
    "register_reader",
    "rest_of_patches",
    "unwrap",
]

#: The reader of each model class. By import path, so that a package is imported only when one of its models is used.
READERS: dict[str, str] = {
    "timm.models.vision_transformer.VisionTransformer": "sequence:read_vit",
    "timm.models.vision_transformer_relpos.VisionTransformerRelPos": "relative:read_relative",
    "timm.models.naflexvit.NaFlexVit": "naflex:read_naflex",
    "timm.models.deit.VisionTransformerDistilled": "sequence:read_vit",
    "timm.models.eva.Eva": "sequence:read_eva",
    "timm.models.beit.Beit": "sequence:read_beit",
    "timm.models.cait.Cait": "cait:read_cait",
    "timm.models.swin_transformer.SwinTransformer": "pyramid:read_swin",
    "timm.models.swin_transformer_v2.SwinTransformerV2": "swin_v2:read_swin2",
    "timm.models.pvt_v2.PyramidVisionTransformerV2": "pyramid:read_pvt2",
    "timm.models.pit.PoolingVisionTransformer": "pit:read_pit",
    "timm.models.twins.Twins": "twins:read_twins",
    "timm.models.tiny_vit.TinyVit": "tiny_vit:read_tiny_vit",
    "timm.models.maxxvit.MaxxVit": "maxxvit:read_maxxvit",
    "timm.models.levit.Levit": "levit:read_levit",
    "timm.models.levit.LevitDistilled": "levit:read_levit",
    "timm.models.hiera.Hiera": "hiera:read_hiera",
    "timm.models.mvitv2.MultiScaleVit": "mvit:read_mvit",
    "timm.models.volo.VOLO": "volo:read_volo",
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
    "transformers.models.beit.modeling_beit.BeitForImageClassification": "huggingface_encoders:read_beit",
    "transformers.models.clip.modeling_clip.CLIPForImageClassification": "huggingface_encoders:read_clip",
    "transformers.models.siglip.modeling_siglip.SiglipForImageClassification": "huggingface_encoders:read_siglip",
    "transformers.models.swinv2.modeling_swinv2.Swinv2ForImageClassification": "huggingface_pyramids:read_swin2",
    "transformers.models.pvt_v2.modeling_pvt_v2.PvtV2ForImageClassification": "huggingface_pyramids:read_pvt2",
    "transformers.models.convnext.modeling_convnext.ConvNextForImageClassification": (
        "huggingface_pyramids:read_convnext"
    ),
    "transformers.models.convnextv2.modeling_convnextv2.ConvNextV2ForImageClassification": (
        "huggingface_pyramids:read_convnext2"
    ),
}

#: Model classes that cannot be read, and why.
REFUSED: dict[str, str] = {
    "timm.models.xcit.Xcit": "its attention is between channels, not tokens",
    "timm.models.edgenext.EdgeNeXt": "its attention is between channels, not tokens",
    "timm.models.davit.DaVit": "every other block of it attends between channels, not tokens",
    "transformers.models.siglip2.modeling_siglip2.Siglip2ForImageClassification": (
        "its input is patches that the processor cut, not images; SigLIP 2 checkpoints of a fixed size load as "
        "SiglipForImageClassification, and timm's naflexvit models take images"
    ),
}

_REGISTERED: dict[type[nn.Module], Callable[[Any], Reader]] = {}


def register_reader(kind: type[nn.Module], reader: Callable[[Any], Reader] | type[nn.Module]) -> None:
    """Registers `reader(model)` as the reader of models of exactly this class.

    Given a known class instead, such as its base class, models are read like models of that class.
    """
    _REGISTERED[kind] = _reader_of(reader) if isinstance(reader, type) and issubclass(reader, nn.Module) else reader


def read_model(model: nn.Module, *, inside: bool = True) -> Reader:
    """The reader of a model, which may be wrapped (compiled, data-parallel, adapters).

    `inside`: whether it may also be part of a larger module, which then runs once on an empty image.
    """
    check_wrappers(model)
    model = unwrap(model)
    with unsharded_classes(model) as sharded:
        reader = _read(model, inside)
    if sharded:  # only a pass of the whole model gathers all of its parameters
        reader.stop_after = WholePass(model).stop_after
    return reader


def _read(model: nn.Module, inside: bool) -> Reader:
    if _is_known(type(model)):
        return _reader_of(type(model))(model)
    if (base := known_base(type(model), _is_known)) is not None:
        return _read_subclass(model, base)
    inner = backbones(model, lambda each: _is_known(type(unwrap(each)))) if inside else {}
    if not inner and (found := _without_classifier(model)) is not None:
        raise ValueError(
            f"{found[0]} is a model without a classifier; use {found[1]}, with your head as its classifier"
        )
    if len(inner) != 1:
        raise ValueError(_refusal(type(model), list(inner)))
    (backbone,) = map(unwrap, inner.values())
    with as_if_pooled(backbone):
        reader = _reader_of(type(backbone))(backbone)
    return read_inside(model, reader)


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_known(kind: type) -> bool:
    return kind in _REGISTERED or _path(kind) in READERS


def _reader_of(kind: type) -> Callable[[Any], Reader]:
    if kind in _REGISTERED:
        return _REGISTERED[kind]
    if _path(kind) not in READERS:
        raise ValueError(_refusal(kind))
    module, _, function = READERS[_path(kind)].partition(":")
    package = kind.__module__.partition(".")[0]
    try:
        return getattr(import_module(f"vitmix.attention.readers.{module}"), function)
    except ImportError as error:  # from a version with other import paths
        raise ValueError(
            f"this {package} cannot be read: {error}. Methods that need no attention work with it"
        ) from None


def _read_subclass(model: nn.Module, base: type) -> Reader:
    kind = type(model)
    if changed := overridden(kind, base):
        raise ValueError(
            f"{kind.__name__} overrides {', '.join(changed)} of {base.__name__}, which may change what attention "
            f"means; if it does not, call vitmix.attention.register_reader({kind.__name__}, {base.__name__}). Methods "
            "that need no attention work with it"
        )
    return _reader_of(base)(model)


def _refusal(kind: type, inner: Sequence[str] = ()) -> str:
    if (path := _path(kind)) in REFUSED:
        return f"{kind.__name__} cannot be read: {REFUSED[path]}. Methods that need no attention work with it"
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if inner:
        return (
            f"{name} cannot be read: it contains several models ({', '.join(inner)}); attach to one of them, or "
            "register a reader for it (docs/adapters.md)"
        )
    return (
        f"{name} cannot be read: it is none of the classes that `vitmix models` lists; register a reader for it "
        "(docs/adapters.md), or use a method that needs no attention, which works on any model"
    )


def _without_classifier(model: nn.Module) -> tuple[str, str] | None:
    """The class of the first Hugging Face model without a classifier, such as ViTModel, and of that with one."""
    classifiers = {path.rpartition(".")[0]: path.rpartition(".")[2] for path in reversed(READERS)}
    for each in model.modules():
        kind = type(each)
        if kind.__name__.endswith("Model") and kind.__module__.startswith("transformers."):
            if kind.__module__ in classifiers:
                return kind.__name__, classifiers[kind.__module__]
    return None


def backbone_of(model: nn.Module) -> nn.Module:
    """The model itself if it can be read, else the one model inside it that can, else the model itself."""
    plain = unwrap(model)
    if _is_known(type(plain)) or known_base(type(plain), _is_known) is not None:
        return model
    inner = list(backbones(plain, lambda each: _is_known(type(unwrap(each)))).values())
    return inner[0] if len(inner) == 1 else model


def mask_grid(model: nn.Module, size: Grid) -> Grid | None:
    """The token grid of a model without a reader, by the model inside it that has one, or by the size of its patches.

    None if it has no patches that can be found.
    """
    model = unwrap(model)
    inner = list(backbones(model, lambda each: _is_known(type(unwrap(each)))).values())
    if len(inner) == 1:
        try:
            return read_model(inner[0], inside=False).mask_grid(size)
        except ValueError:
            pass
    return grid_by_patches(model, size)


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
