"""Randomness: a batch's choices as a function of (seed, step, rank), drawn on the host before anything is computed."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


def generator_for(*numbers: int) -> torch.Generator:
    """A CPU generator that is a function of some whole numbers, such as (seed, step, rank)."""
    state = np.random.SeedSequence([number % 2**64 for number in numbers]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


@dataclass(frozen=True)
class Draw:
    """The choices of one batch: which mixer of a switch, and the numbers its parts drew."""

    choice: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Draw":
        """The same numbers on a device; from pinned memory and without waiting where that is a GPU."""
        if device.type == "cpu":
            return self
        if device.type == "cuda":
            moved = {name: value.pin_memory().to(device, non_blocking=True) for name, value in self.values.items()}
        else:
            moved = {name: value.to(device) for name, value in self.values.items()}
        return Draw(self.choice, moved)

    def part(self, name: str) -> dict[str, Tensor]:
        """The numbers of one part, which are stored under `name.`."""
        start = name + "."
        return {key[len(start) :]: value for key, value in self.values.items() if key.startswith(start)}
