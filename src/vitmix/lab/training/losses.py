"""The losses of a training run, summed on the device so that no step waits for the host."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

MOST_WAITING = 1000  # largest number of updates with losses on the device, even between rare reports


class LossTally:
    """Sums of the loss and its parts over an epoch's updates, and the first update whose loss was not finite.

    Values stay on the device, a row per update, until they are read; then they are added one by one, so that the sums
    do not depend on when that happens.
    """

    def __init__(self, names: Sequence[str], device: torch.device, *, capacity: int) -> None:
        self.names = tuple(names)
        self.sums, self.count = [0.0] * len(names), 0
        self.seen, self.first_bad = 0, -1  # updates since the start of this process
        self._rows = torch.zeros(min(capacity, MOST_WAITING), len(names), device=device)
        self._waiting = 0
        self._zero = torch.zeros((), device=device)

    def values(self, losses: dict[str, Tensor]) -> Tensor:
        """The losses of a batch as a vector, with zeros for missing parts."""
        return torch.stack([losses.get(name, self._zero).float() for name in self.names])

    def add(self, values: Tensor) -> None:
        """Adds an update without waiting for the device, unless the buffer is full."""
        if self._waiting == len(self._rows):
            self.flush()
        self._rows[self._waiting] = values
        self._waiting += 1

    def flush(self) -> None:
        """Adds up the values on the device."""
        for row in self._rows[: self._waiting].tolist():
            if self.first_bad < 0 and not math.isfinite(row[0]):
                self.first_bad = self.seen
            self.sums = [total + value for total, value in zip(self.sums, row, strict=True)]
            self.seen, self.count = self.seen + 1, self.count + 1
        self._waiting = 0

    def total(self, accelerator: Accelerator) -> tuple[list[float], int]:
        """Sums and number of updates since `reset`, over all processes."""
        self.flush()
        if accelerator.num_processes == 1:
            return self.sums, self.count
        dtype = torch.float32 if accelerator.device.type == "mps" else torch.float64
        own = torch.tensor([*self.sums, self.count], dtype=dtype)
        total: Any = accelerator.reduce(own.to(accelerator.device), "sum")
        *sums, count = total.tolist()
        return sums, round(count)

    def means(self, accelerator: Accelerator) -> dict[str, float]:
        """Means since `reset`, over all processes."""
        sums, count = self.total(accelerator)
        return {name: value / count if count else math.nan for name, value in zip(self.names, sums, strict=True)}

    def reset(self) -> None:
        self.flush()
        self.sums, self.count = [0.0] * len(self.names), 0
