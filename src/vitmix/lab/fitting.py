"""Which methods work with a model on images of a given size, and what stands in for a teacher to find out."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from vitmix._mixer import AnyMixer
from vitmix._mixing import Mixing
from vitmix._registry import METHODS
from vitmix._text import create


def refusal(
    model: nn.Module, method: AnyMixer, size: tuple[int, ...], check: Callable[[Mixing], object] | None = None
) -> str | None:
    """Why a model cannot be trained with a method; None if it can. `check` can add refusals."""
    try:
        with method.attach(model, seed=0, rank=0, step=0) as mixing:
            for mixer in method.mixers:
                mixer.draw(mixing.frame(torch.zeros(2, 3, *size)), torch.Generator())
            if check is not None:
                check(mixing)
    except ValueError as error:
        return str(error)
    return None


def refusals(model: nn.Module, size: tuple[int, ...], methods: Iterable[str]) -> dict[str, str]:
    """The methods that do not work with a model, and why."""
    found = {text: refusal(model, create(text, 2), size) for text in methods}
    return {text: reason for text, reason in found.items() if reason is not None}


def fitting_methods(model: nn.Module, size: tuple[int, ...]) -> tuple[list[str], dict[str, str]]:
    """The methods that work with a model, and the reason for each of the others."""
    mixing = [name for name in METHODS if name != "none"]
    refused = refusals(model, size, mixing)
    return [name for name in mixing if name not in refused], refused


def stand_in_maps(mixing: Mixing, images: Tensor) -> Tensor | None:
    """Uniform maps of the kind that a method needs, in place of a teacher's; None if it needs none."""
    needs = [mixer.needs for mixer in mixing.mixer.mixers]
    if any(each.label_maps for each in needs):
        grid, classes = mixing.frame(images).final_grid, mixing.mixer.num_classes
        assert grid is not None
        return torch.full((len(images), classes, *grid), 1 / classes, device=images.device)
    if any(each.maps for each in needs):
        return torch.ones(len(images), *images.shape[2:], device=images.device)
    return None
