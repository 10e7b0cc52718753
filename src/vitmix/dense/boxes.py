"""Boxes and instance masks of object detection, kept, cut or dropped by what the mixed image shows of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitmix._checks import check_fraction, check_not_negative
from vitmix._mix import Grid, Mix, Pixels, check_tensor
from vitmix.dense.pixels import seen_pixels
from vitmix.dense.visible import ROUNDING, Visible, visible_boxes, visible_masks

__all__ = ["PER_OBJECT", "Target", "check_targets", "cut_objects", "join_objects", "mix_boxes"]

Target = dict[str, Any]
PER_OBJECT = ("boxes", "labels", "masks", "scores", "area", "iscrowd")  # in the words of torchvision


def mix_boxes(
    mix: Mix,
    targets: Sequence[Mapping[str, Any]],
    *,
    size: Grid,
    min_visible: float = 0.25,
    min_size: float = 1.0,
    carried: Sequence[str] = (),
) -> list[Target]:
    """Targets of mixed images: the visible objects of each image, then those of its partner.

    An object is dropped if less than `min_visible` of its area is visible. The box of one that is cut becomes the box
    around its visible part. The area is that of its instance mask, if it has one, else that of its box. A blended pixel
    counts by its weight. The new key `visible` `(n,)` is the visible part of each object.

    Args:
        targets: one dict per image: `boxes` `(n, 4)` as (left, top, right, bottom), `labels` `(n,)`, and, in all of
            them or none, `masks` `(n, H, W)`, `scores`, `area`, `iscrowd`. Other keys are kept from the original image.
        size: height and width of the images.
        min_size: drops cut boxes with a shorter side, in pixels.
        carried: other keys with one row per object.
    """
    check_fraction("min_visible", min_visible)
    check_not_negative("min_size", min_size)
    keys = check_targets(targets, len(mix.partner), size, carried)
    seen = seen_pixels(mix, size)
    zooms = [1.0] * len(targets) if seen.zoom is None else seen.zoom.tolist()
    limits = (min_visible, min_size)
    mixed = []
    for number, other in enumerate(mix.partner.tolist()):
        own, theirs = targets[number], targets[other]
        device = own["boxes"].device  # the targets may be on the host and the images on a GPU
        weight = seen.weight[number].to(device)
        if other == number and seen.own is None and seen.partner is None:  # the image did not change
            weight = torch.zeros_like(weight)
        opacity = ~weight if weight.dtype == torch.bool else 1 - weight
        pixels = [_one(each, number, device) for each in (seen.own, seen.partner)]
        parts = [
            cut_objects(own, keys, opacity, pixels[0], limits=limits),
            cut_objects(theirs, keys, weight, pixels[1], limits=limits, zoom=zooms[number]),
        ]
        mixed.append({**own, **join_objects(parts)})
    return mixed


def cut_objects(
    target: Mapping[str, Any],
    keys: Sequence[str],
    opacity: Tensor,
    pixels: Pixels | None = None,
    *,
    limits: tuple[float, float],
    zoom: float = 1.0,
) -> Target:
    """The objects of one image that remain visible, by `keys` and `visible`; `limits` are least part and size."""
    seen = _visible(target, opacity, pixels)
    fraction = (seen.fraction / zoom).clamp_max(1)
    fraction = torch.where(fraction > 1 - ROUNDING, 1, fraction)
    still = (seen.extent > 1 - ROUNDING) & (pixels is None)
    side = (seen.boxes[:, 2:] - seen.boxes[:, :2]).amin(1)
    kept = (fraction > 0) & (fraction >= limits[0] - ROUNDING) & (still | (side >= limits[1] - ROUNDING))
    found = {key: target[key][kept] for key in keys}
    boxes = seen.boxes.to(found["boxes"].dtype)[kept]
    found["boxes"] = torch.where(still[kept].unsqueeze(1), found["boxes"], boxes)
    if seen.masks is not None:
        found["masks"] = seen.masks[kept].to(found["masks"].dtype)
    if "area" in found:
        area = target["area"] * torch.where(still, 1, seen.extent)
        found["area"] = area[kept].to(found["area"].dtype)
    return {**found, "visible": fraction[kept]}


def join_objects(parts: Sequence[Target]) -> Target:
    """The objects of several images in one target."""
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _visible(target: Mapping[str, Any], opacity: Tensor, pixels: Pixels | None) -> Visible:
    boxes = visible_boxes(target["boxes"], opacity, pixels)
    if "masks" not in target:
        return boxes
    masks = target["masks"].bool()
    by_mask = visible_masks(masks, opacity, pixels)
    outlined = masks.any(2).any(1)  # an empty mask says nothing, so the box decides
    fraction = torch.where(outlined, by_mask.fraction, boxes.fraction)
    extent = torch.where(outlined, by_mask.extent, boxes.extent)
    around = torch.where(outlined.unsqueeze(1), by_mask.boxes, boxes.boxes)
    return Visible(fraction, extent, around, by_mask.masks)


def _one(pixels: Pixels | None, number: int, device: torch.device) -> Pixels | None:
    """The pixels of one image of a batch."""
    if pixels is None:
        return None
    return Pixels(*((each[number : number + 1] if len(each) > 1 else each).to(device) for each in pixels))


def check_targets(targets: object, batch: int, size: Grid, carried: Sequence[str] = ()) -> list[str]:
    """The keys with one row per object; raises an error for targets that are not boxes of images of `size`."""
    if not isinstance(targets, Sequence) or not all(isinstance(each, Mapping) for each in targets):
        raise ValueError(f"targets must be a list of dicts with boxes and labels, got {type(targets).__name__}")
    if len(targets) != batch:
        raise ValueError(f"there must be one target per image, got {batch} images and {len(targets)} targets")
    known = {*PER_OBJECT, *carried}
    keys = [key for key in (targets[0] if targets else {}) if key in known]
    for target in targets:
        found = [key for key in target if key in known]
        if set(found) != set(keys):
            raise ValueError(f"all targets must have the same keys, got {sorted(keys)} and {sorted(found)}")
        if "keypoints" in target and "keypoints" not in carried:
            raise ValueError("keypoints cannot be mixed; remove them from the targets")
        _check_objects(target, keys, size)
    return keys


def _check_objects(target: Mapping[str, Any], keys: Sequence[str], size: Grid) -> None:
    for key in ("boxes", "labels"):
        if key not in keys:
            raise ValueError(f"each target needs {key!r}, got {sorted(target)}")
    for key in keys:
        check_tensor(key, target[key])
    boxes = target["boxes"]
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes must be (n, 4), got {tuple(boxes.shape)}; no objects are torch.zeros(0, 4)")
    if boxes.dtype == torch.bool or boxes.is_complex():
        raise ValueError(f"boxes must be numbers of pixels, got {boxes.dtype}; convert them with .float()")
    for key in keys:
        if target[key].ndim < 1 or len(target[key]) != len(boxes):
            raise ValueError(f"{key} must have one row per box, got {len(boxes)} boxes and {tuple(target[key].shape)}")
    if "masks" in keys and tuple(target["masks"].shape[1:]) != size:
        raise ValueError(
            f"instance masks must be (n, {size[0]}, {size[1]}) as the images, got {tuple(target['masks'].shape)}"
        )
    _check_corners(boxes, size)


def _check_corners(boxes: Tensor, size: Grid) -> None:
    """Boxes may leave the image by up to one pixel, because annotations are rounded."""
    numbers = boxes.detach().double()
    if len(wrong := boxes[~(numbers[:, 2:] > numbers[:, :2]).all(1)]):
        raise ValueError(
            f"boxes must be (left, top, right, bottom) with left < right and top < bottom, got {wrong[0].tolist()}; "
            "remove empty boxes and convert other formats"
        )
    end = numbers.new_tensor([size[1], size[0]])
    low, high = numbers[:, :2], numbers[:, 2:]
    if len(wrong := boxes[~((low >= -1) & (high > 0) & (low < end) & (high <= end + 1)).all(1)]):
        raise ValueError(
            f"boxes must lie inside the {size[0]}x{size[1]} image, got {wrong[0].tolist()}; boxes are in pixels, clip "
            "them to the image"
        )
