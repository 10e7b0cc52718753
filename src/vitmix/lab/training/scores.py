"""The evaluation between epochs: scores over all processes, and the outcome of each image."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vitmix.lab.data.images import NothingReadable
from vitmix.lab.data.loader import Batch
from vitmix.lab.evaluation.predictions import Outcomes, logits_over
from vitmix.lab.runs import SCORES
from vitmix.lab.training.processes import any_process


@dataclass(frozen=True)
class Scored:
    """Accuracies and loss by name, over all processes, and the outcomes in this one, on the device."""

    values: dict[str, float]
    outcomes: list[Outcomes]


def in_step(batches: Iterable[Batch], accelerator: Accelerator, idle: Tensor) -> Iterator[Batch]:
    """The same number of batches in every process: one without further images gets `idle` images without labels."""
    none = torch.zeros(0, dtype=torch.long)
    left = iter(batches)
    batch = next(left, None)
    while any_process(accelerator, batch is not None):
        yield Batch(idle, none, none) if batch is None else batch
        batch = next(left, None)


@torch.no_grad()
def score(
    model: nn.Module, batches: Iterable[Batch], accelerator: Accelerator, *, between: Callable[[], None]
) -> Scored:
    """Top-1 and top-5 accuracy and cross-entropy; `between` is called before every batch."""

    def classify(batch: Batch) -> Tensor:
        between()
        with accelerator.autocast():
            return model(batch.images)

    training, outcomes = model.training, []
    model.eval()
    sums = torch.zeros(len(SCORES), dtype=torch.float64 if accelerator.device.type != "mps" else torch.float32)
    sums, count = sums.to(accelerator.device), 0
    for batch, logits in logits_over(batches, classify, accelerator.device):
        found = Outcomes.of(logits, batch.labels)
        loss = nn.functional.cross_entropy(logits, batch.labels, reduction="sum")
        sums += torch.stack([each.to(sums.dtype) for each in (found.correct.sum(), found.in_top5.sum(), loss)])
        count += len(batch)
        outcomes.append(found)
    model.train(training)
    total: Any = accelerator.reduce(torch.cat([sums, sums.new_tensor([count])]), "sum")
    *values, count = total.tolist()
    if not count:
        raise NothingReadable
    return Scored({name: value / count for name, value in zip(SCORES, values, strict=True)}, outcomes)
