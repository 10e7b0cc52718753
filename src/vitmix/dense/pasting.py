"""Copy-paste: objects of the partner, pasted by their outlines (Ghiasi et al., 2021)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitmix._checks import check_fraction, check_not_negative
from vitmix._mix import mix_images
from vitmix.dense.boxes import Target, check_targets, cut_objects, join_objects

__all__ = ["copy_paste", "draw_objects"]


def draw_objects(
    counts: Sequence[int], probability: float, *, generator: torch.Generator | None = None
) -> list[Tensor]:
    """Which of `counts` objects are pasted, `(n,)` bool for each image: each one with this probability."""
    return [torch.rand(count, generator=generator, device="cpu") < probability for count in counts]


def copy_paste(
    images: Tensor,
    targets: Sequence[Mapping[str, Any]],
    partner: Tensor,
    chosen: Sequence[Tensor],
    *,
    min_visible: float = 0.25,
    min_size: float = 1.0,
    carried: Sequence[str] = (),
) -> tuple[Tensor, list[Target]]:
    """Images into which objects of their partners are pasted by their instance masks, and their targets.

    Objects of the image that are covered are cut or dropped as in `mix_boxes`; pasted objects are whole. Nothing is
    pasted into an image that is its own partner.

    Args:
        targets: as in `mix_boxes`, with `masks` `(n, H, W)`.
        chosen: for each image, which of its partner's objects are pasted, `(n,)` bool.
    """
    check_fraction("min_visible", min_visible)
    check_not_negative("min_size", min_size)
    size = (images.shape[2], images.shape[3])
    keys = check_targets(targets, len(images), size, carried)
    if keys and "masks" not in keys:
        raise ValueError("copy-paste needs the instance masks of the objects; add masks (n, H, W) to the targets")
    if len(chosen) != len(images):
        raise ValueError(f"there must be one entry of chosen per image, got {len(chosen)} for {len(images)} images")
    pasted = [
        _pasted(targets[other], keys, take.to(images.device) & (other != number))
        for number, (other, take) in enumerate(zip(partner.tolist(), chosen, strict=True))
    ]
    covered = [each["masks"].bool().any(0) for each in pasted]
    mixed = [
        {**own, **join_objects([cut_objects(own, keys, ~over, limits=(min_visible, min_size)), new])}
        for own, over, new in zip(targets, covered, pasted, strict=True)
    ]
    return mix_images(images, torch.stack(covered), partner), mixed


def _pasted(target: Mapping[str, Any], keys: Sequence[str], take: Tensor) -> Target:
    if len(take) != len(target["boxes"]):
        raise ValueError(
            f"chosen must have one value per object of the partner, got {len(take)} for {len(target['boxes'])} objects"
        )
    take = take & target["masks"].bool().any(2).any(1)  # an empty outline pastes nothing
    found = {key: target[key][take] for key in keys}
    return {**found, "visible": torch.ones(len(found["boxes"]), device=take.device)}
