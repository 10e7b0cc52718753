"""The layout of a figure: models as rows or as columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitmix._text import create
from vitmix.lab.plotting.grid import ImageGrid, Section, Tile, TileRow, as_pixels, overlay, unit_scale

from .images import NamedImage
from .models import NamedModel
from .samples import MANIFOLD, Observation, Sample, method_choices, pairs_of

SCALE_WORDS = "Color: each map from its minimum to its maximum, on a square-root scale."


@dataclass(frozen=True)
class FigureInputs:
    """What every kind of figure takes: models, images, and methods that mix neighboring images."""

    models: Sequence[NamedModel]
    images: Sequence[NamedImage]
    methods: Sequence[str] = ()
    seed: int = 0

    def samples(self, methods: Sequence[str] | None = None) -> list[Sample]:
        """Every image or, with methods, every pair mixed by each method and each choice of a switch."""
        chosen = self.methods if methods is None else methods
        for method in chosen:
            inner = [] if method == MANIFOLD else [part for each in create(method, 2).mixers for part in each.inner]
            if any(part.adds_tokens for part in inner):
                raise ValueError(f"{method} adds tokens that have no place in the image; use another method")
        if not chosen:
            return [Sample((image,)) for image in self.images]
        texts = [text for method in chosen for text in method_choices(method)]
        return [Sample(pair, text) for pair in pairs_of(self.images) for text in texts]

    def footer(self, samples: Sequence[Sample], *words: str) -> str:
        untrained = [model.name for model in self.models if not model.trained]
        warning = f"UNTRAINED, so the maps are meaningless: {', '.join(untrained)}." if untrained else ""
        model = f"Model: {self.models[0].name}." if len(self.models) == 1 else ""
        mixed = {sample.method for sample in samples if sample.method is not None}
        method = f"Mixed by {min(mixed)}." if len(mixed) == 1 else ""
        return "  ".join(each for each in (*words, method, model, warning) if each)


def as_rows(
    inputs: FigureInputs,
    samples: Sequence[Sample],
    columns: Callable[[NamedModel, Sample], tuple[Observation, dict[str, Tile]]],
) -> tuple[Section, ...]:
    """A row for every sample and model: the image, and a tile for each column; models with other columns follow."""
    sections: dict[tuple[str, ...], list[TileRow]] = {}
    for sample in samples:
        for model in inputs.models:
            seen, tiles = columns(model, sample)
            label = "\n".join(filter(None, [_method(sample, samples), model.name if len(inputs.models) > 1 else ""]))
            row = TileRow((image_tile(seen, sample), *tiles.values()), label)
            sections.setdefault(("image", *tiles), []).append(row)
    return tuple(Section(heads, tuple(rows), lead=1) for heads, rows in sections.items())


def as_columns(
    inputs: FigureInputs,
    samples: Sequence[Sample],
    tiles_of: Callable[[NamedModel, Sample], tuple[Observation, list[Tile]]],
    parts: Sequence[str],
    *,
    footer: str,
    ends: tuple[str, str] = ("least", "most"),
) -> ImageGrid:
    """The image, then for each model one column per part.

    If a method reads the model, each model has its own image.
    """
    found = [[tiles_of(model, sample) for model in inputs.models] for sample in samples]
    shared = all(torch.equal(seen.pixels, row[0][0].pixels) for row in found for seen, _ in row)
    heads: list[str] = []
    for number, model in enumerate(inputs.models):
        name = model.name if len(inputs.models) > 1 else ""
        if not (shared and number):
            heads.append("image" if shared or not name else f"{name}: image")
        heads += [": ".join(filter(None, (name, part))) for part in parts]
    rows = []
    for sample, row in zip(samples, found, strict=True):
        tiles: list[Tile] = []
        for number, (seen, maps) in enumerate(row):
            tiles += [*([] if shared and number else [image_tile(seen, sample)]), *maps]
        rows.append(TileRow(tuple(tiles), _method(sample, samples)))
    unit = len(parts) + (not shared)
    return ImageGrid((Section(tuple(heads), tuple(rows), lead=int(shared), unit=unit),), footer, "heat", ends)


def _method(sample: Sample, samples: Sequence[Sample]) -> str:
    """The method of a sample, if samples differ in it."""
    return sample.method or "" if len({each.method for each in samples}) > 1 else ""


def image_tile(seen: Observation, sample: Sample) -> Tile:
    if sample.method in (None, "none"):  # other methods say so if they took nothing from the partner
        return Tile(as_pixels(seen.pixels), sample.images[0].name)
    parts = zip(sample.images, (seen.own, seen.partner), strict=True)
    return Tile(as_pixels(seen.pixels), "\n".join(f"{image.name} {part:.0%}" for image, part in parts))


def heat_tile(seen: Observation, values: Tensor) -> Tile:
    return Tile(overlay(seen.pixels, unit_scale(values), "heat"))
