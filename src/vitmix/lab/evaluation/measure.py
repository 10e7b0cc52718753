"""What a classifier gets right, and how sure it is of it: predictions first, then pure functions of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitmix._checks import check_count
from vitmix.lab.data.loader import Batch

BINS = 15  # of confidence, as in Guo et al. 2017


class Measurement(NamedTuple):
    """A measured number, how many images (or timed passes) it comes from, and its interval of 95 % where it has one.

    `of` says what was measured, as `{"part": "noise", "sigma": 0.1}`, for those who look numbers up or draw them.
    """

    name: str
    value: float
    n: int
    low: float | None = None
    high: float | None = None
    of: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Predictions:
    """Of each image, in arrays of one length: label, likeliest class, its probability, loss, label among the top 5."""

    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    losses: np.ndarray
    in_top5: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> np.ndarray:
        return self.labels == self.predicted

    def measurements(self) -> list[Measurement]:
        values = {
            "accuracy": self.correct.mean(),
            "accuracy5": self.in_top5.mean(),
            "loss": self.losses.mean(),
            "ece": calibration_error(self.confidence, self.correct),
        }
        return [Measurement(name, float(value), len(self)) for name, value in values.items()]

    def confusion(self) -> list[tuple[int, int, int]]:
        """(label, predicted, images) of every pair that occurs, right ones included, in order."""
        pairs, counts = np.unique(np.stack([self.labels, self.predicted]), axis=1, return_counts=True)
        return [(int(label), int(seen), int(count)) for (label, seen), count in zip(pairs.T, counts, strict=True)]


def top_predictions(logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Likeliest class, its probability, loss and whether the label is among the top 5, of each row `(B, K)`."""
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"a classifier must return logits (images, classes), got {got}")
    if labels.ndim != 1 or labels.is_floating_point() or len(labels) != len(logits):
        raise ValueError(
            f"labels must be class numbers ({len(logits)},), got {labels.dtype} {tuple(labels.shape)}; "
            "a mixed target has no single right answer to count"
        )
    logits = logits.float()
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices
    confidence = logits.softmax(1).amax(1)
    losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    # A confidence that is no number tells later, on the host: to look here would wait for the device.
    confidence = torch.where(logits.isfinite().all(1), confidence, torch.nan)
    return ranked[:, 0], confidence, losses, (ranked == labels.unsqueeze(1)).any(1)


def check_finite(confidence: np.ndarray) -> None:
    if not np.isfinite(confidence).all():
        raise ValueError("the model's logits are not finite; its weights are damaged, or the precision is too low")


@torch.no_grad()
def predict(
    model: nn.Module, batches: Iterable[Batch], device: torch.device, *, autocast: torch.dtype | None = None
) -> Predictions:
    """The predictions of a model in evaluation mode, which it is left in. The device is waited for at the end only."""
    model.eval()
    found: list[tuple[Tensor, ...]] = []
    for batch in batches:
        batch = batch.to(device)
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            logits = model(batch.images)
        found.append((batch.labels, *top_predictions(logits, batch.labels)))
    if not found:
        raise ValueError("none of the images to evaluate on could be read")
    predictions = Predictions(*(torch.cat(each).cpu().numpy() for each in zip(*found, strict=True)))
    check_finite(predictions.confidence)
    return predictions


def bin_numbers(confidence: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The bin of each confidence among equally wide ones: bin i holds those in (i / bins, (i + 1) / bins]."""
    return np.clip(np.ceil(confidence.astype(np.float64) * bins).astype(int) - 1, 0, bins - 1)


def calibration_bins(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> list[dict[str, float]]:
    """Of each of the bins of confidence: images, their mean confidence and their accuracy, both 0 if it is empty."""
    check_count("bins", bins)
    place = bin_numbers(confidence, bins)
    count = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values, minlength=bins) for values in (confidence, correct)]
    means = [total / np.maximum(count, 1) for total in sums]
    return [
        {"count": int(count[number]), "confidence": float(means[0][number]), "accuracy": float(means[1][number])}
        for number in range(bins)
    ]


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """The expected calibration error: |accuracy - confidence| of each bin, weighted by its images."""
    rows = calibration_bins(confidence, correct, bins)
    return sum(row["count"] * abs(row["accuracy"] - row["confidence"]) for row in rows) / len(confidence)
