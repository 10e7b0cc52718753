"""Checkpoints of sharded weights: every process writes its own shard, and any number of processes can read them.

Torch's distributed checkpoints do both; here they are safetensors files, so that reading one never runs pickled code.
Gathering the state first would need memory for all of it on each device, which sharding is meant to avoid. The
guarantee is that of `checkpoints`: the manifest, with the checksum of every file, is written last, and then the folder
gets its name.
"""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from vitmix.lab.reading import read_json
from vitmix.lab.training import checkpoints, processes
from vitmix.lab.training.checkpoints import MODEL, TRAINING, Checkpoint, FileFacts, pack, unpack
from vitmix.lab.training.weights import Tensors


def check_torch() -> None:
    """Refuses versions of torch that cannot write a safetensors file in each process."""
    if torch.__version__ < "2.9":
        raise ValueError(f"fsdp needs torch 2.9 or newer to write checkpoints, got {torch.__version__}; update torch")


def save_checkpoint(folder: Path, update: int, checkpoint: Checkpoint, *, keep: int, accelerator: Accelerator) -> None:
    """Writes a checkpoint of sharded tensors, in all processes together; an OSError in one of them is raised in all."""
    tensors, skeleton = pack(checkpoint.training)
    state = {**{f"{MODEL}{name}": value for name, value in checkpoint.model.items()}, **tensors}
    files = {TRAINING: json.dumps(skeleton).encode()}
    try:
        partial = processes.on_main(accelerator, lambda: checkpoints.begin(folder, update))
        try:
            found = _write_shards(partial, state, accelerator)
            processes.on_main(accelerator, lambda: checkpoints.complete(partial, files, found, keep=keep))
        except processes.Refused:
            processes.on_main(accelerator, lambda: checkpoints.remove(partial))
            raise
    except processes.Refused as error:
        raise OSError(str(error)) from None


def _write_shards(partial: Path, state: Tensors, accelerator: Accelerator) -> dict[str, FileFacts]:
    """Writes a file in each process that holds a part of these tensors; returns their entries in the manifest."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # see `check_torch`

    try:
        save(state, storage_writer=HuggingFaceStorageWriter(str(partial), save_distributed=True))
    except CheckpointException as error:  # raised in all processes, with the errors of each
        raise processes.Refused(_reason(error)) from None
    rank = accelerator.process_index
    written = partial / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
    ranks = [each for each, wrote in enumerate(processes.gather(accelerator, written.exists())) if wrote]

    def name_own() -> dict[str, FileFacts]:
        if rank not in ranks:
            return {}
        named = partial / checkpoints.shard_name(1 + ranks.index(rank), len(ranks))
        written.rename(named)
        return {named.name: checkpoints.facts_of(named.read_bytes())}

    own = processes.together(accelerator, name_own)
    return {name: facts for each in processes.gather(accelerator, own) for name, facts in each.items()}


def _reason(error: CheckpointException) -> str:
    """Why writing failed, in the first process where it did; errors other than those of the disk are raised again."""
    rank, (problem, _) = next(iter(error.failures.items()))
    if not isinstance(problem, (OSError, RuntimeError)):  # torch's streams turn the system's errors into the latter
        raise problem
    why = (problem.strerror if isinstance(problem, OSError) else None) or " ".join(str(problem).split())
    return f"process {rank}: {why}" if rank else why


def load_checkpoint(path: Path, like: Callable[[str], Tensor | None] | None = None) -> Checkpoint:
    """Reads a complete checkpoint: whole tensors or, with `like`, tensors sharded like the one it returns for a name.

    With `like`, all processes must call this together, and each reads only its own shards.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(path))
    kinds = reader.read_metadata().state_dict_metadata
    state = {name: _empty(kind, like(name) if like else None) for name, kind in kinds.items()}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which is what `no_dist` asks for
            load(state, storage_reader=reader, no_dist=like is None)
    except CheckpointException as error:  # raised in all processes, with the errors of each
        raise checkpoints.Foreign(
            f"{path} cannot be read ({_reason(error)}); remove it to resume from an older one"
        ) from None
    model: Tensors = {name.removeprefix(MODEL): each for name, each in state.items() if name.startswith(MODEL)}
    return Checkpoint(model, None, unpack(state, read_json(path / TRAINING)))


def _empty(kind: Any, like: Tensor | None) -> Tensor:
    """An empty tensor to read into; sharded like another one of the same shape."""
    if isinstance(like, DTensor) and like.shape == kind.size:
        return torch.empty_like(like, dtype=kind.properties.dtype)
    return torch.empty(kind.size, dtype=kind.properties.dtype)


def check_shared(folder: Path, accelerator: Accelerator) -> None:
    """Refuses a run folder that other machines cannot see, because each process writes its shard into it."""
    mark = folder / f".shared-{os.getpid()}"
    mark = processes.on_main(accelerator, lambda: _touched(mark))
    seen = processes.gather(accelerator, mark.exists())
    processes.on_main(accelerator, lambda: mark.unlink(missing_ok=True))
    if not all(seen):
        raise processes.Refused(
            f"process {seen.index(False)} does not see the run folder {folder} of the first one, and with fsdp every "
            "process writes its part of a checkpoint there; give an --output on storage that all machines share"
        )


def _touched(mark: Path) -> Path:
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return mark.absolute()
