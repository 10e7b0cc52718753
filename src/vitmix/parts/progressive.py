"""MixPro: a mask of large cells (MaskMix), and a label that trusts attention as the prediction improves."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from vitmix._checks import check_count, check_grid, check_integer, check_positive, check_switch
from vitmix._mix import Frame, Grid
from vitmix._registry import register
from vitmix.attention.tap import Plan, recorded
from vitmix.parts.base import Evidence, Mask, Needs, Paste, Share, Shown, Unmixed, Values, Weights
from vitmix.parts.masks import beta_share, token_grid
from vitmix.parts.shares import AttentionShare, attention_share

if TYPE_CHECKING:
    from vitmix.attention.readers.base import Reader

__all__ = ["CellMask", "ProgressiveShare", "cell_mask", "progressive_share"]


def cell_mask(order: Tensor, own: int, grid: Grid, tokens: int) -> Tensor:
    """Masks `(B, rows, columns)` bool on the token `grid`: all but the first `own` cells of each `order` `(B, cells)`.

    A cell has `tokens` x `tokens` tokens; the last ones are cut at the border.
    """
    shape = [math.ceil(side / tokens) for side in grid]
    cells = (order.argsort(1) >= own).view(-1, *shape)
    return cells.repeat_interleave(tokens, 1).repeat_interleave(tokens, 2)[:, : grid[0], : grid[1]]


def progressive_share(attention: Tensor, area: Tensor, targets: Tensor, logits: Tensor) -> Tensor:
    """MixPro's share `(B,)`: from the area's to attention's, by the cosine of area targets and predictions.

    Args:
        attention, area: the partner's part `(B,)` of attention and area.
        targets: soft targets `(B, K)` by area.
        logits: `(B, K)` of the mixed images; they are constants.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    similarity = functional.cosine_similarity(targets.to(exact), logits.detach().to(exact).softmax(1), dim=1)
    return torch.lerp(area.to(exact), attention.to(exact), similarity)


@register
@dataclass(frozen=True)
class CellMask(Mask):
    """Large square cells of tokens at random positions, drawn for each image: MaskMix.

    Args:
        alpha: the original part of the cells, rounded up, is drawn from Beta(alpha, alpha) once per batch.
        tokens: tokens per side of a cell.
        clamp: keeps at least one cell of each image.
        grid: rows and columns of tokens (default: the attached model's).
    """

    name: ClassVar[str] = "cells"
    alpha: float = 1.0
    tokens: int = 4
    clamp: bool = True
    grid: Grid | None = None

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_count("tokens", self.tokens)
        check_switch("clamp", self.clamp)
        check_grid("grid", self.grid)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        grid = token_grid("a mask of cells", self.grid, frame)
        count = math.prod(math.ceil(side / self.tokens) for side in grid)
        own = math.ceil(float(beta_share(1, self.alpha, generator=generator)) * count)
        if self.clamp:
            own = min(max(own, 1), max(count - 1, 1))
        order = torch.rand(frame.batch, count, generator=generator).argsort(1)
        return {"mask": cell_mask(order, own, grid, self.tokens)}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(values["mask"])


@register
@dataclass(frozen=True)
class ProgressiveShare(Share):
    """Between the partner's part of area and of class attention, by how well the prediction fits the labels: MixPro.

    Args:
        block: whose attention is read. If the classifier reads no class token, the column mean replaces its row.
    """

    name: ClassVar[str] = "progressive"
    before_forward: ClassVar[bool] = False
    block: int = -1

    def __post_init__(self) -> None:
        check_integer("block", self.block)

    @property
    def needs(self) -> Needs:
        return Needs(model=True, one_label=True)

    def plan(self, reader: "Reader") -> Plan:
        return AttentionShare(block=self.block).plan(reader) | Plan(logits=True)

    def weights(self, evidence: Evidence) -> Weights:
        mix, model, area = evidence.mix, evidence.model, evidence.area
        block = model.resolve(self.block)
        tokens = model.patch_mask(mix.mask, block, evidence.frame.size)
        attention = attention_share(recorded(evidence.tape.saliency, "attention", block), tokens)
        theirs = evidence.smooth_rows[mix.partner] if mix.rows is None else mix.rows
        targets = torch.lerp(evidence.smooth_rows, theirs, area.unsqueeze(1))
        share = progressive_share(attention, area, targets, evidence.logits).to(evidence.frame.dtype)
        return Weights(1 - share, share)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        return AttentionShare(block=self.block).shown(evidence)
