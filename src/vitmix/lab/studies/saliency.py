"""How sharp saliency maps are, attention and gradient: total variation, variance (TokenMixup supplement, table 2)."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitmix._guide import Evaluating
from vitmix.attention.readers import read_model
from vitmix.lab.figures.attention import block_attention
from vitmix.lab.figures.gradient import gradient_saliency
from vitmix.lab.runs import Table

from .estimates import spread
from .pairs import ImageBatch

STUDY = "saliency sharpness"
MEASURES = ("TV, L1", "TV, L2", "variance")


def sharpness(maps: Tensor) -> Tensor:
    """Total variation in L1 and L2 and the variance `(B, 3)` of maps `(B, h, w)`, each normalized to sum to one.

    Differences beyond the last row and column are zero.
    """
    maps = maps / maps.sum((1, 2), keepdim=True).clamp_min(1e-30)
    down = nn.functional.pad(maps.diff(dim=1), (0, 0, 0, 1))
    right = nn.functional.pad(maps.diff(dim=2), (0, 1))
    along = down.abs() + right.abs()
    across = (down.square() + right.square()).sqrt()
    return torch.stack([along.sum((1, 2)), across.sum((1, 2)), maps.flatten(1).var(1, correction=0)], 1)


@torch.no_grad()
def sharpness_study(model: nn.Module, batches: Iterable[ImageBatch]) -> Table:
    """Sharpness of each block's attention saliency, and of the gradient's on the same grid, on unmixed images."""
    reader = read_model(model)
    reader.need_attention(STUDY)
    found: dict[tuple[str, str], list[Tensor]] = {}
    with Evaluating(model):
        for images, labels, *_ in batches:
            attention = block_attention(model, images, range(reader.patch_depth))
            for block, maps in attention.items():
                found.setdefault((str(block), "attention"), []).append(sharpness(maps.double()).cpu())
            gradient = gradient_saliency(model, images, labels.tolist()).unsqueeze(1)
            for grid in dict.fromkeys((maps.shape[1], maps.shape[2]) for maps in attention.values()):
                coarse = nn.functional.interpolate(gradient, grid, mode="area").squeeze(1).double()
                felt = coarse.sum((1, 2)) > 0  # a model can be so confident that the gradient is zero
                found.setdefault((f"grid {grid[0]}x{grid[1]}", "gradient"), []).append(sharpness(coarse)[felt].cpu())
    if not found:
        raise ValueError(f"{STUDY} needs images; give some")
    ordered = sorted(found.items(), key=lambda each: each[0][1] == "gradient")
    rows = []
    for names, parts in ordered:
        if not len(values := torch.cat(parts)):
            raise ValueError(
                f"{STUDY} found no image whose loss has a gradient; use data that the model was not trained on"
            )
        columns = values.unbind(1)
        rows.append((names, {measure: spread(column) for measure, column in zip(MEASURES, columns, strict=True)}))
    word = reader.block(0).saliency_name
    notes = (
        f"Maps sum to one. Attention: {word} of a block. Gradient: its length over the channels, averaged over each "
        "patch; images without a gradient are not counted. Only numbers on one grid can be compared.",
    )
    return Table("Sharpness of saliency", ("block", "saliency"), rows, notes)
