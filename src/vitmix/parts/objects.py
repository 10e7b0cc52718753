"""A label by how much of each object is visible: OA-CutMix. The objects' masks come with the batch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitmix._checks import check_fraction
from vitmix._mix import Mix
from vitmix._registry import register
from vitmix.parts.base import Evidence, Needs, Share, Shown, Weights
from vitmix.parts.shares import maps_on_mask, visible_mass

__all__ = ["ObjectShare", "object_share"]


def object_share(objects: Tensor, mix: Mix, area: Tensor, *, relative: float = 0.0, blend: float = 1.0) -> Tensor:
    """The partner's part `(B,)` of the visible objects.

    The absolute share divides visible areas; the relative one divides the visible fractions of each object. Where
    nothing is visible, or for the relative share an object is missing, the share is the area's.

    Args:
        objects: `(B, h, w)` object mask of each image, not negative.
        area: `(B,)` the partner's part of the area.
        relative: weight of the relative share; the rest is absolute.
        blend: weight of the object share; the rest is area.
    """
    objects = objects.to(torch.promote_types(objects.dtype, torch.float32)).clamp_min(0)
    mass, inside = maps_on_mask(objects, mix, "object masks")
    own, partner = visible_mass(mass, inside, mix)
    sizes, area = mass.sum(1), area.to(mass.dtype)
    absolute = _divided(partner, own + partner, area)
    fraction, other = _divided(own, sizes, own), _divided(partner, sizes[mix.partner], partner)
    known = (sizes > 0) & (sizes[mix.partner] > 0)
    share = torch.lerp(absolute, torch.where(known, _divided(other, fraction + other, area), area), relative)
    return torch.lerp(area, share, blend)


def _divided(part: Tensor, whole: Tensor, otherwise: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp_min(torch.finfo(whole.dtype).tiny), otherwise)


@register
@dataclass(frozen=True)
class ObjectShare(Share):
    """The partner's part of the visible objects: OA-CutMix. The object masks come with the batch, as `maps`.

    Args:
        relative: weight of the share of visible fractions of each object; the rest is the share of visible pixels.
        blend: weight of the object share; the rest is area.
    """

    name: ClassVar[str] = "object"
    looks_up_partner: ClassVar[bool] = True
    relative: float = 0.0
    blend: float = 1.0

    def __post_init__(self) -> None:
        check_fraction("relative", self.relative)
        check_fraction("blend", self.blend)

    @property
    def needs(self) -> Needs:
        return Needs(maps=True, objects=True)

    def weights(self, evidence: Evidence) -> Weights:
        maps, batch = evidence.maps, evidence.frame.batch
        if maps is None:
            raise ValueError(
                "object shares need the object mask of each image; pass maps=(B, h, w) with the batch, or use area "
                "shares"
            )
        if maps.ndim != 3 or len(maps) != batch:
            raise ValueError(f"maps must be ({batch}, h, w), one object mask per image, got {tuple(maps.shape)}")
        share = object_share(maps, evidence.mix, evidence.area, relative=self.relative, blend=self.blend)
        return Weights(1 - share, share)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        assert evidence.maps is not None
        rows = (("own", 0), ("partner's", int(evidence.mix.partner[0])))
        return tuple(Shown(f"{word} object", evidence.maps[row].clamp_min(0)) for word, row in rows)
