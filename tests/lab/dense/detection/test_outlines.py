import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitmix.lab.dense.detection.outlines import (
    draw_mask,
    encode_runs,
    pack_runs,
    polygon_mask,
    read_outline,
    unpack_runs,
)

masks = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1)).map(
    lambda drawn: np.random.default_rng(drawn[2]).random(drawn[:2]) < 0.4
)


def read_mask(segmentation: object, size: tuple[int, int]) -> np.ndarray:
    return draw_mask(read_outline(segmentation, size), size)


def plain_runs(mask: np.ndarray) -> list[int]:
    """Run lengths pixel by pixel."""
    counts, current = [0], False
    for column in range(mask.shape[1]):
        for row in range(mask.shape[0]):
            if bool(mask[row, column]) != current:
                counts.append(0)
                current = not current
            counts[-1] += 1
    return counts


def inside(points: np.ndarray, x: float, y: float) -> bool:
    """The even-odd rule: how many edges a ray to the left crosses."""
    odd = False
    for one, (x2, y2) in zip(points, np.roll(points, -1, axis=0), strict=True):
        x1, y1 = one
        if (y1 <= y) != (y2 <= y) and x1 + (y - y1) * (x2 - x1) / (y2 - y1) <= x:
            odd = not odd
    return odd


@given(masks)
@settings(max_examples=50, deadline=None)
def test_run_lengths_equal_those_counted_pixel_by_pixel(mask: np.ndarray) -> None:
    runs = encode_runs(mask)
    assert runs == plain_runs(mask)
    assert (read_mask({"size": list(mask.shape), "counts": runs}, mask.shape) == mask).all()
    assert unpack_runs(pack_runs(runs)) == runs


@given(masks)
@settings(max_examples=50, deadline=None)
def test_packed_run_lengths_are_those_of_the_coco_api(mask: np.ndarray) -> None:
    api = pytest.importorskip("faster_coco_eval.core.mask")
    packed = api.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert packed["counts"].decode() == pack_runs(encode_runs(mask))
    assert (read_mask({"size": list(mask.shape), "counts": packed["counts"].decode()}, mask.shape) == mask).all()


@given(st.lists(st.tuples(st.floats(-4, 14), st.floats(-4, 14)), min_size=3, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_polygon_covers_the_pixels_whose_center_is_inside(points: list[tuple[float, float]]) -> None:
    corners = np.array(points)
    drawn = polygon_mask(corners, (9, 11))
    twin = np.array([[inside(corners, x + 0.5, y + 0.5) for x in range(11)] for y in range(9)])
    assert (drawn == twin).all()


def test_a_rectangle_and_a_hole_by_overlap_of_polygons() -> None:
    square = read_mask([[1, 1, 4, 1, 4, 3, 1, 3]], (5, 6))
    assert square.sum() == 6 and square[1:3, 1:4].all()
    both = read_mask([[1, 1, 4, 1, 4, 3, 1, 3], [0, 0, 2, 0, 2, 2, 0, 2]], (5, 6))
    assert both.sum() == 6 + 4 - 1


def test_polygons_differ_from_the_coco_api_on_the_border_only() -> None:
    api = pytest.importorskip("faster_coco_eval.core.mask")
    polygon = [10.3, 5.1, 60.2, 12.7, 50.9, 55.5, 8.8, 40.2]
    ours = read_mask([polygon], (64, 80))
    theirs = api.decode(api.merge(api.frPyObjects([polygon], 64, 80))).astype(bool)
    assert np.logical_and(ours, theirs).sum() / np.logical_or(ours, theirs).sum() > 0.96


@pytest.mark.parametrize(
    "segmentation",
    [
        [[1, 2, 3, 4]],
        [[1, 2, 3, 4, 5, "6"]],
        [[1, 2, 3, 4, 5, float("nan")]],
        {"size": [4, 5], "counts": [19]},
        {"size": [4, 5], "counts": [-1, 21]},
        {"size": [4, 5], "counts": [True, 19]},
        {"size": [5, 4], "counts": [20]},
        {"size": [4, 5], "counts": "zz"},
        {"size": [4, 5], "counts": "o" * 50},
        {"size": [4, 5], "counts": [2**70]},
        {"size": [4, 5], "counts": 20},
        {"size": [4, 5], "counts": [2**62] * 4 + [20]},
        {"counts": [20]},
        "text",
        None,
        5,
    ],
)
def test_what_is_not_a_mask_is_a_value_error(segmentation: object) -> None:
    with pytest.raises(ValueError):
        read_mask(segmentation, (4, 5))
