"""What a training measures, summed on the device so that no step waits for the host."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vitmix.data.loader import Batch

MEASURES = ("accuracy", "accuracy5", "eval_loss")


class LossTally:
    """Sums of the loss and its parts over an epoch's updates, and whether every loss so far was finite."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = tuple(names)
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(len(names) + 1, dtype=self.dtype, device=device)  # the last counts the updates
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self.good = torch.zeros((), dtype=torch.long, device=device)  # updates before the first one that was not
        self._zero, self._one = torch.zeros_like(self.sums[0]), torch.ones_like(self.sums[0])

    def values(self, losses: dict[str, Tensor], parts: int) -> Tensor:
        """One of several parts of an update as a vector; parts of a loss that this batch has not are zero."""
        found = [losses.get(name, self._zero).to(self.dtype) for name in self.names]
        return torch.stack([*found, self._one]) / parts

    def add(self, values: Tensor) -> None:
        self.finite = self.finite & torch.isfinite(values[0])
        self.good = self.good + self.finite
        self.sums = self.sums + values

    def means(self, accelerator: Accelerator) -> dict[str, float]:
        """Means since `reset`, over all processes. Waits for the device."""
        total: Any = accelerator.reduce(self.sums.clone(), "sum")
        *sums, count = total.tolist()
        return {name: value / count if count else math.nan for name, value in zip(self.names, sums, strict=True)}

    def reset(self) -> None:
        self.sums = torch.zeros_like(self.sums)


@torch.no_grad()
def score(
    model: nn.Module, batches: Iterable[Batch], accelerator: Accelerator, *, between: Callable[[], None]
) -> dict[str, float]:
    """Top-1 and top-5 accuracy and cross-entropy over all processes; `between` is called before every batch."""
    training = model.training
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64 if accelerator.device.type != "mps" else torch.float32)
    sums, count = sums.to(accelerator.device), 0
    for batch in batches:
        between()
        batch = batch.to(accelerator.device)
        with accelerator.autocast():
            logits = model(batch.images)
        logits, labels = logits.float(), batch.labels
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels.unsqueeze(1)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([ranked[:, 0].sum().to(sums.dtype), ranked.sum().to(sums.dtype), loss.to(sums.dtype)])
        count += len(labels)
    model.train(training)
    total: Any = accelerator.reduce(torch.cat([sums, sums.new_tensor([count])]), "sum")
    *found, count = total.tolist()
    if not count:
        raise ValueError("none of the images to evaluate on could be read")
    return {name: value / count for name, value in zip(MEASURES, found, strict=True)}
