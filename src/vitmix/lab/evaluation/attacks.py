"""Attacks: small changes of the pixels that cause errors, bounded in the L-infinity or the L2 norm.

With its bound, each is the change of a condition. Epsilon and steps are for pixels in 0..1. An image that is already
misclassified does not change, and one that becomes misclassified changes no further: an attack has succeeded once it
finds one misclassified image within the bound.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitmix._checks import check_choice, check_count, check_not_negative
from vitmix._sampling import generator_for
from vitmix.lab.data.augment import global_generators_kept
from vitmix.lab.extras import need
from vitmix.lab.runs import NORMS

from .subject import NotPossible

TINY = 1e-12  # lengths below it count as zero
START = 0x50474453  # separates these random numbers from others made from the same seed


def fgsm(
    classifier: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    indices: Tensor | None = None,
    *,
    epsilon: float,
    norm: str = "linf",
) -> Tensor:
    """One step of size epsilon along the sign of the loss's gradient, or the gradient (Goodfellow et al. 2015)."""
    check_not_negative("epsilon", epsilon)
    gradient, right = _gradient(classifier, pixels, labels)
    stepped = (pixels + epsilon * _direction(gradient, norm)).clamp(0, 1)
    return torch.where(right.view(-1, 1, 1, 1), stepped, pixels)


def pgd(
    classifier: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    indices: Tensor | None = None,
    *,
    epsilon: float,
    alpha: float,
    steps: int,
    seed: int = 0,
    norm: str = "linf",
) -> Tensor:
    """Steps of size alpha along the gradient (its sign), each brought back to within epsilon (Madry et al. 2018).

    Args:
        indices: the images' places in the dataset, for a `random_start`; without them, PGD starts at the images.
    """
    check_not_negative("epsilon", epsilon)
    check_not_negative("alpha", alpha)
    check_count("steps", steps, least=0)
    with torch.no_grad():
        right = classifier(pixels).argmax(1) == labels
    current = pixels
    if indices is not None:
        start = random_start(pixels, indices, epsilon=epsilon, seed=seed, norm=norm)
        current = within(pixels, pixels + start, epsilon=epsilon, norm=norm)
    current = torch.where(right.view(-1, 1, 1, 1), current, pixels)
    for _ in range(steps):
        gradient, right = _gradient(classifier, current, labels)
        if not right.any():
            return current
        stepped = within(pixels, current + alpha * _direction(gradient, norm), epsilon=epsilon, norm=norm)
        current = torch.where(right.view(-1, 1, 1, 1), stepped, current)
    return current


def within(pixels: Tensor, changed: Tensor, *, epsilon: float, norm: str = "linf") -> Tensor:
    """The changed images brought back to within epsilon of the pixels, and to 0..1."""
    check_choice("norm", norm, NORMS)
    if norm == "linf":
        return torch.minimum(torch.maximum(changed, pixels - epsilon), pixels + epsilon).clamp(0, 1)
    change = changed - pixels
    length = change.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    shorter = change * (epsilon / length.clamp_min(TINY)).clamp_max(1)
    # Clipping to 0..1 moves every value towards the pixels, which are in that range.
    return (pixels + shorter).clamp(0, 1)


def random_start(pixels: Tensor, indices: Tensor, *, epsilon: float, seed: int = 0, norm: str = "linf") -> Tensor:
    """Uniform changes within epsilon; each depends only on the index of the image and the seed."""
    check_choice("norm", norm, NORMS)
    shape, drawn = pixels.shape[1:], []
    for index in indices.tolist():
        generator = generator_for(START, seed, index)
        if norm == "linf":
            drawn.append(2 * torch.rand(shape, generator=generator) - 1)
        else:
            ray, radius = torch.randn(shape, generator=generator), torch.rand((), generator=generator)
            drawn.append(ray / ray.norm() * radius ** (1 / ray.numel()))
    return epsilon * torch.stack(drawn).to(pixels)


def auto_attack(
    classifier: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    indices: Tensor | None = None,
    *,
    epsilon: float,
    seed: int = 0,
    norm: str = "linf",
) -> Tensor:
    """AutoAttack's standard version (Croce and Hein 2020): APGD on two losses, FAB and Square, one after the other."""
    check_not_negative("epsilon", epsilon)
    check_choice("norm", norm, NORMS)
    if epsilon == 0:
        return pixels  # its step sizes are fractions of epsilon
    with torch.no_grad():
        classes = classifier(pixels[:1]).shape[1]
    check_auto_attack(classes)
    name = {"linf": "Linf", "l2": "L2"}[norm]
    attack: Any = need("pyautoattack").AutoAttack(classifier, eps=epsilon, norm=name, device=pixels.device, seed=seed)
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
    pixels = pixels.contiguous()  # it takes views of gradients
    with global_generators_kept():
        found, _ = attack.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
    return within(pixels, found, epsilon=epsilon, norm=norm)  # AutoAttack tolerates 1e-6; we tolerate nothing


def check_auto_attack(classes: int) -> None:
    need("pyautoattack")
    if classes < 4:
        raise NotPossible(f"AutoAttack's targeted losses need at least 4 classes, this model has {classes}; use PGD")


def _direction(gradient: Tensor, norm: str) -> Tensor:
    """The steepest change of length one; zero if the gradient is zero."""
    check_choice("norm", norm, NORMS)
    if norm == "linf":
        return gradient.sign()
    # Divided by the largest value first, because squares of small gradients would underflow.
    largest = gradient.flatten(1).abs().amax(1).view(-1, 1, 1, 1)
    scaled = torch.where(largest > 0, gradient / largest, 0)
    return torch.nn.functional.normalize(scaled.flatten(1), eps=TINY).view_as(gradient)


def _gradient(classifier: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the loss with respect to the pixels, and which images are classified correctly."""
    with torch.enable_grad():
        pixels = pixels.detach().requires_grad_()
        logits = classifier(pixels)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient, logits.argmax(1) == labels
