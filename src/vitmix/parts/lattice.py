"""Square holes on a regular grid: GridMix."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitmix._checks import check_count, check_positive
from vitmix._mix import Frame, Grid
from vitmix._registry import register
from vitmix.parts.base import Mask, Paste, Unmixed, Values
from vitmix.parts.masks import beta_share

__all__ = ["LatticeMask", "lattice_mask"]


def lattice_mask(
    size: Grid, share: float, *, holes: int, area: float, aspect: float, place: tuple[float, float]
) -> Tensor:
    """A mask `(H, W)` bool of holes in the top left corner of each patch of a crop.

    Args:
        share: the partner's part of each patch, before rounding.
        holes: patches per crop width.
        area: the crop's part of the image; `aspect` is its height divided by its width.
        place: position of the crop, (x, y) in 0..1.
    """
    height, width = size
    crop_width = math.floor(math.sqrt(math.floor(height * width * area) / aspect))
    crop_height = min(math.floor(crop_width * aspect), height)
    crop_width = min(crop_width, width)
    left, top = math.floor((width - crop_width) * place[0]), math.floor((height - crop_height) * place[1])
    patch = max(math.ceil(crop_width / holes), 1)
    hole = min(max(math.floor(patch * math.sqrt(share)), 1), max(patch - 1, 1))
    mask = np.zeros(size, dtype=bool)
    rows = (np.arange(crop_height) % patch) < hole
    columns = (np.arange(crop_width) % patch) < hole
    mask[top : top + crop_height, left : left + crop_width] = rows[:, None] & columns
    return torch.from_numpy(mask)


@register
@dataclass(frozen=True)
class LatticeMask(Mask):
    """Square holes at equal distances inside a random crop: GridMix.

    Args:
        alpha: parameter of the Beta distribution of the holes' part of the crop; 1 is uniform.
        least, most: range of the number of holes per crop width.
    """

    name: ClassVar[str] = "lattice"
    alpha: float = 1.0
    least: int = 2
    most: int = 6

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_count("least", self.least)
        check_count("most", self.most)
        if self.least > self.most:
            raise ValueError(f"least must not exceed most, got {self.least} and {self.most}")

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        share = float(beta_share(1, self.alpha, generator=generator))
        holes = int(torch.randint(self.least, self.most + 1, (), generator=generator))
        area, aspect, x, y = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        crop = dict(area=0.5 + area / 2, aspect=0.5 + 1.5 * aspect)
        return {"mask": lattice_mask(frame.size, share, holes=holes, place=(x, y), **crop).unsqueeze(0)}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(values["mask"])
