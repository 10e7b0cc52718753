"""Checkpoints that are complete or absent, and weights of other origin.

A checkpoint is a folder: tensors as safetensors, everything else as JSON, and a manifest with the size and checksum of
each file. It is written under a temporary name, forced to disk and renamed, so that a name without a dot stands for a
complete checkpoint; the checksums find what a disk damaged later.
"""

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from vitmix.lab.reading import is_fault, parse_json
from vitmix.lab.training.header import read_header

MANIFEST = "manifest.json"
FILES = ("model.safetensors", "training.safetensors", "training.json")  # of every checkpoint
PREFIX, PARTIAL, OLD, DAMAGED = "update-", ".partial", ".old", "damaged-"
NAME = re.compile(rf"{PREFIX}[0-9]{{9,}}")
Tensors = dict[str, Tensor]


class Foreign(ValueError):
    """A whole checkpoint that is not of this training."""


@dataclass(frozen=True)
class Checkpoint:
    """The model's weights, their averaged copy if there is one, and everything else that training needs."""

    model: Tensors
    ema: Tensors | None
    training: dict[str, Any]


# Files


def write_file(path: Path, content: bytes) -> None:
    """Writes a file so that it is either complete or not there, or as it was before."""
    if path.exists() and not path.is_file():  # renaming would put a file in the place of /dev/null
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")  # another process may write the same file
    try:
        _write(partial, content)
        partial.replace(path)
    except BaseException:  # Ctrl-C included
        partial.unlink(missing_ok=True)
        raise
    _sync_name(path)


def write_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Writes weights as safetensors that timm loads; `about` goes into the file's header."""
    write_file(path, safetensors.torch.save(host_copies(weights), dict(about or {})))


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Makes a folder that outlives a power cut."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        _sync_folder(each.parent)


def _sync_name(path: Path) -> None:
    """Makes a new name outlive a power loss. What has it is there in any case, so a failure is told and no more."""
    try:
        _sync_folder(path.parent)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as on file systems that cannot sync folders
            warnings.warn(f"{path} is written, but a power loss may undo that: {error.strerror}", stacklevel=3)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def host_copies(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copies in host memory: safetensors refuses tensors that share theirs."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


# Trees of tensors and plain values


def pack(tree: Any) -> tuple[Tensors, Any]:
    """The tensors of a nested value, and the value as JSON can hold it, with the tensors' names in their places."""
    tensors: Tensors = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            tensors[path] = value
            return {"tensor": path}
        if isinstance(value, Mapping):
            # As pairs: JSON would turn the whole-number keys of an optimizer's state into text.
            return {"pairs": [[key, walk(each, f"{path}.{key}")] for key, each in value.items()]}
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [walk(each, f"{path}.{number}") for number, each in enumerate(value)]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"cannot save {path}: a {type(value).__name__} is neither a tensor nor a plain value")

    return tensors, walk(tree, "state")


def unpack(tensors: Tensors, skeleton: Any) -> Any:
    """The value that `pack` took apart."""
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, content),) = skeleton.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "pairs":
        return {key: unpack(tensors, each) for key, each in content}
    items = [unpack(tensors, each) for each in content]
    return tuple(items) if kind == "tuple" else items


# Checkpoints


def save_checkpoint(folder: Path, update: int, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Writes a checkpoint, then removes older ones until `keep` are left. On failure the older ones stay as they are.

    Checkpoints of later updates do not count: the training did not resume from them, so they are damaged.
    """
    make_folder(folder)
    target = folder / f"{PREFIX}{update:09d}"
    partial = _hidden(target, PARTIAL)
    tensors, skeleton = pack(checkpoint.training)
    files = {
        "model.safetensors": safetensors.torch.save(host_copies(checkpoint.model)),
        "training.safetensors": safetensors.torch.save(host_copies(tensors)),
        "training.json": json.dumps(skeleton).encode(),
    }
    if checkpoint.ema is not None:
        files["ema.safetensors"] = safetensors.torch.save(host_copies(checkpoint.ema))
    manifest = {name: {"bytes": len(content), "sha256": _checksum(content)} for name, content in files.items()}
    files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    try:
        _remove(partial)
        partial.mkdir()
        for name, content in files.items():
            _write(partial / name, content)
        _sync_folder(partial)
        _put_in_place(partial, target)
    except OSError:
        _remove(partial)
        raise
    remove_older(target, keep=keep)
    return target


def remove_older(newest: Path, *, keep: int) -> None:
    """Removes checkpoints of earlier updates until `keep` are left with this one; those it cannot remove stay."""
    with suppress(OSError):  # the next one removes what stays
        older = [path for path in list_checkpoints(newest.parent) if update_of(path) < update_of(newest)]
        for path in older[: max(0, len(older) - keep + 1)]:
            _remove(path)


def _put_in_place(whole: Path, target: Path) -> None:
    """Renames a whole checkpoint. One of that name is removed last: until then `settle_partial` finds either."""
    old = _hidden(target, OLD)
    if target.exists():
        _remove(old)
        target.rename(old)
    try:
        whole.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    _sync_name(target)
    _remove(old)


def _hidden(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}{suffix}")


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first, complete or not; other names are ignored."""
    return sorted((path for path in _entries(folder) if NAME.fullmatch(path.name)), key=update_of)


def _entries(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def update_of(path: Path) -> int:
    """The number of updates before a checkpoint."""
    return int(path.name.removeprefix(PREFIX))


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, and a sentence for each newer one that is damaged."""
    newest, damaged = _search(folder)
    return newest, [f"checkpoint {path.name} is damaged and was skipped: {why}" for path, why in damaged.items()]


def move_damaged(folder: Path, *, keep: int) -> tuple[Path | None, list[str]]:
    """As `newest_checkpoint`, and renames the damaged ones, so that they neither count as checkpoints nor are lost.

    At most `keep` of them stay, or as many as were found damaged together.
    """
    newest, damaged = _search(folder)
    remarks, moved = [], set()
    for path, why in damaged.items():
        aside = path.with_name(DAMAGED + path.name)
        try:
            _remove(aside)
            path.rename(aside)
            moved.add(aside)
            remarks.append(f"checkpoint {path.name} is damaged and was renamed to {aside.name}: {why}")
        except OSError as error:
            remarks.append(f"checkpoint {path.name} is damaged and was skipped: {why}; renaming it failed: {error}")
    if moved:
        aside = [path for path in sorted(folder.iterdir()) if NAME.fullmatch(path.name.removeprefix(DAMAGED))]
        before = [path for path in aside if path.name.startswith(DAMAGED) and path not in moved]
        for path in before[: max(0, len(before) + len(moved) - max(keep, len(moved)))]:
            _remove(path)
        _sync_folder(folder)
    return newest, remarks


def _search(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest complete checkpoint, and what is wrong with each newer one."""
    damaged = {}
    for path in reversed(list_checkpoints(folder)):
        problem = find_damage(path)
        if problem is None:
            return path, damaged
        damaged[path] = problem
    return None, damaged


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None. OSError if the disk fails: they may be whole."""
    try:
        manifest, contents = parse_json(_content(path, MANIFEST)), {}
        missing = [name for name in FILES if name not in manifest]
        if missing:
            return f"{MANIFEST} does not list {missing[0]}"
        for name, expected in manifest.items():
            content = contents[name] = _content(path, name)
            if len(content) != expected["bytes"]:
                return f"{name} has {len(content)} of {expected['bytes']} bytes"
            if _checksum(content) != expected["sha256"]:
                return f"{name} has changed since it was written"
            if name.endswith(".safetensors") and _lost(safetensors.torch.load(content), name):
                return f"{name} holds numbers that are not finite"
        unpack(safetensors.torch.load(contents["training.safetensors"]), parse_json(contents["training.json"]))
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        if isinstance(error, OSError) and is_fault(error):
            raise
        return f"it cannot be read ({error})"
    return None


def _content(path: Path, name: str) -> bytes:
    """The bytes of a file of a checkpoint; of nothing else, since a pipe or a device would be read without an end."""
    file = path / name
    if Path(name).name != name or not (stat.S_ISREG(file.stat().st_mode) or file.is_dir()):
        raise ValueError(f"{name} is not a regular file in it")
    return file.read_bytes()


def _lost(tensors: Tensors, name: str) -> bool:
    """Whether NaN or infinite numbers spoil a checkpoint. Buffers of a model may be infinite, as masks are."""
    infinite_too = name.startswith("training")
    numbers = [each for each in tensors.values() if each.is_floating_point()]
    return any(bool(each.isnan().any() or (infinite_too and each.isinf().any())) for each in numbers)


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint that `newest_checkpoint` found complete."""
    skeleton = json.loads((path / "training.json").read_text())
    ema = path / "ema.safetensors"
    return Checkpoint(
        safetensors.torch.load_file(path / "model.safetensors"),
        safetensors.torch.load_file(ema) if ema.exists() else None,
        unpack(safetensors.torch.load_file(path / "training.safetensors"), skeleton),
    )


def settle_partial(folder: Path) -> list[str]:
    """Ends what a killed process began: of a checkpoint and its new or old version the newest whole one stays.

    Returns the names of those whose writing was not finished.
    """
    unfinished = []
    for target in _unsettled(folder):
        partial, old = _hidden(target, PARTIAL), _hidden(target, OLD)
        if partial.exists() and find_damage(partial) is None:
            _put_in_place(partial, target)
            continue
        if partial.exists():
            _remove(partial)
            unfinished.append(target.name)
        if old.exists() and find_damage(target) is not None and find_damage(old) is None:
            _remove(target)
            old.rename(target)
        _remove(old)
    return unfinished


def _unsettled(folder: Path) -> list[Path]:
    """The checkpoints, there or not, beside which a new or an old version lies."""
    hidden = [entry for entry in _entries(folder) if entry.suffix in (PARTIAL, OLD)]
    return sorted({folder / entry.stem[1:] for entry in hidden if NAME.fullmatch(entry.stem[1:])})


def _remove(path: Path) -> None:
    """Removes a folder or file as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Weights to start from


class Changed(NamedTuple):
    """The tensors of a file that a model does not start from as they are."""

    left_out: list[str]
    resampled: list[str]


def load_weights(model: nn.Module, path: str | Path) -> Changed:
    """Loads weights of a file, or the best ones of a run folder, into a model.

    A classifier for another number of classes is left out; positions of another grid and patches of another size are
    resampled, where timm can. Any other difference is an error that names the first ones.
    """
    path = weights_file(path)
    stored = read_weights(path)
    weights = _adapted(stored, model)
    own = model.state_dict()
    classifier = _classifier_keys(model)
    replaced = [key for key in classifier & weights.keys() & own.keys() if weights[key].shape[:1] != own[key].shape[:1]]
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
        said = _said_of_model(path)
        hint = f"; it says that it is of {said['model']} with model_args {said['model_args']}" if said else ""
        raise ValueError(
            f"the weights in {path} are not of this {type(model).__name__}: {', '.join(problems[:3])}{more}{hint}"
        )
    model.load_state_dict(weights, strict=not replaced)
    resampled = [key for key in weights if key in stored and stored[key].numel() != weights[key].numel()]
    return Changed(sorted(replaced), resampled)


def _said_of_model(path: Path) -> dict[str, Any]:
    try:
        return read_header(path).as_settings()
    except ValueError:  # it says what no header may say
        return {}


def weights_file(path: str | Path) -> Path:
    """The file that a path to start from means: of a run folder its best weights."""
    return Path(path) / "best.safetensors" if Path(path).is_dir() else Path(path)


def read_weights(path: Path) -> Tensors:
    """The weights in a file by name, as safetensors or torch's programs store them."""
    if not path.is_file():
        raise ValueError(f"there is no file of weights {path}")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of safetensors, zipfile or pickle, depending on what the file is
        if isinstance(error, OSError) and is_fault(error):
            raise
        reason = " ".join(str(error).split())[:200]
        if isinstance(error, safetensors.SafetensorError):
            reason = f"it is damaged or cut short ({reason})"
        elif not _is_of_torch(path):
            reason = "it is neither safetensors nor what torch.save writes"
        elif isinstance(error, pickle.UnpicklingError):  # torch's own text is a page that advises to run the code
            reason = "it holds more than tensors, and loading that would run code; save its state_dict alone"
        raise ValueError(f"{path} is not a file of weights that can be read safely: {reason}") from None
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    named = isinstance(loaded, dict) and all(isinstance(key, str) for key in loaded)
    if not named or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError(f"{path} holds no weights by name, but a {type(loaded).__name__}")
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in loaded.items()}


def _is_of_torch(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))  # zip, or a bare pickle


def _adapted(weights: Tensors, model: nn.Module) -> Tensors:
    """The weights as this model has them: its module may know the authors' names, and resample positions."""
    adapt = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if adapt is None:
        return weights
    try:
        return dict(adapt(dict(weights), model))
    except (KeyError, RuntimeError, AttributeError, TypeError, ValueError, AssertionError, IndexError):
        return weights  # of another model: the comparison that follows says so


def _classifier_keys(model: nn.Module) -> set[str]:
    names = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    names = (names,) if isinstance(names, str) else names
    return {key for key in model.state_dict() if any(key.startswith(f"{name}.") for name in names)}
