"""The partner's most salient cells: Attentive CutMix."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitmix._checks import as_blocks, check_choice, check_count, check_positive
from vitmix._mix import Frame
from vitmix._registry import register
from vitmix.parts.base import Blocks, Evidence, Guidance, Mask, Needs, Paste, Shown, Unmixed, Values
from vitmix.parts.masks import beta_share

__all__ = ["TopCellsMask", "top_cells"]


def top_cells(scores: Tensor, count: Tensor) -> Tensor:
    """Masks `(B, rows, columns)` bool of the `count` `(B or 1,)` cells with the highest scores; the first if tied."""
    rank = scores.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (rank < count.unsqueeze(1)).view(scores.shape)


@register
@dataclass(frozen=True)
class TopCellsMask(Mask):
    """The partner's most salient cells, pasted at their positions: Attentive CutMix.

    The guide's grid must divide the images.

    Args:
        alpha: the part of the cells is drawn from Beta(alpha, alpha), once per batch, and is at least one cell.
        cells: a fixed number of cells instead.
        scores: the guide's "attention" (received by each patch, on the model's grid), or the channel mean of its final
            "features", on the guide's grid.
        blocks: whose attention is averaged, numbers or "all".
    """

    name: ClassVar[str] = "top_cells"
    alpha: float = 2.0
    cells: int | None = None
    scores: Literal["attention", "features"] = "attention"
    blocks: Blocks = (-1,)

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        if self.cells is not None:
            check_count("cells", self.cells)
        check_choice("scores", self.scores, ("attention", "features"))
        object.__setattr__(self, "blocks", as_blocks("blocks", self.blocks))
        if not self.blocks:
            raise ValueError("blocks must name at least one block, such as [-1]")

    @property
    def needs(self) -> Needs:
        if self.scores == "features":
            return Needs(guide_features=True)
        return Needs(model=True, guide_blocks=self.blocks)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        if frame.no_grid and self.scores == "attention":  # cells of the image would be no patches
            raise ValueError(f"a mask of the top cells is drawn on the model's tokens: {frame.no_grid}")
        return {"share": beta_share(1, self.alpha, generator=generator).float()}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        scores = _scores(self, batch.guidance)[batch.partner]
        most = scores.shape[1] * scores.shape[2]
        count = (
            (values["share"] * most).floor().long()
            if self.cells is None
            else torch.full_like(batch.partner[:1], self.cells)
        )
        return Paste(top_cells(scores, count.clamp(1, most)))

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        scores, partner = _scores(self, evidence.guidance), int(evidence.mix.partner[0])
        return (Shown(f"partner's {self.scores}", scores[partner]),)


def _scores(mask: TopCellsMask, guidance: Guidance) -> Tensor:
    scores = guidance.scores if mask.scores == "attention" else guidance.features
    assert scores is not None
    return scores
