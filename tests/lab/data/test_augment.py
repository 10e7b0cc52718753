"""Augmentation of single images: timm's numbers, made a function of a few whole numbers."""

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.random_erasing import RandomErasing
from timm.data.transforms_factory import create_transform

from samples import eval_sample, seed_all, train_sample
from vitmix.lab.data import augment as augment_module
from vitmix.lab.data.augment import augment, global_generators_kept, seed_global_generators
from vitmix.lab.data.augmentation import Augmentation

PLAIN = Augmentation(32, scale=None, hflip=0, auto_augment=None, erasing=0)


def noise_image(width: int = 40, height: int = 36, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def timm_sample(image: Image.Image, numbers: tuple[int, ...], **settings) -> torch.Tensor:
    """Slow twin: timm's own transform under the same seed."""
    transform: Any = create_transform(is_training=True, re_mode="pixel", color_jitter=0.0, **settings)
    with global_generators_kept():
        seed_global_generators(*numbers)
        return transform(image)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"interpolation": "random"}, {"interpolation": "random"}),
        ({"scale": (0.8, 1.0), "hflip": 0.0}, {"scale": (0.8, 1.0), "hflip": 0.0}),
        ({"auto_augment": None, "mean": (0.5, 0.4, 0.3)}, {"auto_augment": None, "mean": (0.5, 0.4, 0.3)}),
        ({"auto_augment": "augmix-m3-w2"}, {"auto_augment": "augmix-m3-w2"}),
        ({"auto_augment": "original-mstd0.5"}, {"auto_augment": "original-mstd0.5"}),
        ({"size": (24, 32)}, {"input_size": (3, 24, 32)}),
    ],
)
def test_training_images_are_timms(ours, theirs):
    augmentation = Augmentation(**{"size": 32, "erasing": 0.0, **ours})
    settings = {"input_size": 32, "auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic", **theirs}
    image = noise_image()
    for number in range(20):
        expected = timm_sample(image, (3, 1, number), **settings)
        torch.testing.assert_close(train_sample(image, augmentation, seed_numbers=(3, 1, number)), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_erased_boxes_are_timms(count):
    augmentation = dataclasses.replace(PLAIN, erasing=0.6, erasing_count=count)
    theirs = RandomErasing(0.6, max_count=count, device="cpu")  # fills with zeros
    erased = 0
    for number in range(60):
        with global_generators_kept():
            boxes = augment(noise_image(), augmentation, seed_numbers=(number,)).boxes
            seed_global_generators(number)
            expected = theirs(torch.ones(3, 32, 32))[0] == 0
        ours = torch.zeros(32, 32, dtype=torch.bool)
        for top, bottom, left, right in boxes.tolist():
            ours[top:bottom, left:right] = True
        assert torch.equal(ours, expected)
        erased += int(ours.any())
    assert 20 < erased < 52


def test_erasing_fills_the_box_with_noise_and_nothing_else():
    augmentation = dataclasses.replace(PLAIN, erasing=1.0)
    image = Image.new("RGB", (32, 32), (10, 20, 30))
    clean = train_sample(image, PLAIN, seed_numbers=(4,))
    erased = train_sample(image, augmentation, seed_numbers=(4,))
    with global_generators_kept():
        ((top, bottom, left, right),) = augment(image, augmentation, seed_numbers=(4,)).boxes.tolist()
    inside = torch.zeros(32, 32, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    assert torch.equal(erased[:, ~inside], clean[:, ~inside])
    assert erased[:, inside].std() == pytest.approx(1, abs=0.2)  # normal noise on normalized images
    later = dataclasses.replace(augmentation, erase_after_mixing=True)
    assert torch.equal(train_sample(image, later, seed_numbers=(4,)), clean)


def test_a_sample_depends_on_its_numbers_alone_and_leaves_the_generators_as_they_were():
    augmentation, image = Augmentation(32, erasing=0.25), noise_image()
    seed_all(1)
    first = train_sample(image, augmentation, seed_numbers=(1, 2, 3))
    after = random.random(), np.random.rand(), torch.rand(1)
    seed_all(1)
    assert (random.random(), np.random.rand(), torch.rand(1)) == after
    assert torch.equal(train_sample(image, augmentation, seed_numbers=(1, 2, 3)), first)
    assert not torch.equal(train_sample(image, augmentation, seed_numbers=(1, 2, 4)), first)
    assert not torch.equal(train_sample(image, augmentation, seed_numbers=(-1, 2, 3)), first)


def test_the_strongest_posterize_is_black_and_not_an_error():
    # Magnitude 10 keeps no bit; Pillow refuses that, and the noise of m9-mstd0.5 reaches it in one of 44 draws.
    augmentation = dataclasses.replace(PLAIN, auto_augment="rand-m10-n1-p1-inc1")
    with global_generators_kept():
        darkest = min(int(augment(noise_image(), augmentation, seed_numbers=(n,)).pixels.max()) for n in range(60))
    assert darkest == 0


def test_evaluation_images_are_timms():
    for size, crop_pct in ((32, 0.875), (32, 1.0), ((24, 32), 0.9)):
        augmentation = Augmentation(size, crop_pct=crop_pct)
        theirs: Any = create_transform(
            size if isinstance(size, int) else (3, *size), crop_pct=crop_pct, interpolation="bicubic"
        )
        torch.testing.assert_close(eval_sample(noise_image(), augmentation), theirs(noise_image()))


def test_without_any_operation_an_image_is_only_normalized():
    image = noise_image(32, 32)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).double() / 255
    expected = (pixels - torch.tensor(PLAIN.mean).view(3, 1, 1)) / torch.tensor(PLAIN.std).view(3, 1, 1)
    torch.testing.assert_close(train_sample(image, PLAIN, seed_numbers=(0,)).double(), expected, atol=1e-6, rtol=0)
    assert torch.equal(
        eval_sample(image, dataclasses.replace(PLAIN, crop_pct=1.0)), train_sample(image, PLAIN, seed_numbers=())
    )


def test_padded_crop_moves_the_image():
    augmentation = dataclasses.replace(PLAIN, padding=3, mean=(0.0, 0.0, 0.0), std=(1 / 255,) * 3)
    image = noise_image(32, 32)
    padded = np.pad(np.asarray(image), ((3, 3), (3, 3), (0, 0)))
    places = set()
    for number in range(40):
        sample = train_sample(image, augmentation, seed_numbers=(number,)).permute(1, 2, 0).numpy()
        (place,) = [
            (top, left)
            for top in range(7)
            for left in range(7)
            if np.allclose(padded[top : top + 32, left : left + 32], sample, atol=1e-3)
        ]
        places.add(place)
    assert len(places) > 20


def test_color_jitter_changes_colors():
    augmentation = dataclasses.replace(PLAIN, color_jitter=0.4)
    samples = [train_sample(noise_image(), augmentation, seed_numbers=(number,)) for number in range(3)]
    assert not torch.equal(samples[0], samples[1]) and not torch.equal(samples[1], samples[2])


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1, 500), (500, 1), (20, 300)])
def test_small_and_long_images(size):
    image = Image.new("RGB", size, (200, 100, 50))
    for number in range(20):
        assert train_sample(image, Augmentation(32, erasing=0.25), seed_numbers=(number,)).shape == (3, 32, 32)
    for augmentation in (Augmentation(32), PLAIN):
        assert eval_sample(image, augmentation).shape == (3, 32, 32)
    assert max(augment_module._prepare(image).size) <= 16 * max(8, min(size))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_images_of_every_mode(mode):
    image = noise_image(mode=mode)
    assert train_sample(image, Augmentation(32, erasing=0.25), seed_numbers=(0,)).shape == (3, 32, 32)
    assert torch.equal(eval_sample(image, PLAIN), eval_sample(image.convert("RGB"), PLAIN))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be pixels"),
        ({"size": (32,)}, "size must be pixels"),
        ({"scale": (0.5, 0.2)}, "scale must be"),
        ({"scale": (0.5, 2.0)}, "at most 1"),
        ({"ratio": (0, 1)}, "ratio must be"),
        ({"hflip": 2}, "hflip must lie"),
        ({"erasing": -1}, "erasing must lie"),
        ({"padding": 4}, "pass scale=None"),
        ({"interpolation": "lanczos"}, "unknown interpolation"),
        ({"crop_pct": 0}, "crop_pct"),
        ({"crop_pct": 1e-320}, "crop_pct must be at least 0.05"),
        ({"padding": 2**31, "scale": None}, "padding may be at most 4,096"),
        ({"erasing_count": 2**31}, "erasing_count may be at most 1,000"),
        ({"std": (1.0, 1.0, 1e38)}, "of pixels in 0..1"),
        ({"std": (1.0, float("nan"), 1.0)}, "of pixels in 0..1"),
        ({"mean": (0.0, 0.0, float("inf"))}, "of pixels in 0..1"),
        ({"std": (1.0, 0.0, 1.0)}, "std positive"),
        ({"color_jitter": 0.4}, "has no effect beside"),
        ({"erasing_count": 2, "erase_after_mixing": True}, "takes one box"),
        ({"auto_augment": "rand-q9"}, "not in timm's notation"),
        ({"auto_augment": "random"}, "not in timm's notation"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**settings)


def test_lists_of_a_configuration_file_become_tuples():
    augmentation = Augmentation(size=[32, 32], scale=[0.8, 1.0], mean=[0.5, 0.5, 0.5])  # pyright: ignore
    assert augmentation == Augmentation((32, 32), scale=(0.8, 1.0), mean=(0.5, 0.5, 0.5))
    assert hash(augmentation) == hash(dataclasses.replace(augmentation))
