"""Saliency by the gradient of the loss, beside attention (TokenMixup supplement, figure 2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitmix._guide import Evaluating, logits_and_gradient
from vitmix.attention.readers import logits_of, read_model
from vitmix.lab.plotting.grid import ImageGrid, Tile

from .attention import block_attention
from .layout import SCALE_WORDS, FigureInputs, as_columns, heat_tile
from .models import NamedModel
from .samples import Observation, Sample, observe


def gradient_saliency(model: nn.Module, images: Tensor, labels: Sequence[int]) -> Tensor:
    """The gradient `(B, H, W)` of the cross-entropy with each label, as the root mean square over channels."""
    with Evaluating(model):
        with torch.no_grad():
            classes = logits_of(model(images[:1])).shape[1]
        rows = nn.functional.one_hot(torch.tensor(labels, device=images.device), classes).to(images.dtype)
        return logits_and_gradient(model, images, rows)[1]


def gradient_figure(inputs: FigureInputs) -> ImageGrid:
    """The gradient of the loss at each pixel; beside attention of the last block, if all models have attention."""
    attends = all(_has_attention(model.model) for model in inputs.models)

    def tiles(model: NamedModel, sample: Sample) -> tuple[Observation, list[Tile]]:
        def find(images: Tensor) -> list[Tensor]:
            attention = [*block_attention(model.model, images, [-1]).values()] if attends else []
            return [each[0] for each in (*attention, gradient_saliency(model.model, images, labels))]

        labels = model.labels(sample.images)
        seen = observe(model, sample, inputs.seed, find)
        return seen, [heat_tile(seen, each) for each in seen.found]

    samples = inputs.samples()
    parts = ["attention", "gradient"] if attends else ["gradient"]
    words = "Gradient of the loss of the image's class, as the root mean square over colors."
    return as_columns(inputs, samples, tiles, parts, footer=inputs.footer(samples, words, SCALE_WORDS))


def _has_attention(model: nn.Module) -> bool:
    try:
        return read_model(model).has_attention
    except ValueError:  # no reader
        return False
