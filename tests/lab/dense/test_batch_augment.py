"""The augmentation of batches against torchvision's functions, one image at a time with the same numbers."""

import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tvf

from vitmix.lab.dense import batch_augment as batched
from vitmix.lab.dense.config import DenseAugmentation
from vitmix.lab.dense.task import Sides

SIDES = Sides((32, 40), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
SQUARE = SIDES._replace(size=(32, 32))  # of other shapes, torchvision's ScaleJitter takes the sides the wrong way round
SOURCE = (24, 36)
IGNORED = 255


def numbers_of(count: int, sides: Sides = SIDES, **settings: object) -> Tensor:
    uniform = torch.rand(count, batched.UNIFORM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return batched.draw_numbers(uniform, DenseAugmentation(**settings), SOURCE, sides)  # pyright: ignore


def by_torchvision(image: Tensor, labels: Tensor, row: list[float]) -> tuple[Tensor, Tensor]:
    height, width, top, left, flip, brightness, contrast, saturation, hue, first, order = row
    size, crop = [int(height), int(width)], (int(top), int(left), *SIDES.size)
    image = tvf.resize(image, size, antialias=True)
    labels = tvf.resize(tv_tensors.Mask(labels[None]), size)[0]
    room = [max(0, crop[2]), max(0, crop[3])]
    fill = [round(255 * each) / 255 for each in SIDES.mean]
    image = tvf.crop(tvf.pad(image, [room[1], room[0]], fill=fill), crop[0] + room[0], crop[1] + room[1], *SIDES.size)
    padded = tvf.pad(tv_tensors.Mask(labels[None]), [room[1], room[0]], fill=IGNORED)
    labels = tvf.crop(padded, crop[0] + room[0], crop[1] + room[1], *SIDES.size)[0]
    if flip:
        image, labels = image.flip(2), labels.flip(1)
    image = tvf.adjust_brightness(image, brightness)
    if first:
        image = tvf.adjust_contrast(image, contrast)
    image = tvf.adjust_hue(tvf.adjust_saturation(image, saturation), hue)
    if not first:
        image = tvf.adjust_contrast(image, contrast)
    image = image[list(batched.PERMUTATIONS[int(order)])]
    return tvf.normalize(image, list(SIDES.mean), list(SIDES.std)), labels


def test_every_number_against_torchvision() -> None:
    count = 64
    images = torch.randint(0, 256, (count, 3, *SOURCE), dtype=torch.uint8)
    images[1], images[2] = 100, torch.tensor([90, 90, 30]).view(3, 1, 1)  # gray; two equal channels
    maps = torch.randint(0, 3, (count, *SOURCE), dtype=torch.uint8)
    numbers = numbers_of(count)
    found, labels = batched.augment_dense(images, maps, numbers, SIDES, IGNORED)
    for image, mask, row, own, own_mask in zip(images, maps, numbers.tolist(), found, labels, strict=True):
        wanted, wanted_mask = by_torchvision(image.float() / 255, mask, row)
        torch.testing.assert_close(own, wanted, atol=2e-4, rtol=0)
        assert torch.equal(own_mask, wanted_mask)
    assert (labels == IGNORED).any() and (numbers[:, batched.TOP] > 0).any() and (numbers[:, batched.TOP] < 0).any()


def test_numbers_are_distributed_as_torchvision_draws_them() -> None:
    """The size, the place and the colors of 4,000 samples: equal means and ranges."""
    torch.manual_seed(0)
    count, numbers = 4000, numbers_of(4000, SQUARE)
    jitter = v2.ScaleJitter(SQUARE.size, scale_range=(0.5, 2.0))
    image = torch.zeros(3, *SOURCE, dtype=torch.uint8)
    sizes = torch.tensor([jitter.make_params([image])["size"] for _ in range(count)], dtype=torch.float32)
    assert torch.allclose(numbers[:, :2].mean(0), sizes.mean(0), rtol=0.03)
    assert torch.equal(numbers[:, :2].amin(0), sizes.amin(0)) and torch.equal(numbers[:, :2].amax(0), sizes.amax(0))
    colors = v2.RandomPhotometricDistort()
    drawn = [colors.make_params([image]) for _ in range(count)]
    for column, name in enumerate(batched.FACTORS, start=batched.COLORS):
        none = 0.0 if name == "hue" else 1.0
        wanted = torch.tensor([none if each[f"{name}_factor"] is None else each[f"{name}_factor"] for each in drawn])
        own = numbers[:, column]
        assert own.std() == pytest.approx(float(wanted.std()), rel=0.05)
        assert (own == none).float().mean() == pytest.approx(float((wanted == none).float().mean()), abs=0.04)
        assert own.min() == pytest.approx(float(wanted.min()), abs=0.01)
    room = numbers[:, 0] - SQUARE.size[0]
    place = (numbers[:, batched.TOP] - room.clamp_max(0)) / (room.abs() + 1)
    middle = float((0.5 - 0.5 / (room.abs() + 1)).mean())
    assert float(place.min()) == 0 and place.max() < 1 and place.mean() == pytest.approx(middle, abs=0.02)
    assert numbers[:, batched.FLIP].mean() == pytest.approx(0.5, abs=0.03)
    for order in range(len(batched.PERMUTATIONS)):
        share = (numbers[:, batched.ORDER] == order).float().mean()
        assert share == pytest.approx((0.5 if order == 0 else 0) + 0.5 / 6, abs=0.03)


def test_nothing_is_distorted_without_distortion() -> None:
    numbers = numbers_of(100, distortion=False, hflip=0.0)
    assert torch.equal(numbers[:, batched.FLIP], torch.zeros(100))
    assert torch.equal(numbers[:, batched.COLORS : batched.FIRST].unique(dim=0), torch.tensor([[1.0, 1.0, 1.0, 0.0]]))
    assert not numbers[:, batched.ORDER].any()
