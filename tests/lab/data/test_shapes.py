"""The built-in data: a sample is a pure function of its numbers, and only the outline tells the label."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import pil_to_tensor

from vitmix.lab.data.shapes import AREA, CLASSES, Shapes, draw_scenes, render_scenes, shapes_batch


@pytest.fixture(scope="module")
def many():
    return shapes_batch(range(2400))


@pytest.fixture(scope="module")
def held_out():
    return shapes_batch(range(2400), split="test")


def test_repeats_exactly():
    first, second = shapes_batch(range(48)), shapes_batch(range(48))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_stored_image():
    """Guards the data itself: published numbers are worth nothing once the images change."""
    batch = shapes_batch(range(12), size=16)
    assert batch.labels.tolist() == [0, 5, 11, 3, 8, 7, 9, 2, 10, 6, 1, 4]
    assert batch.masks.sum(dim=(1, 2)).tolist() == [42, 56, 27, 55, 32, 46, 34, 39, 50, 67, 65, 45]
    assert (batch.images[0, :, 8, 5] * 255).round().int().tolist() == [40, 36, 148]


@pytest.mark.parametrize("size", [8, 32, 45])
def test_batch_equals_single(size):
    indices = [5, 0, 977, 31, 12, 5]
    batch = shapes_batch(indices, size=size, seed=3, split="test")
    for row, index in enumerate(indices):
        single = shapes_batch([index], size=size, seed=3, split="test")
        for many, one in zip(batch, single, strict=True):
            assert torch.equal(many[row], one[0])


def test_chunks_leave_no_seam():
    size = 256  # four images to a chunk
    whole = shapes_batch(range(6), size=size)
    assert whole.images.shape == (6, 3, size, size)
    assert torch.equal(whole.images[3:], shapes_batch(range(3, 6), size=size).images)


def test_types_and_range(many):
    assert many.images.shape == (2400, 3, 32, 32) and many.images.dtype == torch.float32
    assert many.labels.shape == (2400,) and many.labels.dtype == torch.long
    assert many.masks.shape == (2400, 32, 32) and many.masks.dtype == torch.bool
    assert many.images.min() >= 0 and many.images.max() <= 1


@pytest.mark.parametrize("size", [16, 48])
def test_same_scene_at_two_sizes(size):
    """A finer image averaged over the coarse pixels is the coarse image, but for the one-pixel edges."""
    coarse, fine = shapes_batch(range(60), size=size), shapes_batch(range(60), size=size * 4)
    assert torch.equal(coarse.labels, fine.labels)
    resampled = F.avg_pool2d(fine.masks.float()[:, None], 4)[:, 0] >= 0.5
    overlap = (resampled & coarse.masks).sum(dim=(1, 2)) / (resampled | coarse.masks).sum(dim=(1, 2))
    assert overlap.min() > 0.85 and overlap.mean() > 0.95
    assert (F.avg_pool2d(fine.images, 4) - coarse.images).abs().mean() < 0.01


def test_mask_is_the_object():
    """Render each scene in two object colors: what changes is the object, and the mask says where."""
    scenes = draw_scenes(torch.arange(120))
    batch = render_scenes(scenes, 32)
    other = render_scenes(scenes._replace(object_color=1 - scenes.object_color), 32)
    changed = (batch.images != other.images).any(dim=1)
    assert changed[batch.masks].float().mean() > 0.99
    # Soft edges reach one pixel out, and a little further at the few sharp tips.
    edge = F.max_pool2d(batch.masks.float()[:, None], 3, stride=1, padding=1)[:, 0] > 0
    assert changed[~edge].float().mean() < 0.001


def test_object_stands_out(many):
    lightness = many.images.mean(dim=1)
    inside = (lightness * many.masks).sum(dim=(1, 2)) / many.masks.sum(dim=(1, 2))
    outside = (lightness * ~many.masks).sum(dim=(1, 2)) / (~many.masks).sum(dim=(1, 2))
    assert (inside - outside).abs().min() > 0.2


def test_object_area_and_place(many):
    area = many.masks.float().mean(dim=(1, 2))
    assert area.min() > AREA[0] - 0.02 and area.max() < AREA[1] + 0.02
    per_class = torch.stack([area[many.labels == label].mean() for label in range(len(CLASSES))])
    assert per_class.max() - per_class.min() < 0.02
    rim = torch.ones(32, 32, dtype=torch.bool)
    rim[1:-1, 1:-1] = False
    assert not many.masks[:, rim].any(), "objects lie inside the image"
    line = (torch.arange(32) + 0.5) / 16 - 1
    middle = (many.masks * line).sum(dim=(1, 2)) / many.masks.sum(dim=(1, 2))
    assert middle.std() > 0.2, "objects are off-center"


def test_classes_are_balanced(many):
    assert len(CLASSES) == 12 and len(set(CLASSES)) == 12
    assert torch.bincount(many.labels).tolist() == [200] * 12
    assert sorted(shapes_batch(range(24, 36)).labels.tolist()) == list(range(12))
    assert len({tuple(run) for run in many.labels.view(-1, 12).tolist()}) > 190, "each run has an order of its own"


def test_splits_and_seeds_share_no_sample():
    draws = [dict(split="train"), dict(split="test"), dict(split="train", seed=1)]
    images = torch.cat([shapes_batch(range(600), size=8, **draw).images for draw in draws])
    assert len(images.flatten(1).unique(dim=0)) == 1800


def least_squares_accuracy(features, labels, other_features, other_labels):
    ones = torch.ones(len(features), 1), torch.ones(len(other_features), 1)
    inputs, others = torch.cat((features, ones[0]), dim=1), torch.cat((other_features, ones[1]), dim=1)
    gram = inputs.T @ inputs + 30 * torch.eye(inputs.shape[1])  # ridge: 768 pixels, 2400 images
    weights = torch.linalg.solve(gram, inputs.T @ F.one_hot(labels).float())
    return ((others @ weights).argmax(dim=1) == other_labels).float().mean()


def test_color_and_background_tell_nothing(many, held_out):
    """Chance is 1/12 = 0.083; four standard errors over 2400 images are 0.023."""
    background = [batch.images[:, :, :2, :2].flatten(1) for batch in (many, held_out)]
    color = [batch.images.mean(dim=(2, 3)) for batch in (many, held_out)]
    for mine, theirs in (background, color):
        assert least_squares_accuracy(mine, many.labels, theirs, held_out.labels) < 0.11


def test_raw_pixels_tell_little(many, held_out):
    small = [F.avg_pool2d(batch.images, 2).flatten(1) for batch in (many, held_out)]
    assert least_squares_accuracy(small[0], many.labels, small[1], held_out.labels) < 0.25


def test_dataset_gives_what_the_batch_holds():
    dataset = Shapes(size=24, length=30, split="test", seed=5)
    batch = shapes_batch(range(30), size=24, split="test", seed=5)
    assert len(dataset) == 30 and dataset.classes == CLASSES
    for index, (image, label) in enumerate(dataset):
        assert isinstance(image, Image.Image) and image.mode == "RGB" and image.size == (24, 24)
        assert torch.equal(pil_to_tensor(image) / 255, batch.images[index])
        assert label == batch.labels[index]
        assert torch.equal(dataset.batch([index]).masks[0], batch.masks[index])
    assert torch.equal(dataset.batch([3, 4]).images, batch.images[3:5])


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    dataset = Shapes(length=20, transform=pil_to_tensor)
    assert pickle.loads(pickle.dumps(dataset))[7][1] == dataset[7][1]
    loaded = list(DataLoader(dataset, batch_size=8, num_workers=workers))
    images = torch.cat([images for images, _ in loaded])
    assert torch.equal(images / 255, shapes_batch(range(20)).images)
    assert torch.equal(torch.cat([labels for _, labels in loaded]), shapes_batch(range(20)).labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(size=7), "size must be at least 8 pixels .* got 7; pass size=32"),
        (dict(length=0), "length must be .* got 0; pass"),
        (dict(length=-3), "length must be .* got -3; pass"),
        (dict(split="val"), "split must be one of .* got 'val'; pass split='train'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Shapes(**settings)


def test_bad_indices():
    dataset = Shapes(length=5)
    for index in (5, -1):
        with pytest.raises(IndexError, match=f"index must be in 0..4, got {index}; pass"):
            dataset[index]
    with pytest.raises(IndexError):
        dataset.batch([5])
    for indices in ([], [-1], torch.zeros(2, 2, dtype=torch.long)):
        with pytest.raises(ValueError, match="indices must be a list of integers"):
            shapes_batch(indices)
    with pytest.raises(ValueError, match="size must be"):
        shapes_batch([0], size=4)
    with pytest.raises(ValueError, match="split must be"):
        shapes_batch([0], split="valid")
