"""Randomness: the choices of a batch are a function of (seed, step, rank), drawn on the host before any computation."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "Draw", "generator_for", "on_host", "pack", "unpack"]


def generator_for(*numbers: int) -> torch.Generator:
    """A CPU generator seeded with whole `numbers`, such as (seed, step, rank)."""
    state = np.random.SeedSequence([number % 2**64 for number in numbers]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


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

    def part(self, name: str) -> dict[str, Tensor]:
        """The numbers of one part, stored under `name.`."""
        start = name + "."
        return {key[len(start) :]: value for key, value in self.values.items() if key.startswith(start)}
