"""Data for detection, as text: `coco:FOLDER`, or `coco:FILE.json,images=FOLDER`.

A folder holds one annotation file for each split: `train.json`, `annotations/instances_train2017.json`,
`annotations/train.json` or `train/_annotations.coco.json`, and the same for val and test. The images are below the
folder, with the paths that the file gives, or in `train2017`, `train` or `images`. With `?holdout=0.1`, a tenth of the
training images is held out for validation; a single file is always divided this way.
"""

import re
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from vitmix.lab.data.sources import Source, open_from
from vitmix.lab.data.splits import SPLIT_NAMES, Openers, Split
from vitmix.lab.dense.task import DenseSet

from .coco import CocoFile, CocoImage, Object, read_coco
from .outlines import Outline
from .records import Annotation, ImageTruth, RunLengths, Target

LONGEST = 16  # sides; narrower images could be resized to nothing
FORM = "FOLDER or coco:FILE.json,images=FOLDER"


class CocoSet(DenseSet[Target]):
    """The images of an annotation file with their boxes."""

    def __init__(self, file: CocoFile, description: str) -> None:
        super().__init__(str(file.folder), [image.file for image in file.images], file.classes, description)
        self.file, self.entries, self.categories = file.path.name, file.images, list(file.categories)

    def with_objects(self) -> "CocoSet":
        """The images that have objects to learn."""
        kept = np.array([bool(self.entries[row].learned) for row in self.rows])
        if kept.all():
            return self
        found = self.subset(np.flatnonzero(kept), self.description)
        lost = len(self) - len(found)
        found.notes = (*self.notes, f"left out: {lost} training images of {self.file} without objects")
        return found

    def target(self, index: int, image: Image.Image) -> Target:
        entry = self.entries[self.rows[index]]
        if (image.height, image.width) != entry.size:
            raise ValueError(
                f"it has {image.width} x {image.height} pixels, but its annotations are for "
                f"{entry.size[1]} x {entry.size[0]}"
            )
        if max(entry.size) > LONGEST * min(entry.size):
            raise ValueError(f"its longer side is more than {LONGEST} times the shorter one")
        objects = entry.learned
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
    """The images of a split of the data that a text names; those without objects are for scoring only."""
    found = cast(CocoSet, open_from(SOURCES, spec, split))
    return found.with_objects() if split == "train" else found


def coco_splits(argument: str) -> Openers:
    """For each split that has annotations, a function that reads them."""
    place, comma, setting = argument.partition(",")
    key, _, images = setting.partition("=")
    if comma and (key != "images" or not images):
        raise ValueError(f"after the comma of {argument!r} only images=FOLDER may follow")
    path = Path(place)
    if not path.exists():
        raise ValueError(f"{place!r} is neither a folder nor an annotation file; write coco:{FORM}")
    files = {"train": path} if path.is_file() else _annotation_files(path)
    if not files:
        raise ValueError(
            f"{place!r} holds no annotations such as train.json or annotations/instances_train2017.json; "
            f"write coco:{FORM}"
        )
    root = path.parent if path.is_file() else path
    return {split: partial(_opened, file, images or None, root, split) for split, file in files.items()}


SOURCES = {"coco": Source(coco_splits, FORM)}


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


def _opened(file: Path, images: str | None, root: Path, split: str) -> CocoSet:
    content = read_coco(file, [Path(images)] if images is not None else _image_folders(file, root))
    notes = content.notes()
    if not any(each.learned for each in content.images):
        count = len(content.images)
        raise ValueError(f"{file} has no usable objects in its {count} images; {'; '.join(notes) or 'add some'}")
    found = CocoSet(content, f"coco:{file} ({split})")
    found.notes = tuple(notes)
    return found


def _image_folders(file: Path, root: Path) -> list[Path]:
    """Where the images of an annotation file may be."""
    split = re.sub(r"^instances_", "", file.stem)  # such as train2017
    return [root, file.parent, root / split, root / "images", root / "images" / split]
