"""Shares: the partner's part of the target."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from vitmix._checks import as_blocks, check_choice, check_fraction, check_integer, check_switch
from vitmix._mix import Mix, resample_mask
from vitmix._registry import register
from vitmix.attention.tap import Plan, recorded
from vitmix.parts.base import Evidence, Needs, Share, Shown, Weights, on_grid

if TYPE_CHECKING:
    from vitmix.attention.readers.base import Reader

__all__ = [
    "ActivationShare",
    "AlignedShare",
    "AreaShare",
    "AttentionShare",
    "activation_targets",
    "activation_weights",
    "align_share",
    "attention_share",
    "maps_on_mask",
    "visible_mass",
]

# Formulas


def attention_share(attention: Tensor, token_mask: Tensor) -> Tensor:
    """The partner's part `(B,)` of the attention on patches `(B, n)`, given their masks `(B or 1, n)`."""
    return (attention * token_mask).sum(1) / attention.sum(1)


def align_share(attention: Tensor, share: Tensor, *, normalize: bool = True) -> Tensor:
    """Token shares `(B, N)` after one block, from its attention `(B, H, N, N)`: TL-Align's update."""
    carried = (attention.mean(1) @ share.unsqueeze(-1)).squeeze(-1)
    return (carried + share) / 2 if normalize else carried


def maps_on_mask(maps: Tensor, mix: Mix, what: str = "activation maps") -> tuple[Tensor, Tensor]:
    """Maps `(B, n)` and the mask `(B or 1, n)` on a common grid."""
    grid = (mix.mask.shape[-2], mix.mask.shape[-1])
    size = (maps.shape[-2], maps.shape[-1])
    try:
        if mix.source is not None:
            # The pasted content is cell `source` of the partner, so maps must have the grid of the mask.
            maps, size = resample_mask(maps, grid, rule="area"), grid
        inside = resample_mask(mix.mask, size, rule="area", dtype=maps.dtype).flatten(1).to(maps.dtype)
    except ValueError:
        raise ValueError(
            f"{what} of {size[0]}x{size[1]} do not fit a mask of {grid[0]}x{grid[1]} cells; resize them so that one "
            "size divides the other"
        ) from None
    return maps.flatten(1), inside


def visible_mass(mass: Tensor, inside: Tensor, mix: Mix) -> Weights:
    """The sum of each image's `mass` `(B, n)` outside the mask, and of the partner's mass inside it."""
    theirs = mass[mix.partner]
    if mix.source is not None:
        theirs = theirs.gather(1, mix.source)
    return Weights((mass * (1 - inside)).sum(1), (theirs * inside).sum(1))


def activation_weights(maps: Tensor, mix: Mix) -> Weights:
    """TokenMix's weights: the mass of the image's map outside the mask, and of the partner's map inside it.

    Args:
        maps: `(B, h, w)` activation for the label of each image. Negative activations count as zero; a map without mass
            contributes zero.
    """
    maps = maps.to(torch.promote_types(maps.dtype, torch.float32)).clamp_min(0)  # 1e-8 is zero in half precision
    mass, inside = maps_on_mask(maps, mix)
    return visible_mass(mass / (mass.sum(1, keepdim=True) + 1e-8), inside, mix)


def activation_targets(
    rows: Tensor, partner: Tensor, weights: Weights, *, smoothing: float = 0.0, clamp: bool = True
) -> Tensor:
    """TokenMix's targets `s/K + (own - s/2) e_own + (partner - s/2) e_partner`; rows need not sum to one.

    Negative entries, possible if a weight is below s/2, are set to zero unless `clamp` is False.
    """
    own, theirs = (weight.to(rows.dtype).unsqueeze(1) - smoothing / 2 for weight in weights)
    targets = smoothing / rows.shape[1] + own * rows + theirs * rows[partner]
    return targets.clamp_min(0) if clamp else targets


# Settings


@register
@dataclass(frozen=True)
class AreaShare(Share):
    """The partner's part of the image's area: MixUp, CutMix."""

    name: ClassVar[str] = "area"

    def weights(self, evidence: Evidence) -> Weights:
        return _two_sides(evidence.area)


@register
@dataclass(frozen=True)
class AttentionShare(Share):
    """The partner's part of the class token's attention in one block: TransMix.

    Args:
        blend: weight of the attention share; the rest is the area share.
        block: whose attention is read. If the classifier reads no class token, the column mean replaces its row.
    """

    name: ClassVar[str] = "attention"
    before_forward: ClassVar[bool] = False
    blend: float = 0.5
    block: int = -1

    def __post_init__(self) -> None:
        check_fraction("blend", self.blend)
        check_integer("block", self.block)

    @property
    def needs(self) -> Needs:
        return Needs(model=True)

    def plan(self, reader: "Reader") -> Plan:
        reader.need_attention("an attention share")
        return Plan(saliency=frozenset([reader.resolve(self.block)]))

    def weights(self, evidence: Evidence) -> Weights:
        mix, tape, model = evidence.mix, evidence.tape, evidence.model
        block = model.resolve(self.block)
        attention = recorded(tape.saliency, "attention", block)
        tokens = model.patch_mask(mix.mask, block, evidence.frame.size)
        share = self.blend * attention_share(attention, tokens) + (1 - self.blend) * evidence.area
        return _two_sides(share)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        model = evidence.model
        block = model.resolve(self.block)
        grid = model.grids(evidence.frame.size)[block]
        return (Shown(model.block(block).saliency_name, on_grid(evidence.tape.saliency[block][0], grid)),)


@register
@dataclass(frozen=True)
class AlignedShare(Share):
    """The share that the attention of every block carries to what the classifier reads: TL-Align.

    Args:
        blocks: aligns at these blocks only; the others do not change shares.
        normalize: averages the shares that attention carries with those of the residual connection. If False, the
            residual is ignored.
    """

    name: ClassVar[str] = "aligned"
    before_forward: ClassVar[bool] = False
    blocks: tuple[int, ...] | Literal["all"] = "all"
    normalize: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", as_blocks("blocks", self.blocks))
        check_switch("normalize", self.normalize)

    @property
    def needs(self) -> Needs:
        return Needs(model=True)

    def plan(self, reader: "Reader") -> Plan:
        blocks = frozenset(range(reader.depth) if self.blocks == "all" else map(reader.resolve, self.blocks))
        if reader.pooling is not None:  # the classifier always reads a pooled value
            blocks |= {reader.depth}
        return Plan(carry=blocks, residual=self.normalize, final=reader.readout == "sequence")

    def start(self, evidence: Evidence) -> None:
        """Writes the token shares at the input of the first block to the tape."""
        tape = evidence.tape
        tape.image_share = evidence.area
        tape.token_share[-1] = evidence.model.start_share(evidence.mix.mask, tape.image_share, evidence.frame.size)

    def weights(self, evidence: Evidence) -> Weights:
        tape, model = evidence.tape, evidence.model
        share = tape.share_before(model.depth + (model.pooling is not None), model)
        return _two_sides(model.read_share(share, tape.final))

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        grids, shares = evidence.model.grids(evidence.frame.size), evidence.tape.token_share
        last = max(block for block in shares if block < len(grids))  # tokens may be pooled after it
        return (Shown("carried share", on_grid(shares[last][0], grids[last]), "share"),) if last >= 0 else ()


@register
@dataclass(frozen=True)
class ActivationShare(Share):
    """The visible mass of each image's activation map: TokenMix. The maps come with the batch.

    Args:
        clamp: sets negative targets, which smoothing can cause, to zero.
        empty: the weight of a map without mass: "zero", or its visible area ("area").
    """

    name: ClassVar[str] = "activation"
    looks_up_partner: ClassVar[bool] = True
    clamp: bool = True
    empty: Literal["zero", "area"] = "zero"

    def __post_init__(self) -> None:
        check_switch("clamp", self.clamp)
        check_choice("empty", self.empty, ("zero", "area"))

    @property
    def needs(self) -> Needs:
        return Needs(maps=True, one_label=True)

    def weights(self, evidence: Evidence) -> Weights:
        maps, mix, batch = evidence.maps, evidence.mix, evidence.frame.batch
        if maps is None:
            raise ValueError(
                "activation shares need the activation map of each image's label; pass maps=(B, h, w) with the batch, "
                "or use area shares"
            )
        if maps.ndim != 3 or len(maps) != batch:
            raise ValueError(f"maps must be ({batch}, h, w), one per image, got {tuple(maps.shape)}")
        weights = activation_weights(maps, mix)
        if self.empty == "zero":
            return weights
        area = evidence.area.to(weights.own.dtype)
        blank = maps.clamp_min(0).flatten(1).sum(1) <= 0
        own = torch.where(blank, 1 - area, weights.own)
        return Weights(own, torch.where(blank[mix.partner], area, weights.partner))

    def targets(self, rows: Tensor, partner: Tensor, weights: Weights, smoothing: float) -> Tensor:
        return activation_targets(rows, partner, weights, smoothing=smoothing, clamp=self.clamp)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        assert evidence.maps is not None
        rows = (("own", 0), ("partner's", int(evidence.mix.partner[0])))
        return tuple(Shown(f"{word} activation", evidence.maps[row].clamp_min(0)) for word, row in rows)


def _two_sides(share: Tensor) -> Weights:
    return Weights(1 - share, share)
