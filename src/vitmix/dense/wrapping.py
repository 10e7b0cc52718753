"""Torchvision's tensor classes: taken off before mixing, put back after it. Torchvision is used only if they are."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitmix._mix import Grid

__all__ = ["plain", "plain_target", "wrap_like", "wrap_target"]


def _classes() -> Any:
    """`torchvision.tv_tensors`, if it is imported: otherwise no tensor can be of its classes."""
    return sys.modules.get("torchvision.tv_tensors")


def _is_wrapped(value: object) -> bool:
    classes = _classes()
    return classes is not None and isinstance(value, classes.TVTensor)


def plain(value: Any) -> Any:
    """A tensor of torchvision's classes as a plain tensor; anything else unchanged."""
    return value.as_subclass(Tensor) if _is_wrapped(value) else value


def wrap_like(value: Tensor, like: object) -> Tensor:
    """A tensor of the class of `like`, with its format and canvas size."""
    return _classes().wrap(value, like=like) if _is_wrapped(like) else value


def plain_target(target: Mapping[str, Any], size: Grid) -> dict[str, Any]:
    """A target in which `boxes` are (left, top, right, bottom), as plain tensors."""
    found = {key: plain(value) for key, value in target.items()}
    if _has_format(boxes := target.get("boxes")):
        found["boxes"] = _corners(boxes, size)
    return found


def wrap_target(target: dict[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """A target whose values have the classes and the box format of `like`."""
    found = {key: wrap_like(value, like.get(key)) for key, value in target.items()}
    boxes: Any = like.get("boxes")
    if _has_format(boxes):
        found["boxes"] = wrap_like(_convert(target["boxes"], "XYXY", boxes.format.value), boxes)
    return found


def _has_format(boxes: Any) -> bool:
    return _is_wrapped(boxes) and isinstance(boxes, _classes().BoundingBoxes)


def _corners(boxes: Any, size: Grid) -> Tensor:
    if tuple(boxes.canvas_size) != size:
        raise ValueError(
            f"boxes are on a canvas of {'x'.join(map(str, boxes.canvas_size))}, but images are {size[0]}x{size[1]}; "
            "resize both together"
        )
    if boxes.format.value not in ("XYXY", "XYWH", "CXCYWH"):
        raise ValueError(f"rotated boxes ({boxes.format.value}) cannot be mixed; use XYXY, XYWH or CXCYWH")
    return _convert(boxes.as_subclass(Tensor), boxes.format.value, "XYXY")


def _convert(boxes: Tensor, old: str, new: str) -> Tensor:
    from torchvision.transforms.v2.functional import convert_bounding_box_format
    from torchvision.tv_tensors import BoundingBoxFormat

    return convert_bounding_box_format(boxes, BoundingBoxFormat[old], BoundingBoxFormat[new])


def stack_images(images: Any) -> tuple[Tensor, Any]:
    """A batch of images as one plain tensor, and what each of them was: `wrap_images` undoes both."""
    if isinstance(images, Tensor):
        return plain(images), images
    if not isinstance(images, Sequence) or not images or not all(isinstance(each, Tensor) for each in images):
        raise ValueError(f"images must be a tensor (B, C, H, W) or a list of tensors, got {type(images).__name__}")
    shapes = {tuple(each.shape) for each in images}
    if len(shapes) > 1:
        raise ValueError(
            f"images of a batch must have the same size to be mixed, got {sorted(shapes)[:2]}; resize, crop or pad them"
        )
    return torch.stack([plain(each) for each in images]), images


def wrap_images(images: Tensor, like: Any) -> Any:
    """Mixed images in the form that `stack_images` got: a tensor or a list, of the same class."""
    if isinstance(like, Tensor):
        return wrap_like(images, like)
    return [wrap_like(image, first) for image, first in zip(images, like, strict=True)]
