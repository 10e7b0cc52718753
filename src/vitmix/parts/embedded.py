"""The mask applied to embedded tokens instead of pixels: MixToken."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vitmix._mix import Grid, Mix, mix_images, resample_mask
from vitmix._registry import register
from vitmix.attention.tap import Tape
from vitmix.parts.base import Actor, HiddenMixing, Values

if TYPE_CHECKING:
    from torch import nn

    from vitmix._mixer import Mixer
    from vitmix.attention.readers.base import Reader

__all__ = ["Embedded", "EmbeddedOnce", "mix_embedded", "on_tokens"]


def mix_embedded(tokens: Tensor, mask: Tensor, partner: Tensor, *, prefix: int) -> Tensor:
    """Tokens `(B, prefix + n, d)` with patches of the partner as `mask` `(B or 1, n)` says; a fraction blends."""
    weight = torch.nn.functional.pad(mask.to(tokens.dtype), (prefix, 0)).unsqueeze(2)
    return torch.lerp(tokens, tokens[partner], weight)


def on_tokens(mask: Tensor, grid: Grid) -> Tensor:
    """The mask on a grid of tokens. If cells and tokens do not nest, a token has the value at its center."""
    sides = [mask.shape[1:], grid]
    nested = any(all(big % small == 0 for big, small in zip(a, b, strict=True)) for a, b in (sides, sides[::-1]))
    if nested or tuple(mask.shape[1:]) == (1, 1):
        return resample_mask(mask, grid, rule="area")
    row, column = (
        (2 * torch.arange(tokens, device=mask.device) + 1) * cells // (2 * tokens)
        for cells, tokens in zip(mask.shape[1:], grid, strict=True)
    )
    return mask[:, row][:, :, column]


@register
@dataclass(frozen=True)
class Embedded(HiddenMixing):
    """Applies the mask to the tokens at the input of the first block, and not to pixels: MixToken.

    If patches do not overlap, and the mask has whole tokens, both are the same. If they do (convolutional stems), no
    token sees pixels of both images before the first block.
    """

    name: ClassVar[str] = "embedded"
    applies_mask: ClassVar[bool] = True
    block: ClassVar[int] = 0  # pyright: ignore[reportIncompatibleVariableOverride]

    def conflict(self, mixer: "Mixer") -> str | None:
        mask = mixer.mask
        if not mask.mixes or mask.moves_pixels or mask.moves_cells or not mask.pastes_partner:
            return f"embedded needs a mask that pastes cells of the partner in their places, not {mask.name}; use box"
        return super().conflict(mixer)

    def actor(self, reader: "Reader", values: Values, module: "nn.Module | None") -> "EmbeddedOnce":
        return EmbeddedOnce(self, reader, values)


class EmbeddedOnce(Actor):
    """Applies the mask of one batch. If its block is in evaluation mode, to the images, because targets are mixed."""

    def at_images(self, images: Tensor) -> Tensor:
        if self.training:
            return images
        mix, self.acted = self.mix, True
        assert isinstance(mix, Mix)
        return mix_images(images, mix.mask, mix.partner, mix.source)

    def change(self, tokens: Tensor, tape: Tape) -> Tensor:
        mix, reader = self.mix, self.reader
        assert isinstance(mix, Mix)
        if mix.source is not None:
            raise ValueError("embedded cannot move cells, because tokens know their position; drop it, or use box")
        grid = reader.grids(tape.size)[self.block]
        mask = on_tokens(mix.mask, grid)
        return mix_embedded(tokens, mask.flatten(1), mix.partner, prefix=tokens.shape[1] - mask[0].numel())
