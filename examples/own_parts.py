"""A new combination needs no new code; a new mask needs one function and one settings object.

python examples/own_parts.py
"""

from dataclasses import dataclass
from typing import ClassVar

import timm
import torch
from torch import Tensor

import vitmix
from vitmix.parts.masks import Region, Values


def stripe_mask(first: Tensor, width: int, grid: tuple[int, int]) -> Tensor:
    """Masks `(b, rows, columns)` bool of a band of whole rows that starts at row `first` `(b,)`."""
    row = torch.arange(grid[0], device=first.device)
    band = (row >= first.unsqueeze(1)) & (row < first.unsqueeze(1) + width)
    return band.unsqueeze(2).expand(-1, *grid)


@dataclass(frozen=True)
class StripeMask:
    """Whole rows of tokens from the partner."""

    name: ClassVar[str] = "stripe"
    guide_blocks: ClassVar[None] = None
    width: int = 2

    def draw(self, frame: vitmix.Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        assert frame.grid is not None
        return {"first": torch.randint(frame.grid[0] - self.width + 1, (frame.batch,), generator=generator)}

    def region(self, values: Values, frame: vitmix.Frame, partner: Tensor, scores: Tensor | None) -> Region:
        assert frame.grid is not None
        return stripe_mask(values["first"], self.width, frame.grid), None


torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=48, depth=4, num_classes=10)
images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
for mixer in (
    vitmix.create("mix(mask=scattered(share=0.3), share=aligned) + region", num_classes=10),
    vitmix.Mixer(10, mask=StripeMask(width=3), share=vitmix.AlignedShare(), extra=(vitmix.Consistency(),)),
):
    output = vitmix.Learner(model, mixer)(images, labels)
    output.loss.backward()
    print(f"{output.loss:.3f}", mixer)
