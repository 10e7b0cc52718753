"""A label by a guide's attention on the unmixed images: TdAttenMix."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitmix._checks import as_blocks, check_fraction
from vitmix._mix import Mix
from vitmix._registry import register
from vitmix.parts.base import Blocks, Evidence, Needs, Share, Shown, Weights
from vitmix.parts.shares import maps_on_mask, visible_mass

__all__ = ["GuidedShare", "guided_share"]


def guided_share(scores: Tensor, mix: Mix, area: Tensor, *, blend: float = 0.5) -> Tensor:
    """The partner's part `(B,)` of the visible attention, blended with the area.

    Visible are the image's scores outside the mask and the partner's at the cells that are pasted. If both are zero,
    the area is used.

    Args:
        scores: `(B, h, w)` a guide's attention on the unmixed images, not negative.
        area: `(B,)` the partner's part of the area.
        blend: weight of the attention share.
    """
    mass, inside = maps_on_mask(scores, mix, "attention scores")
    own, partner = visible_mass(mass, inside, mix)
    area, total = area.to(mass.dtype), own + partner
    share = torch.where(total > 0, partner / total.clamp_min(torch.finfo(total.dtype).tiny), area)
    return torch.lerp(area, share, blend)


@register
@dataclass(frozen=True)
class GuidedShare(Share):
    """The partner's part of the guide's attention on what is visible of both unmixed images: TdAttenMix.

    Args:
        blend: weight of the attention share; the rest is area.
        blocks: whose attention scores are averaged, numbers or "all".
    """

    name: ClassVar[str] = "guided"
    looks_up_partner: ClassVar[bool] = True
    blend: float = 0.5
    blocks: Blocks = (-1,)

    def __post_init__(self) -> None:
        check_fraction("blend", self.blend)
        object.__setattr__(self, "blocks", as_blocks("blocks", self.blocks))
        if not self.blocks:
            raise ValueError("blocks must name at least one block, such as [-1]")

    @property
    def needs(self) -> Needs:
        return Needs(model=True, guide_blocks=self.blocks)

    def weights(self, evidence: Evidence) -> Weights:
        scores = evidence.guidance.scores
        assert scores is not None
        share = guided_share(scores, evidence.mix, evidence.area, blend=self.blend).to(evidence.frame.dtype)
        return Weights(1 - share, share)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        scores, partner = evidence.guidance.scores, int(evidence.mix.partner[0])
        assert scores is not None
        return Shown("own attention", scores[0]), Shown("partner's attention", scores[partner])
