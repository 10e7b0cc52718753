"""Torchvision's tensor classes, data loaders, and no need for torchvision."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2

import vitmix

BOXES = torch.tensor([[1.0, 1, 5, 6], [2, 0, 8, 7]])


def wrapped(form: str = "XYXY", size: tuple[int, int] = (8, 8)) -> dict[str, Any]:
    boxes = tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=size)  # pyright: ignore[reportCallIssue]
    return {
        "boxes": v2.functional.convert_bounding_box_format(boxes, new_format=tv_tensors.BoundingBoxFormat[form]),
        "labels": torch.tensor([1, 2]),
        "masks": tv_tensors.Mask(torch.ones(2, 8, 8, dtype=torch.uint8)),
    }


def test_label_maps_keep_their_class() -> None:
    images = tv_tensors.Image(torch.rand(2, 3, 8, 8))
    masks = tv_tensors.Mask(torch.randint(0, 3, (2, 8, 8)))
    for text in ("cutmix", "resizemix", "mixup"):
        mixed, found = vitmix.DenseMix(text, num_classes=3, seed=0)(images, masks)
        bare = vitmix.DenseMix(text, num_classes=3, seed=0)(
            images.as_subclass(torch.Tensor), torch.Tensor(masks).long()
        )
        assert type(mixed) is tv_tensors.Image and type(found) is tv_tensors.Mask
        assert torch.equal(mixed, bare[0]) and torch.equal(found, bare[1])


@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CXCYWH"])
def test_boxes_keep_their_format(form: str) -> None:
    images = tv_tensors.Image(torch.rand(2, 3, 8, 8))
    mixed, found = vitmix.DenseMix("cutmix", seed=0)(images, [wrapped(form), wrapped(form)])
    _, expected = vitmix.DenseMix("cutmix", seed=0)(images, [wrapped(), wrapped()])
    for new, old in zip(found, expected, strict=True):
        boxes = new["boxes"]
        assert type(boxes) is tv_tensors.BoundingBoxes and boxes.format.value == form and boxes.canvas_size == (8, 8)
        corners = v2.functional.convert_bounding_box_format(boxes, new_format=tv_tensors.BoundingBoxFormat.XYXY)
        torch.testing.assert_close(corners.as_subclass(torch.Tensor), old["boxes"].as_subclass(torch.Tensor))
        assert type(new["masks"]) is tv_tensors.Mask and new["masks"].dtype == torch.uint8
        assert type(new["labels"]) is torch.Tensor
    assert type(mixed) is tv_tensors.Image
    v2.RandomHorizontalFlip(p=1.0)(mixed[0], found[0])  # what comes out goes into torchvision's transforms


def test_copy_paste_keeps_classes_too() -> None:
    images = [tv_tensors.Image(torch.rand(3, 8, 8)) for _ in range(2)]
    mixed, found = vitmix.CopyPaste(1.0, min_visible=0)(images, [wrapped("XYWH"), wrapped("XYWH")])
    assert isinstance(mixed, list) and type(mixed[0]) is tv_tensors.Image
    assert found[0]["boxes"].format.value == "XYWH" and type(found[0]["masks"]) is tv_tensors.Mask


def test_another_canvas_and_rotated_boxes_are_refused() -> None:
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match="canvas of 16x16, but images are 8x8"):
        vitmix.DenseMix("cutmix")(images, [wrapped(size=(16, 16))] * 2)
    rotated = tv_tensors.BoundingBoxes(torch.rand(1, 5), format="XYWHR", canvas_size=(8, 8))  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="rotated boxes"):
        vitmix.DenseMix("cutmix")(images, [{"boxes": rotated, "labels": torch.ones(1)}] * 2)


def samples(count: int) -> list[tuple[Any, Any]]:
    return [(tv_tensors.Image(torch.full((3, 8, 8), float(each))), wrapped()) for each in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_in_a_loader(workers: int) -> None:
    maps = [(torch.full((3, 8, 8), float(each)), torch.full((8, 8), each)) for each in range(8)]
    mix = vitmix.DenseMix("cutmix", seed=0)
    loader = DataLoader(maps, batch_size=2, collate_fn=mix.collate, num_workers=workers)  # pyright: ignore[reportArgumentType]
    found = list(loader)
    for images, masks in found:
        assert torch.equal(images[:, 0], masks.float())
    boxes = {tuple((masks != masks[0, 0, 0]).flatten().tolist()) for _, masks in found}
    assert len(boxes) == len(found)  # workers draw different numbers
    detection = DataLoader(samples(4), batch_size=2, collate_fn=vitmix.DenseMix("mixup").collate)  # pyright: ignore[reportArgumentType]
    images, targets = next(iter(detection))
    assert type(images) is tv_tensors.Image and len(targets) == 2


def test_torchvision_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['torchvision'] = None\n"
        "import torch, vitmix.dense, vitmix.functional\n"
        "images, masks = torch.rand(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long)\n"
        "boxes = [{'boxes': torch.tensor([[1., 1, 5, 5]]), 'labels': torch.ones(1)}] * 2\n"
        "mix = vitmix.DenseMix(vitmix.Mixer(3, mask=vitmix.BoxMask()))\n"
        "mix(images, masks); mix(images, boxes); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "done", done.stderr
