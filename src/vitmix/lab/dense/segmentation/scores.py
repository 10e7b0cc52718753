"""Mean intersection over union, its bootstrap interval over images, and the scores of each class."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vitmix.lab.dense.task import IGNORED
from vitmix.lab.extras import need
from vitmix.lab.runs.dense import ClassScores, DenseScores
from vitmix.lab.runs.estimates import Estimate, bootstrap

INTERVAL = "95 % percentile interval of 1,000 bootstrap resamples of the images"
NAMED = 5  # classes in a note


class Counts(NamedTuple):
    """Of one image: pixels of each class that are right, predicted and true, `(3, K)`; the sum of the losses."""

    pixels: np.ndarray
    loss: float


def count(logits: Tensor, mask: Tensor) -> Counts:
    """The counts of an image, from logits `(K, H, W)` and labels `(H, W)`; `IGNORED` pixels do not count."""
    classes = len(logits)
    confusion: Any = need("torchmetrics.functional.classification").multiclass_confusion_matrix(
        logits.argmax(0), mask, num_classes=classes, ignore_index=IGNORED, validate_args=False
    )
    pixels = torch.stack([confusion.diagonal(), confusion.sum(0), confusion.sum(1)])
    loss = functional.cross_entropy(logits[None].float(), mask[None], ignore_index=IGNORED, reduction="sum")
    return Counts(pixels.cpu().numpy(), float(loss))


def mean_iou(pixels: np.ndarray) -> np.ndarray:
    """From counts `(..., 3, K)` summed over images to the mean over the classes that occur in truth or prediction."""
    right, predicted, true = np.moveaxis(pixels.astype(np.float64), -2, 0)
    union = predicted + true - right
    occurs = union > 0
    iou = np.divide(right, union, out=np.zeros_like(right), where=occurs)
    return iou.sum(-1) / np.maximum(occurs.sum(-1), 1)


def pixel_accuracy(pixels: np.ndarray) -> np.ndarray:
    right, _, true = np.moveaxis(pixels.astype(np.float64), -2, 0)
    return right.sum(-1) / np.maximum(true.sum(-1), 1)


def score(outcomes: Sequence[Counts], classes: Sequence[str], *, intervals: bool) -> DenseScores:
    """The scores of all images."""
    every = np.stack([each.pixels for each in outcomes])
    total = every.sum(0)
    values = {}
    for name, statistic in (("miou", mean_iou), ("pixel_accuracy", pixel_accuracy)):
        ends: tuple[float | None, float | None] = (None, None)
        if intervals and len(outcomes) > 1:
            flat = every.reshape(len(every), -1).astype(np.float64)
            ends = bootstrap(lambda counts, s=statistic: s((counts @ flat).reshape(-1, *total.shape)), len(every))  # noqa: B023
        values[name] = Estimate(float(statistic(total)), None, len(outcomes), *ends)
    known = max(1, int(total[2].sum()))
    values["eval_loss"] = Estimate(sum(each.loss for each in outcomes) / known, None, len(outcomes))
    unseen = [name for name, pixels in zip(classes, total[2], strict=True) if not pixels]
    return DenseScores(
        n=len(outcomes),
        values=values,
        by_class=tuple(_of_class(name, *each) for name, each in zip(classes, total.T.tolist(), strict=True)),
        interval=INTERVAL if intervals and len(outcomes) > 1 else "",
        notes=_unseen(unseen),
    )


def _of_class(name: str, right: int, predicted: int, true: int) -> ClassScores:
    union = predicted + true - right
    values = {"iou": right / union} if union else {}
    values |= {"recall": right / true} if true else {}
    values |= {"precision": right / predicted} if predicted else {}
    return ClassScores(name, {**values, "pixels": float(true)})


def _unseen(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    more = f" and {len(names) - NAMED} more classes" if len(names) > NAMED else ""
    return (
        f"no pixel shows {', '.join(names[:NAMED])}{more}; such a class counts as 0 if it is predicted and is ignored "
        "otherwise",
    )
