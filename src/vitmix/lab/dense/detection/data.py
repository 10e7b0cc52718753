"""Data for detection, as text: `coco:FOLDER`, or `coco:FILE.json,images=FOLDER`.

A folder holds one annotation file for each split: `train.json`, `annotations/instances_train2017.json`,
`annotations/train.json` or `train/_annotations.coco.json`, and the same for val and test. The images are below the
folder, with the paths that the file gives, or in `train2017`, `train` or `images`. With `?holdout=0.1`, a tenth of the
training images is held out for validation; a single file is always divided this way.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from vitmix._checks import unknown_name
from vitmix.lab.data.sources import HOLDOUT, held_out_mask
from vitmix.lab.data.splits import SPLIT_NAMES, Split
from vitmix.lab.dense.task import DenseSet

from .coco import CocoFile, CocoImage, Object, read_coco
from .outlines import Outline
from .records import Annotation, ImageTruth, RunLengths, Target

LONGEST = 16  # sides; narrower images could be resized to nothing
FORM = "coco:FOLDER or coco:FILE.json,images=FOLDER"


class CocoSet(DenseSet[Target]):
    """The images of an annotation file with their boxes."""

    def __init__(self, file: CocoFile, images: Sequence[CocoImage], description: str) -> None:
        super().__init__(str(file.folder), [image.file for image in images], file.classes, description)
        self.entries, self.categories = list(images), list(file.categories)
        self.has_masks = file.has_masks

    def target(self, index: int, image: Image.Image) -> Target:
        entry = self.entries[self.rows[index]]
        if (image.height, image.width) != entry.size:
            raise ValueError(
                f"it has {image.width} x {image.height} pixels, but its annotations are for "
                f"{entry.size[1]} x {entry.size[0]}"
            )
        if max(entry.size) > LONGEST * min(entry.size):
            raise ValueError(f"its longer side is more than {LONGEST} times the shorter one")
        objects = [each for each in entry.objects if not each.crowd]
        boxes = torch.tensor([each.box for each in objects], dtype=torch.float32).reshape(-1, 4)
        return Target(
            boxes=tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=entry.size),  # pyright: ignore
            labels=torch.tensor([each.label for each in objects], dtype=torch.int64),
            outlines=[each.outline for each in objects],
            truth=ImageTruth(
                entry.id, entry.size, self.categories, [self._annotation(entry, each) for each in entry.objects]
            ),
        )

    def _annotation(self, entry: CocoImage, each: Object) -> Annotation:
        found: Annotation = {
            "image_id": entry.id,
            "category_id": self.categories[each.label - 1],
            "bbox": list(each.stored),
            "area": each.area,
            "iscrowd": int(each.crowd),
        }
        return found if each.outline is None else {**found, "segmentation": as_coco(each.outline, entry.size)}


def as_coco(outline: Outline, size: tuple[int, int]) -> RunLengths | list[list[float]]:
    """An outline as COCO's files have it."""
    if isinstance(outline, np.ndarray):
        return {"size": list(size), "counts": outline.tolist()}
    return [polygon.reshape(-1).tolist() for polygon in outline]


def open_coco(spec: str, split: Split) -> CocoSet:
    """The images of a split of the data that a text names."""
    place, images, holdout = _parse(spec)
    path = Path(place)
    if path.is_dir():
        files = _annotation_files(path)
        if not files:
            raise ValueError(
                f"{place!r} holds no annotations such as train.json or annotations/instances_train2017.json; "
                f"write {FORM}"
            )
        evaluated = [each for each in ("val", "test") if each in files]
        if split == "train" and "train" not in files:
            raise ValueError(f"{place!r} has no training annotations, only {' and '.join(files)}; add train.json")
        if holdout is None and not evaluated:
            holdout = HOLDOUT
        if holdout is not None and (split != "test" or not evaluated):
            return _open(files["train"], images, path, holdout, split)
        found = split if split in files else evaluated[0]
        return _open(files[found], images, path, None, found)
    if not path.is_file():
        raise ValueError(f"{place!r} is neither a folder nor an annotation file; write {FORM}")
    return _open(path, images, path.parent, holdout or HOLDOUT, split)


def _parse(spec: str) -> tuple[str, str | None, float | None]:
    """Place, folder of the images and held-out fraction."""
    text, _, option = spec.strip().partition("?")
    kind, _, argument = text.partition(":")
    if kind != "coco" or not argument:
        raise ValueError(f"data for detection is {FORM}, got {spec!r}")
    holdout = None
    if option:
        key, _, value = option.partition("=")
        if key != "holdout":
            raise unknown_name("data option", key, ["holdout"])
        if not re.fullmatch(r"0?\.\d*[1-9]\d*", value):
            raise ValueError(f"holdout must be a fraction between 0 and 1, got {value!r} in {spec!r}")
        holdout = float(value)
    place, comma, setting = argument.partition(",")
    key, _, images = setting.partition("=")
    if comma and (key != "images" or not images):
        raise ValueError(f"after the comma of {spec!r} only images=FOLDER may follow")
    return place, images or None, holdout


def _annotation_files(folder: Path) -> dict[str, Path]:
    """The annotation file of each split below a folder."""
    found: dict[str, Path] = {}
    for split, names in SPLIT_NAMES.items():
        for name in names:
            places = [folder / f"{name}.json", folder / "annotations" / f"{name}.json"]
            places += sorted((folder / "annotations").glob(f"instances_{name}*.json"))
            places += [folder / name / "_annotations.coco.json"]
            there = [place for place in places if place.is_file()]
            if there:
                found.setdefault(split, there[0])
    return found


def _open(file: Path, images: str | None, root: Path, holdout: float | None, split: str) -> CocoSet:
    content = read_coco(file, [Path(images)] if images is not None else _image_folders(file, root))
    entries = content.images
    words = f"coco:{file} ({split})"
    if holdout is not None:
        mask = held_out_mask(np.zeros(len(entries), dtype=np.int64), holdout)
        chosen = mask if split != "train" else ~mask
        entries = [entry for entry, taken in zip(entries, chosen, strict=True) if taken]
        words += f", {'without ' if split == 'train' else ''}the {holdout:.3g} held out"
    notes = content.notes()
    empty = [entry for entry in entries if not any(not each.crowd for each in entry.objects)]
    if len(empty) == len(entries):
        raise ValueError(f"{file} has no usable objects in its {len(entries)} images; {'; '.join(notes) or 'add some'}")
    if split == "train" and empty:
        entries = [entry for entry in entries if any(not each.crowd for each in entry.objects)]
        notes.append(f"left out: {len(empty)} training images of {file.name} without objects")
    found = CocoSet(content, entries, words)
    found.notes = tuple(notes)
    return found


def _image_folders(file: Path, root: Path) -> list[Path]:
    """Where the images of an annotation file may be."""
    split = re.sub(r"^instances_", "", file.stem)  # such as train2017
    return [root, file.parent, root / split, root / "images", root / "images" / split]
