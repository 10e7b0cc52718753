"""What passes between the modules of detection: records of COCO's files, targets and what is kept of an image.

Records of files are dictionaries, because COCO's files and faster-coco-eval have them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from torch import Tensor
from torchvision import tv_tensors

from .outlines import Outline, Size


class RunLengths(TypedDict):
    """A mask of `size` (height, width); the counts may be packed into a text."""

    size: list[int]
    counts: list[int] | str


class Located(TypedDict):
    """What objects and detections have: an image, a category, a box (left, top, width, height) and maybe a mask."""

    image_id: int
    category_id: int
    bbox: list[float]
    segmentation: NotRequired[RunLengths | list[list[float]]]


class Annotation(Located):
    """An object of an annotation file."""

    area: NotRequired[float]
    iscrowd: NotRequired[int]


class Detected(Located):
    """A detection of a file of results."""

    score: float


class ImageSize(TypedDict):
    id: int
    height: int
    width: int


class Category(TypedDict):
    id: int
    name: str


class Truth(TypedDict):
    """The content of an annotation file."""

    images: Sequence[ImageSize]
    annotations: Sequence[Annotation]
    categories: Sequence[Category]


@dataclass(frozen=True)
class ImageTruth:
    """All objects of an image, to score detections in it.

    Attributes:
        image: its id in the annotation file.
        categories: COCO's number of each class, in the order of the labels 1, 2, ...
    """

    image: int
    size: Size
    categories: list[int]
    objects: list[Annotation]


@dataclass(frozen=True)
class Target:
    """The objects of an image to learn, without crowd regions, and the truth to score against."""

    boxes: tv_tensors.BoundingBoxes
    labels: Tensor
    outlines: list[Outline | None]
    truth: ImageTruth


class TrainingTarget(TypedDict):
    """The target of an augmented image, as torchvision's detectors and `vitmix.dense` take it; masks `(n, H, W)`."""

    boxes: Tensor
    labels: Tensor
    masks: NotRequired[Tensor]


@dataclass(frozen=True)
class Outcome:
    """What is kept of an evaluated image."""

    truth: ImageTruth
    found: list[Detected]
