"""What belongs to images, fuzzed: boxes and their scores, folders of masks, activation maps."""

import hashlib
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from PIL import Image

from fuzz import Case, Wrong
from fuzz_images import valid_images
from fuzz_values import as_json, change_bytes, change_value, hostile
from vitmix.lab.data import open_images
from vitmix.lab.data.images import BrokenImage, ImageSet
from vitmix.lab.dense.detection import scoring
from vitmix.lab.dense.detection.data import open_coco
from vitmix.lab.dense.detection.outlines import encode_runs, pack_runs
from vitmix.lab.dense.detection.results import score_file
from vitmix.lab.dense.segmentation.data import open_masks
from vitmix.lab.dense.task import IGNORED, DenseSet
from vitmix.lab.maps.stored import describe_data, read_label_maps, read_top_maps

# COCO's files


@cache
def _annotated() -> str:
    """Four images with objects whose masks are polygons, run lengths and packed run lengths."""
    images, annotations = [], []
    for number in range(4):
        height, width = (12, 16) if number % 2 else (16, 12)
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
        for category in range(number):
            mask = np.zeros((height, width), bool)
            mask[2 : 6 + number, 3 : 5 + 2 * category] = True
            runs = encode_runs(mask)
            outlines: list[Any] = [
                [[3, 2, 5 + 2 * category, 2, 5, 6 + number]],
                {"size": [height, width], "counts": runs},
                {"size": [height, width], "counts": pack_runs(runs)},
            ]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": category + 1,
                    "bbox": [3, 2, 2 + 2 * category, 4 + number],
                    "area": int(mask.sum()),
                    "iscrowd": int(category == 2),
                    "segmentation": outlines[category],
                }
            )
    categories = [{"id": each + 1, "name": f"class {each}"} for each in range(3)]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


def run_coco(case: Case) -> bool:
    """An annotation file, to train on or to score detections against."""
    chance, folder = case.chance, case.folder
    truth = json.loads(_annotated())
    keys = ("image_id", "category_id", "bbox", "segmentation")[: chance.choice([3, 4])]
    rows: Any = [{key: each[key] for key in keys} | {"score": chance.random()} for each in truth["annotations"]]
    scored, changed = chance.random() < 0.6, chance.random()
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        if scored and changed < 0.5:
            rows = change_value(rows, chance)
        else:
            truth = change_value(truth, chance)
    contents = {"train.json": as_json(truth).encode(), "rows.json": as_json(rows).encode()}
    if chance.random() < 0.1:
        name = chance.choice([*contents])
        contents[name] = change_bytes(contents[name], chance)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    case.shown = f"{'score' if scored else 'train on'} {contents}"
    if scored:
        scoring.RESAMPLES = 10  # of the interval, which takes longer than all else
        found = score_file(folder / "train.json", folder / "rows.json")
        for name, each in found.values.items():
            if not -1e-9 <= each.mean <= 1 + 1e-9:
                raise Wrong(f"{name} is {each.mean}")
        return True
    for number in range(4):
        size = (16, 12) if number % 2 else (12, 16)
        Image.new("RGB", size).save(folder / f"{number}.png")
    return _each_sample(open_coco("coco:.", "train"))


def _each_sample(images: DenseSet[Any]) -> bool:
    for index in range(len(images)):
        try:
            images.sample(index)
        except BrokenImage as broken:
            if "\n" in str(broken):
                raise Wrong(f"more than one line: {broken}") from None
    return True


# Folders of masks


def run_masks(case: Case) -> bool:
    """A folder of images and masks, of which some are of other kinds, sizes or bytes, with or without names."""
    chance, folder = case.chance, case.folder
    for split in ("train", "val"):
        for number in range(3):
            for kind in ("images", "masks"):
                (folder / split / kind).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7)).save(folder / split / "images" / f"{number}.png")
            labels = np.arange(63, dtype=np.uint8).reshape(7, 9) % 3
            Image.fromarray(labels).save(folder / split / "masks" / f"{number}.png")
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        _change_masks(folder, case)
    settings = chance.choice(["", "", "(offset=1)", "(offset=254)", "(classes=a/b/c)", "(offset=99999999999999999999)"])
    split = chance.choice(["train", "val", "test"])
    case.shown += f" masks:{folder}{settings} {split}"
    images = open_masks(f"masks:.{settings}", split)
    _each_sample(images)
    for index in range(len(images)):
        try:
            labels = np.asarray(images.sample(index)[1])
        except BrokenImage:
            continue
        if not ((labels == IGNORED) | ((labels >= 0) & (labels < len(images.classes)))).all():
            raise Wrong(f"labels {np.unique(labels)} of {len(images.classes)} classes")
    return True


def _change_masks(folder: Path, case: Case) -> None:
    """Changes one of the files, and says how."""
    chance = case.chance
    path = folder / chance.choice(["train", "val"]) / chance.choice(["masks", "masks", "images"]) / "1.png"
    kinds = {"names": 8, "bytes": 8, "numbers": 8, "image": 6, "size": 2, "missing": 2, "folder": 2, "huge": 1}
    (kind,) = chance.choices([*kinds], [*kinds.values()])
    if kind == "names":
        names: Any = chance.choice([["a", "b", "c"], {"0": "a", "1": "b", "2": "c"}, [{"label": 0, "name": "a"}]])
        names = change_value(names, chance) if chance.random() < 0.5 else hostile(chance)
        (folder / "classes.json").write_text(as_json(names))
        case.shown += f"classes {as_json(names)[:200]}; "
        return
    if path.is_file():
        content = path.read_bytes()
        path.unlink()
        if kind == "bytes":
            path.write_bytes(change_bytes(content, chance))
        elif kind == "numbers":
            value = chance.choice([0, 255, 7, -5, 99_999, 100_001, 2**31 - 1, -(2**31), 65_535])
            numbers = np.full((7, 9), value)
            numbers = numbers.astype(chance.choice([np.int32, np.float32, np.uint16]))
            Image.fromarray(numbers).save(path, format="TIFF")
        elif kind == "image":
            path.write_bytes(chance.choice(valid_images())[1])
        elif kind == "huge":
            path.write_bytes(_huge(chance.choice([9_000, 13_000, 20_000])))
        elif kind == "size":
            Image.new("L", (chance.randrange(1, 30), chance.randrange(1, 30)), 1).save(path)
        elif kind == "folder":
            path.mkdir()
    case.shown += f"{path.relative_to(folder)}: {kind}; "


@cache
def _huge(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    return file.getvalue()


# Activation maps


@cache
def _shapes() -> ImageSet:
    return open_images("shapes(size=8, length=6, test_length=2)", "train")


def run_maps(case: Case) -> bool:
    """A folder of maps in one or several shards, of which arrays, rows or the index are changed."""
    chance, images, folder = case.chance, _shapes(), case.folder
    ends = [*sorted(chance.sample(range(1, 6), chance.choice([0, 1, 1, 2]))), 6]
    spans = [*zip([0, *ends], ends, strict=False)]
    if chance.random() < 0.15:
        spans[chance.randrange(len(spans))] = (chance.randrange(6), chance.randrange(1, 8))
    order, rank = np.indices((6, 2, 2, 2))[:2]
    classes = images.labels[:, None, None, None] + rank
    arrays: dict[str, Any] = {"values": (1 + order).astype(np.float16), "classes": classes.astype(np.uint16)}
    said, shards = [], []
    for number, (first, end) in enumerate(spans):
        stored = {name: np.ascontiguousarray(each[first:end]) for name, each in arrays.items()}
        if len(stored["values"]) and chance.random() < 0.2:
            said.append(_change_arrays(stored, case))
        content = safetensors.numpy.save(stored)
        content = change_bytes(content, chance) if chance.random() < 0.1 else content
        (folder / f"{number}.safetensors").write_bytes(content)
        checksum = hashlib.sha256(content).hexdigest()
        shards.append({"file": f"{number}.safetensors", "rows": [first, end], "sha256": checksum})
    index: Any = {
        "format": 1,
        "data": describe_data(images).to_json(),
        "teacher": {"name": "x"},
        "top": 2,
        "classes": list(range(len(images.classes))),
        "grid": [2, 2],
        "broken": [],
        "shards": shards,
    }
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        index = change_value(index, chance)
    text = as_json(index).encode()
    (folder / "index.json").write_bytes(change_bytes(text, chance) if chance.random() < 0.1 else text)
    read = chance.choice([read_label_maps, read_top_maps])
    case.shown = f"{read.__name__} of arrays with {said} and {text[:3000]!r}"
    if read is read_label_maps:
        maps = read_label_maps(folder, images)
        if len(maps) != 6 or not maps.isfinite().all() or (maps < 0).any():
            raise Wrong(f"maps {maps}")
        return True
    values, labels = read_top_maps(folder, images)
    fitting = len(values) == len(labels) == 6 and values.isfinite().all()
    if not fitting or labels.min() < -1 or labels.max() >= len(images.classes):
        raise Wrong(f"values {values}, labels {labels}")
    return True


def _change_arrays(arrays: dict[str, Any], case: Case) -> str:
    """Changes one of the arrays; returns what it is now."""
    chance, name = case.chance, case.chance.choice([*arrays])
    array = arrays[name]
    kinds = [np.float64, np.float32, np.int64, np.uint64, np.uint8, np.bool_, np.float16]
    numbers = [np.nan, np.inf, -1.0, 65_504.0, 1e30] if array.dtype.kind == "f" else [2**15, 65_535, 40, 3]
    with np.errstate(all="ignore"):
        numbered = array.copy()
        numbered.reshape(-1)[:1] = np.float64(chance.choice(numbers)).astype(array.dtype)
        changes = [array[:1], array[..., :1], array[:, :0], array[:, :1], array[0], numbered]
        changes += [array.astype(chance.choice(kinds)), array.astype(np.int64) << chance.choice([16, 31, 32, 40, 62])]
        arrays[name] = np.ascontiguousarray(chance.choice(changes))
    return f"{name} {arrays[name].dtype} {arrays[name].shape} {arrays[name].reshape(-1)[:3]}"
