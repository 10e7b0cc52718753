"""Boxes and instance masks from a COCO annotation file, checked: what cannot be used is left out and counted."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vitmix.lab.data.decoding import MAX_PIXELS
from vitmix.lab.reading import JsonObject, is_count, is_number, parse_json, read_bytes

from .outlines import Outline, read_outline

PARTS = ("images", "annotations", "categories")
MOST_BYTES = 2**29  # of an annotation file; COCO's largest has 0.45 GB
MOST_ID = 2**53  # other programs keep ids as numbers of 64 bits
MOST_SIDE = 2**16  # pixels
LEAST_SIDE = 1.0  # pixels of a box within its image
LOOKS = 10  # images that tell which folder they are in
ROUNDING = 0.5  # pixels by which a box may leave its image without a note

# What is left out or changed, as notes say it.
NOTES = {
    "no_image": "objects of images that are not listed",
    "no_category": "objects of unknown categories",
    "malformed": "objects without a box of four numbers x, y, width, height",
    "empty": "objects with an empty box",
    "outside": "objects with a box outside their image",
    "cut": "boxes cut at the border of their image",
    "missing": "images whose file is missing",
    "bad_mask": "objects with an invalid mask",
}
LEFT_OUT = [name for name in NOTES if name != "cut"]


Box = tuple[float, float, float, float]


class Object(NamedTuple):
    """An object of an image.

    Attributes:
        box: left, top, right, bottom, within the image.
        stored: left, top, width, height, as the file has them.
        label: from 1 on.
        area: in pixels.
        outline: its mask, None if the file has none.
    """

    box: Box
    stored: Box
    label: int
    crowd: bool
    area: float
    outline: Outline | None


class CocoImage(NamedTuple):
    """An image of an annotation file."""

    id: int
    file: str
    size: tuple[int, int]  # height, width
    objects: list[Object]

    @property
    def learned(self) -> list[Object]:
        """Those to learn: crowd regions are not."""
        return [each for each in self.objects if not each.crowd]


@dataclass
class CocoFile:
    """What an annotation file says.

    Attributes:
        categories: COCO's number of each class, in the order of the labels 1, 2, ...
        counts: how often each of `NOTES` applies.
        missing: the ids of images without a file.
    """

    path: Path
    folder: Path
    images: list[CocoImage]
    categories: dict[int, str]
    counts: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, str] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)

    @cached_property
    def labels(self) -> dict[int, int]:
        """The label of each of COCO's category ids: 1, 2, ...; 0 is the background."""
        return {number: label for label, number in enumerate(self.categories, start=1)}

    @property
    def classes(self) -> list[str]:
        return list(self.categories.values())

    def count(self, note: str, example: str) -> None:
        self.counts[note] += 1
        self.firsts.setdefault(note, example)

    def notes(self) -> list[str]:
        """One line for each kind of problem."""
        return [
            f"{'left out' if name in LEFT_OUT else 'changed'}: {self.counts[name]} {NOTES[name]} of {self.path.name} "
            f"(the first: {self.firsts[name]})"
            for name in NOTES
            if self.counts[name]
        ]


def read_coco(path: Path, folders: Sequence[Path]) -> CocoFile:
    """The images that an annotation file lists, with their objects; they are in the first of `folders` that fits."""
    images, annotations, categories = read_parts(path)
    names = [_relative(path, each["file_name"]) for each in images if isinstance(each.get("file_name"), str)]
    fitting = (each for each in folders if any((each / name).is_file() for name in names[:LOOKS]))
    found = CocoFile(path, next(fitting, folders[0]), [], _categories(path, categories))
    listed = _images(found, images)
    for annotation in annotations:
        _add(found, listed, annotation)
    found.images = list(listed.values())
    return found


def read_parts(path: Path) -> list[list[JsonObject]]:
    """The images, annotations and categories of a file."""
    content = read_content(path, "COCO annotations")
    parts: list[Any] = [content.get(key) for key in PARTS] if isinstance(content, dict) else []
    if not parts or not all(map(are_objects, parts)):
        raise ValueError(f"{path} is not a COCO file: it needs lists of {', '.join(PARTS)}")
    return parts


def read_content(path: Path, what: str) -> Any:
    """The content of a file; `what` it should be, for error messages."""
    try:
        return parse_json(read_bytes(path, MOST_BYTES))
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ValueError(f"{path} cannot be read as {what}: {reason}") from None


def are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def is_id(value: Any) -> bool:
    return is_count(value) and value < MOST_ID


def are_sides(values: Sequence[Any]) -> bool:
    """Whether these are the height and width of an image that can be decoded."""
    return all(is_count(each) and 0 < each <= MOST_SIDE for each in values) and math.prod(values) <= MAX_PIXELS


def _categories(path: Path, entries: Sequence[Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for each in entries:
        number, name = each.get("id"), each.get("name")
        if not is_id(number) or not isinstance(name, str) or number in found:
            raise ValueError(f"{path} has a category without its own id and name: {str(each)[:80]}")
        found[number] = name
    if not found:
        raise ValueError(f"{path} has no categories; list at least one")
    return dict(sorted(found.items()))


def _images(found: CocoFile, entries: Sequence[Any]) -> dict[int, CocoImage]:
    images: dict[int, CocoImage] = {}
    for each in entries:
        number, name = each.get("id"), each.get("file_name")
        size = each.get("height"), each.get("width")
        if not is_id(number) or not isinstance(name, str) or not are_sides(size) or number in images:
            raise ValueError(
                f"{found.path} has an image without its own id, file_name, height and width: {str(each)[:80]}"
            )
        images[number] = CocoImage(number, name, (size[0], size[1]), [])
    if not images:
        raise ValueError(f"{found.path} lists no images")
    missing = [number for number, image in images.items() if not os.path.exists(found.folder / image.file)]
    if len(missing) == len(images):
        first = found.folder / images[missing[0]].file
        raise ValueError(
            f"none of the {len(images)} images of {found.path} exists, such as {first}; "
            "name their folder: coco:FILE.json,images=FOLDER"
        )
    for number in missing:
        found.count("missing", images.pop(number).file)
    found.missing = set(missing)
    return images


def _relative(path: Path, name: str) -> str:
    """A file name from an annotation file, which may not lead out of the folder of the images."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts or "\0" in name:
        raise ValueError(f"{path} names an image outside the folder of its images: {name[:80]!r}")
    return name


def _add(found: CocoFile, images: Mapping[int, CocoImage], annotation: Any) -> None:
    """Adds an object to its image, or counts why it cannot be used."""
    example = f"annotation {str(annotation.get('id'))[:20]}"
    number, category = annotation.get("image_id"), annotation.get("category_id")
    if not is_count(number) or number not in images:
        if not is_count(number) or number not in found.missing:
            found.count("no_image", example)
    elif not is_count(category) or category not in found.categories:
        found.count("no_category", f"{example}, category {str(category)[:20]}")
    else:
        made = _object(annotation, images[number].size, found.labels[category])
        if isinstance(made, str):
            return found.count(made, example)
        images[number].objects.append(made)
        left, top, width, height = made.stored
        full = (left, top, left + width, top + height)
        if max(abs(one - other) for one, other in zip(full, made.box, strict=True)) > ROUNDING:
            found.count("cut", example)
    return None


def _object(annotation: Any, size: tuple[int, int], label: int) -> Object | str:
    """The object of an annotation, or which of `NOTES` says why there is none."""
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        return "malformed"
    left, top, width, height = map(float, box)
    if width <= 0 or height <= 0:
        return "empty"
    inside = (max(left, 0.0), max(top, 0.0), min(left + width, float(size[1])), min(top + height, float(size[0])))
    if inside[2] - inside[0] < LEAST_SIDE or inside[3] - inside[1] < LEAST_SIDE:
        return "outside"
    outline = None
    if annotation.get("segmentation"):
        try:
            outline = read_outline(annotation["segmentation"], size)
        except ValueError:
            return "bad_mask"
    area = annotation.get("area")
    area = float(area) if is_number(area) and area > 0 else width * height
    return Object(inside, (left, top, width, height), label, annotation.get("iscrowd") == 1, area, outline)
