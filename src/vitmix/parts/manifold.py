"""Blending of whole hidden states at a random depth: Manifold Mixup."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from vitmix._checks import as_blocks, check_positive, check_switch
from vitmix._mix import Frame, mix_targets
from vitmix._registry import register
from vitmix.attention.tap import Plan, Tape
from vitmix.parts.base import Actor, HiddenMixing, Values
from vitmix.parts.masks import beta_share

if TYPE_CHECKING:
    from vitmix.attention.readers.base import Reader

__all__ = ["Manifold", "ManifoldOnce", "blended"]


def blended(states: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """The hidden states `(B, ...)` of a batch, `share` (a scalar) of each from its partner."""
    return torch.lerp(states, states[partner], share.to(states.dtype))


@register
@dataclass(frozen=True)
class Manifold(HiddenMixing):
    """Blends all tokens of each sample with those of another, at the pixels or the input of a block: Manifold Mixup.

    The place, the share and the partners, a random permutation, are drawn once per batch.

    Args:
        alpha: the share is drawn from Beta(alpha, alpha).
        blocks: the blocks at whose inputs tokens may be blended (default: the first third of them).
        pixels: whether the images themselves are one of the places.
    """

    name: ClassVar[str] = "manifold"
    moves_tokens: ClassVar[bool] = True
    sets_targets: ClassVar[bool] = True
    alpha: float = 2.0
    blocks: tuple[int, ...] | None = None
    pixels: bool = True

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_switch("pixels", self.pixels)
        if self.blocks is not None:
            found = as_blocks("blocks", self.blocks)
            if found == "all" or not (found or self.pixels):
                raise ValueError(
                    f"blocks must be block numbers such as [0, 1], got {self.blocks!r}; none means the first third"
                )
            object.__setattr__(self, "blocks", found)

    @property
    def block(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The first block whose input is hooked. The targets are mixed there."""
        return min(self.blocks, key=lambda each: (each < 0, each)) if self.blocks else 0

    @property
    def module_name(self) -> str:
        return self.name

    def places(self, depth: int) -> list[int]:
        """The blocks at whose inputs tokens may be blended, in a model of `depth` blocks."""
        blocks = range(max(depth // 3, 1)) if self.blocks is None else (each % depth for each in self.blocks)
        return sorted(set(blocks)) if depth else []

    def plan(self, reader: "Reader") -> Plan:
        for each in self.blocks or ():
            reader.resolve_patches(each)
        return Plan(mixed=frozenset(self.places(reader.patch_depth)) | {_first(self, reader)})

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        depth = len(frame.grids)
        share = beta_share(1, self.alpha, generator=generator)
        places = [*([0] if self.pixels else []), *(1 + each for each in self.places(depth))] or [1]
        chosen = places[int(torch.randint(len(places), (), generator=generator))]
        # One share per place, all but one zero, so that one compiled graph serves every place.
        shares = torch.zeros(max(1 + depth, 2), dtype=torch.float64)
        shares[chosen] = share[0]
        return {"shares": shares.float(), "partner": torch.randperm(frame.batch, generator=generator)}

    def actor(self, reader: "Reader", values: Values, module: nn.Module | None) -> "ManifoldOnce":
        return ManifoldOnce(self, reader, values)


class ManifoldOnce(Actor):
    """Blends one batch. The decision is in the drawn numbers, so a block that runs twice is blended alike."""

    settings: Manifold

    def __init__(self, settings: Manifold, reader: "Reader", values: Values) -> None:
        super().__init__(settings, reader, values)
        self.block = _first(settings, reader)
        self.places: Sequence[int] = settings.places(reader.patch_depth)
        self.incoming: Tensor | None = None

    @property
    def training(self) -> bool:
        """Whether it acts: only if all of its blocks are in training mode, because targets are mixed for all places."""
        return all(self.reader.block(each).module.training for each in {self.block, *self.places})

    def at_images(self, images: Tensor) -> Tensor:
        return self._blended(images, 0) if self.settings.pixels and self.training else images

    def at_input(self, index: int, tokens: Tensor, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if not self.training:
            return tokens
        if index == self.block and self.incoming is None:
            self.incoming = tape.targets
            assert self.incoming is not None
            share = self.values["shares"].sum().expand(len(tokens))
            tape.targets = mix_targets(self.incoming, self.values["partner"], share)
        return self._blended(tokens, 1 + index) if index in self.places else tokens

    def _blended(self, states: Tensor, place: int) -> Tensor:
        return blended(states, self.values["partner"], self.values["shares"][place])


def _first(settings: Manifold, reader: "Reader") -> int:
    return min(settings.places(reader.patch_depth), default=0)
