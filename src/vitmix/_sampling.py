"""Randomness: the choices of a batch are a function of (seed, step, rank), drawn on the host before any computation."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "Draw", "Stream", "generator_for", "on_host", "pack", "unpack"]


def generator_for(*numbers: int) -> torch.Generator:
    """A CPU generator seeded with whole `numbers`, such as (seed, step, rank)."""
    state = np.random.SeedSequence([number % 2**64 for number in numbers]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


class Stream:
    """The source of the draws of an attached mixer: a seed, a step that counts batches, and a rank.

    Without a `seed`, one is drawn from torch's CPU generator, and the first process sends its seed and step to the
    others at the first draw. So `torch.manual_seed` decides, every process takes the same branch of a switch, and the
    next stream draws other numbers. With a given seed, a second stream for the same model and mixer would repeat the
    first: it warns, unless it is given a `step`.
    """

    def __init__(self, seed: int | None, step: int | None, rank: int | None) -> None:
        if seed is not None and not hasattr(seed, "__index__"):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        self.seed = int(torch.randint(2**63 - 1, (), device="cpu")) if seed is None else int(seed)
        self.step, self.rank = step or 0, rank
        self._shared = seed is not None
        self._may_repeat = seed is None or step is not None

    def next(self, model: Any, mixer: Any) -> tuple[torch.Generator, torch.Generator]:
        """The generators of the next batch: one of this process and one that is equal in all of them."""
        rank = self.rank if self.rank is not None else _process_rank()
        if not self._shared:
            (self.seed, self.step), self._shared = _first_process_says((self.seed, self.step)), True
        if not self._may_repeat and self.step == 0:
            _warn_of_repeats(model, (mixer, self.seed, rank))
        self._may_repeat = True
        own, shared = generator_for(self.seed, self.step, 1 + rank), generator_for(self.seed, self.step, 0)
        self.step += 1
        return own, shared

    def state(self) -> Tensor:
        """Seed and step, to continue elsewhere."""
        wrapped = (self.seed + 2**63) % 2**64 - 2**63  # as int64; `generator_for` counts modulo 2**64
        return torch.tensor([wrapped, self.step], dtype=torch.int64, device="cpu")

    def load(self, state: Tensor) -> None:
        self.seed, self.step = state.tolist()
        self._may_repeat = True


_STARTED: "WeakKeyDictionary[Any, list[Any]]" = WeakKeyDictionary()  # what was drawn from step 0, by model


def _warn_of_repeats(model: Any, drawn: tuple[Any, int, int]) -> None:
    started = _STARTED.setdefault(model, [])
    if started.count(drawn) == 1:
        warnings.warn(
            f"seed={drawn[1]} repeats the draws that this model already got from step 0; attach once for the whole "
            "training, give step= to continue, or leave out seed=",
            stacklevel=5,
        )
    if started.count(drawn) < 2:
        started.append(drawn)


def _first_process_says(state: tuple[int, int]) -> tuple[int, int]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return state
    said = [state]
    torch.distributed.broadcast_object_list(said, src=0)
    return said[0]


def _process_rank() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if ready else 0


def on_host() -> AbstractContextManager[object]:
    """Creates new tensors on the host, whatever `torch.set_default_device` is, because the generators are there."""
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


ALIGNMENT = 16  # in bytes, of each packed tensor


def pack(tensors: list[Tensor]) -> Tensor:
    """Packs tensors into the bytes of one tensor."""
    parts = []
    for tensor in tensors:
        part = tensor.contiguous().view(-1).view(torch.uint8)
        parts += [part, part.new_zeros(-len(part) % ALIGNMENT)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8)


def unpack(packed: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Unpacks the tensors given to `pack`, as views of its bytes, which may have moved to another device."""
    tensors, start = [], 0
    for tensor in like:
        length = tensor.numel() * tensor.element_size()
        tensors.append(packed[start : start + length].view(tensor.dtype).view(tensor.shape))
        start += length + -length % ALIGNMENT
    return tensors


@dataclass(frozen=True)
class Draw:
    """The random choices of one batch: `choice`, which mixer of a switch, and `values`, the numbers of its parts."""

    choice: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Draw":
        """The same numbers on a device. The copy to a GPU uses pinned memory and does not wait."""
        if all(value.device == device for value in self.values.values()):
            return self
        if device.type != "cuda" or any(value.is_cuda for value in self.values.values()):
            return Draw(self.choice, {name: value.to(device) for name, value in self.values.items()})
        packed = pack(list(self.values.values())).pin_memory().to(device, non_blocking=True)  # one copy for all
        return Draw(self.choice, dict(zip(self.values, unpack(packed, list(self.values.values())), strict=True)))

    def with_ahead(self, numbers: dict[str, Tensor]) -> "Draw":
        """The same draw with what the chosen mixer computed ahead, from `Mixer.ahead` or `Switch.ahead`."""
        start = f"{self.choice}."
        own = {key.removeprefix(start): value for key, value in numbers.items() if key.startswith(start)}
        return Draw(self.choice, self.values | own) if own else self

    def part(self, name: str) -> dict[str, Tensor]:
        """The numbers of one part, stored under `name.`."""
        start = name + "."
        return {key[len(start) :]: value for key, value in self.values.items() if key.startswith(start)}
