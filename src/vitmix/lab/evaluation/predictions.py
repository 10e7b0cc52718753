"""What a classifier predicts and how confident it is: one loop over batches, then pure functions of its outcomes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitmix._checks import check_count
from vitmix.lab.data.images import NothingReadable
from vitmix.lab.data.loader import Batch
from vitmix.lab.runs import Bin

BINS = 15  # of confidence, as in Guo et al. 2017


@torch.no_grad()
def logits_over(
    batches: Iterable[Batch],
    classify: Callable[[Batch], Tensor],
    device: torch.device,
    *,
    autocast: torch.dtype | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch on the device and its logits `(B, K)` float32, of the images that have a label.

    This is the only evaluation loop: training, `vitmix eval` and its suites differ in `classify` and in what they
    count. The model must be in evaluation mode. Nothing here waits for the device.
    """
    for batch in batches:
        batch = batch.to(device)
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            logits = classify(batch)
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"a classifier must return logits (images, classes), got {got}")
        yield batch, logits[: len(batch)].float()


@dataclass(frozen=True)
class Outcomes:
    """For each image `(n,)`: label, most likely class, its probability, loss, label among the top 5."""

    labels: Tensor
    predicted: Tensor
    confidence: Tensor
    losses: Tensor
    in_top5: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> "Outcomes":
        if labels.ndim != 1 or labels.is_floating_point() or len(labels) != len(logits):
            raise ValueError(
                f"labels must be class numbers ({len(logits)},), got {labels.dtype} {tuple(labels.shape)}; "
                "a soft label has no single correct class"
            )
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices
        confidence = logits.softmax(1).amax(1)
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        # NaN is found later, on the host, because checking here would wait for the device.
        confidence = torch.where(logits.isfinite().all(1), confidence, torch.nan)
        return cls(labels, ranked[:, 0], confidence, losses, (ranked == labels.unsqueeze(1)).any(1))

    @classmethod
    def joined(cls, parts: Sequence["Outcomes"]) -> "Outcomes":
        """The outcomes of all batches, on the host; this waits for the device."""
        if not parts:
            raise NothingReadable
        found = cls(*(torch.cat(each).cpu() for each in zip(*(vars(part).values() for part in parts), strict=True)))
        check_finite(found.confidence.numpy())
        return found

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> Tensor:
        return self.predicted == self.labels

    def confusion(self) -> tuple[tuple[int, int, int], ...]:
        """(label, predicted, images) for every pair that occurs, correct ones included, in order."""
        pairs, counts = torch.stack([self.labels, self.predicted]).unique(dim=1, return_counts=True)
        return tuple(zip(*pairs.tolist(), counts.tolist(), strict=True))


def check_finite(confidence: np.ndarray) -> None:
    if not np.isfinite(confidence).all():
        raise ValueError("the model's logits are not finite; its weights are damaged, or the precision is too low")


def predict(
    model: nn.Module, batches: Iterable[Batch], device: torch.device, *, autocast: torch.dtype | None = None
) -> Outcomes:
    """The outcomes of a model, which is put into evaluation mode."""
    model.eval()
    classified = logits_over(batches, lambda batch: model(batch.images), device, autocast=autocast)
    return Outcomes.joined([Outcomes.of(logits, batch.labels) for batch, logits in classified])


def bin_numbers(confidence: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The bin of each confidence among equally wide ones: bin i holds those in (i / bins, (i + 1) / bins]."""
    return np.clip(np.ceil(confidence.astype(np.float64) * bins).astype(int) - 1, 0, bins - 1)


def calibration_bins(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> tuple[Bin, ...]:
    """Images by confidence, in bins of the same width."""
    check_count("bins", bins)
    place = bin_numbers(confidence, bins)
    count = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values, minlength=bins) for values in (confidence, correct)]
    means = [total / np.maximum(count, 1) for total in sums]
    return tuple(Bin(int(n), float(sure), float(right)) for n, sure, right in zip(count, *means, strict=True))


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """The expected calibration error: |accuracy - confidence| of each bin, weighted by its images."""
    rows = calibration_bins(confidence, correct, bins)
    return sum(row.count * abs(row.accuracy - row.confidence) for row in rows) / len(confidence)
