"""Attacks: small changes of the pixels that are made to be misread, with the largest change of a pixel bounded.

Epsilon and steps are in pixels of 0..1. An image that is misread as it is stays as it is, and one that is misread on
the way is left there: an attack succeeds when it has found one misread picture within the bound, and none is undone.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._checks import check_count, check_not_negative
from vitmix.data.augment import global_generators_kept
from vitmix.draws import generator_for

from .extras import need

START = 0x50474453  # keeps these random numbers apart from others made from the same seed


def fgsm(classifier: nn.Module, pixels: Tensor, labels: Tensor, *, epsilon: float) -> Tensor:
    """One step of size epsilon along the sign of the loss's gradient (Goodfellow et al. 2015)."""
    check_not_negative("epsilon", epsilon)
    gradient, right = _gradient(classifier, pixels, labels)
    stepped = (pixels + epsilon * gradient.sign()).clamp(0, 1)
    return torch.where(right.view(-1, 1, 1, 1), stepped, pixels)


def pgd(
    classifier: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    alpha: float,
    steps: int,
    start: Tensor | None = None,
) -> Tensor:
    """Steps of size alpha along the gradient's sign, each brought back to within epsilon (Madry et al. 2018).

    Args:
        start: a change within epsilon to begin with; none if not given.
    """
    check_not_negative("epsilon", epsilon)
    check_not_negative("alpha", alpha)
    check_count("steps", steps, least=0)
    low, high = (pixels - epsilon).clamp_min(0), (pixels + epsilon).clamp_max(1)
    with torch.no_grad():
        right = classifier(pixels).argmax(1) == labels
    current = pixels if start is None else torch.minimum(torch.maximum(pixels + start, low), high)
    current = torch.where(right.view(-1, 1, 1, 1), current, pixels)
    for _ in range(steps):
        gradient, right = _gradient(classifier, current, labels)
        if not right.any():
            return current
        stepped = torch.minimum(torch.maximum(current + alpha * gradient.sign(), low), high)
        current = torch.where(right.view(-1, 1, 1, 1), stepped, current)
    return current


def random_start(pixels: Tensor, indices: Tensor, *, epsilon: float, seed: int = 0) -> Tensor:
    """Uniform changes within epsilon; an image's depends on its place and the seed alone."""
    shape = pixels.shape[1:]
    drawn = [torch.rand(shape, generator=generator_for(START, seed, index)) for index in indices.tolist()]
    return epsilon * (2 * torch.stack(drawn).to(pixels) - 1)


def auto_attack(classifier: nn.Module, pixels: Tensor, labels: Tensor, *, epsilon: float, seed: int = 0) -> Tensor:
    """AutoAttack's standard version (Croce and Hein 2020): APGD on two losses, FAB and Square, one after the other."""
    check_not_negative("epsilon", epsilon)
    if epsilon == 0:
        return pixels  # its step sizes are shares of epsilon
    with torch.no_grad():
        classes = classifier(pixels[:1]).shape[1]
    check_auto_attack(classes)
    attack: Any = need("pyautoattack").AutoAttack(classifier, eps=epsilon, norm="Linf", device=pixels.device, seed=seed)
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
    pixels = pixels.contiguous()  # it takes views of gradients
    with global_generators_kept():
        found, _ = attack.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
    # Its own tolerance is 1e-6; ours is none.
    return torch.minimum(torch.maximum(found, pixels - epsilon), pixels + epsilon).clamp(0, 1)


def check_auto_attack(classes: int) -> None:
    need("pyautoattack")
    if classes < 4:
        raise ValueError(f"AutoAttack's targeted losses need at least 4 classes, this model has {classes}; use PGD")


@dataclass(frozen=True)
class Fgsm:
    """`fgsm` as a change."""

    classifier: nn.Module
    epsilon: float

    def __call__(self, pixels: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        return fgsm(self.classifier, pixels, labels, epsilon=self.epsilon)


@dataclass(frozen=True)
class Pgd:
    """`pgd` from a random start as a change."""

    classifier: nn.Module
    epsilon: float
    alpha: float
    steps: int
    seed: int

    def __call__(self, pixels: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        start = random_start(pixels, indices, epsilon=self.epsilon, seed=self.seed)
        sizes = {"epsilon": self.epsilon, "alpha": self.alpha, "steps": self.steps}
        return pgd(self.classifier, pixels, labels, start=start, **sizes)


@dataclass(frozen=True)
class AutoAttack:
    """`auto_attack` as a change."""

    classifier: nn.Module
    epsilon: float
    seed: int

    def __call__(self, pixels: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        return auto_attack(self.classifier, pixels, labels, epsilon=self.epsilon, seed=self.seed)


def _gradient(classifier: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss's gradient with respect to the pixels, and which of them are read right."""
    with torch.enable_grad():
        pixels = pixels.detach().requires_grad_()
        logits = classifier(pixels)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient, logits.argmax(1) == labels
