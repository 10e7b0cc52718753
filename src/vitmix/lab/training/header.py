"""The header of a weights file: its model, preprocessing and classes.

Files are untrusted, so a header is never used unchecked. It may name a model that timm has registered, arguments of
that model from a fixed list, and preprocessing; each is checked for its type and range. It cannot name a file or an
address, and it cannot make the model much larger than the weights in the file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import safetensors
import timm
import torch

from vitmix import models as models  # its import registers names with timm
from vitmix.lab.reading import JsonObject, is_count, is_fault, is_number, parse_json, read_json
from vitmix.lab.settings import ModelArgs, SettingValues

ONNX_FILE = "model.onnx"
MOST_SIDE, MOST_CLASSES, MOST_WHOLE, MOST_LIST = 4096, 10_000_000, 65_536, 64
SPARE_PARAMETERS, SPARE_BLOCKS = 2**26, 128  # a model of this size is always allowed

# Arguments of the models that timm and vitmix register, except those that take modules or file names.
WHOLE = {  # a whole number, or one for each stage
    *("img_size", "patch_size", "in_chans", "embed_dim", "embed_dims", "dims", "depth", "depths", "layers"),
    *("num_heads", "head_dim", "head_hidden_size", "attn_pool_num_heads", "reg_tokens", "num_reg_tokens"),
    *("window_size", "pretrained_window_sizes", "sr_ratios", "kernel_sizes", "depth_token_only", "cls_attn_layers"),
    *("stem_width", "base_width", "cardinality", "num_blocks"),
}
NUMBER = {  # a number, or one for each stage
    *("mlp_ratio", "mlp_ratios", "mlp_ratio_token_only", "attn_pool_mlp_ratio", "expand_ratio"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("init_values", "ls_init_value", "layer_scale_init_value", "head_init_scale", "norm_eps", "rope_temperature"),
}
SWITCH = {
    *("qkv_bias", "qkv_fused", "qk_norm", "proj_bias", "class_token", "no_embed_class", "pool_include_prefix"),
    *("pre_norm", "final_norm", "fc_norm", "use_fc_norm", "use_post_norm", "tokens_norm", "distilled", "linear"),
    *("dynamic_img_size", "dynamic_img_pad", "strict_img_size", "always_partition", "use_pos_embed"),
    *("use_abs_pos_emb", "use_rel_pos_bias", "use_shared_rel_pos_bias", "use_rot_pos_emb"),
    *("scale_attn_norm", "scale_attn_inner", "scale_mlp", "scale_mlp_norm", "swiglu_mlp", "conv_mlp", "use_grn"),
}
WORDS = {
    "global_pool": ("", "avg", "max", "avgmax", "catavgmax", "fast", "token", "map"),
    "weight_init": ("", "skip", "reset", "jax", "jax_nlhb", "moco"),
    "pos_embed": ("", "none", "learn"),
    "positional_embedding": ("learnable", "sine", "none"),
}
BLOCKS = ("depth", "depths", "layers", "num_blocks", "depth_token_only", "cls_attn_layers")  # repeat tensors


class HeaderPreprocessing(TypedDict, total=False):
    """Settings of a `TrainConfig`, as far as a header has them."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop_pct: float
    interpolation: Literal["bicubic", "bilinear", "random"]


@dataclass(frozen=True)
class Header:
    """The checked content of a header; empty if `vitmix train` did not write the file."""

    model: str | None = None
    model_args: ModelArgs = field(default_factory=dict)
    num_classes: int | None = None
    preprocessing: HeaderPreprocessing = field(default_factory=HeaderPreprocessing)
    classes: tuple[str, ...] | None = None

    def as_settings(self) -> SettingValues:
        """The settings `model`, `model_args` and `size` of a training run from these weights."""
        if self.model is None:
            return {}
        own = {name: value for name, value in self.model_args.items() if name != "img_size"}
        size = self.preprocessing.get("size")
        return {"model": self.model, "model_args": own} | ({} if size is None else {"size": size})


def read_header(path: Path) -> Header:
    """The header of a weights file; ValueError if it contains anything that is not allowed."""
    if path.suffix != ".safetensors":
        return Header()
    try:
        metadata, sizes = metadata_and_sizes(path)
        facts = parse_json(metadata.get("vitmix", "{}"))
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        if isinstance(error, OSError) and is_fault(error):
            raise
        return Header()  # loading the weights will report the problem
    if not isinstance(facts, dict):
        return Header()
    try:
        header = _checked(facts)
        _check_images(header, header.preprocessing.get("size"))
        _check_size(header, tensors=len(sizes), elements=sum(sizes))
    except ValueError as problem:
        raise ValueError(f"the header of {path} cannot be used: {problem}") from None
    return header


def metadata_and_sizes(path: Path) -> tuple[dict[str, str], list[int]]:
    """The metadata of a safetensors file and how many values each tensor has, without reading any of them."""
    with safetensors.safe_open(path, "pt") as file:  # pyright: ignore[reportPrivateImportUsage]
        sizes = [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118  not a mapping
        return file.metadata() or {}, sizes


def epoch_of(path: Path) -> int | None:
    """The epoch whose weights a file has; None if its header does not say."""
    try:
        with safetensors.safe_open(path, "pt") as file:  # pyright: ignore[reportPrivateImportUsage]
            facts = parse_json((file.metadata() or {}).get("vitmix", "{}"))
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        if isinstance(error, OSError) and is_fault(error):
            raise
        return None
    epoch = facts.get("epoch") if isinstance(facts, dict) else None
    return epoch if is_count(epoch) else None


def read_export(folder: Path) -> Header:
    """The header in the config.json of an exported folder; ValueError if it is missing or contains too much."""
    try:
        facts = _facts_of_export(read_json(folder / "config.json"))
        header = _checked(facts)
        _check_images(header, facts["preprocessing"]["size"])
        if not (folder / "model.safetensors").is_file() and (folder / ONNX_FILE).is_file():
            most = _stored_bytes(folder / ONNX_FILE) // 2  # values of at least two bytes
            _check_size(header, tensors=most, elements=most)
            return header
        _, sizes = metadata_and_sizes(folder / "model.safetensors")
        _check_size(header, tensors=len(sizes), elements=sum(sizes))
    except (ValueError, FileNotFoundError, safetensors.SafetensorError) as problem:
        raise ValueError(f"{folder} is neither a run folder nor an exported model: {problem}") from None
    return header


def _stored_bytes(path: Path) -> int:
    """The size of a file without its holes, which cost nothing."""
    found = path.stat()
    return min(found.st_size, getattr(found, "st_blocks", found.st_size) * 512)  # Windows counts no blocks


def _facts_of_export(config: Any) -> JsonObject:
    """The configuration that timm writes, as a header."""
    cfg = config.get("pretrained_cfg") if isinstance(config, dict) else None
    if not isinstance(cfg, dict) or not isinstance(config.get("model_args", {}), dict):
        raise ValueError("its config.json has no pretrained_cfg")
    sides = cfg.get("input_size")
    if not isinstance(sides, list) or len(sides) != 3:
        raise ValueError(f"input_size must be three numbers, got {sides!r}")
    preprocessing = {name: cfg.get(name) for name in ("mean", "std", "crop_pct", "interpolation")}
    preprocessing["size"] = sides[1] if sides[1] == sides[2] else sides[1:]
    settings = {**config.get("model_args", {}), "num_classes": config.get("num_classes")}
    found = {"model": config.get("architecture"), "model_settings": settings, "preprocessing": preprocessing}
    return found | {"classes": config.get("label_names")}


def _checked(facts: JsonObject) -> Header:
    model, settings = facts.get("model"), facts.get("model_settings", {})
    preprocessing, classes = facts.get("preprocessing", {}), facts.get("classes")
    for name, value in (("model_settings", settings), ("preprocessing", preprocessing)):
        if not isinstance(value, dict):
            raise ValueError(f"{name} must be a mapping, got {value!r}")
    if model is not None:
        _check_model(model)
    if classes is not None and not _all(classes, lambda each: isinstance(each, str)):
        raise ValueError("classes must be a list of strings")
    outputs = settings.get("num_classes")
    if outputs is not None and not _whole(outputs, 1, MOST_CLASSES):
        raise ValueError(f"num_classes must be a whole number of 1 to {MOST_CLASSES:,}, got {outputs!r}")
    arguments = {name: value for name, value in settings.items() if name != "num_classes"}
    for name, value in arguments.items():
        _check_argument(name, value)
    for name, value in preprocessing.items():
        if name not in PREPROCESSING:
            raise ValueError(f"it sets {name!r}; preprocessing may set {', '.join(PREPROCESSING)}")
        right, wanted = PREPROCESSING[name]
        if value is not None and not right(value):
            raise ValueError(f"{name} must be {wanted}, got {value!r}")
    given = {name: value for name, value in preprocessing.items() if value is not None}
    if isinstance(given.get("size"), list):
        del given["size"]  # height and width: `img_size` is among the model's arguments then
    given |= {name: tuple(given[name]) for name in ("mean", "std") if name in given}
    names = None if classes is None else tuple(classes)
    return Header(model, arguments, outputs, cast(HeaderPreprocessing, given), names)


def _check_model(model: Any) -> None:
    """Refuses a name that timm would look up outside of its registry."""
    try:
        known = isinstance(model, str) and timm.is_model(model.split(".")[0])
        timm.models.get_pretrained_cfg(str(model))
    except RuntimeError:  # there are no weights with this tag
        known = False
    if not known:
        raise ValueError(f"it names the model {model!r}, which timm has not registered; give its timm name instead")


def _check_argument(name: str, value: Any) -> None:
    if value is None and name in WHOLE | NUMBER | SWITCH:
        return
    if name in WORDS:
        right, wanted = value in WORDS[name], f"one of {', '.join(filter(None, WORDS[name]))}"
    elif name in SWITCH:
        right, wanted = isinstance(value, bool), "true or false"
    elif name in WHOLE:
        most = MOST_SIDE if name == "img_size" else MOST_WHOLE
        right = _one_or_several(value, lambda each: _whole(each, 0, most))
        wanted = f"whole numbers up to {most:,}"
    elif name in NUMBER:
        right, wanted = _one_or_several(value, is_number), "numbers"
    else:
        raise ValueError(f"it sets {name!r}, which a file may not set; use --model-args instead")
    if not right:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _check_images(header: Header, size: int | list[int] | None) -> None:
    """Refuses other image sizes than the model's: a small file could cause days of computation."""
    cfg = timm.models.get_pretrained_cfg(header.model or "")
    if size is None or cfg is None or not cfg.fixed_input_size:
        return
    own = header.model_args.get("img_size") or cfg.input_size[-1]
    if own not in (size, [size, size]):
        raise ValueError(f"size is {size}, but its {header.model} takes images of {own} pixels")


def _check_size(header: Header, *, tensors: int, elements: int) -> None:
    """Refuses a model that is much larger than the weights, before memory is allocated."""
    if header.model is None:
        return
    for name in BLOCKS:
        value = header.model_args.get(name) or 0
        blocks = sum(value) if isinstance(value, list) else value
        if blocks > max(tensors, SPARE_BLOCKS):
            raise ValueError(f"{name} is {blocks}, but the file holds {tensors} tensors")
    settings = dict(header.model_args)
    if header.num_classes is not None:
        settings["num_classes"] = header.num_classes
    try:
        with torch.device("meta"):  # shapes without memory
            model = timm.create_model(header.model, **settings)
    except Exception as error:  # timm asserts, divides and looks up
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"its model_settings do not fit {header.model}: {reason}") from None
    parameters = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    if parameters > 2 * elements + SPARE_PARAMETERS:
        raise ValueError(f"its {header.model} has {parameters:,} values, but the file holds {elements:,}")


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _one_or_several(value: Any, right: Callable[[Any], bool]) -> bool:
    return len(value) <= MOST_LIST and all(map(right, value)) if isinstance(value, list) else right(value)


def _colors(value: Any, right: Callable[[float], bool] = lambda each: True) -> bool:
    return _all(value, lambda each: is_number(each) and right(each)) and len(value) == 3


def _all(value: Any, right: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(right, value))


def _size(value: Any) -> bool:
    sides = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(_whole(side, 1, MOST_SIDE) for side in sides)


PREPROCESSING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "size": (_size, f"pixels up to {MOST_SIDE:,}"),
    "mean": (_colors, "three numbers"),
    "std": (lambda value: _colors(value, lambda each: each > 0), "three positive numbers"),
    "crop_pct": (lambda value: is_number(value) and 0 < value <= 1, "above 0 and at most 1"),
    "interpolation": (lambda value: value in ("bicubic", "bilinear", "random"), "bicubic, bilinear or random"),
}
