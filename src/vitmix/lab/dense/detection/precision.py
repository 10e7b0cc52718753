"""Average precision over images: from matched detections, with weights of images, so that it can be bootstrapped.

COCO's rules: detections of a class are matched in the order of their scores, each to the free object of the highest
IoU; crowd regions match any number of detections, which then do not count. Precision is made monotone and averaged
over 101 recalls.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU
RECALLS = np.linspace(0, 1, 101)
MOST = 100  # detections of a class in an image that count


class Matched(NamedTuple):
    """The detections of one class in one image, best score first.

    Attributes:
        scores: `(d,)`.
        right: `(thresholds, d)`, matched to an object.
        ignored: `(thresholds, d)`, matched to a crowd region.
        objects: how many there are to be found.
    """

    scores: np.ndarray
    right: np.ndarray
    ignored: np.ndarray
    objects: int


def match(ious: np.ndarray, scores: np.ndarray, crowd: np.ndarray, thresholds: np.ndarray = THRESHOLDS) -> Matched:
    """Matches detections to the objects of one class in one image.

    Args:
        ious: `(d, g)`, detections by falling score; that with a crowd region is the part of the detection in it.
        scores: `(d,)`, falling.
        crowd: `(g,)`, which objects are regions.
    """
    right = np.zeros((len(thresholds), len(scores)), dtype=bool)
    ignored = np.zeros_like(right)
    for number, threshold in enumerate(thresholds if ious.size else ()):
        least = min(threshold, 1 - 1e-10)
        taken = np.zeros(len(crowd), dtype=bool)
        for row, each in enumerate(ious):
            single = np.where(taken | crowd, -1.0, each)
            region = np.where(crowd, each, -1.0)
            for candidates, outcome in ((single, right), (region, ignored)):
                best = len(candidates) - 1 - int(np.argmax(candidates[::-1]))  # of equal ones the last, as in COCO
                if candidates[best] >= least:
                    taken[best] = True
                    outcome[number, row] = True
                    break
    return Matched(scores, right, ignored, int((~crowd).sum()))


class Ranking:
    """The detections of one class in all images, by falling score."""

    def __init__(self, images: Sequence[Matched]) -> None:
        scores = np.concatenate([each.scores for each in images])
        order = np.argsort(-scores, kind="stable")
        self.image = np.repeat(np.arange(len(images)), [len(each.scores) for each in images])[order]
        right = np.concatenate([each.right for each in images], axis=1)[:, order]
        ignored = np.concatenate([each.ignored for each in images], axis=1)[:, order]
        self.right, self.wrong = right.astype(np.float64), (~right & ~ignored).astype(np.float64)
        self.objects = np.array([each.objects for each in images], dtype=np.float64)

    def precision(self, weights: np.ndarray | None = None) -> np.ndarray:
        """`(thresholds,)` average precision, NaN without objects; `weights` say how often each image counts."""
        total = self.objects.sum() if weights is None else self.objects @ weights
        if total == 0:
            return np.full(len(self.right), np.nan)
        each = np.ones(len(self.image)) if weights is None else weights[self.image]
        right, wrong = np.cumsum(self.right * each, axis=1), np.cumsum(self.wrong * each, axis=1)
        found = right / np.maximum(right + wrong, np.spacing(1))
        envelope = np.maximum.accumulate(found[:, ::-1], axis=1)[:, ::-1]
        result = []
        for recall, curve in zip(right / total, envelope, strict=True):
            place = np.searchsorted(recall, RECALLS, side="left")
            result.append(np.where(place < len(curve), np.append(curve, 0.0)[place], 0.0).mean())
        return np.array(result)


def resampled(rankings: Sequence[Ranking], n: int, *, resamples: int) -> np.ndarray:
    """`(resamples, classes, thresholds)` average precision of images drawn with replacement.

    The images of a draw are the same for all classes. Their detections are matched already, so a draw only counts each
    of them as often as its image was drawn.
    """
    generator = np.random.default_rng(0)
    drawn = (np.bincount(generator.integers(0, n, n), minlength=n).astype(np.float64) for _ in range(resamples))
    return np.stack([np.stack([ranking.precision(weights) for ranking in rankings]) for weights in drawn])
