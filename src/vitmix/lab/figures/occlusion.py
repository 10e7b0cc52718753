"""Confidence under growing occlusion: cells of an image turn black, the same ones for every model."""

import torch
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.readers import logits_of, read_model
from vitmix.lab.evaluation.occlusion import GRID, drop_patches
from vitmix.lab.plotting.grid import Curve, ImageGrid, Section, Tile, TileRow, as_pixels

from .images import NamedImage
from .layout import FigureInputs
from .models import NamedModel

PARTS = tuple(number / 10 for number in range(10))
ORDERS = 16  # in which cells are occluded, to average over


def occlusion_figure(inputs: FigureInputs) -> ImageGrid:
    """For each image, a strip of occluded copies above the models' curves."""
    if inputs.methods:
        raise ValueError("occlusion uses unmixed images; leave the methods out")
    grid = _grid(inputs.models[0])
    orders = cell_orders(grid, ORDERS, inputs.seed)
    sections = tuple(_section(inputs, image, orders, grid) for image in inputs.images)
    words = (
        f"Mean and standard deviation over {ORDERS} random orders of {grid[0]} x {grid[1]} cells; the first is shown."
    )
    return ImageGrid(sections, inputs.footer((), words))


def _section(inputs: FigureInputs, image: NamedImage, orders: Tensor, grid: Grid) -> Section:
    labels = [model.labels([image])[0] for model in inputs.models]
    classes = [model.class_name(label) for model, label in zip(inputs.models, labels, strict=True)]
    same_class = len(set(classes)) == 1
    curves = []
    for model, label, name in zip(inputs.models, labels, classes, strict=True):
        pixels = model.pixels([image])[0]
        copies = torch.stack([occluded(pixels, order, part, grid) for order in orders for part in PARTS])
        values = confidence(model.model, model.inputs(copies), label).view(ORDERS, len(PARTS))
        mean, deviation = values.mean(0), values.std(0)
        low, high = (mean - deviation).clamp_min(0), (mean + deviation).clamp_max(1)
        curve = model.name if same_class else f"{model.name}: {name}"
        curves.append(Curve(curve, mean.tolist(), low.tolist(), high.tolist()))
    shown = inputs.models[0].pixels([image])[0]
    strip = tuple(Tile(as_pixels(occluded(shown, orders[0], part, grid))) for part in PARTS)
    heads = tuple(f"{part:.0%}" for part in PARTS)
    words = f"probability\n“{classes[0]}”" if same_class else "probability\nof the class"
    return Section(heads, (TileRow(strip),), curves=tuple(curves), axes=("occluded", words))


def _grid(model: NamedModel) -> Grid:
    try:
        return read_model(model.model).mask_grid(model.augmentation.sides)
    except ValueError:
        return GRID


def occluded(pixels: Tensor, order: Tensor, part: float, grid: Grid) -> Tensor:
    """An image `(3, H, W)` without the first `part` of the cells in an order; the sets of cells are nested."""
    return drop_patches(pixels.unsqueeze(0), order.argsort().unsqueeze(0), share=part, grid=grid)[0]


def cell_orders(grid: Grid, count: int, seed: int) -> Tensor:
    """Random orders `(count, cells)` of the cells of a grid."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(grid[0] * grid[1], generator=generator) for _ in range(count)])


@torch.no_grad()
def confidence(model: nn.Module, images: Tensor, label: int, *, batch: int = 32) -> Tensor:
    """The softmax value `(B,)` of a class."""
    logits = torch.cat([logits_of(model(part)) for part in images.split(batch)])
    return logits.float().softmax(1)[:, label]
