"""Weights files: written as safetensors, read as safetensors or from torch.save."""

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from vitmix.lab.reading import is_fault
from vitmix.lab.training.header import read_header
from vitmix.lab.writing import write_file

Tensors = dict[str, Tensor]


def write_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Writes weights as safetensors that timm loads; `about` goes into the file's header."""
    write_file(path, safetensors.torch.save(host_copies(weights), dict(about or {})))


def host_copies(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copies in host memory, because safetensors refuses tensors that share memory."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


class Changed(NamedTuple):
    """The tensors of a file that are not loaded unchanged."""

    left_out: list[str]
    resampled: list[str]


def load_weights(model: nn.Module, path: str | Path, *, reset_head: bool = False) -> Changed:
    """Loads weights of a file, or the best ones of a run folder, into a model.

    A classifier for another number of classes (with `reset_head`, any classifier) is left out; positions of another
    grid and patches of another size are resampled, where timm can. Any other difference is an error, which names the
    first few.
    """
    path = weights_file(path)
    stored = read_weights(path)
    weights = _adapted(stored, model)
    own = model.state_dict()
    classifier = classifier_keys(model)
    replaced = [
        key
        for key in classifier & weights.keys() & own.keys()
        if reset_head or weights[key].shape[:1] != own[key].shape[:1]
    ]
    if replaced:
        weights = {key: value for key, value in weights.items() if key not in classifier}
    kept = own.keys() - (classifier if replaced else set())
    problems = [
        f"{key} is {tuple(stored.get(key, weights[key]).shape)} instead of {tuple(own[key].shape)}"
        for key in own
        if key in kept and key in weights and weights[key].shape != own[key].shape
    ]
    problems += [f"{key} is missing" for key in own if key in kept and key not in weights]
    problems += [f"{key} is not in the model" for key in weights if key not in own]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        said = f"{', '.join(problems[:3])}{more}{_named_in(path)}"
        raise ValueError(f"the weights in {path} do not fit this {type(model).__name__}: {said}")
    model.load_state_dict(weights, strict=not replaced)
    resampled = [key for key in weights if key in stored and stored[key].numel() != weights[key].numel()]
    return Changed(sorted(replaced), resampled)


def _named_in(path: Path) -> str:
    """What the header of a file says about its model, for an error message."""
    try:
        settings = read_header(path).as_settings()
    except ValueError:  # its header is not allowed
        return ""
    return f"; its header names {settings['model']} with model_args {settings['model_args']}" if settings else ""


def weights_file(path: str | Path) -> Path:
    """The weights file of a path: the path itself, or the best weights of a run folder."""
    return Path(path) / "best.safetensors" if Path(path).is_dir() else Path(path)


def read_weights(path: Path) -> Tensors:
    """The weights in a file by name, as safetensors or torch's programs store them."""
    if not path.is_file():
        raise ValueError(f"there is no weights file {path}")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # from safetensors, zipfile or pickle, depending on the file
        if isinstance(error, OSError) and is_fault(error):
            raise
        reason = " ".join(str(error).split())[:200]
        if isinstance(error, safetensors.SafetensorError):
            reason = f"it is damaged or truncated ({reason})"
        elif not _is_of_torch(path):
            reason = "it is neither a safetensors file nor a torch.save file"
        elif isinstance(error, pickle.UnpicklingError):  # torch's message is a page long and suggests running the code
            reason = "it contains more than tensors, and loading it would run pickled code; save only its state_dict"
        raise ValueError(f"{path} is not a weights file that can be read safely: {reason}") from None
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    named = isinstance(loaded, dict) and all(isinstance(key, str) for key in loaded)
    if not named or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError(f"{path} holds a {type(loaded).__name__} instead of named weights")
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in loaded.items()}


def _is_of_torch(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))  # zip, or a bare pickle


def _adapted(weights: Tensors, model: nn.Module) -> Tensors:
    """The weights under this model's names; its module may translate the authors' names and resample positions."""
    adapt = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if adapt is None:
        return weights
    try:
        return dict(adapt(dict(weights), model))
    except (KeyError, RuntimeError, AttributeError, TypeError, ValueError, AssertionError, IndexError):
        return weights  # for another model, which the following comparison reports


def classifier_keys(model: nn.Module) -> set[str]:
    """The names of the classifier's weights, as timm knows them."""
    names = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    names = (names,) if isinstance(names, str) else names
    return {key for key in model.state_dict() if any(key.startswith(f"{name}.") for name in names)}
