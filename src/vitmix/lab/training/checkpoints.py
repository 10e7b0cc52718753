"""Checkpoints that are complete or absent.

A checkpoint is a folder: tensors as safetensors, everything else as JSON, and a manifest with the size and checksum of
each file. With sharded weights, every process writes its own shard of the tensors (`vitmix.lab.training.sharded`). A
checkpoint is written under a temporary name, forced to disk and renamed, so that a name without a dot stands for a
complete one; the checksums find what a disk damaged later.
"""

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import safetensors
import safetensors.torch
from torch import Tensor

from vitmix.lab import writing
from vitmix.lab.reading import JsonObject, is_fault, parse_json
from vitmix.lab.training.weights import Tensors, host_copies
from vitmix.lab.writing import PARTIAL, make_folder

MANIFEST = "manifest.json"
TRAINING = "training.json"
FILES = ("model.safetensors", "training.safetensors", TRAINING)  # of a checkpoint that one process wrote
SHARD = re.compile(r"shard-[0-9]{5}-of-([0-9]{5})\.safetensors")  # of one that several processes wrote
MODEL = "model."  # begins the names of the model's tensors among those of a shard
PREFIX, OLD, DAMAGED = "update-", ".old", "damaged-"
NAME = re.compile(rf"{PREFIX}[0-9]{{9,}}")


class Foreign(ValueError):
    """A complete checkpoint of another run."""


class FileFacts(TypedDict):
    """What the manifest says of a file."""

    bytes: int
    sha256: str


class LossSums(TypedDict):
    """The losses of the current epoch, summed over its updates, and how many there were."""

    sums: list[float]
    count: int


class OptimizerState(TypedDict):
    """An optimizer's `state_dict`: the state of each parameter by its number, and the groups of parameters."""

    state: dict[int, dict[str, object]]
    param_groups: list[dict[str, object]]


class TrainingValues(TypedDict):
    """What training needs besides the weights; see `TrainState.capture`."""

    position: JsonObject
    update: int
    world: int
    tally: LossSums
    added: Tensors
    own: NotRequired[list[Tensors]]
    optimizer: OptimizerState
    scaler: Any
    random: Tensors


@dataclass(frozen=True)
class Checkpoint:
    """The model's weights, their averaged copy if there is one, and everything else that training needs."""

    model: Tensors
    ema: Tensors | None
    training: TrainingValues


# Trees of tensors and plain values


def pack(tree: Any) -> tuple[Tensors, Any]:
    """Splits a nested value into its tensors and a JSON value that has their names in their places."""
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
    """The inverse of `pack`."""
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

    Checkpoints of later updates do not count: the run did not resume from them, so they are damaged.
    """
    tensors, skeleton = pack(checkpoint.training)
    files = {
        "model.safetensors": safetensors.torch.save(host_copies(checkpoint.model)),
        "training.safetensors": safetensors.torch.save(host_copies(tensors)),
        TRAINING: json.dumps(skeleton).encode(),
    }
    if checkpoint.ema is not None:
        files["ema.safetensors"] = safetensors.torch.save(host_copies(checkpoint.ema))
    partial = begin(folder, update)
    return complete(partial, files, {}, keep=keep)


def begin(folder: Path, update: int) -> Path:
    """A new, empty folder for the files of a checkpoint, under a temporary name."""
    make_folder(folder)
    partial = _hidden(folder / f"{PREFIX}{update:09d}", PARTIAL)
    remove(partial)
    partial.mkdir()
    return partial


def complete(partial: Path, files: Mapping[str, bytes], written: Mapping[str, FileFacts], *, keep: int) -> Path:
    """Adds files and the manifest to those written already, and gives the checkpoint its name."""
    manifest = {**written, **{name: facts_of(content) for name, content in files.items()}}
    target = partial.with_name(partial.stem[1:])
    try:
        for name, content in {**files, MANIFEST: json.dumps(manifest, indent=1).encode()}.items():
            writing.write_synced(partial / name, content)
        writing.sync_folder(partial)
        _put_in_place(partial, target)
    except OSError:
        remove(partial)
        raise
    remove_older(target, keep=keep)
    return target


def remove_older(newest: Path, *, keep: int) -> None:
    """Removes checkpoints of earlier updates until `keep` are left with this one; those it cannot remove stay."""
    with suppress(OSError):  # the next one removes what stays
        older = [path for path in list_checkpoints(newest.parent) if update_of(path) < update_of(newest)]
        for path in older[: max(0, len(older) - keep + 1)]:
            remove(path)


def _put_in_place(whole: Path, target: Path) -> None:
    """Gives a complete checkpoint its name. An older one of that name is removed last, so that one always exists."""
    old = _hidden(target, OLD)
    if target.exists():
        remove(old)
        target.rename(old)
    try:
        whole.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    writing.sync_name(target)
    remove(old)


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


def newest_checkpoint(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest complete checkpoint, and what is wrong with each newer one."""
    damaged = {}
    for path in reversed(list_checkpoints(folder)):
        problem = find_damage(path)
        if problem is None:
            return path, damaged
        damaged[path] = problem
    return None, damaged


def move_damaged(folder: Path, *, keep: int) -> tuple[Path | None, list[str]]:
    """Renames damaged checkpoints, so that they neither count as checkpoints nor are lost.

    At most `keep` of them stay, or as many as were found damaged together. Returns the newest complete checkpoint, and
    a message for each newer one.
    """
    newest, damaged = newest_checkpoint(folder)
    remarks, moved = [], set()
    for path, why in damaged.items():
        aside = path.with_name(DAMAGED + path.name)
        try:
            remove(aside)
            path.rename(aside)
            moved.add(aside)
            remarks.append(f"checkpoint {path.name} is damaged and was renamed to {aside.name}: {why}")
        except OSError as error:
            remarks.append(f"checkpoint {path.name} is damaged and was skipped: {why}; renaming it failed: {error}")
    if moved:
        aside = [path for path in sorted(folder.iterdir()) if NAME.fullmatch(path.name.removeprefix(DAMAGED))]
        before = [path for path in aside if path.name.startswith(DAMAGED) and path not in moved]
        for path in before[: max(0, len(before) + len(moved) - max(keep, len(moved)))]:
            remove(path)
        writing.sync_folder(folder)
    return newest, remarks


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None. Raises OSError if the disk fails: they may be intact."""
    try:
        manifest, tensors, skeleton = parse_json(_content(path, MANIFEST)), {}, None
        missing = [name for name in _expected(manifest) if name not in manifest]
        if missing:
            return f"{MANIFEST} does not list {missing[0]}"
        for name, expected in manifest.items():
            content = _content(path, name)
            if len(content) != expected["bytes"]:
                return f"{name} has {len(content)} of {expected['bytes']} bytes"
            if _checksum(content) != expected["sha256"]:
                return f"{name} has changed since it was written"
            if name == TRAINING:
                skeleton = parse_json(content)
            elif name.endswith(".safetensors"):
                found = safetensors.torch.load(content)
                if _lost(found, name):
                    return f"{name} holds numbers that are not finite"
                # Names suffice to see that everything is there; the numbers may fill the memory.
                tensors |= dict.fromkeys(found) if name != "model.safetensors" else {}
        unpack(tensors, skeleton)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        if isinstance(error, OSError) and is_fault(error):
            raise
        return f"it cannot be read ({error})"
    return None


def _expected(manifest: Mapping[str, object]) -> list[str]:
    """The files that a manifest must list: those of one process, or every shard."""
    shards = [found for name in manifest if (found := SHARD.fullmatch(name))]
    if not shards:
        return [*FILES]
    count = int(shards[0][1])
    return [*(shard_name(number, count) for number in range(1, count + 1)), TRAINING]


def shard_name(number: int, count: int) -> str:
    """The file of one of several processes, counted from 1."""
    return f"shard-{number:05d}-of-{count:05d}.safetensors"


def is_sharded(path: Path) -> bool:
    """Whether several processes wrote a checkpoint, each its own part of the tensors."""
    return any(SHARD.fullmatch(each.name) for each in path.iterdir())


def _content(path: Path, name: str) -> bytes:
    """The bytes of a regular file in a checkpoint: reading a pipe or a device might never end."""
    file = path / name
    if Path(name).name != name or not (stat.S_ISREG(file.stat().st_mode) or file.is_dir()):
        raise ValueError(f"{name} is not a regular file in it")
    return file.read_bytes()


def _lost(tensors: Tensors, name: str) -> bool:
    """Whether a file contains NaN or Inf. Buffers of a model may be infinite, as masks are."""

    def spoiled(key: str, values: Tensor) -> bool:
        infinite_too = name.startswith("training") or (SHARD.fullmatch(name) is not None and not key.startswith(MODEL))
        return bool(values.isnan().any() or (infinite_too and values.isinf().any()))

    return any(spoiled(key, each) for key, each in tensors.items() if each.is_floating_point())


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint that `newest_checkpoint` found complete, and that one process wrote."""
    skeleton = json.loads((path / TRAINING).read_text())
    ema = path / "ema.safetensors"
    return Checkpoint(
        safetensors.torch.load_file(path / "model.safetensors"),
        safetensors.torch.load_file(ema) if ema.exists() else None,
        unpack(safetensors.torch.load_file(path / "training.safetensors"), skeleton),
    )


def settle_partial(folder: Path) -> list[str]:
    """Cleans up after a killed process: of the versions of a checkpoint, the newest complete one stays.

    Returns the names of checkpoints that were not completely written.
    """
    unfinished = []
    for target in _unsettled(folder):
        partial, old = _hidden(target, PARTIAL), _hidden(target, OLD)
        if partial.exists() and find_damage(partial) is None:
            writing.sync_files(partial)  # the process may have been killed before it did
            _put_in_place(partial, target)
            continue
        if partial.exists():
            remove(partial)
            unfinished.append(target.name)
        if old.exists() and find_damage(target) is not None and find_damage(old) is None:
            remove(target)
            old.rename(target)
        remove(old)
    return unfinished


def _unsettled(folder: Path) -> list[Path]:
    """The checkpoints, existing or not, that have a new or an old version beside them."""
    hidden = [entry for entry in _entries(folder) if entry.suffix in (PARTIAL, OLD)]
    return sorted({folder / entry.stem[1:] for entry in hidden if NAME.fullmatch(entry.stem[1:])})


def remove(path: Path) -> None:
    """Removes a folder or file as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def facts_of(content: bytes) -> FileFacts:
    return {"bytes": len(content), "sha256": _checksum(content)}


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
