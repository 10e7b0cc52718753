"""Label maps of semantic segmentation, mixed by the same pixels as their images."""

import torch
from torch import Tensor
from torch.nn import functional

from vitmix._mix import Mix, check_tensor
from vitmix.dense.pixels import Seen, move_pixels, seen_pixels

__all__ = ["check_masks", "mask_cross_entropy", "mix_masks"]


def mix_masks(mix: Mix, masks: Tensor, *, num_classes: int | None = None, ignore_index: int = 255) -> Tensor:
    """Label maps of mixed images: `(B, H, W)` classes if no pixel is blended, else weights `(B, K, H, W)`.

    Soft maps `(B, K, H, W)` stay soft. In a soft map, each pixel has the weight of each class. The weights sum to the
    part of the pixel whose label is known: 1, or less where an ignored pixel is blended in, or 0 if it is ignored.

    Args:
        masks: `(B, H, W)` integers or `(B, K, H, W)` floating-point weights.
        num_classes: K; needed to blend integers. If given, the labels are checked, except on a GPU.
        ignore_index: the label of pixels without a class. It may lie outside 0..K - 1.
    """
    check_masks(masks, num_classes, ignore_index)
    if len(masks) != len(mix.partner):
        raise ValueError(f"there must be one mask per image, got {len(mix.partner)} images and {len(masks)} masks")
    seen = seen_pixels(mix, (masks.shape[-2], masks.shape[-1]))
    soft = masks.ndim == 4
    fill = 0 if soft else ignore_index
    own, other = move_pixels(masks, seen.own, fill), move_pixels(masks[mix.partner], seen.partner, fill)
    weight = seen.weight.unsqueeze(1) if soft else seen.weight
    if weight.dtype == torch.bool:
        return torch.where(weight, other, own)
    if soft:
        return torch.lerp(own, other, weight.to(masks.dtype))
    return _blended(own, other, seen, num_classes, ignore_index)


def mask_cross_entropy(logits: Tensor, masks: Tensor, *, ignore_index: int = 255) -> Tensor:
    """The mean cross-entropy of logits `(B, K, H, W)` over the pixels of label maps, hard or soft as in `mix_masks`.

    The mean is weighted by what is known of each pixel, so ignored pixels do not count; it is 0 if none is known.
    """
    if masks.ndim == 4:
        masks = masks.to(torch.promote_types(logits.dtype, torch.float32))
        total, known = functional.cross_entropy(logits, masks, reduction="sum"), masks.sum()
    else:
        masks = masks.long()
        total = functional.cross_entropy(logits, masks, reduction="sum", ignore_index=ignore_index)
        known = (masks != ignore_index).sum()
    return total / torch.where(known > 0, known, 1)


def _blended(own: Tensor, other: Tensor, seen: Seen, num_classes: int | None, ignore_index: int) -> Tensor:
    if num_classes is None:
        raise ValueError("this mask blends pixels, so label maps become weights (B, K, H, W); pass num_classes=K")
    weight = seen.weight.to(torch.promote_types(seen.weight.dtype, torch.float32))
    batch, height, width = own.shape
    soft = weight.new_zeros(batch, num_classes, height, width)
    for labels, part in ((own, 1 - weight), (other, weight)):
        labels = labels.long().unsqueeze(1)
        known = labels != ignore_index
        soft.scatter_add_(1, labels.where(known, 0), part.unsqueeze(1) * known)
    return soft


def check_masks(masks: Tensor, num_classes: int | None, ignore_index: int) -> None:
    """Raises an error for anything but label maps; their values are checked only on a CPU."""
    check_tensor("masks", masks)
    shape = f"{tuple(masks.shape)} {masks.dtype}"
    expected = f"masks must be integers (B, H, W) or floating-point weights (B, K, H, W), got {shape}"
    whole = not masks.is_floating_point() and not masks.is_complex() and masks.dtype != torch.bool
    if masks.ndim < 3:
        raise ValueError(f"{expected}; labels of whole images are mixed by the mixer itself")
    if masks.ndim == 4 and whole and masks.shape[1] == 1:
        raise ValueError(f"{expected}; drop the channel with squeeze(1)")
    if masks.ndim != (3 if whole else 4) or masks.dtype == torch.bool:
        raise ValueError(f"{expected}; convert them with .long() or .float()")
    if not whole and num_classes is not None and masks.shape[1] != num_classes:
        raise ValueError(f"soft masks must have num_classes={num_classes} channels, got {masks.shape[1]}")
    if whole and not torch.iinfo(masks.dtype).min <= ignore_index <= torch.iinfo(masks.dtype).max:
        raise ValueError(
            f"ignore_index={ignore_index} does not fit into {masks.dtype} masks; convert them with .long()"
        )
    if whole and num_classes is not None:
        _check_labels(masks, num_classes, ignore_index)


def _check_labels(masks: Tensor, num_classes: int, ignore_index: int) -> None:
    if masks.device.type != "cpu" or torch.compiler.is_compiling():  # checking values would stall a GPU
        return
    outside = masks[((masks < 0) | (masks >= num_classes)) & (masks != ignore_index)]
    if len(outside):
        raise ValueError(
            f"mask labels must lie in 0..{num_classes - 1} or be ignore_index={ignore_index}, got {int(outside[0])}; "
            f"check num_classes={num_classes}"
        )
