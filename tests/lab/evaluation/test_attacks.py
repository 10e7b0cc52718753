"""Attacks: the optimum of a linear model, bounds and steps in both norms, the model as it was trained."""

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from grays import CENTERS, GRAYS, classifier_of, gray_images, grays_subject, subject_of, tiny_vit, within
from support import SMALL_VIT
from training import one_thread  # noqa: F401
from vitmix.lab.data import Augmentation
from vitmix.lab.evaluation.attacks import auto_attack, fgsm, pgd, random_start
from vitmix.lab.evaluation.attacks import within as within_bound
from vitmix.lab.evaluation.conditions import PixelClassifier

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("bound", [0.0, 1.0, 3.0, 4.0, 30.0])
def test_attacks_reach_the_optimum_of_a_linear_model(bound: float) -> None:
    classifier, images = classifier_of(grays_subject()), gray_images()
    pixels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255
    labels, epsilon = torch.from_numpy(images.labels), bound / 255
    start = random_start(pixels, torch.arange(len(pixels)), epsilon=epsilon)
    assert float(start.abs().max()) <= epsilon
    for found in (
        fgsm(classifier, pixels, labels, epsilon=epsilon),
        pgd(classifier, pixels, labels, torch.arange(len(pixels)), epsilon=epsilon, alpha=epsilon / 4 + 1e-3, steps=10),
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


def test_attack_stays_in_the_image_and_leaves_mistakes_alone() -> None:
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
        by_pgd = pgd(classifier, pixels, labels, torch.arange(4), epsilon=epsilon, alpha=epsilon / 4, steps=10)
        strong = auto_attack(classifier, pixels, labels, epsilon=epsilon)
        assert float((strong - pixels).abs().max()) <= epsilon + 1e-6
        held = [int((classifier(found).argmax(1) == labels).sum()) for found in (strong, by_pgd)]
        assert held[0] <= held[1]
    assert torch.equal(auto_attack(classifier, pixels, labels, epsilon=0), pixels)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_auto_attack_finds_the_optimum_of_a_linear_model(norm: str) -> None:
    """As PGD does, in both norms: the nearest misread image changes all of its 192 values alike."""
    pytest.importorskip("pyautoattack")
    classifier, images = classifier_of(grays_subject()), gray_images((60, 61, 66, 130))
    pixels, labels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255, torch.from_numpy(images.labels)
    epsilon = 3 / 255 * (1 if norm == "linf" else 192**0.5)
    for found in (
        auto_attack(classifier, pixels, labels, epsilon=epsilon, norm=norm),
        pgd(classifier, pixels, labels, torch.arange(4), epsilon=epsilon, alpha=epsilon / 4, steps=20, norm=norm),
    ):
        assert (classifier(found).argmax(1) == labels).tolist() == [True, False, False, False]
        change = (found - pixels).flatten(1)
        assert float((change.abs().amax(1) if norm == "linf" else change.norm(dim=1)).max()) <= epsilon + 1e-6


def test_sure_answers_are_attacked_in_half_precision_too() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **(SMALL_VIT | {"depth": 3, "embed_dim": 64})).eval()
    with torch.no_grad():
        model.head.weight.normal_(0, 1.6)
    pixels = torch.rand(256, 3, 32, 32)
    classifier = PixelClassifier(model, Augmentation(32), torch.device("cpu"), torch.float16)
    labels = classifier(pixels).argmax(1)
    found = pgd(classifier, pixels, labels, epsilon=8 / 255, alpha=0.01, steps=10)
    assert float((classifier(found).argmax(1) == labels).float().mean()) < 0.01
