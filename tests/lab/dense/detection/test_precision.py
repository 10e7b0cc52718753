"""Average precision: known values, a plain-loop twin, and the package's numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vitmix.lab.dense.detection import scoring
from vitmix.lab.dense.detection.outlines import encode_runs, pack_runs
from vitmix.lab.dense.detection.precision import Ranking, match
from vitmix.lab.dense.detection.scoring import average_precision

Box = tuple[float, float, float, float]  # left, top, width, height


def coco(boxes: Sequence[tuple[int, int, Box]], *, images: int = 2, crowd: Sequence[int] = ()) -> dict[str, Any]:
    """Annotations of (image, category, box)."""
    return {
        "images": [{"id": n, "height": 100, "width": 100, "file_name": ""} for n in range(images)],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}],
        "annotations": [
            {"image_id": i, "category_id": c, "bbox": list(b), "area": b[2] * b[3], "iscrowd": int(n in crowd)}
            for n, (i, c, b) in enumerate(boxes)
        ],
    }


def found(rows: Sequence[tuple[int, int, Box, float]]) -> list[dict[str, Any]]:
    return [{"image_id": i, "category_id": c, "bbox": list(b), "score": s} for i, c, b, s in rows]


def iou(one: Box, other: Box) -> float:
    width = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    height = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    common = max(width, 0) * max(height, 0)
    return common / (one[2] * one[3] + other[2] * other[3] - common)


def plain_ap50(truth: dict[str, Any], detections: list[dict[str, Any]], category: int) -> float:
    """AP50 of a class, one detection after the other."""
    objects = [each for each in truth["annotations"] if each["category_id"] == category]
    taken = [False] * len(objects)
    rows = sorted((each for each in detections if each["category_id"] == category), key=lambda each: -each["score"])
    right, points = 0, []
    for number, each in enumerate(rows, start=1):
        best, which = 0.5, None
        for place, other in enumerate(objects):
            overlap = iou(each["bbox"], other["bbox"])
            if other["image_id"] == each["image_id"] and not taken[place] and overlap >= best:
                best, which = overlap, place
        if which is not None:
            taken[which] = True
            right += 1
        points.append((right / len(objects), right / number))
    reached = [max((p for r, p in points if r >= recall), default=0.0) for recall in np.linspace(0, 1, 101)]
    return float(np.mean(reached))


def random_case(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    generator = np.random.default_rng(seed)
    boxes, rows = [], []
    for image in range(12):
        for _ in range(generator.integers(0, 4)):
            x, y, w, h = generator.integers(0, 50, 2).tolist() + generator.integers(8, 50, 2).tolist()
            category = int(generator.choice([3, 7]))
            boxes.append((image, category, (x, y, w, h)))
            for _ in range(generator.integers(0, 3)):
                moved = np.array([x, y, w, h]) + generator.normal(0, 3, 4)
                other = category if generator.random() < 0.8 else 10 - category
                rows.append((image, other, tuple(np.maximum(moved, 1).tolist()), float(generator.random())))
    return coco(boxes, images=12), found(rows)


def test_perfect_detections_have_precision_1() -> None:
    boxes = [(0, 3, (10, 10, 30, 30)), (1, 7, (0, 0, 99, 99)), (1, 3, (50, 50, 20, 20))]
    scores = average_precision(coco(boxes), found([(*each, 0.9) for each in boxes]))
    assert (scores.ap.mean, scores.ap50.mean, scores.ap75.mean) == (1.0, 1.0, 1.0)
    assert scores.sizes == {"small": 1.0, "large": 1.0}
    assert {name: each.mean for name, each in scores.classes.items()} == {"cat": 1.0, "dog": 1.0}
    assert (scores.ap.low, scores.ap.high) == (1.0, 1.0)


def test_known_values_by_hand() -> None:
    truth = coco([(0, 3, (0, 0, 10, 10))])
    wrong_first = found([(0, 3, (50, 50, 10, 10), 0.9), (0, 3, (0, 0, 10, 10), 0.8)])
    assert average_precision(truth, wrong_first, intervals=False).ap.mean == pytest.approx(0.5)
    six_tenths = found([(0, 3, (0, 0, 10, 6), 0.9)])  # right at 0.5, 0.55 and 0.6
    scores = average_precision(truth, six_tenths, intervals=False)
    assert scores.ap.mean == pytest.approx(0.3) and scores.ap50.mean == 1.0 and scores.ap75.mean == 0.0
    twice = found([(0, 3, (0, 0, 10, 10), 0.9), (0, 3, (0, 0, 10, 10), 0.8)])  # the second is wrong, after recall 1
    assert average_precision(truth, twice, intervals=False).ap.mean == 1.0
    half = coco([(0, 3, (0, 0, 10, 10)), (1, 3, (0, 0, 10, 10))])
    one = found([(0, 3, (0, 0, 10, 10), 0.9)])
    assert average_precision(half, one, intervals=False).ap.mean == pytest.approx(51 / 101)
    assert average_precision(half, [], intervals=False).ap.mean == 0.0


def test_detections_in_a_crowd_region_do_not_count() -> None:
    truth = coco([(0, 3, (0, 0, 10, 10)), (0, 3, (40, 40, 50, 50))], crowd=[1])
    rows = found([(0, 3, (45, 45, 10, 10), 0.9), (0, 3, (60, 60, 10, 10), 0.8), (0, 3, (0, 0, 10, 10), 0.7)])
    assert average_precision(truth, rows).ap.mean == 1.0


@pytest.mark.parametrize("seed", range(6))
def test_ap50_equals_the_plain_loop(seed: int) -> None:
    truth, rows = random_case(seed)
    scores = average_precision(truth, rows, intervals=False)
    for name, category in (("cat", 3), ("dog", 7)):
        assert scores.classes50[name].mean == pytest.approx(plain_ap50(truth, rows, category), abs=1e-9)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
@pytest.mark.parametrize("seed", range(6))
def test_our_matching_gives_the_precision_of_the_package(seed: int, kind: scoring.IouType) -> None:
    """At every threshold: the bootstrap resamples what the package scores."""
    truth, rows = random_case(seed)
    truth["annotations"][0]["iscrowd"] = 1
    for each in (*truth["annotations"], *rows):
        each["segmentation"] = {"size": [100, 100], "counts": pack_runs(encode_runs(rectangle(each["bbox"])))}
    theirs, _ = scoring._by_package(truth, rows, kind)
    ours = np.stack([each.precision() for each in scoring.rank(truth, rows, kind)], axis=1)
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


def rectangle(box: Sequence[float]) -> np.ndarray:
    mask = np.zeros((100, 100), dtype=bool)
    left, top, width, height = (round(each) for each in box)
    mask[max(top, 0) : top + height, max(left, 0) : left + width] = True
    return mask


def test_without_the_package_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, rows = random_case(1)
    with_package = average_precision(truth, rows)
    monkeypatch.setattr(scoring, "installed", lambda: False)
    without = average_precision(truth, rows)
    assert without.sizes == {} and with_package.sizes
    for one, other in zip(with_package[:3], without[:3], strict=True):
        assert one.mean == pytest.approx(other.mean) and (one.low, one.high) == (other.low, other.high)


def test_a_weight_counts_an_image_that_often() -> None:
    one = match(np.array([[0.8]]), np.array([0.9]), np.array([False]))
    other = match(np.zeros((1, 0)), np.array([0.95]), np.zeros(0, dtype=bool))
    weighted = Ranking([one, other]).precision(np.array([2.0, 1.0]))
    np.testing.assert_allclose(weighted, Ranking([one, one, other]).precision())
    assert np.isnan(Ranking([one, other]).precision(np.array([0.0, 5.0]))).all()


def test_masks_are_scored_by_their_pixels() -> None:
    mask = np.zeros((100, 100), dtype=bool)
    mask[10:40, 10:40] = True
    half = mask.copy()
    half[10:40, 28:40] = False  # IoU 0.6
    truth = coco([(0, 3, (10, 10, 30, 30))])
    truth["annotations"][0]["segmentation"] = {"size": [100, 100], "counts": encode_runs(mask)}
    rows = found([(0, 3, (10, 10, 30, 30), 0.9)])
    rows[0]["segmentation"] = {"size": [100, 100], "counts": pack_runs(encode_runs(half))}
    assert average_precision(truth, rows, "bbox", intervals=False).ap.mean == 1.0
    assert average_precision(truth, rows, "segm", intervals=False).ap.mean == pytest.approx(0.3)


def test_the_interval_covers_the_value_and_repeats() -> None:
    truth, rows = random_case(3)
    scores, again = average_precision(truth, rows), average_precision(truth, rows)
    assert scores.ap.low is not None and scores.ap.high is not None
    assert scores.ap.low < scores.ap.mean < scores.ap.high
    assert scores.ap == again.ap and scores.ap.n == 12


def test_data_without_objects_is_refused() -> None:
    with pytest.raises(ValueError, match="no objects"):
        average_precision(coco([]), [])
