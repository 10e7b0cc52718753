"""An image of the report with its truth, its prediction and where they differ."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vitmix.lab.dense.colors import palette
from vitmix.lab.dense.loader import shown
from vitmix.lab.dense.task import IGNORED, Sides
from vitmix.lab.evaluation.examples import data_uri
from vitmix.lab.runs.examples import StoredTile

SIDE = 160  # pixels of a tile, at most
OPACITY = 0.65  # of a label map over its image
WRONG, UNKNOWN = (214, 39, 40), (127, 127, 127)
NAMED = 3  # classes in a caption


def tiles(
    image: Tensor, truth: Tensor, predicted: Tensor, classes: Sequence[str], sides: Sides
) -> tuple[StoredTile, StoredTile, StoredTile, StoredTile]:
    """Image, truth, prediction and errors; the image is normalized, of any size, and the maps have another."""
    labels, guesses = truth.cpu().numpy(), predicted.cpu().numpy()
    pixels = shown(image, sides)
    known = labels != IGNORED
    wrong = known & (labels != guesses)
    share = wrong.sum() / max(1, known.sum())
    return (
        StoredTile(_uri(pixels), ("image",)),
        StoredTile(_uri(painted(pixels, labels, len(classes))), ("truth", _largest(labels, classes))),
        StoredTile(_uri(painted(pixels, guesses, len(classes))), ("prediction", _largest(guesses, classes))),
        StoredTile(_uri(marked(pixels, wrong, ~known)), ("errors", f"{100 * share:.1f} % of the pixels")),
    )


def _uri(pixels: np.ndarray) -> str:
    return data_uri(pixels / 255, SIDE)


def painted(pixels: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The image with the color of each pixel's class over it, gray where it has none."""
    colors = np.concatenate([palette(classes), np.full((1, 3), UNKNOWN, np.uint8)])
    return _blend(pixels, colors[np.where(labels == IGNORED, classes, labels)], OPACITY)


def marked(pixels: np.ndarray, wrong: np.ndarray, ignored: np.ndarray) -> np.ndarray:
    """The image in gray with wrong pixels in red; pixels without a class are darker."""
    gray = np.repeat(pixels.mean(-1, keepdims=True), 3, -1) * 0.6 + 90
    gray = np.where(ignored[..., None], gray * 0.6, gray)
    return _blend(gray, np.broadcast_to(np.array(WRONG), gray.shape), 0.85 * wrong[..., None])


def _blend(below: np.ndarray, above: np.ndarray, opacity: float | np.ndarray) -> np.ndarray:
    return (below * (1 - opacity) + above * opacity).round().clip(0, 255).astype(np.uint8)


def _largest(labels: np.ndarray, classes: Sequence[str]) -> str:
    """The classes with the most pixels."""
    counts = np.bincount(labels[labels != IGNORED].ravel(), minlength=len(classes))
    order = [number for number in np.argsort(-counts, kind="stable")[:NAMED] if counts[number]]
    return ", ".join(f"{classes[number]} {100 * counts[number] / max(1, counts.sum()):.0f} %" for number in order)
