"""Mean intersection over union against plain loops, its interval, and windows that cover an image."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from vitmix.lab.dense.segmentation.scores import Counts, count, mean_iou, pixel_accuracy, score
from vitmix.lab.dense.segmentation.windows import cut, predict, starts
from vitmix.lab.dense.task import IGNORED


def slow_scores(pairs: list[tuple[np.ndarray, np.ndarray]], classes: int) -> tuple[float, float]:
    """mIoU over the classes in truth or prediction, and pixel accuracy, pixel by pixel."""
    both, either, right, known = [0] * classes, [0] * classes, 0, 0
    for predicted, true in pairs:
        for guess, label in zip(predicted.ravel().tolist(), true.ravel().tolist(), strict=True):
            if label == IGNORED:
                continue
            known += 1
            right += guess == label
            for number in range(classes):
                both[number] += guess == number and label == number
                either[number] += guess == number or label == number
    ious = [both[number] / either[number] for number in range(classes) if either[number]]
    return sum(ious) / len(ious), right / known


def drawn(seed: int, classes: int, images: int = 4) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    logits = [torch.randn(classes, 5, 7, generator=generator) for _ in range(images)]
    masks = [torch.randint(0, classes, (5, 7), generator=generator) for _ in range(images)]
    for mask in masks:
        mask[torch.rand(5, 7, generator=generator) < 0.2] = IGNORED
    return logits, masks


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_scores_equal_plain_loops(classes: int) -> None:
    logits, masks = drawn(classes, classes)
    found = score(
        [count(*each) for each in zip(logits, masks, strict=True)], [str(n) for n in range(classes)], intervals=True
    )
    pairs = [(each.argmax(0).numpy(), mask.numpy()) for each, mask in zip(logits, masks, strict=True)]
    iou, accuracy = slow_scores(pairs, classes)
    assert math.isclose(found.values["miou"].mean, iou, rel_tol=1e-12)
    assert math.isclose(found.values["pixel_accuracy"].mean, accuracy, rel_tol=1e-12)
    stacked, targets = torch.stack(logits), torch.stack(masks)
    loss = nn.functional.cross_entropy(stacked, targets, ignore_index=IGNORED)
    assert math.isclose(found.values["eval_loss"].mean, float(loss), rel_tol=1e-5)
    interval = found.values["miou"].interval
    assert interval is not None and interval[0] < interval[1] and found.interval
    assert found.n == 4 and found.values["miou"].n == 4


def test_the_interval_of_equal_images_is_a_point() -> None:
    logits, masks = drawn(1, 3, images=1)
    same = [count(logits[0], masks[0])] * 5
    estimate = score(same, ["a", "b", "c"], intervals=True).values["miou"]
    assert estimate.low == pytest.approx(estimate.mean) == pytest.approx(estimate.high)
    alone = score(same[:1], ["a", "b", "c"], intervals=True)
    assert alone.values["miou"].interval is None and alone.interval == ""


def test_torchmetrics_finds_the_same_mean() -> None:
    from torchmetrics.functional.classification import multiclass_jaccard_index

    logits, masks = drawn(5, 4)
    found = score([count(*each) for each in zip(logits, masks, strict=True)], list("abcd"), intervals=False)
    predicted, true = torch.stack(logits).argmax(1), torch.stack(masks)
    expected = multiclass_jaccard_index(predicted, true, num_classes=4, ignore_index=IGNORED)
    assert found.values["miou"].mean == pytest.approx(float(expected))


def test_a_class_without_pixels_is_noted() -> None:
    """Left out of the mean where it is not predicted, zero where it is."""
    true = torch.tensor([[0, 0], [1, 1]])
    right = nn.functional.one_hot(true, 3).permute(2, 0, 1).float()
    found = score([count(right, true)], ["sky", "sea", "ship"], intervals=False)
    assert found.values["miou"].mean == 1.0
    assert "no pixel shows ship" in found.notes[0]
    assert found.by_class[2].values == {"pixels": 0.0}
    wrong = nn.functional.one_hot(torch.tensor([[0, 0], [1, 2]]), 3).permute(2, 0, 1).float()
    assert score([count(wrong, true)], ["sky", "sea", "ship"], intervals=False).values["miou"].mean == 0.5


def test_an_image_without_known_pixels_counts_for_nothing() -> None:
    logits, masks = drawn(2, 3, images=2)
    known = score([count(logits[0], masks[0])], list("abc"), intervals=False)
    empty = count(logits[1], torch.full_like(masks[1], IGNORED))
    assert empty.pixels.sum() == 0 and empty.loss == 0
    both = score([count(logits[0], masks[0]), empty], list("abc"), intervals=False)
    assert both.values["miou"].mean == known.values["miou"].mean
    assert mean_iou(np.zeros((3, 2))) == 0 and pixel_accuracy(np.zeros((3, 2))) == 0
    assert isinstance(empty, Counts)


@pytest.mark.parametrize(("length", "window"), [(32, 32), (33, 32), (48, 32), (100, 32), (512, 512), (683, 512)])
def test_windows_cover_a_length(length: int, window: int) -> None:
    found = starts(length, window)
    assert found[0] == 0 and found[-1] == length - window
    assert all(0 < after - before <= math.ceil(2 * window / 3) for before, after in zip(found, found[1:], strict=False))


class Colors(nn.Module):
    """Logits that are the pixels, so that what windows do to them can be seen."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images


@pytest.mark.parametrize("size", [(32, 32), (32, 50), (71, 32), (40, 40)])
def test_averaged_windows_give_back_the_image(size: tuple[int, int]) -> None:
    image = torch.rand(3, *size, generator=torch.Generator().manual_seed(0))
    covered = cut(image, (32, 32)).covered
    (found,) = predict(Colors(), [image], (32, 32), [covered])
    assert found.shape == (3, *covered) and min(covered) == 32
    if covered == size:
        assert torch.allclose(found, image, atol=1e-6)


def test_predictions_come_in_order_however_many_windows_there_are() -> None:
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, 32, 32 * width, generator=generator) for width in (1, 3, 1, 9, 1, 1)]
    shapes = [(32, 32 * width) for width in (1, 3, 1, 9, 1, 1)]
    for image, found in zip(images, predict(Colors(), images, (32, 32), shapes), strict=True):
        assert torch.allclose(found, image, atol=1e-6)
