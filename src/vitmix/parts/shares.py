"""How much of the target is the partner's."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from vitmix._checks import as_blocks, check_choice, check_fraction, check_integer, check_switch
from vitmix.attention.readers import Reader
from vitmix.attention.tap import Plan, Tape, recorded
from vitmix.mix import Frame, Mix, mix_targets, resample_mask, smooth_rows


class Weights(NamedTuple):
    """The weight `(B,)` of the own and of the partner's label. They add up to one for every rule but activation."""

    own: Tensor
    partner: Tensor


@dataclass(frozen=True)
class Evidence:
    """What a share policy may look at."""

    mix: Mix
    frame: Frame
    tape: Tape
    reader: Reader | None = None
    maps: Tensor | None = None

    @property
    def model(self) -> Reader:
        assert self.reader is not None
        return self.reader

    @property
    def area(self) -> Tensor:
        return area_share(self.mix.mask, dtype=self.frame.dtype).expand(self.frame.batch)


class Share(Protocol):
    """What a share policy offers.

    `before_forward` says that the weights are known before the model runs; `needs_model` that a model whose attention
    can be read is needed at all.
    """

    name: ClassVar[str]
    before_forward: ClassVar[bool]
    needs_model: ClassVar[bool]

    def plan(self, reader: Reader) -> Plan: ...

    def weights(self, evidence: Evidence) -> Weights: ...

    def targets(self, rows: Tensor, partner: Tensor, weights: Weights, smoothing: float) -> Tensor: ...


# Formulas


def area_share(mask: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The partner's part `(B or 1,)` of the mask's area."""
    return mask.sum((1, 2), dtype=dtype) / (mask.shape[1] * mask.shape[2])


def attention_share(attention: Tensor, token_mask: Tensor) -> Tensor:
    """The partner's part `(B,)` of the attention on patches `(B, n)`, given their masks `(B or 1, n)`."""
    return (attention * token_mask).sum(1) / attention.sum(1)


def align_share(attention: Tensor, share: Tensor, *, normalize: bool = True) -> Tensor:
    """Token shares `(B, N)` after one block, from its attention `(B, H, N, N)`: TL-Align's update."""
    carried = (attention.mean(1) @ share.unsqueeze(-1)).squeeze(-1)
    return (carried + share) / 2 if normalize else carried


def activation_weights(maps: Tensor, mix: Mix) -> Weights:
    """TokenMix's weights: the own map's mass outside the mask and the partner map's mass inside it.

    Args:
        maps: `(B, h, w)` activation of each image's own label. Negative activations count as zero; a map without mass
            contributes zero.
    """
    maps = maps.to(torch.promote_types(maps.dtype, torch.float32)).clamp_min(0)  # 1e-8 is zero in half precision
    grid = (mix.mask.shape[-2], mix.mask.shape[-1])
    size = (maps.shape[-2], maps.shape[-1])
    try:
        if mix.source is not None:
            # The pasted content is cell `source` of the partner, so maps are needed cell by cell.
            maps, size = resample_mask(maps, grid, rule="area"), grid
        inside = resample_mask(mix.mask, size, rule="area", dtype=maps.dtype).flatten(1).to(maps.dtype)
    except ValueError:
        raise ValueError(
            f"activation maps of {size[0]}x{size[1]} cannot be laid over a mask of {grid[0]}x{grid[1]} cells; resize "
            "them so that one divides the other"
        ) from None
    mass = maps.flatten(1)
    mass = mass / (mass.sum(1, keepdim=True) + 1e-8)
    theirs = mass[mix.partner]
    if mix.source is not None:
        theirs = theirs.gather(1, mix.source)
    return Weights((mass * (1 - inside)).sum(1), (theirs * inside).sum(1))


def activation_targets(
    rows: Tensor, partner: Tensor, weights: Weights, *, smoothing: float = 0.0, clamp: bool = True
) -> Tensor:
    """TokenMix's targets `s/K + (own - s/2) e_own + (partner - s/2) e_partner`; rows need not sum to one.

    Entries below zero, possible when a weight is under s/2, are set to zero unless `clamp` is off.
    """
    own, theirs = (weight.to(rows.dtype).unsqueeze(1) - smoothing / 2 for weight in weights)
    targets = smoothing / rows.shape[1] + own * rows + theirs * rows[partner]
    return targets.clamp_min(0) if clamp else targets


# Settings


class _Shared:
    """Targets of the rules whose two weights add up to one."""

    def targets(self, rows: Tensor, partner: Tensor, weights: Weights, smoothing: float) -> Tensor:
        return mix_targets(smooth_rows(rows, smoothing), partner, weights.partner)


@dataclass(frozen=True)
class AreaShare(_Shared):
    """The partner's part of the image's area: MixUp, CutMix."""

    name: ClassVar[str] = "area"
    before_forward: ClassVar[bool] = True
    needs_model: ClassVar[bool] = False

    def plan(self, reader: Reader) -> Plan:
        return Plan()

    def weights(self, evidence: Evidence) -> Weights:
        return _two_sides(evidence.area)


@dataclass(frozen=True)
class AttentionShare(_Shared):
    """The partner's part of the class token's attention in one block: TransMix.

    `blend` is the weight of that attention share; the rest is the area share. Where no class token is read, the column
    mean takes the place of its row.
    """

    name: ClassVar[str] = "attention"
    before_forward: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True
    blend: float = 0.5
    block: int = -1

    def __post_init__(self) -> None:
        check_fraction("blend", self.blend)
        check_integer("block", self.block)

    def plan(self, reader: Reader) -> Plan:
        reader.need_attention("an attention share")
        block = reader.resolve(self.block)
        blocks = frozenset([block])
        return Plan(class_row=blocks) if reader.block(block).class_token else Plan(column_mean=blocks)

    def weights(self, evidence: Evidence) -> Weights:
        mix, tape, model = evidence.mix, evidence.tape, evidence.model
        block = model.resolve(self.block)
        by_class = model.block(block).class_token
        slots, what = (tape.class_row, "class row") if by_class else (tape.column_mean, "column mean")
        attention = recorded(slots, what, block)
        tokens = model.patch_mask(mix.mask, block, evidence.frame.size)
        share = self.blend * attention_share(attention, tokens) + (1 - self.blend) * evidence.area
        return _two_sides(share)


@dataclass(frozen=True)
class AlignedShare(_Shared):
    """The share carried by the attention of every block to what the classifier reads: TL-Align.

    `blocks` limits the alignment to some blocks; the others pass shares on unchanged. Without `normalize` the residual
    connection is ignored: a block's shares are the carried ones alone.
    """

    name: ClassVar[str] = "aligned"
    before_forward: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True
    blocks: tuple[int, ...] | Literal["all"] = "all"
    normalize: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", as_blocks("blocks", self.blocks))
        check_switch("normalize", self.normalize)

    def plan(self, reader: Reader) -> Plan:
        blocks = frozenset(range(reader.depth) if self.blocks == "all" else map(reader.resolve, self.blocks))
        if reader.pooling is not None:  # what the classifier reads is always pooled
            blocks |= {reader.depth}
        return Plan(carry=blocks, residual=self.normalize, final=reader.readout == "sequence")

    def start(self, evidence: Evidence) -> None:
        """Puts the token shares that enter the first block on the tape."""
        tape = evidence.tape
        tape.image_share = evidence.area
        tape.token_share[-1] = evidence.model.start_share(evidence.mix.mask, tape.image_share, evidence.frame.size)

    def weights(self, evidence: Evidence) -> Weights:
        tape, model = evidence.tape, evidence.model
        share = tape.share_before(model.depth + (model.pooling is not None), model)
        return _two_sides(model.read_share(share, tape.final))


@dataclass(frozen=True)
class ActivationShare:
    """The mass of each image's activation map that is visible: TokenMix. The maps come with the batch.

    `empty` says what a map without mass is worth: nothing ("zero"), or its visible area ("area").
    """

    name: ClassVar[str] = "activation"
    before_forward: ClassVar[bool] = True
    needs_model: ClassVar[bool] = False
    clamp: bool = True
    empty: Literal["zero", "area"] = "zero"

    def __post_init__(self) -> None:
        check_switch("clamp", self.clamp)
        check_choice("empty", self.empty, ("zero", "area"))

    def plan(self, reader: Reader) -> Plan:
        return Plan()

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


def _two_sides(share: Tensor) -> Weights:
    return Weights(1 - share, share)
