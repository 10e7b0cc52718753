"""Average precision of detections by faster-coco-eval, with 95 % intervals over images.

faster-coco-eval is COCO's evaluation in C++, maintained, with wheels for every platform; pycocotools, its original,
gives the same numbers more slowly. Where it is not installed, as on a machine that only trains, our own code gives the
same precision without that by object size; masks given as polygons may differ in pixels on their border.

Intervals are those of a bootstrap over images: detections are matched once, and each draw weights the images.
"""

import contextlib
import io
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from vitmix.lab.extras import need
from vitmix.lab.runs.estimates import RESAMPLES, Estimate

from .outlines import Size, draw_mask, encode_runs, pack_runs, read_outline
from .precision import MOST, THRESHOLDS, Matched, Ranking, match, resampled
from .records import Annotation, Detected, Located, Truth

IouType = Literal["bbox", "segm"]
SomeLocated = TypeVar("SomeLocated", bound=Located)
LOCATED = ("image_id", "category_id", "bbox", "segmentation")
SIZES = ("small", "medium", "large")
EVERY, HALF, STRICT = slice(None), slice(0, 1), slice(5, 6)  # thresholds of AP, AP50 and AP75
INTERVAL = f"95 % percentile interval of {RESAMPLES} bootstrap draws over images"


class Averages(NamedTuple):
    """Average precision over IoU 0.5 to 0.95, at 0.5 and at 0.75, of each class, and by object size.

    Small objects have fewer than 32 x 32 pixels, large ones more than 96 x 96. What no object belongs to is left out.
    """

    ap: Estimate
    ap50: Estimate
    ap75: Estimate
    classes: dict[str, Estimate]
    classes50: dict[str, Estimate]
    sizes: dict[str, float]


def average_precision(
    truth: Truth, detections: Sequence[Detected], kind: IouType = "bbox", *, intervals: bool = True
) -> Averages:
    """Scores detections against COCO annotations.

    Args:
        truth: images, annotations and categories, as in COCO's files.
        detections: with image_id, category_id, score, bbox, and for `segm` with segmentation.
    """
    if all(each.get("iscrowd") for each in truth["annotations"]):
        raise ValueError("the data to score has no objects; average precision needs at least one")
    categories = [str(each["name"]) for each in sorted(truth["categories"], key=lambda each: each["id"])]
    images = [each["id"] for each in truth["images"]]
    rankings = None
    if installed():
        precisions, sizes = _by_package(truth, detections, kind)
    else:
        rankings, sizes = rank(truth, detections, kind), {}
        precisions = np.stack([each.precision() for each in rankings], axis=1)
    draws = None
    if intervals and len(images) > 1:
        draws = resampled(rankings or rank(truth, detections, kind), len(images), resamples=RESAMPLES)
    n = len(images)
    ap, ap50, ap75 = (_estimate(precisions, draws, rows, EVERY, n) for rows in (EVERY, HALF, STRICT))
    places = {name: place for place, name in enumerate(categories) if not np.isnan(precisions[:, place]).all()}
    classes, classes50 = (
        {name: _estimate(precisions, draws, rows, slice(place, place + 1), n) for name, place in places.items()}
        for rows in (EVERY, HALF)
    )
    return Averages(ap, ap50, ap75, classes, classes50, sizes)


def installed() -> bool:
    """Whether faster-coco-eval is."""
    try:
        need("faster_coco_eval")
    except ValueError:
        return False
    return True


def _estimate(precisions: np.ndarray, draws: np.ndarray | None, rows: slice, columns: slice, n: int) -> Estimate:
    value = float(np.nanmean(precisions[rows, columns]))
    if draws is None:
        return Estimate(value, None, n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a draw without objects of these classes
        low, high = np.nanquantile(np.nanmean(draws[:, columns, rows], axis=(1, 2)), [0.025, 0.975])
    return Estimate(value, None, n, float(low), float(high))


def _by_package(truth: Truth, detections: Sequence[Detected], kind: IouType) -> tuple[np.ndarray, dict[str, float]]:
    """`(thresholds, classes)` precision, NaN without objects, and that by object size."""
    package = need("faster_coco_eval")
    # Only what it needs: it takes entries with a caption or key points for those of other tasks. The number 0 would be
    # no match. With a box, it takes the area of that for the mask's.
    given = [
        {"id": number, "area": each["bbox"][2] * each["bbox"][3], **_only(each, (*LOCATED, "area", "iscrowd"))}
        for number, each in enumerate(truth["annotations"], start=1)
    ]
    if kind == "bbox":
        found = [_only(each, ("image_id", "category_id", "score", "bbox")) for each in detections]
    else:
        sizes_of = {each["id"]: (each["height"], each["width"]) for each in truth["images"]}
        found = [
            {**_only(each, ("image_id", "category_id", "score")), "segmentation": _packed(each, sizes_of)}
            for each in detections
        ]
    parts = {"images": ("id", "height", "width"), "categories": ("id", "name")}
    known = {part: [_only(each, keys) for each in truth[part]] for part, keys in parts.items()}
    with contextlib.redirect_stdout(io.StringIO()):
        reference = package.COCO({**known, "annotations": given})
        evaluator = package.COCOeval_faster(reference, reference.loadRes(found), kind)
        evaluator.evaluate()
        evaluator.accumulate()
    table = evaluator.eval["precision"][..., -1]  # thresholds, recalls, classes, areas; -1 without objects
    table = np.where(table < 0, np.nan, table)
    means = {size: table[..., place] for place, size in enumerate(SIZES, start=1)}
    sizes = {size: float(np.nanmean(each)) for size, each in means.items() if not np.isnan(each).all()}
    return table[..., 0].mean(1), sizes


def _only(entry: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: entry[key] for key in keys if key in entry}


def _packed(detection: Detected, sizes: Mapping[int, Size]) -> dict[str, Any]:
    """The mask of a detection as the package needs it; that of an object may be of any kind."""
    given, size = detection.get("segmentation"), sizes[detection["image_id"]]
    if isinstance(given, dict) and isinstance(given["counts"], str):
        return {**given}
    return {"size": list(size), "counts": pack_runs(encode_runs(draw_mask(read_outline(given, size), size)))}


def rank(truth: Truth, detections: Sequence[Detected], kind: IouType) -> list[Ranking]:
    """The matched detections of each class."""
    sizes = {each["id"]: (each["height"], each["width"]) for each in truth["images"]}
    objects, found = _grouped(truth["annotations"]), _grouped(detections)
    return [
        Ranking([_matched(found[image, category], objects[image, category], sizes[image], kind) for image in sizes])
        for category in sorted(each["id"] for each in truth["categories"])
    ]


def _grouped(annotations: Sequence[SomeLocated]) -> dict[tuple[int, int], list[SomeLocated]]:
    groups: dict[tuple[int, int], list[SomeLocated]] = defaultdict(list)
    for each in annotations:
        groups[each["image_id"], each["category_id"]].append(each)
    return groups


def _matched(found: Sequence[Detected], objects: Sequence[Annotation], size: Size, kind: IouType) -> Matched:
    best = sorted(found, key=lambda each: -each["score"])[:MOST]
    scores = np.array([each["score"] for each in best], dtype=np.float64)
    crowd = np.array([bool(each.get("iscrowd")) for each in objects], dtype=bool)
    return match(overlaps(best, objects, size, kind), scores, crowd, THRESHOLDS)


def overlaps(found: Sequence[Detected], objects: Sequence[Annotation], size: Size, kind: IouType) -> np.ndarray:
    """`(d, g)` IoU of boxes or masks; with a crowd region, the part of the detection that is in it."""
    if not found or not objects:
        return np.zeros((len(found), len(objects)))
    crowd = np.array([bool(each.get("iscrowd")) for each in objects], dtype=bool)
    measured = _box_overlaps if kind == "bbox" else _mask_overlaps
    common, areas, others = measured(found, objects, size)
    return common / np.maximum(np.where(crowd, areas[:, None], areas[:, None] + others - common), 1e-9)


Overlaps = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Common pixels `(d, g)`, and those of the detections and the objects."""


def _box_overlaps(found: Sequence[Located], objects: Sequence[Located], size: Size) -> Overlaps:
    one, other = (np.array([each["bbox"] for each in group], dtype=np.float64) for group in (found, objects))
    corners = [np.concatenate([each[:, :2], each[:, :2] + each[:, 2:]], axis=1) for each in (one, other)]
    low = np.maximum(corners[0][:, None, :2], corners[1][None, :, :2])
    high = np.minimum(corners[0][:, None, 2:], corners[1][None, :, 2:])
    return np.maximum(high - low, 0).prod(-1), one[:, 2:].prod(1), other[:, 2:].prod(1)


def _mask_overlaps(found: Sequence[Located], objects: Sequence[Located], size: Size) -> Overlaps:
    one, other = (
        np.stack([draw_mask(read_outline(each.get("segmentation"), size), size).reshape(-1) for each in group]).astype(
            np.float32
        )
        for group in (found, objects)
    )
    return one @ other.T, one.sum(1), other.sum(1)
