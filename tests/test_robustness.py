"""Robustness: models whose answers are known by hand, answers that survive a stop, folders, wrong input."""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training import one_thread, train  # noqa: F401
from vitmix import AttentionTap, cli
from vitmix.data.augment import global_generators_kept, seed_global_generators
from vitmix.data.images import ArrayImages, FileImages, ImageSet
from vitmix.evaluate import Measurement, Robustness, Running, Subject, open_subject, robustness
from vitmix.evaluate import cells as cells_module
from vitmix.evaluate.attacks import auto_attack, fgsm, pgd, random_start
from vitmix.evaluate.attacks import within as within_bound
from vitmix.evaluate.cells import Answers, Cell, Measurer, PixelClassifier
from vitmix.evaluate.corruptions import ALEXNET, COMMON, CorruptedImages, corruption, divisors, read_reference
from vitmix.evaluate.intervals import bootstrap, wilson
from vitmix.evaluate.occlusion import PatchOrder, drop_patches, gaussian_noise, saliency_of
from vitmix.evaluate.results import read_results
from vitmix.evaluate.robustness import Suite, chosen
from vitmix.evaluate.shifts import open_shift, synsets
from vitmix.evaluate.summaries import corruption_errors
from vitmix.train.config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
CENTERS = (31.5, 95.5, 159.5, 223.5)  # of gray, in 0..255: boundaries at 63.5, 127.5 and 191.5
GRAYS = (10, 60, 61, 63, 66, 67, 100, 125, 130, 160, 190, 200)


class NearestGray(nn.Module):
    """Linear: says which of some grays is nearest to an image's mean, so how far each may be moved is known."""

    def __init__(self, centers: Sequence[float] = CENTERS, side: int = 8) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.tensor(centers) / 255)
        mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
        self.pretrained_cfg = {"mean": mean, "std": std, "crop_pct": 1.0, "input_size": (3, side, side)}
        self.mean, self.std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        gray = (images * self.std + self.mean).mean((1, 2, 3)).unsqueeze(1)
        return 100 * (2 * gray * self.centers - self.centers.square())


def subject_of(model: Any, outputs: int, classes: Sequence[str] | None = None, side: int = 8) -> Subject:
    config = TrainConfig(model="own", size=side, crop_pct=1.0)
    return Subject(model, config, {"num_classes": outputs}, "own", None if classes is None else tuple(classes))


def gray_images(grays: Sequence[int] = GRAYS, side: int = 8) -> ArrayImages:
    pixels = np.stack([np.full((side, side, 3), gray, np.uint8) for gray in grays])
    labels = [int(np.abs(np.array(CENTERS) - gray).argmin()) for gray in grays]
    return ArrayImages(pixels, labels, ["a", "b", "c", "d"], "grays")


def within(grays: Sequence[int], bound: float) -> float:
    """The share of grays that stay on their side of every boundary when moved by less than the bound (of 255)."""
    return float(np.mean([min(abs(gray - edge) for edge in (63.5, 127.5, 191.5)) > bound for gray in grays]))


def grays_subject() -> Subject:
    return subject_of(NearestGray(), 4)


def classifier_of(subject: Subject) -> PixelClassifier:
    return PixelClassifier(subject.model, subject.augmentation, CPU)


def named(measurements: Any) -> dict[str, Measurement]:
    return {each.name: each for each in measurements}


# Intervals


def test_wilson_by_hand() -> None:
    assert wilson(0, 10) == pytest.approx((0, 0.27753), abs=1e-5)
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert wilson(10, 10)[1] == 1
    with pytest.raises(ValueError, match="at least 1"):
        wilson(0, 0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_equation(pair: tuple[int, int]) -> None:
    right, n = pair
    for end in wilson(right, n):  # |p - q| = z sqrt(q (1 - q) / n) at both ends q
        assert (right / n - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / n, abs=1e-7)


def test_bootstrap_of_a_mean_is_about_the_normal_interval() -> None:
    values = np.random.default_rng(0).random(400)
    low, high = bootstrap(lambda counts: counts @ values / 400, 400)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.005)
    assert bootstrap(lambda counts: counts @ np.ones(7) / 7, 7) == (1, 1)


# Noise and occlusion


def test_noise_is_the_images_own_and_grows_with_sigma() -> None:
    pixels, indices = torch.full((3, 3, 16, 16), 0.5), torch.tensor([4, 7, 9])
    assert torch.equal(gaussian_noise(pixels, indices, sigma=0), pixels)
    noisy = gaussian_noise(pixels, indices, sigma=0.05)
    assert torch.equal(noisy[1:2], gaussian_noise(pixels[:1], indices[1:2], sigma=0.05))
    assert not torch.equal(noisy[0], noisy[1])
    assert float((noisy - 0.5).std()) == pytest.approx(0.05, rel=0.05)
    loud = gaussian_noise(pixels, indices, sigma=5.0)
    assert float(loud.min()) == 0 and float(loud.max()) == 1


def test_dropped_patches_by_hand() -> None:
    pixels = torch.ones(1, 3, 4, 4)
    rank = torch.tensor([[2, 0, 3, 1]])  # the right upper quarter first, then the right lower one
    half = drop_patches(pixels, rank, share=0.5, grid=(2, 2))
    assert torch.equal(half[0, 0], torch.tensor([[1.0, 1, 0, 0]] * 4))
    assert torch.equal(drop_patches(pixels, rank, share=0, grid=(2, 2)), pixels)
    assert not drop_patches(pixels, rank, share=1, grid=(2, 2)).any()


def tiny_vit(**changes: Any) -> Any:
    torch.manual_seed(0)
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 12}
    return timm.create_model("vit_tiny_patch16_224", **{**settings, **changes}).eval()


@pytest.mark.parametrize(
    ("changes", "kind"), [({}, "class_row"), ({"class_token": False, "global_pool": "avg"}, "column_mean")]
)
def test_salient_patches_are_those_that_attention_reads(changes: dict[str, Any], kind: str) -> None:
    classifier = classifier_of(subject_of(tiny_vit(**changes), 12, side=32))
    pixels, indices = torch.rand(5, 3, 32, 32), torch.arange(5)
    with AttentionTap(classifier.model, **{kind: [-1]}) as tap:
        classifier(pixels)
    first, last = (PatchOrder(classifier, (32, 32), order=f"salient-{end}") for end in ("first", "last"))
    ranks = first(pixels, indices)
    assert first.grid == (4, 4)
    seen = getattr(tap, kind)(-1)
    for row in range(5):
        wanted = sorted(range(16), key=lambda patch: -float(seen[row, patch]))
        assert [int(ranks[row, patch]) for patch in wanted] == list(range(16))
    assert torch.equal(last(pixels, indices), 15 - ranks)
    handles = sum(len(module._forward_hooks) for module in classifier.model.modules())
    assert handles == 0  # attacks see the model without a tap


def test_random_order_is_the_images_own_and_needs_no_attention() -> None:
    classifier = classifier_of(grays_subject())
    order = PatchOrder(classifier, (28, 28), order="random")
    ranks = order(torch.rand(3, 3, 28, 28), torch.tensor([0, 1, 5]))
    assert order.grid == (14, 14) and all(sorted(row.tolist()) == list(range(196)) for row in ranks)
    again = PatchOrder(classifier, (28, 28), order="random")(torch.rand(1, 3, 28, 28), torch.tensor([5]))
    assert torch.equal(again[0], ranks[2]) and not torch.equal(ranks[0], ranks[1])
    with pytest.raises(ValueError, match="cannot be read"):
        saliency_of(classifier, (28, 28))


# Attacks


@pytest.mark.parametrize("bound", [0.0, 1.0, 3.0, 4.0, 30.0])
def test_attacks_reach_the_optimum_of_a_linear_model(bound: float) -> None:
    classifier, images = classifier_of(grays_subject()), gray_images()
    pixels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255
    labels, epsilon = torch.from_numpy(images.labels), bound / 255
    start = random_start(pixels, torch.arange(len(pixels)), epsilon=epsilon)
    assert float(start.abs().max()) <= epsilon
    for found in (
        fgsm(classifier, pixels, labels, epsilon=epsilon),
        pgd(classifier, pixels, labels, epsilon=epsilon, alpha=epsilon / 4 + 1e-3, steps=10, start=start),
    ):
        assert float((found - pixels).abs().max()) <= epsilon + 1e-7
        assert float(found.min()) >= 0 and float(found.max()) <= 1
        accuracy = (classifier(found).argmax(1) == labels).float().mean()
        assert float(accuracy) == pytest.approx(within(GRAYS, bound))


def test_steps_and_bounds_of_the_euclidean_norm() -> None:
    """On a linear model every value has the same gradient, so a change of length e moves each by e / sqrt(192)."""
    classifier, root = classifier_of(grays_subject()), 192**0.5
    pixels, labels = torch.full((2, 3, 8, 8), 100 / 255), torch.tensor([1, 1])
    found = fgsm(classifier, pixels, labels, epsilon=0.5, norm="l2")
    assert torch.allclose((found - pixels).abs(), torch.tensor(0.5 / root), atol=1e-6)
    found = pgd(classifier, pixels, labels, epsilon=0.9, alpha=0.2, steps=3, norm="l2")
    assert torch.allclose((found - pixels).flatten(1).norm(dim=1), torch.tensor(0.6), atol=1e-5)
    found = pgd(classifier, pixels, labels, epsilon=0.5, alpha=0.2, steps=5, norm="l2")
    assert torch.allclose((found - pixels).flatten(1).norm(dim=1), torch.tensor(0.5), atol=1e-5)
    with pytest.raises(ValueError, match="unknown norm 'l1', known: linf, l2"):
        fgsm(classifier, pixels, labels, epsilon=0.5, norm="l1")


@given(st.integers(0, 2**32), st.floats(0, 3), st.sampled_from(["linf", "l2"]))
def test_what_is_brought_back_lies_within(seed: int, epsilon: float, norm: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand(3, 3, 4, 4, generator=generator).round(decimals=1)
    for changed in (
        pixels + torch.randn(3, 3, 4, 4, generator=generator),
        pixels + random_start(pixels, torch.arange(3), epsilon=epsilon, seed=seed % 97, norm=norm),
    ):
        found = within_bound(pixels, changed, epsilon=epsilon, norm=norm)
        assert float(found.min()) >= 0 and float(found.max()) <= 1
        change = (found - pixels).flatten(1)
        length = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
        assert float(length.max()) <= epsilon + 1e-5
    start = random_start(pixels, torch.arange(3), epsilon=epsilon, norm=norm).flatten(1)
    assert float((start.abs().amax(1) if norm == "linf" else start.norm(dim=1)).max()) <= epsilon + 1e-6


def test_no_gradient_is_no_step() -> None:
    class Constant(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            return torch.stack([pixels.sum((1, 2, 3)) * 0 + 1, pixels.sum((1, 2, 3)) * 0], dim=1)

    pixels = torch.rand(2, 3, 4, 4)
    for norm in ("linf", "l2"):
        assert torch.equal(fgsm(Constant(), pixels, torch.tensor([0, 0]), epsilon=0.5, norm=norm), pixels)


def test_attacks_leave_the_model_as_it_is() -> None:
    """Evaluation mode, no dropout, no gradient in the weights, no hook, and every answer alike."""
    subject = subject_of(tiny_vit(drop_rate=0.5, attn_drop_rate=0.5, drop_path_rate=0.5).train(), 12, side=32)
    weights = {name: value.clone() for name, value in subject.model.state_dict().items()}
    classifier, pixels = classifier_of(subject), torch.rand(4, 3, 32, 32)
    labels = classifier(pixels).argmax(1)
    found = [
        pgd(classifier, pixels, labels, epsilon=0.02, alpha=0.005, steps=3, norm=norm) for norm in ("linf", "l2", "l2")
    ]
    assert torch.equal(found[1], found[2]) and not torch.equal(found[0], pixels)
    assert all(torch.equal(value, weights[name]) for name, value in subject.model.state_dict().items())
    assert all(each.grad is None for each in subject.model.parameters())
    assert not any(module.training or module._forward_hooks for module in subject.model.modules())


def test_attack_stays_in_the_picture_and_leaves_mistakes_alone() -> None:
    classifier = classifier_of(grays_subject())
    pixels, labels = torch.tensor([0.0, 1.0, 0.1]).view(3, 1, 1, 1).expand(3, 3, 8, 8).clone(), torch.tensor([0, 3, 2])
    found = pgd(classifier, pixels, labels, epsilon=0.3, alpha=0.1, steps=5)
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    assert torch.equal(found[2], pixels[2])  # misread as it is


def test_pgd_takes_steps_of_alpha() -> None:
    classifier = classifier_of(grays_subject())
    pixels, labels = torch.full((1, 3, 8, 8), 100 / 255), torch.tensor([1])
    found = pgd(classifier, pixels, labels, epsilon=0.1, alpha=0.003, steps=4)
    assert torch.allclose((found - pixels).abs(), torch.tensor(0.012), atol=1e-6)


def test_gradient_is_of_pixels_through_the_normalization() -> None:
    subject = grays_subject()
    pixels = torch.rand(2, 3, 8, 8, requires_grad=True)
    classifier = classifier_of(subject)
    mean, std = (torch.tensor(subject.model.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    assert torch.allclose(classifier(pixels), subject.model((pixels - mean) / std))
    (gradient,) = torch.autograd.grad(classifier(pixels)[:, 3].sum(), pixels)
    assert torch.allclose(gradient, torch.full_like(gradient, 200 * CENTERS[3] / 255 / 192), rtol=1e-4)
    assert not classifier.model.training


def test_auto_attack_is_at_least_as_strong_as_pgd() -> None:
    pytest.importorskip("pyautoattack")
    classifier = classifier_of(subject_of(tiny_vit(img_size=16), 12, side=16))
    pixels = torch.rand(4, 3, 16, 16)
    labels = classifier(pixels).argmax(1)
    state = torch.get_rng_state()
    for epsilon in (1 / 255, 8 / 255):
        start = random_start(pixels, torch.arange(4), epsilon=epsilon)
        by_pgd = pgd(classifier, pixels, labels, epsilon=epsilon, alpha=epsilon / 4, steps=10, start=start)
        strong = auto_attack(classifier, pixels, labels, epsilon=epsilon)
        assert float((strong - pixels).abs().max()) <= epsilon + 1e-6
        held = [int((classifier(found).argmax(1) == labels).sum()) for found in (strong, by_pgd)]
        assert held[0] <= held[1]
    assert torch.equal(auto_attack(classifier, pixels, labels, epsilon=0), pixels)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_auto_attack_finds_the_optimum_of_a_linear_model(norm: str) -> None:
    """As PGD does, in both norms: the nearest misread picture changes all of an image's 192 values alike."""
    pytest.importorskip("pyautoattack")
    classifier, images = classifier_of(grays_subject()), gray_images((60, 61, 66, 130))
    pixels, labels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255, torch.from_numpy(images.labels)
    epsilon = 3 / 255 * (1 if norm == "linf" else 192**0.5)
    start = random_start(pixels, torch.arange(4), epsilon=epsilon, norm=norm)
    for found in (
        auto_attack(classifier, pixels, labels, epsilon=epsilon, norm=norm),
        pgd(classifier, pixels, labels, epsilon=epsilon, alpha=epsilon / 4, steps=20, start=start, norm=norm),
    ):
        assert (classifier(found).argmax(1) == labels).tolist() == [True, False, False, False]
        change = (found - pixels).flatten(1)
        assert float((change.abs().amax(1) if norm == "linf" else change.norm(dim=1)).max()) <= epsilon + 1e-6


# The suite on a model that is known


def test_suite_of_a_known_model() -> None:
    settings = Robustness(
        parts=("clean", "noise", "occlusion", "attacks"),
        sigmas=(0.0, 0.3),
        dropped=(0.0, 1.0),
        epsilons=(4 / 255, 0.0, 1 / 255),
        alphas=(0.01,),
    )
    found = named(robustness(grays_subject(), gray_images(), Running(batch=5), settings))
    n = len(GRAYS)
    assert all(
        each.n == n and each.low <= each.value <= each.high for each in found.values() if "calib" not in each.name
    )
    assert found["clean"].value == found["noise sigma=0"].value == found["occlusion random 0 %"].value == 1
    assert found["noise sigma=0.3"].value < 1
    assert found["occlusion random 100 %"].value == np.mean([gray < 63.5 for gray in GRAYS])  # all is black
    for attack in ("fgsm", "pgd-10 alpha=0.01"):
        values = [found[f"{attack} eps={whole}/255"].value for whole in (0, 1, 4)]
        assert values[0] == found["attack none"].value == 1
        assert values == pytest.approx([within(GRAYS, bound) for bound in (0, 1, 4)])
    assert (found["clean"].low, found["clean"].high) == wilson(n, n)


def test_calibration_is_that_of_the_answers() -> None:
    found = named(robustness(grays_subject(), gray_images(), Running(batch=5), Robustness(parts=("clean",))))
    logits = grays_subject().model.eval()
    with torch.no_grad():
        pixels = torch.from_numpy(gray_images().pixels).permute(0, 3, 1, 2) / 255
        sure = classifier_of(subject_of(logits, 4))(pixels).softmax(1).amax(1)
    places = [min(int(np.ceil(float(each) * 15)) - 1, 14) for each in sure]
    error = sum(abs(sum(1 - float(sure[i]) for i in range(12) if places[i] == place)) for place in set(places)) / 12
    assert found["clean calibration error"].value == pytest.approx(error, abs=1e-6)


def test_accuracy_under_attack_cannot_rise_with_the_bound() -> None:
    subject, images = (
        subject_of(tiny_vit(), 12, side=32),
        np.random.default_rng(0).integers(0, 255, (24, 32, 32, 3), np.uint8),
    )
    with torch.no_grad():
        labels = classifier_of(subject)(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).argmax(1).tolist()
    labels[0] = (labels[0] + 1) % 12  # a mistake, and two classes at least
    data = ArrayImages(images, labels, [str(number) for number in range(12)], "noise")
    for norm, scale, alpha in (("linf", 1 / 255, 0.001), ("l2", 0.25, 0.1)):
        bounds = tuple(scale * strength for strength in (0, 0.25, 0.5, 1, 4))
        settings = Robustness(parts=("attacks",), norm=norm, epsilons=bounds, alphas=(alpha,), steps=3)
        found = [each for each in robustness(subject, data, Running(batch=8), settings) if each.name.startswith("pgd")]
        values = [each.value for each in found]
        assert values[0] == pytest.approx(23 / 24) and values == sorted(values, reverse=True) and values[-1] < values[0]


def test_choice_of_images_is_nested_and_the_same_each_time() -> None:
    images = gray_images(range(0, 250, 5))
    small, large = (chosen(images, limit, 0) for limit in (7, 20))
    values = [set(each.pixels[:, 0, 0, 0].tolist()) for each in (small, large)]
    assert values[0] < values[1] and len(values[1]) == 20
    assert chosen(images, 50, 0) is images and chosen(images, None, 0) is images
    found = robustness(
        grays_subject(), images, Running(), Robustness(parts=("noise", "attacks"), limit=20, attack_limit=7)
    )
    assert {each.n for each in found} == {20, 7}


# Corruptions


def test_corruption_that_does_nothing() -> None:
    subject, images = subject_of(NearestGray(side=32), 4, side=32), gray_images((10, 70, 130, 128, 250, 100), side=32)
    images.labels[5] = 3  # a mistake
    measurer = Measurer(subject, Running(batch=4))
    nothing = CorruptedImages(images, measurer.augmentation, lambda pixels, seed: pixels)
    clean, same = (
        measurer.answers(Cell(name, data, {}, cropped=name == "same"))
        for name, data in (("clean", images), ("same", nothing))
    )
    assert np.array_equal(clean.right, same.right) and clean.count("clean") == (5, 6)
    assert np.array_equal(clean.confidence, same.confidence)
    cell = Cell("fog 1", nothing, {"corruption": "fog", "severity": 1})
    errors = named(corruption_errors([(cell, same)], divisors({"fog": [1 / 6]}, ["fog"], 1), "relative error", "mCE"))
    assert errors["mCE"].value == pytest.approx(1)  # as wrong as the reference, which is the clean one


def test_corruption_errors_by_hand() -> None:
    def answers(text: str) -> Answers:
        return Answers(np.array([int(mark) for mark in text], np.int8), np.ones(4, np.float32), 4)

    marks = {("fog", 1): "1110", ("fog", 2): "1100", ("snow", 1): "0000", ("snow", 2): "1111"}
    images: Any = None
    found = [
        (Cell("", images, {"corruption": name, "severity": at}), answers(text)) for (name, at), text in marks.items()
    ]
    by = divisors({"fog": [0.5, 0.25], "snow": [1.0, 1.0]}, ["fog", "snow"], 2)
    errors = named(corruption_errors(found, by, "relative error", "mCE"))
    assert errors["relative error fog"].value == pytest.approx((0.25 + 0.5) / (0.5 + 0.25))
    assert errors["relative error snow"].value == pytest.approx(0.5)
    assert errors["mCE"].value == pytest.approx(0.75) and errors["mCE"].n == 4
    assert errors["mCE"].low <= 0.75 <= errors["mCE"].high


def test_reference_errors(tmp_path: Path) -> None:
    assert read_reference("alexnet")["fog"] == [0.819324] and tuple(ALEXNET) == COMMON
    assert divisors(None, ["fog"], 5) == {"fog": 1}
    place = tmp_path / "reference.json"
    for content in ({"fog": 0.5}, {"fog": [0.4, 0.5, 0.6, 0.5, 0.5]}, {"corruption_errors": {"fog": [0.5]}}):
        place.write_text(json.dumps(content))
        assert divisors(read_reference(str(place)), ["fog"], 5) == pytest.approx({"fog": 0.5})
    for content, words in (({"fog": 7}, "errors in 0..1"), ([1], "errors in 0..1")):
        place.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words):
            read_reference(str(place))
    with pytest.raises(ValueError, match="is neither"):
        read_reference(str(tmp_path / "none.json"))
    for reference, words in (
        ({"snow": [1.0]}, "lack 'fog'"),
        ({"fog": [0.0]}, "is 0"),
        ({"fog": [0.1, 0.2]}, "2 errors"),
    ):
        with pytest.raises(ValueError, match=words):
            divisors(reference, ["fog"], 5)


@pytest.mark.parametrize("name", COMMON)
def test_every_corruption_is_the_images_own(name: str) -> None:
    pytest.importorskip("imagecorruptions")
    picture = np.random.default_rng(1).integers(40, 200, (33, 40, 3), np.uint8)
    state = np.random.get_state()[1].tolist()
    for severity in (1, 5):
        corrupt = corruption(name, severity)
        found, again = corrupt(picture, 3), corrupt(picture, 3)
        assert found.shape == picture.shape and found.dtype == np.uint8 and np.array_equal(found, again)
        assert not np.array_equal(found, picture)
    random = {
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "glass_blur",
        "snow",
        "frost",
        "fog",
        "elastic_transform",
    }
    if name in random:
        assert not np.array_equal(found, corrupt(picture, 4))
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize("side", [32, 700])  # smaller and larger than the pictures of frost
def test_frost_is_the_packages_own(side: int) -> None:
    package = pytest.importorskip("imagecorruptions")
    picture = np.random.default_rng(1).integers(0, 255, (side, side + 8, 3), np.uint8)
    for severity in (1, 5):
        for seed in range(3):
            with global_generators_kept():
                seed_global_generators(seed)
                wanted = package.corrupt(picture, severity=severity, corruption_name="frost")
            assert np.array_equal(corruption("frost", severity)(picture, seed), wanted)


def test_generated_corruptions_in_the_suite() -> None:
    pytest.importorskip("imagecorruptions")
    subject, images = subject_of(NearestGray(side=32), 4, side=32), gray_images((10, 70, 130, 250), side=32)
    settings = Robustness(parts=("corruptions",), corruptions=("brightness", "pixelate"))
    alone, helped = (named(robustness(subject, images, Running(batch=2, workers=count), settings)) for count in (0, 1))
    assert alone == helped
    assert alone["corruption pixelate 5"].value == 1 and alone["error pixelate"].value == 0  # of one gray
    # 0.1 to 0.5 are added: 10 leaves the first class from 63.5 on, 70 the second from 127.5, 130 the third from 191.5
    wrong = [[10 + 25.5 * k > 63.5, 70 + 25.5 * k > 127.5, 130 + 25.5 * k > 191.5, False] for k in (1, 2, 3, 4, 5)]
    for severity in (1, 2, 3, 4, 5):
        assert alone[f"corruption brightness {severity}"].value == 1 - np.mean(wrong[severity - 1])
    assert alone["error brightness"].value == pytest.approx(np.mean(wrong))
    assert alone["mean corruption error"].value == pytest.approx(np.mean(wrong) / 2)
    assert "mCE" not in alone  # there is no reference for these images


# Resumption


class Stop(Exception):
    """Stands for the end of the process."""


class Counted(NearestGray):
    """Counts the images that it was shown."""

    seen = 0

    def forward(self, images: Tensor) -> Tensor:
        Counted.seen += len(images)
        return super().forward(images)


NOISE = Robustness(parts=("clean", "noise"), sigmas=(0.1, 0.2))


def test_stopped_suite_goes_on_without_measuring_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "SAVE_SECONDS", -1.0)
    whole = list(robustness(grays_subject(), gray_images(), Running(batch=5), NOISE))
    n, told = len(GRAYS), []

    def stop(name: str, done: int, total: int) -> None:
        told.append((name, done, total))
        if done >= n + 10:
            raise Stop

    Counted.seen = 0
    with pytest.raises(Stop):
        list(
            robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path, progress=stop)
        )
    assert Counted.seen == n + 10 and told[-1] == ("noise sigma=0.1", n + 10, 3 * n)
    again = list(robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path))
    assert Counted.seen == 3 * n + 5  # the batch that was measured and not yet written, and no other
    assert again == whole
    assert list(robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path)) == whole
    assert Counted.seen == 3 * n + 5
    assert len(list(tmp_path.iterdir())) == 3


def test_corruptions_of_another_crop_are_other_cells() -> None:
    """They are made of cropped images and then taken whole, so the crop must still be in their name."""
    images, keys = gray_images(side=32), set()
    for crop in (1.0, 0.875):
        subject = subject_of(NearestGray(side=32), 4, side=32)
        subject = dataclasses.replace(subject, config=dataclasses.replace(subject.config, crop_pct=crop))
        measurer = Measurer(subject, Running())
        made = CorruptedImages(images, measurer.augmentation, lambda pixels, seed: pixels)
        keys.add(measurer.key(Cell("fog 1", made, {"corruption": "fog", "severity": 1}, cropped=True)))
    assert len(keys) == 2


@pytest.mark.parametrize("change", ["weights", "pixels", "labels", "settings", "damage", "format"])
def test_answers_of_anything_else_are_not_taken(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    list(robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path))
    model, images, settings = Counted(), gray_images(), NOISE
    if change == "weights":
        model.centers.data[0] += 1e-6
    elif change == "pixels":
        images.pixels[0, 0, 0, 0] += 1
    elif change == "labels":
        images.labels[0] = 3
    elif change == "settings":
        settings = Robustness(parts=("clean", "noise"), sigmas=(0.15, 0.25), seed=1)
    elif change == "format":
        monkeypatch.setattr(cells_module, "FORMAT", 0)
    else:
        for place in tmp_path.iterdir():
            place.write_text(place.read_text()[:-9])
    Counted.seen = 0
    list(robustness(subject_of(model, 4), images, Running(batch=5), settings, folder=tmp_path))
    assert Counted.seen == 3 * len(GRAYS)


def test_answers_come_back_exactly() -> None:
    answers = Answers(np.array([1, 0, -1, 1], np.int8), np.random.default_rng(0).random(4).astype(np.float32), 3)
    back = Answers.parse(answers.text(), 4)
    assert back.done == 3 and back.right.tolist() == [1, 0, -1, -1]
    assert np.array_equal(back.confidence[:3], answers.confidence[:3]) and answers.count("") == (2, 3)
    assert Answers.parse(answers.text(), 5).done == 0 and Answers.parse("[]", 4).done == 0


def test_unreadable_images_are_not_counted(tmp_path: Path) -> None:
    for number, gray in enumerate((10, 250, 10)):
        Image.new("RGB", (8, 8), (gray,) * 3).save(tmp_path / f"{number}.png")
    (tmp_path / "1.png").write_bytes(b"no picture")
    images = FileImages(tmp_path, ["0.png", "1.png", "2.png"], [0, 3, 1], ["a", "b", "c", "d"], "files")
    for _ in range(2):  # the second time from what was kept
        again = FileImages(tmp_path, images.files, images.labels, images.classes, "files")
        suite = Suite(grays_subject(), again, Running(batch=2), Robustness(parts=("clean",)), folder=tmp_path / "cells")
        found = named(suite)
        assert found["clean"].n == 2 and found["clean"].value == 0.5
        assert len(suite.broken) == 1 and suite.broken[0].startswith("1.png")


# Folders


class Codes(nn.Module):
    """Says the class that a picture's red and green write, but is sure of class 0, which ImageNet-R has not."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))
        self.pretrained_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "crop_pct": 1.0, "input_size": (3, 32, 32)}

    def forward(self, images: Tensor) -> Tensor:
        red, green = (images[:, channel].mean((1, 2)).mul(255).round().long() for channel in (0, 1))
        logits = nn.functional.one_hot((red * 256 + green).clamp(max=999), 1000).float() + self.zero
        return logits.index_fill(1, torch.tensor([0]), 2.0)


def write_code(place: Path, number: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), (number // 256, number % 256, 0)).save(place)


def test_the_classes_of_imagenet_r_are_those_it_chooses_from(tmp_path: Path) -> None:
    allowed = [synsets().index(name) for name in synsets("imagenet_r_synsets.txt")][:4]
    for number in allowed:
        write_code(tmp_path / "r" / synsets()[number] / "right.png", number)
        write_code(tmp_path / "r" / synsets()[number] / "wrong.png", allowed[0])
        write_code(tmp_path / "v2" / str(number) / "right.png", number)
    settings = Robustness(parts=("shifts",), folders={"r": tmp_path / "r", "v2": tmp_path / "v2"})
    suite = Suite(subject_of(Codes(), 1000, side=32), None, Running(batch=4), settings)
    found = named(suite)
    assert found["ImageNet-R"] == Measurement("ImageNet-R", 5 / 8, 8, *wilson(5, 8), of={"part": "shifts"})
    assert found["ImageNet-V2"].value == 0  # among all 1000 classes it always says the first
    (tmp_path / "r" / synsets()[0]).mkdir()
    with pytest.raises(ValueError, match="no class of ImageNet-R"):
        open_shift("r", tmp_path / "r", suite.subject)


def test_a_model_of_fewer_classes_is_measured_on_those(tmp_path: Path) -> None:
    names = synsets("imagenet_r_synsets.txt")[:3]
    for name in names:
        write_code(tmp_path / name / "one.png", 0)
    own = (names[2], "n00000000", names[0])
    found = open_shift("r", tmp_path, subject_of(NearestGray(), 3, own))
    assert found.outputs == (0, 2) and found.left_out == 1 and found.images.labels.tolist() == [2, 0]
    with pytest.raises(ValueError, match="no names"):
        open_shift("r", tmp_path, subject_of(NearestGray(), 7))
    with pytest.raises(ValueError, match="at least two"):
        open_shift("r", tmp_path, subject_of(NearestGray(), 2, ("x", names[0])))


def test_a_downloaded_imagenet_c(tmp_path: Path) -> None:
    for severity in (1, 2):
        for name, gray in (("a", 10), ("d", 250)):
            place = tmp_path / "weather" / "fog" / str(severity) / name / "0.png"
            place.parent.mkdir(parents=True)
            Image.new("RGB", (32, 32), (gray if severity == 1 else 10,) * 3).save(place)
    subject = subject_of(NearestGray(side=32), 4, ("a", "b", "c", "d"), side=32)
    reference = tmp_path / "reference.json"
    reference.write_text('{"fog": [0.25, 0.5]}')
    chosen_settings = {"corruptions": ("fog",), "severities": (1, 2), "folders": {"c": tmp_path}}
    settings = Robustness(parts=("corruptions",), reference=str(reference), **chosen_settings)
    found = named(robustness(subject, gray_images(side=32), Running(batch=4), settings))
    assert [found[f"corruption fog {severity}"].value for severity in (1, 2)] == [1, 0.5]
    assert found["mean corruption error"].value == 0.25 and found["mCE"].value == pytest.approx(0.25 / 0.375)
    (tmp_path / "weather" / "fog" / "2" / "a" / "0.png").rename(tmp_path / "weather" / "fog" / "2" / "a" / "1.png")
    with pytest.raises(ValueError, match="different images"):
        Suite(subject, gray_images(side=32), Running(), settings)


def write_cifar_c(folder: Path, side: int = 32) -> np.ndarray:
    """Grays 10, 70, 130 and 250 (classes 0 to 3); fog makes all of them black from the third severity on."""
    grays = np.array([10, 70, 130, 250], np.uint8)
    seen = np.concatenate([grays * (severity < 3) for severity in range(5)])
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "fog.npy", np.broadcast_to(seen[:, None, None, None], (20, side, side, 3)).astype(np.uint8))
    np.save(folder / "snow.npy", np.zeros((20, side, side, 3), np.uint8))
    np.save(folder / "labels.npy", np.tile(np.arange(4, dtype=np.uint8), 5))
    return seen


def test_a_downloaded_cifar_c(tmp_path: Path) -> None:
    write_cifar_c(tmp_path / "c")
    subject = subject_of(NearestGray(side=32), 4, side=32)
    reference = tmp_path / "reference.json"
    reference.write_text('{"fog": [0.2, 0.2, 0.2, 0.2, 0.7], "snow": 0.75}')
    chosen_settings = {"corruptions": ("fog", "snow"), "folders": {"c": tmp_path / "c"}}
    suite = Suite(subject, None, Running(batch=3), Robustness(parts=("corruptions",), **chosen_settings))
    found = named(suite)
    assert [found[f"corruption fog {severity}"].value for severity in range(1, 6)] == [1, 1, 1, 0.25, 0.25]
    assert found["corruption fog 1"].n == 4 and "output i" in suite.remarks[0]
    assert found["mean corruption error"].value == pytest.approx((0.3 + 0.75) / 2) and "mCE" not in found
    settings = Robustness(parts=("corruptions",), reference=str(reference), **chosen_settings)
    found = named(robustness(subject, None, Running(batch=3), settings, folder=tmp_path / "cells"))
    assert found["mCE"].value == pytest.approx((1 + 1) / 2)
    np.save(tmp_path / "c" / "snow.npy", np.full((20, 32, 32, 3), 250, np.uint8))  # other content, other cells
    os.utime(tmp_path / "c" / "snow.npy", ns=(1, 1))
    again = named(robustness(subject, None, Running(batch=3), settings, folder=tmp_path / "cells"))
    assert again["error snow"].value == 0.75 and len(list((tmp_path / "cells").iterdir())) == 15
    limited = named(robustness(subject, None, Running(batch=3), dataclasses.replace(settings, limit=2)))
    assert limited["mCE"].n == 2


def test_alexnets_errors_are_of_imagenet_alone(tmp_path: Path) -> None:
    """A model of 1000 classes without names could be of anything, a folder of CIFAR-C is of CIFAR."""
    write_cifar_c(tmp_path)
    np.save(tmp_path / "labels.npy", np.tile([0, 1, 2, 999], 5))
    settings = Robustness(parts=("corruptions",), corruptions=("fog",), folders={"c": tmp_path})
    assert "mCE" not in named(robustness(subject_of(Codes(), 1000, side=32), None, Running(), settings))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda at: np.save(at / "labels.npy", np.arange(20)), "the same labels once for each of 5 severities"),
        (lambda at: np.save(at / "labels.npy", np.tile(np.arange(3), 5)), "has 3 classes, but own tells 4 apart"),
        (lambda at: np.save(at / "labels.npy", np.zeros((4, 5))), "the same labels once"),
        (lambda at: np.save(at / "fog.npy", np.zeros((9, 32, 32, 3), np.uint8)), "has 9 images, labels.npy 20"),
        (lambda at: np.save(at / "fog.npy", np.zeros((20, 32, 32))), r"must hold images \(N, height, width, 3\) uint8"),
        (lambda at: (at / "fog.npy").write_bytes(b"no array"), "no readable .npy file"),
        (lambda at: (at / "fog.npy").write_bytes(b""), "no readable .npy file"),
        (lambda at: (at / "fog.npy").unlink(), "has no 'fog.npy'"),
    ],
)
def test_wrong_cifar_c(tmp_path: Path, spoil: Any, sentence: str) -> None:
    write_cifar_c(tmp_path)
    spoil(tmp_path)
    settings = Robustness(parts=("corruptions",), corruptions=("fog",), folders={"c": tmp_path})
    with pytest.raises(ValueError, match=sentence):
        Suite(subject_of(NearestGray(side=32), 4, side=32), None, Running(), settings)


# Refusals and the command


def test_images_are_needed_unless_all_are_in_folders() -> None:
    with pytest.raises(ValueError, match="give --data"):
        Suite(grays_subject(), None, Running(), NOISE)


def test_one_class_is_refused() -> None:
    images: ImageSet = gray_images((10, 20))
    with pytest.raises(ValueError, match="one class only"):
        Suite(grays_subject(), images, Running(), NOISE)


def test_saliency_of_a_model_without_attention_is_refused_only_when_asked_for() -> None:
    subject = subject_of(timm.create_model("test_resnet", num_classes=4).eval(), 4, side=32)
    settings = Robustness(parts=("occlusion",), dropped=(0.5,))
    suite = Suite(subject, gray_images(side=32), Running(), settings)
    assert [each.name for each in suite] == ["occlusion random 50 %"] and "not by saliency" in suite.remarks[0]
    with pytest.raises(ValueError, match="needs attention, and this ResNet has none"):
        Suite(subject, gray_images(side=32), Running(), Robustness(parts=("occlusion",), orders=("salient-last",)))


@pytest.mark.parametrize(("part", "package"), [("autoattack", "pyautoattack"), ("corruptions", "imagecorruptions")])
def test_missing_package_is_named(part: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf'package {package}.*pip install "vitmix\[eval\]"'):
        Suite(subject_of(NearestGray(side=32), 4, side=32), gray_images(side=32), Running(), Robustness(parts=(part,)))


@pytest.fixture(scope="module")
def run(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    output = tmp_path_factory.mktemp("runs") / "run"
    train(output)
    return output


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", str(run), "--suite", "clean,occlusion,attacks", "--limit", "12", "--attack-limit", "6"]
    command += ["--epsilons", "0", "8/255", "0.5/255", "--alphas", "0.01", "--steps", "2", "--orders", "salient-first"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    found = json.loads((run / "robustness.json").read_text())
    by_name = {each["name"]: each for each in found["measurements"]}
    assert by_name["clean"]["n"] == 12 and by_name["pgd-2 alpha=0.01 eps=8/255"]["n"] == 6
    assert by_name["clean"]["value"] == by_name["occlusion salient-first 0 %"]["value"]
    assert found["parts"]["attacks"]["settings"]["epsilons"] == [0, 8 / 255, 0.5 / 255]
    assert "pgd-2 alpha=0.01 eps=8/255" in said and "n = 12" in said and "images  " in said
    kept = {place: place.stat().st_mtime_ns for place in (run / "robustness").iterdir()}
    assert cli.main(command) == 0 and {place: place.stat().st_mtime_ns for place in kept} == kept
    assert open_subject(run).run == run


def test_the_runs_file_grows_by_parts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A further command replaces what it measured; other weights and other data do not get in, nor stay."""
    output = shutil.copytree(run, tmp_path / "run")
    (output / "robustness.json").unlink(missing_ok=True)
    command = ["eval", str(output), "--limit", "8", "--attack-limit", "4", "--suite"]
    attack = ["--alphas", "0.1", "--steps", "1", "--epsilons", "0.1"]

    def names() -> list[str]:
        found = read_results(output)
        assert found is not None
        return [each["name"] for each in found["measurements"]]

    assert cli.main([*command, "attacks", *attack]) == 0
    assert cli.main([*command, "attacks", *attack, "--norm", "l2"]) == 0
    assert cli.main([*command, "clean"]) == 0
    l2 = ["attack none l2", "fgsm l2 eps=0.1", "pgd-1 l2 alpha=0.1 eps=0.1"]
    linf = [name.replace(" l2", "") for name in l2]
    assert names() == [*linf, *l2, "clean", "clean calibration error"]
    assert cli.main([*command, "attacks", *attack, "--epsilons", "0.2"]) == 0
    assert names()[:2] == l2[:2] and names()[-1] == "pgd-1 alpha=0.1 eps=51/255" and linf[1] not in names()
    before = (output / "robustness.json").read_bytes()
    for other in (["--weights", "last"], ["--split", "train"], ["--size", "16"]):
        assert cli.main([*command, "clean", *other]) == 0
        assert "Add --output FILE" in capsys.readouterr().out
    assert (output / "robustness.json").read_bytes() == before
    weights = load_file(output / "best.safetensors")
    with safe_open(output / "best.safetensors", "pt") as file:  # pyright: ignore[reportPrivateImportUsage]
        facts = file.metadata()
    weights["head.bias"] = weights["head.bias"] + 1
    save_file(weights, output / "best.safetensors", facts)
    assert read_results(output) is None
    assert cli.main([*command, "clean", "--output", str(tmp_path / "copy.json")]) == 0
    assert names() == ["clean", "clean calibration error"]
    assert json.loads((tmp_path / "copy.json").read_text()) == read_results(output)
    (output / "robustness.json").write_text('{"measurements": [1]}')
    assert read_results(output) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--norm", "l2"], "goes with a suite"),
        (["--suite", "attacks", "--epsilons", "8"], "epsilons are in pixels of 0..1, got 8; write 8/255"),
        (["--suite", "attacks", "--alphas", "2.5"], "alphas are in pixels of 0..1, got 2.5; write 2.5/255"),
        (["--suite", "noise", "--cells", __file__], "is a file; name a folder"),
        (["--suite", "corruptions", "--folders", "c=."], "holds no <corruption>/<severity>/<class>"),
        (["--suite", "robustnes"], "did you mean 'robustness'?"),
        (["--limit", "3"], "goes with a suite"),
        (["--suite", "shifts"], "needs folders"),
        (["--suite", "shifts", "--folders", "a"], "written NAME=DIR"),
        (["--suite", "shifts", "--folders", "b=."], "unknown folder 'b'"),
        (["--suite", "shifts", "--folders", "a=nowhere"], "no folder 'nowhere'"),
        (["--suite", "corruptions", "--folders", "c=nowhere"], "no folder 'nowhere'"),
        (["--suite", "corruptions"], "at least 32 pixels"),
        (["--suite", "corruptions", "--corruptions", "smog"], "unknown corruption 'smog'"),
        (["--suite", "corruptions", "--reference", "nowhere.json"], "is neither"),
        (["--suite", "attacks", "--epsilons", "8/0"], "such as 0.03 or 8/255"),
        (["--suite", "attacks", "--steps", "0"], "steps must be"),
        (["--suite", "occlusion", "--orders", "salient"], "unknown order"),
        (["--suite", "noise", "--limit", "0"], "limit must be"),
        (["--suite", "noise", "--output", "no/such/folder.json"], "no folder"),
    ],
)
def test_wrong_input(run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(run), *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
