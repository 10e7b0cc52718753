"""Grad-CAM of any classifier by the grad-cam package, on the token grid that the model's reader knows."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._guide import Evaluating
from vitmix._mix import Grid
from vitmix.attention.readers import logits_of, read_model
from vitmix.lab.extras import need


def grad_cam(model: nn.Module, images: Tensor, labels: Sequence[int]) -> Tensor:
    """Grad-CAM `(B, H, W)` for the label of each image, scaled to 0..1 per image."""
    package, explained = need("pytorch_grad_cam"), need("pytorch_grad_cam.utils.model_targets")
    layer, grid = target_layer(model, images)
    with torch.enable_grad(), Evaluating(model):
        with package.GradCAM(_Logits(model), [layer], partial(to_channels_first, grid=grid)) as cam:
            found = cam(images, [explained.ClassifierOutputTarget(label) for label in labels])
    model.zero_grad()
    return torch.from_numpy(found)


def target_layer(model: nn.Module, images: Tensor) -> tuple[nn.Module, Grid]:
    """The last layer from which all tokens or features reach the classifier, and their grid.

    A class token reads the patches last through the norm before the last attention; a mean over patches reads the
    output of the final module. For a model without reader it is the last module that returns a grid.
    """
    size = (images.shape[2], images.shape[3])
    try:
        reader = read_model(model)
    except ValueError:
        return _last_grid(model, images)
    last = reader.blocks[-1]
    reads_patches = reader.readout in ("mean", "sequence") or last.norm is None
    layer: Any = reader.final_module if reads_patches else last.norm
    return layer, reader.grids(size)[-1]


def to_channels_first(features: Tensor, grid: Grid) -> Tensor:
    """Tokens `(B, N, C)`, prefix first, or a grid `(B, h, w, C)` or `(B, C, h, w)`, as `(B, C, h, w)`."""
    if features.ndim == 3:
        return features[:, features.shape[1] - grid[0] * grid[1] :].mT.unflatten(2, grid)
    channels_last = tuple(features.shape[1:3]) == grid and tuple(features.shape[2:]) != grid
    return features.movedim(-1, 1) if channels_last else features


def _last_grid(model: nn.Module, images: Tensor) -> tuple[nn.Module, Grid]:
    found: list[tuple[nn.Module, Grid]] = []

    def remember(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            found.append((module, (output.shape[2], output.shape[3])))

    handles = [module.register_forward_hook(remember) for module in model.modules() if module is not model]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise ValueError(f"Grad-CAM needs features on a grid, and no module of this {type(model).__name__} returns one")
    return found[-1]


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return logits_of(self.model(images))
