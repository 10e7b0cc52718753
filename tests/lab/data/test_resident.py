"""Batches augmented on the device: each operation against Pillow's, the drawn numbers against timm's."""

import collections
import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from timm.data import auto_augment as timm_augment
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor

from support import never_waiting
from training import one_thread  # noqa: F401
from vitmix.lab.data import batch_draws
from vitmix.lab.data import batch_geometry as ops
from vitmix.lab.data.augmentation import Augmentation
from vitmix.lab.data.batch_augment import apply_operation, augment_batch
from vitmix.lab.data.batch_draws import (
    CROP,
    CUBIC,
    FLIP,
    LAYERS,
    MATRIX,
    NOTHING,
    PER_LAYER,
    BatchSettings,
    batch_settings,
    draw,
    operation_argument,
    operation_code,
    operation_matrix,
    uniforms_per_sample,
)
from vitmix.lab.data.images import ArrayImages, FileImages
from vitmix.lab.data.loader import EvalLoader, TrainLoader
from vitmix.lab.data.policy import timm_policy
from vitmix.lab.data.resident import ResidentEvalLoader, ResidentLoader

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = Augmentation(32, scale=None, hflip=0, auto_augment=None, erasing=0, crop_pct=1.0)
FULL = Augmentation(32, scale=(0.8, 1.0), erasing=0.25)
PILLOW = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
INCREASING = tuple(operation.name for operation in timm_policy(Augmentation(32, auto_augment="rand-m9-inc1")).ops)
OTHERS = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")


def some_pixels(size: int = 32, count: int = 24) -> np.ndarray:
    """Noise, ramps, dull noise, and blurred noise in turn; the last two are one color and nearly so."""
    rng = np.random.default_rng(size)
    y, x = np.mgrid[:size, :size]
    made = []
    for number in range(count):
        noise = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
        ramp = np.stack([x * 5 + number, y * 7, (x + y) * 3], axis=-1).astype(np.uint8)
        blurred = np.asarray(Image.fromarray(noise).filter(ImageFilter.GaussianBlur(2)))
        made.append((noise, ramp, noise // 4 + 60, blurred)[number % 4])
    made[-1] = np.full_like(made[-1], 77)
    made[-2] = made[-1].copy()
    made[-2][3, 5] = (78, 70, 200)
    return np.stack(made)


def to_batch(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float()


def to_pixels(batch: Tensor) -> np.ndarray:
    return batch.permute(0, 2, 3, 1).numpy()


def some_images(count: int = 50, size: int = 32) -> ArrayImages:
    return ArrayImages(np.tile(some_pixels(size), (3, 1, 1, 1))[:count], np.arange(count) % 5, list("abcde"), "test")


def uniforms(count: int, settings: BatchSettings, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, uniforms_per_sample(settings), dtype=torch.float64, generator=generator)


# Each operation against timm's on the same image and argument


@pytest.fixture(params=[1, -1], ids=["plus", "minus"])
def sign(request, monkeypatch) -> Iterator[int]:
    monkeypatch.setattr(timm_augment, "_randomly_negate", lambda value: value * request.param)
    return request.param


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("name", INCREASING + OTHERS)
def test_operations_are_pillows(name, interpolation, sign):
    augmentation = dataclasses.replace(FULL, interpolation=interpolation)
    (operation,) = [
        each
        for config in ("rand-inc1", "rand-inc0")
        for each in timm_policy(dataclasses.replace(augmentation, auto_augment=config)).ops
        if each.name == name and (config == "rand-inc1") == (name in INCREASING)
    ]
    pixels = some_pixels()
    for dense, level in (
        (False, 0.0),
        (True, 3.3),
        (False, 7.0),
        (True, 8.6),
        (False, 9.0),
        (True, 9.7),
        (False, 10.0),
    ):
        arguments = operation.level_fn(level, operation.hparams) if operation.level_fn else ()
        expected = [operation.aug_fn(Image.fromarray(each), *arguments, **operation.kwargs) for each in pixels]
        levels = torch.full((len(pixels),), level, dtype=torch.float64)
        argument = operation_argument(name, levels, torch.full_like(levels, sign))
        if arguments:
            assert argument[0].item() == pytest.approx(arguments[0], abs=1e-12)
        matrix = operation_matrix(name, argument, (32, 32))
        code = torch.full_like(argument, operation_code(name))
        columns = torch.cat([code[:, None], argument[:, None], matrix, torch.zeros(len(pixels), 1)], dim=1).float()
        settings = batch_settings(augmentation, (32, 32), dense=dense)
        ours = to_pixels(apply_operation(to_batch(pixels), columns, settings))
        difference = np.abs(ours - np.stack([np.asarray(each, dtype=np.float32) for each in expected]))
        if operation_code(name) == MATRIX:
            # Pillow computes in float64 and truncates; in float32 a whole level, as ramps have it, can end just below.
            assert difference.max() <= 1 and (difference > 0).mean() < 0.05
        else:
            assert difference.max() == 0


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("source", "target"), [(32, (32, 32)), (32, (64, 48)), (48, (40, 40)), (64, (32, 32))])
def test_resized_crops_are_pillows(interpolation, source, target):
    rng = np.random.default_rng(1)
    pixels = some_pixels(source)
    corner, sides = rng.integers(0, source // 3, (24, 2)), rng.integers(source // 3, source * 2 // 3, (24, 2))
    flipped = rng.integers(0, 2, 24)
    crop = torch.from_numpy(np.concatenate([corner, sides], axis=1)).float()
    ours = ops.resized_crop(to_batch(pixels), crop, torch.from_numpy(flipped), target, cubic=interpolation == "bicubic")
    for row in range(24):
        top, left, height, width = crop[row].int().tolist()
        image = Image.fromarray(pixels[row]).crop((left, top, left + width, top + height))
        image = image.resize((target[1], target[0]), PILLOW[interpolation])
        if flipped[row]:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        difference = np.abs(to_pixels(ours)[row] - np.asarray(image, dtype=np.float32))
        shrinks = height > target[0] or width > target[1]
        # Pillow may begin with the rows when they shrink; where noise is clipped in between, the order shows.
        # Elsewhere a level of difference after the first pass can become two after the second.
        assert difference.max() <= (20 if shrinks and row % 4 == 0 else 2)
        assert (difference > 0).mean() < (0.4 if shrinks else 0.06)


def test_a_whole_crop_is_the_image_itself():
    pixels = some_pixels()
    crop = torch.tensor([[0.0, 0.0, 32.0, 32.0]]).expand(24, 4)
    assert np.array_equal(
        to_pixels(ops.resized_crop(to_batch(pixels), crop, torch.zeros(24), (32, 32), cubic=True)), pixels
    )


def test_shifted_crops_show_black_outside():
    pixels = some_pixels()
    padded = np.pad(pixels, ((0, 0), (4, 4), (4, 4), (0, 0)))
    places = np.random.default_rng(0).integers(0, 9, (24, 2))
    crop = torch.from_numpy(np.concatenate([places - 4, np.full((24, 2), 32)], axis=1)).float()
    ours = to_pixels(ops.shifted_crop(to_batch(pixels), crop, torch.arange(24) % 2, (32, 32)))
    for row, (top, left) in enumerate(places):
        expected = padded[row, top : top + 32, left : left + 32]
        assert np.array_equal(ours[row], expected[:, ::-1] if row % 2 else expected)


def test_interpolation_per_sample():
    pixels, matrix = to_batch(some_pixels()), torch.tensor([[0.9, 0.2, 1.3, -0.2, 0.9, 2.1]]).expand(24, 6)
    crop = torch.tensor([[2.0, 3.0, 27.0, 25.0]]).expand(24, 4)
    cubic = torch.arange(24) % 2
    rows = cubic.bool()
    mixed = ops.affine(pixels, matrix, (1, 2, 3), cubic=cubic)
    assert torch.equal(mixed[rows], ops.affine(pixels, matrix, (1, 2, 3), cubic=True)[rows])
    assert torch.equal(mixed[~rows], ops.affine(pixels, matrix, (1, 2, 3), cubic=False)[~rows])
    mixed = ops.resized_crop(pixels, crop, torch.zeros(24), (32, 32), cubic=cubic)
    assert torch.equal(mixed[rows], ops.resized_crop(pixels, crop, torch.zeros(24), (32, 32), cubic=True)[rows])
    assert torch.equal(mixed[~rows], ops.resized_crop(pixels, crop, torch.zeros(24), (32, 32), cubic=False)[~rows])


# The drawn numbers against timm's


def test_crops_are_drawn_as_in_timm():
    """Mean and spread of each number agree, over many draws, for images where the fallback is needed too."""
    random.seed(0)
    for source, augmentation in (((32, 32), FULL), ((24, 60), dataclasses.replace(FULL, scale=(0.5, 1.0)))):
        settings = batch_settings(augmentation, source, dense=True)
        ours = draw(uniforms(20_000, settings), settings)[:, CROP]
        assert augmentation.scale is not None
        image = Image.new("L", (source[1], source[0]))
        theirs = torch.tensor(
            [
                RandomResizedCropAndInterpolation.get_params(image, augmentation.scale, augmentation.ratio)
                for _ in range(20_000)
            ],
            dtype=torch.float32,
        )
        # 20,000 draws of a number with a spread of at most 20 have a mean that is good to 0.14.
        assert (ours.mean(0) - theirs.mean(0)).abs().max() < 0.6
        assert (ours.std(0) - theirs.std(0)).abs().max() < 0.5
        assert torch.equal(ours.amin(0), theirs.amin(0)) and torch.equal(ours.amax(0), theirs.amax(0))


@pytest.mark.parametrize("count", [1, 3])
def test_erased_boxes_are_drawn_as_in_timm(count):
    augmentation = dataclasses.replace(PLAIN, erasing=0.6, erasing_count=count)
    settings = batch_settings(augmentation, (32, 32), dense=True)
    boxes = draw(uniforms(4000, settings), settings)[:, settings.boxes].reshape(4000, count, 4)
    height, width = boxes[..., 1] - boxes[..., 0], boxes[..., 3] - boxes[..., 2]
    assert boxes.amin() >= 0 and boxes.amax() <= 32 and height.amax() < 32 and width.amin() == 0
    random.seed(0)
    erase = RandomErasing(0.6, max_count=count, device="cpu")
    erased = torch.stack([erase(torch.ones(1, 32, 32))[0] == 0 for _ in range(4000)]).float()
    ours = torch.zeros(4000, 32, 32, dtype=torch.bool)
    for number in range(count):
        top, bottom, left, right = boxes[:, number].view(-1, 4, 1, 1).unbind(1)
        line = torch.arange(32)
        ours |= (line[:, None] >= top) & (line[:, None] < bottom) & (line >= left) & (line < right)
    # 4000 draws of a yes or no of a tenth have a mean that is good to half a percent.
    assert (ours.float().mean(0) - erased.mean(0)).abs().max() < 0.035
    assert abs(ours.any(2).any(1).float().mean() - erased.amax((1, 2)).mean()) < 0.035


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.8-mstd101", "rand-m5"])
def test_operations_are_drawn_as_in_timm(config):
    augmentation = dataclasses.replace(PLAIN, auto_augment=config)
    settings = batch_settings(augmentation, (32, 32), dense=True)
    numbers = draw(uniforms(6000, settings), settings)
    policy = timm_policy(augmentation)
    assert settings.layers == policy.num_layers
    drawn: dict[str, list[float]] = collections.defaultdict(list)
    for operation in policy.ops:

        def record(image, *arguments, name=operation.name, **settings):
            drawn[name].append(arguments[0] if arguments else 0.0)
            return image

        operation.aug_fn = record
    random.seed(0)
    np.random.seed(0)
    for _ in range(6000):
        policy(Image.new("RGB", (4, 4)))
    code = torch.cat([numbers[:, LAYERS + PER_LAYER * layer] for layer in range(settings.layers)])
    argument = torch.cat([numbers[:, LAYERS + PER_LAYER * layer + 1] for layer in range(settings.layers)])
    total = len(code)
    for name in drawn:
        if operation_code(name) == MATRIX:
            continue  # one code for five operations: counted together below
        ours, theirs = argument[code == operation_code(name)], torch.tensor(drawn[name], dtype=torch.float32)
        assert abs(len(ours) - len(theirs)) / total < 0.015
        if theirs.any():
            assert float(ours.mean() - theirs.mean()) == pytest.approx(0, abs=0.2 * float(theirs.std()) + 1e-6)
            # Posterizing to no bit at all is drawn a few times only, and makes up most of the spread.
            slack = 0.7 if name.startswith("Posterize") else 0.15
            assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=slack, abs=1e-6)
    moved = sum(len(values) for name, values in drawn.items() if operation_code(name) == MATRIX)
    assert abs(int((code == MATRIX).sum()) - moved) / total < 0.02
    assert abs(int((code == NOTHING).sum()) / total - (1 - policy.ops[0].prob)) < 0.02


def test_what_is_drawn_depends_on_neither_threads_nor_erasing(monkeypatch):
    settings = batch_settings(
        dataclasses.replace(PLAIN, auto_augment="rand-m9-mstd0.5-inc1", erasing=0.5), (32, 32), dense=False
    )
    uniform = torch.rand(2048, uniforms_per_sample(settings), dtype=torch.float64)
    usual, drawn, used, draw_crop = torch.get_num_threads(), [], [], batch_draws._draw_crop
    monkeypatch.setattr(
        batch_draws, "_draw_crop", lambda *given: used.append(torch.get_num_threads()) or draw_crop(*given)
    )
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            drawn.append(draw(uniform, settings))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(usual)
    assert used == [1, 1] and torch.equal(*drawn) and drawn[0][:, settings.boxes].any()
    without = dataclasses.replace(settings, augmentation=dataclasses.replace(settings.augmentation, erasing=0.0))
    drawn[0][:, settings.boxes] = 0
    assert torch.equal(draw(uniform, without), drawn[0])


def test_flips_and_interpolations_are_even():
    settings = batch_settings(FULL, (32, 32), dense=True)
    numbers = draw(uniforms(4000, settings), settings)
    assert abs(float(numbers[:, FLIP].mean()) - 0.5) < 0.03 and abs(float(numbers[:, CUBIC].mean()) - 0.5) < 0.03


# The whole


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "random"])
def test_fixed_shapes_change_nothing_and_compile_whole(interpolation):
    augmentation = dataclasses.replace(FULL, interpolation=interpolation, erasing_count=2, erasing=0.7)
    sparse, dense = (batch_settings(augmentation, (32, 32), dense=dense) for dense in (False, True))
    numbers = draw(uniforms(24, sparse), sparse)
    noise, images = torch.randn(24, 3, 32, 32), torch.from_numpy(some_pixels()).permute(0, 3, 1, 2)
    expected = augment_batch(images, numbers, noise, sparse)
    torch.testing.assert_close(augment_batch(images, numbers, noise, dense), expected)
    compiled = torch.compile(augment_batch, fullgraph=True, backend="eager", dynamic=False)
    torch.testing.assert_close(compiled(images, numbers, noise, dense), expected)


def test_a_batch_is_crop_then_operations_then_erasing():
    """Against the single steps, one sample at a time."""
    settings = batch_settings(dataclasses.replace(FULL, erasing=0.5), (32, 32), dense=False)
    numbers = draw(uniforms(24, settings), settings)
    noise, pixels = torch.randn(24, 3, 32, 32), some_pixels()
    ours = augment_batch(torch.from_numpy(pixels).permute(0, 3, 1, 2), numbers, noise, settings)
    for row in range(24):
        one = numbers[row : row + 1]
        image = ops.resized_crop(to_batch(pixels[row : row + 1]), one[:, CROP], one[:, FLIP], (32, 32), cubic=True)
        for layer in range(2):
            start = LAYERS + PER_LAYER * layer
            image = apply_operation(image, one[:, start : start + PER_LAYER], settings)
        expected = (image[0] / 255 - torch.tensor(FULL.mean).view(3, 1, 1)) / torch.tensor(FULL.std).view(3, 1, 1)
        top, bottom, left, right = one[0, settings.boxes].int().tolist()
        expected[:, top:bottom, left:right] = noise[row, :, top:bottom, left:right]
        # A level is 0.017 of a normalized image; sums in another order may round to another level.
        assert ((ours[row] - expected).abs() > 1e-5).float().mean() < 0.001


@pytest.fixture(scope="module")
def reference() -> list:
    return list(ResidentLoader(some_images(), FULL, batch=8, seed=3).epoch(1))


def test_batches_are_in_the_order_of_the_other_loader(reference):
    images = some_images()
    others = list(TrainLoader(images, PLAIN, batch=8, seed=3).epoch(1))
    assert len(reference) == len(others) == 6
    for ours, theirs in zip(reference, others, strict=True):
        assert torch.equal(ours.indices, theirs.indices) and torch.equal(ours.labels, theirs.labels)
        assert ours.images.shape == theirs.images.shape and ours.images.dtype == theirs.images.dtype


def test_without_operations_both_loaders_agree():
    for augmentation in (PLAIN, dataclasses.replace(PLAIN, size=24)):
        loaders = (kind(some_images(), augmentation, batch=8, seed=3) for kind in (TrainLoader, ResidentLoader))
        for theirs, ours in zip(*(loader.epoch(0) for loader in loaders), strict=True):
            assert torch.equal(ours.images, theirs.images)


@pytest.mark.parametrize("start", [0, 2, 5, 6])
def test_a_resumed_epoch_goes_on_as_before(reference, start, monkeypatch):
    monkeypatch.setattr("vitmix.lab.data.resident.CHUNK", 24)  # three batches: starts lie inside chunks
    loader = ResidentLoader(some_images(), FULL, batch=8, seed=3)
    resumed = list(loader.epoch(1, start=start))
    assert len(resumed) == 6 - start
    for ours, expected in zip(resumed, reference[start:], strict=True):
        assert torch.equal(ours.images, expected.images)


def test_epochs_seeds_and_ranks_differ(reference):
    def first(seed: int = 3, epoch: int = 1, rank: int = 0) -> Tensor:
        augmentation = dataclasses.replace(FULL, hflip=0, scale=None)
        same = ArrayImages(np.repeat(some_pixels()[:1], 50, axis=0), [0] * 50, ["a"], "one image")
        return next(ResidentLoader(same, augmentation, batch=8, seed=seed, rank=rank, world=2).epoch(epoch)).images

    assert torch.equal(first(), first())
    for other in (first(seed=4), first(epoch=2), first(rank=1)):
        assert not torch.equal(first(), other)


def test_ranks_and_repeats():
    loaders = [ResidentLoader(some_images(), PLAIN, batch=4, seed=0, rank=rank, world=2) for rank in range(2)]
    seen = [int(index) for loader in loaders for batch in loader.epoch(0) for index in batch.indices]
    assert len(seen) == len(set(seen)) == 48
    repeated = next(ResidentLoader(some_images(), FULL, batch=9, seed=0, repeats=3).epoch(0))
    assert torch.equal(repeated.indices[::3], repeated.indices[1::3])
    assert not torch.equal(repeated.images[0], repeated.images[1])


def test_boxes_to_erase_after_mixing():
    now = dataclasses.replace(PLAIN, erasing=0.5)
    later = dataclasses.replace(now, erase_after_mixing=True)
    loaders = (ResidentLoader(some_images(), augmentation, batch=25, seed=0) for augmentation in (now, later))
    for erased, kept in zip(*(loader.epoch(0) for loader in loaders), strict=True):
        assert erased.erase is None and kept.erase is not None and kept.erase.dtype == torch.long
        for row, (top, bottom, left, right) in enumerate(kept.erase.tolist()):
            changed = (erased.images[row] != kept.images[row]).any(0)
            assert int(changed.sum()) == (bottom - top) * (right - left) == int(changed[top:bottom, left:right].sum())
        assert kept.erase.any(1).float().mean() == pytest.approx(0.5, abs=0.3)


def test_unreadable_images_are_replaced():
    images = some_images()
    images.broken.update({4: "four: bad", 5: "five: bad"})
    loader = ResidentLoader(images, PLAIN, batch=10, seed=0)
    shown = torch.cat([batch.indices for batch in loader.epoch(0)]).tolist()
    assert shown == [{4: 6, 5: 6}.get(index, index) for index in loader.plan.order(0)[0].tolist()]
    evaluated = torch.cat([batch.indices for batch in ResidentEvalLoader(images, PLAIN, batch=10)]).tolist()
    assert evaluated == [index for index in range(50) if index not in (4, 5)]


@pytest.mark.parametrize("augmentation", [PLAIN, dataclasses.replace(PLAIN, crop_pct=0.875, size=24)])
def test_evaluation_equals_the_other_loader(augmentation):
    for rank in range(2):
        settings: Any = {"batch": 7, "rank": rank, "world": 2}
        theirs, ours = (kind(some_images(), augmentation, **settings) for kind in (EvalLoader, ResidentEvalLoader))
        assert len(theirs) == len(ours) == 4
        for expected, batch in zip(theirs, ours, strict=True):
            for name in ("images", "labels", "indices"):
                assert torch.equal(getattr(batch, name), getattr(expected, name))


def test_images_to_evaluate_may_differ_in_size(tmp_path):
    for number, size in enumerate([(40, 32), (32, 48), (64, 64)]):
        Image.new("RGB", size, (number, 90, 200)).save(tmp_path / f"{number}.png")
    images = FileImages(tmp_path, ["0.png", "1.png", "2.png"], [0, 1, 0], ["a", "b"], "files")
    (theirs,), (ours,) = (list(kind(images, PLAIN, batch=3)) for kind in (EvalLoader, ResidentEvalLoader))
    assert torch.equal(ours.images, theirs.images) and ours.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"color_jitter": 0.4, "auto_augment": None}, "no color_jitter, got 0.4"),
        ({"auto_augment": "augmix-m3"}, "has RandAugment only"),
        ({"auto_augment": "rand-m9-t3a"}, "lacks operations"),
        ({"auto_augment": "rand-m9-tweights"}, "lacks operations"),
    ],
)
def test_what_is_not_done_in_batch_is_refused(settings, message):
    augmentation = dataclasses.replace(FULL, **settings)
    with pytest.raises(ValueError, match=f"{message}.*; leave --resident out"):
        ResidentLoader(some_images(), augmentation, batch=8, seed=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compile", [False, True])
def test_gpu_makes_the_same_batches(compile):
    augmentation = dataclasses.replace(FULL, interpolation="random", erasing=0)  # noise is drawn on each device
    expected = ResidentLoader(some_images(), augmentation, batch=25, seed=0)
    loader = ResidentLoader(some_images(), augmentation, batch=25, seed=0, device="cuda", compile=compile)
    for batch, other in zip(loader.epoch(0), expected.epoch(0), strict=True):
        difference = (batch.images.cpu() - other.images).abs()
        # One level is 0.0175. A level more before equalization or solarization can become many after it.
        assert (difference > 0.018).float().mean() < 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_is_never_waited_for():
    loader = ResidentLoader(some_images(), FULL, batch=25, seed=0, device="cuda")
    list(loader.epoch(0))
    with never_waiting():
        list(loader.epoch(1))
