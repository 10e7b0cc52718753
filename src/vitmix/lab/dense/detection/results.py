"""Files of detections, as COCO's results have them, and their scores: on any machine, without a model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitmix.lab.dense.extras import need
from vitmix.lab.reading import is_count, is_number, parse_json, read_bytes
from vitmix.lab.runs import Estimate
from vitmix.lab.runs.dense import ClassScores, DenseScores

from .coco import MOST_BYTES
from .outlines import read_outline
from .scoring import INTERVAL, Averages, Kind, average_precision, installed

DETECTIONS = "detections.json"
PREFIXES: dict[Kind, str] = {"bbox": "", "segm": "mask_"}
NO_PACKAGE = "faster-coco-eval is not installed: AP is that of our own code, without AP by object size"


def encode_detections(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Detections as the content of a file."""
    return json.dumps(rows, separators=(",", ":")).encode()


def score_file(annotations: Path, detections: Path, *, intervals: bool = True) -> DenseScores:
    """The scores of a file of detections; needs faster-coco-eval, so that they are COCO's."""
    need("faster_coco_eval")
    truth, rows = (_read(path) for path in (annotations, detections))
    if not isinstance(truth, dict) or not all(_are_dicts(truth.get(key)) for key in ("images", "annotations")):
        raise ValueError(f"{annotations} is not a COCO file: it needs lists of images, annotations and categories")
    if not _are_dicts(rows):
        raise ValueError(f"{detections} is not a list of detections; vitmix transfer writes one, {DETECTIONS}")
    sizes = {each.get("id"): (each.get("height"), each.get("width")) for each in truth["images"]}
    categories = {each.get("id") for each in truth.get("categories", ())}
    for number, row in enumerate(rows):
        problem = _problem(row, sizes, categories)
        if problem:
            raise ValueError(f"detection {number} of {detections} {problem}; was it made for {annotations.name}?")
    return score_rows(truth, rows, intervals=intervals)


def _read(path: Path) -> Any:
    try:
        return parse_json(read_bytes(path, MOST_BYTES))
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise ValueError(f"{path} is not a JSON file: {problem}") from None


def _are_dicts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _problem(row: Mapping[str, Any], sizes: Mapping[Any, Any], categories: set[Any]) -> str:
    """What is wrong with a detection; empty if nothing is."""
    image, category, box = row.get("image_id"), row.get("category_id"), row.get("bbox")
    if not is_count(image) or image not in sizes:
        return "is of an image that is not annotated"
    if not is_count(category) or category not in categories:
        return "has an unknown category"
    if not is_number(row.get("score")) or not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        return "needs a score and a bbox of four numbers"
    if "segmentation" in row:
        try:
            read_outline(row["segmentation"], sizes[image])
        except ValueError as problem:
            return f"has a mask that is none ({problem})"
    return ""


def score_rows(truth: Mapping[str, Any], rows: Sequence[dict[str, Any]], *, intervals: bool) -> DenseScores:
    """Box AP and, if detections have masks, mask AP, by the names of their columns."""
    notes = [] if installed() else [NO_PACKAGE]
    kinds: list[Kind] = ["bbox"]
    if any("segmentation" in each for each in rows):
        if all(each.get("segmentation") for each in truth["annotations"]):
            kinds.append("segm")
        else:
            notes.append("no mask AP, because some objects have no mask")
    found = {PREFIXES[kind]: average_precision(truth, rows, kind, intervals=intervals) for kind in kinds}
    classes = [str(each["name"]) for each in sorted(truth["categories"], key=lambda each: each["id"])]
    lost = [name for name in classes if name not in found[""].classes]
    notes += [f"no objects of {', '.join(lost[:5])}{' and others' * (len(lost) > 5)}"] if lost else []
    return DenseScores(
        n=len(truth["images"]),
        values={name: each for prefix, averages in found.items() for name, each in _values(prefix, averages).items()},
        by_class=tuple(_of_class(name, found) for name in classes),
        interval=INTERVAL if intervals else "",
        notes=tuple(notes),
    )


def _values(prefix: str, found: Averages) -> dict[str, Estimate]:
    total = {f"{prefix}ap": found.ap, f"{prefix}ap50": found.ap50, f"{prefix}ap75": found.ap75}
    return total | {f"{prefix}ap_{size}": Estimate(each, None, found.ap.n) for size, each in found.sizes.items()}


def _of_class(name: str, found: Mapping[str, Averages]) -> ClassScores:
    values: dict[str, float] = {}
    for prefix, averages in found.items():
        for column, by_class in (("ap", averages.classes), ("ap50", averages.classes50)):
            if name in by_class:
                values[f"{prefix}{column}"] = by_class[name].mean
    return ClassScores(name, values)
