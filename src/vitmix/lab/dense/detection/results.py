"""Files of detections, as COCO's results have them, and their scores: on any machine, without a model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from vitmix.lab.extras import need
from vitmix.lab.reading import is_count, is_number
from vitmix.lab.runs import Estimate
from vitmix.lab.runs.dense import ClassScores, DenseScores

from .coco import are_objects, are_sides, is_id, read_content, read_parts
from .outlines import read_outline
from .records import Annotation, Detected, Truth
from .scoring import INTERVAL, Averages, IouType, average_precision, installed

DETECTIONS = "detections.json"
PREFIXES: dict[IouType, str] = {"bbox": "", "segm": "mask_"}
NO_PACKAGE = "faster-coco-eval is not installed: AP is computed by vitmix, without AP by object size"


def encode_detections(rows: Sequence[Detected]) -> bytes:
    """Detections as the content of a file."""
    return json.dumps(rows, separators=(",", ":")).encode()


def score_file(annotations: Path, detections: Path) -> DenseScores:
    """The scores of a file of detections; needs faster-coco-eval, so that they are COCO's."""
    need("faster_coco_eval")
    truth, rows = _read_truth(annotations), read_content(detections, "detections")
    if not are_objects(rows):
        raise ValueError(f"{detections} is not a list of detections; vitmix transfer writes one, {DETECTIONS}")
    known = _Known.of(truth)
    for number, row in enumerate(rows):
        problem = known.problem(row) or ("" if is_number(row.get("score")) else "needs a score")
        if problem:
            raise ValueError(f"detection {number} of {detections} {problem}; was it made for {annotations.name}?")
    masks = ["segmentation" in each for each in rows]
    if any(masks) and not all(masks):
        raise ValueError(f"detection {masks.index(False)} of {detections} has no mask, and others have one; add it")
    return score_rows(truth, rows, intervals=True)


def _read_truth(path: Path) -> Truth:
    images, annotations, categories = cast(Any, read_parts(path))  # checked below
    truth: Truth = {"images": images, "annotations": annotations, "categories": categories}
    known_images, known_categories = set[int](), set[int]()
    for each in images:
        number = each.get("id")
        if not is_id(number) or number in known_images or not are_sides((each.get("height"), each.get("width"))):
            raise ValueError(f"{path} has an image without its own id, height and width: {str(each)[:80]}")
        known_images.add(number)
    for each in categories:
        number = each.get("id")
        if not is_id(number) or number in known_categories or not isinstance(each.get("name"), str):
            raise ValueError(f"{path} has a category without its own id and name: {str(each)[:80]}")
        known_categories.add(number)
    known = _Known.of(truth)
    for number, each in enumerate(truth["annotations"]):
        crowd = each.get("iscrowd", 0)
        problem = known.problem(each)
        problem = problem or ("" if is_number(each.get("area", 0)) else "has an area that is not a number")
        problem = problem or ("" if is_count(crowd) and crowd <= 1 else "has an iscrowd that is not 0 or 1")
        if problem:
            raise ValueError(f"annotation {number} of {path} {problem}; correct the file")
    return truth


class _Known(NamedTuple):
    """The images and categories of an annotation file."""

    sizes: dict[int, tuple[int, int]]
    categories: set[int]

    @classmethod
    def of(cls, truth: Truth) -> "_Known":
        sizes = {each["id"]: (each["height"], each["width"]) for each in truth["images"]}
        return cls(sizes, {each["id"] for each in truth["categories"]})

    def problem(self, row: Annotation | Detected) -> str:
        """What is wrong with an object or a detection; empty if nothing is."""
        image, category, box = row.get("image_id"), row.get("category_id"), row.get("bbox")
        if not is_count(image) or image not in self.sizes:
            return "is of an image that is not annotated"
        if not is_count(category) or category not in self.categories:
            return "has an unknown category"
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
            return "needs a bbox of four numbers"
        outline = row.get("segmentation")
        if outline is not None or {"score", "segmentation"} <= row.keys():  # objects may have null instead of a mask
            try:
                read_outline(outline, self.sizes[image])
            except ValueError as problem:
                return f"has an invalid mask ({problem})"
        return ""


def score_rows(truth: Truth, rows: Sequence[Detected], *, intervals: bool) -> DenseScores:
    """Box AP and, if detections have masks, mask AP, by the names of their columns."""
    notes = [] if installed() else [NO_PACKAGE]
    kinds: list[IouType] = ["bbox"]
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
