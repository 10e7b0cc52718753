"""Activation maps move with their images, one at a time and in batches."""

import dataclasses
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment as timm_augment
from torch import Tensor

from blobs import RAND, SIDE, blob_images, blobs, correlation, image_of
from training import one_thread  # noqa: F401
from vitmix.lab.data import augment as augment_module
from vitmix.lab.data.augment import augment, augment_map, global_generators_kept
from vitmix.lab.data.augmentation import Augmentation
from vitmix.lab.data.batch_augment import augment_maps
from vitmix.lab.data.loader import Batch, TrainLoader
from vitmix.lab.data.resident import ResidentLoader

pytestmark = pytest.mark.usefixtures("one_thread")

MOVING = ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel"]


def augmented_pair(augmentation: Augmentation, number: int, size: tuple[int, int] = (80, 96)) -> tuple[Tensor, Tensor]:
    values = blobs(*size, seed=number)
    with global_generators_kept():
        pixels = augment(image_of(values), augmentation, seed_numbers=(number,)).pixels
        moved = augment_map(values, size, augmentation, seed_numbers=(number,))
    return pixels.float().mean(0), moved


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A function that makes RandAugment know these operations alone, and gives the name of a policy."""

    def forget() -> None:
        augment_module._train_transform.cache_clear()

    def policy(*names: str) -> str:
        monkeypatch.setattr(timm_augment, "_RAND_TRANSFORMS", list(names))
        forget()
        return "rand-m9-n1-p1-mstd0.5"

    yield policy
    forget()


# Together through augmentation


@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
@pytest.mark.parametrize("name", MOVING)
def test_every_moving_operation_takes_the_map_along(name, interpolation, only):
    policy = only(name)
    still = Augmentation(SIDE, scale=None, hflip=0, auto_augment=None, erasing=0)
    moving = dataclasses.replace(still, auto_augment=policy, mean=(0,) * 3, interpolation=interpolation)
    for number in range(8):
        size = (80, 96) if number % 2 else (96, 80)
        pixels, moved = augmented_pair(moving, number, size)
        assert correlation(pixels, moved) > 0.995
        unmoved, _ = augmented_pair(still, number, size)
        assert correlation(unmoved, moved) < 0.98  # so that a map which stayed behind would be noticed


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_augment": None},
        {"auto_augment": None, "scale": (0.1, 0.3), "size": (48, 64)},
        {"auto_augment": None, "scale": None, "padding": 8},
        {"auto_augment": None, "scale": None, "hflip": 1.0},
        {"auto_augment": None, "scale": (0.3, 1.0), "interpolation": "random"},
    ],
)
def test_crop_and_flip_take_the_map_along(changes):
    augmentation = dataclasses.replace(RAND, **changes)
    for number in range(10):
        assert correlation(*augmented_pair(augmentation, number, (70, 150))) > 0.99


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "rand-m9-mstd101", "original-mstd0.5", "rand-m9-t3a", "v0"])
def test_maps_follow_whole_policies(config, only, monkeypatch):
    """Colors would hide whether the places agree, so operations that change them leave the image alone here."""
    for name, operation in timm_augment.NAME_TO_OP.items():
        if name not in MOVING:
            still = draws_only if name == "GaussianBlurRand" else lambda image, *arguments, **settings: image
            monkeypatch.setitem(timm_augment.NAME_TO_OP, name, still)
            monkeypatch.setattr(timm_augment, operation.__name__, still)
    only(*timm_augment._RAND_TRANSFORMS)
    augmentation = dataclasses.replace(RAND, auto_augment=config)
    flat = 0  # moved out of the image, so that there is nothing to compare
    for number in range(20):
        pixels, moved = augmented_pair(augmentation, number)
        flat += bool(moved.std() < 0.02)
        assert correlation(pixels, moved) > 0.99 or moved.std() < 0.02
    assert flat < 5


def draws_only(image: Image.Image, *arguments: float, **settings: object) -> Image.Image:
    random.random()
    return image


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "rand-m9-t3a", "original", "rand-m9-n3-mstd101-tweights"])
@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
def test_a_map_draws_what_its_image_draws(config, interpolation):
    augmentation = dataclasses.replace(RAND, auto_augment=config, interpolation=interpolation)
    for number in range(30):
        with global_generators_kept():
            augment(image_of(blobs(40, 50)), augmentation, seed_numbers=(number,))
            state = random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum()
            augment_map(blobs(40, 50), (40, 50), augmentation, seed_numbers=(number,))
            assert (random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum()) == state


def test_what_comes_from_outside_the_image_is_zero(only):
    augmentation = Augmentation(SIDE, scale=None, hflip=0, auto_augment=only("TranslateXRel"), erasing=0)
    with global_generators_kept():
        moved = augment_map(torch.ones(4, 4), (SIDE, SIDE), augmentation, seed_numbers=(1,))
    assert set(moved.unique().tolist()) == {0.0, 1.0}


def test_long_and_tiny_images_take_the_map_along():
    augmentation = dataclasses.replace(RAND, auto_augment=None)
    for size in ((16, 400), (400, 16)):
        values = blobs(*size)
        with global_generators_kept():
            pixels = augment(image_of(values), augmentation, seed_numbers=(1,)).pixels.float().mean(0)
            moved = augment_map(values, size, augmentation, seed_numbers=(1,))
        assert correlation(pixels, moved) > 0.99
    with global_generators_kept():
        assert augment_map(torch.ones(2, 2), (3, 5), augmentation, seed_numbers=(1,)).shape == (SIDE, SIDE)


def test_mixed_up_augmentation_is_refused():
    with pytest.raises(ValueError, match="augmix.*no single activation map"):
        loader_of(TrainLoader, dataclasses.replace(RAND, auto_augment="augmix-m3-w2"))


# Loaders


def loader_of(kind, augmentation: Augmentation, *, with_maps: bool = True, **settings):
    images, values = blob_images()
    return kind(images, augmentation, batch=8, seed=5, maps=values if with_maps else None, **settings)


def batches(loader, epoch: int = 1) -> list[Batch]:
    return list(loader.epoch(epoch))


@pytest.mark.parametrize("kind", [TrainLoader, ResidentLoader])
@pytest.mark.parametrize("changes", [{}, {"erasing": 0.5}, {"scale": None, "padding": 6}, {"erase_after_mixing": True}])
def test_images_are_the_same_with_and_without_maps(kind, changes):
    augmentation = dataclasses.replace(RAND, **changes)
    pairs = zip(
        batches(loader_of(kind, augmentation)), batches(loader_of(kind, augmentation, with_maps=False)), strict=True
    )
    for ours, plain in pairs:
        assert torch.equal(ours.images, plain.images) and torch.equal(ours.labels, plain.labels)
        assert torch.equal(ours.indices, plain.indices) and plain.maps is None
        assert ours.maps is not None and ours.maps.shape == (8, SIDE, SIDE)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"scale": None}, {"scale": None, "padding": 6, "size": 40}, {"interpolation": "bilinear"}],
)
def test_resident_maps_follow_their_images(changes, dense, only):
    """RandAugment reduced to what moves, since colors would hide whether the places agree."""
    policy = only(*MOVING[:3], *MOVING[5:]).replace("n1-p1", "n2-p0.8")
    loader = loader_of(ResidentLoader, dataclasses.replace(RAND, auto_augment=policy, std=(1,) * 3, **changes))
    loader.settings = dataclasses.replace(loader.settings, dense=dense)
    found = [pair for batch in batches(loader) for pair in zip(batch.images.mean(1), batch.maps, strict=True)]
    assert len(found) == 24
    for image, moved in found:
        assert correlation(image, moved) > 0.99 or moved.std() < 0.02
    assert sum(bool(moved.std() < 0.02) for _, moved in found) < 5  # moved out of the image


def test_maps_are_augmented_in_one_graph():
    loader = loader_of(ResidentLoader, RAND)
    dense = dataclasses.replace(loader.settings, dense=True)
    numbers = loader._draw(0, range(1))
    maps = torch.rand(8, 5, 5)
    compiled = torch.compile(augment_maps, fullgraph=True, backend="eager", dynamic=False)
    torch.testing.assert_close(compiled(maps, numbers, dense), augment_maps(maps, numbers, loader.settings))


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_gpu_makes_the_same_maps(compile):
    settings = {"map_grid": (8, 8)}
    here = batches(loader_of(ResidentLoader, RAND, **settings))
    there = batches(loader_of(ResidentLoader, RAND, device="cuda", compile=compile, **settings))
    for ours, theirs in zip(here, there, strict=True):
        torch.testing.assert_close(theirs.maps.cpu(), ours.maps, atol=1e-3, rtol=1e-3)


def test_maps_of_both_loaders_are_pooled_last():
    for kind in (TrainLoader, ResidentLoader):
        whole, pooled = batches(loader_of(kind, RAND)), batches(loader_of(kind, RAND, map_grid=(8, 8)))
        for full, coarse in zip(whole, pooled, strict=True):
            expected = torch.nn.functional.avg_pool2d(full.maps, 8)
            torch.testing.assert_close(coarse.maps, expected)


def test_workers_change_nothing_about_maps():
    here = batches(loader_of(TrainLoader, RAND))
    loader = loader_of(TrainLoader, RAND, workers=2)
    for ours, theirs in zip(here, batches(loader), strict=True):
        assert torch.equal(ours.maps, theirs.maps)
    loader.close()


def test_maps_of_another_number_of_images_are_refused():
    images, values = blob_images()
    with pytest.raises(ValueError, match=r"maps must be \(24, h, w\)"):
        TrainLoader(images, RAND, batch=8, seed=0, maps=values[:5])
