"""A label rule with a prior of where objects usually are: a region at the center counts more than one in a corner."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from vitmix._checks import check_choice, check_fraction, check_integer, check_positive, check_switch
from vitmix._mix import Grid
from vitmix._registry import register
from vitmix.attention.tap import Plan, recorded
from vitmix.parts.base import Evidence, Needs, Share, Shown, Weights
from vitmix.parts.shares import AlignedShare

if TYPE_CHECKING:
    from vitmix.attention.readers.base import Reader

__all__ = ["PriorShare", "gaussian_prior", "prior_share"]

SIDE = 16  # of a learned prior, for any grid of the model
ALIGNED = AlignedShare()

# Formulas


def gaussian_prior(grid: Grid, *, width: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """A Gaussian `(rows, columns)` around the image center, at cell centers; `width` is a fraction of the side."""
    places = [(torch.arange(count, dtype=torch.float64) + 0.5) / count - 0.5 for count in grid]
    rows, columns = (torch.exp(-place.square() / (2 * width**2)) for place in places)
    return (rows[:, None] * columns).to(dtype)


def prior_share(mask: Tensor, own: Tensor, partner: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """The partner's part `(B,)` of the visible cells, weighted by the prior probability of an object in each cell.

    If all visible cells have weight zero, the area is used.

    Args:
        mask: `(B or 1, n)`, the partner's part of each cell.
        own: `(n,)` prior of each cell, not negative.
        partner: `(B or 1, n)` prior of each cell at its source position in the partner.
        weight: `(B, n)` evidence of each image, such as attention, multiplied with the priors.
    """
    theirs, ours = mask * partner, (1 - mask) * own
    if weight is not None:
        theirs, ours = theirs * weight, ours * weight
    theirs, ours = theirs.sum(1), ours.sum(1)
    return _divided(theirs, theirs + ours, mask.mean(1).expand(len(theirs)))


def shift_odds(share: Tensor, evidence: Tensor, base: Tensor) -> Tensor:
    """A share with its odds multiplied by the odds of `evidence` divided by those of `base`; 0 and 1 do not change."""
    partner, own = share * evidence * (1 - base), (1 - share) * (1 - evidence) * base
    return _divided(partner, partner + own, share)


def _divided(part: Tensor, whole: Tensor, otherwise: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp_min(torch.finfo(whole.dtype).tiny), otherwise)


# Settings


class LearnedPrior(nn.Module):
    """The moving average of a model's saliency per position. It starts uniform, so that shares are areas."""

    prior: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prior", torch.ones(SIDE, SIDE))

    def update(self, saliency: Tensor, momentum: float) -> None:
        """Moves the average towards the mean of saliency `(B, rows, columns)`, scaled to a mean of one."""
        mean = saliency.detach().float().mean(0)
        mean = nn.functional.interpolate((mean / mean.mean())[None, None], (SIDE, SIDE), mode="area")[0, 0]
        self.prior.lerp_(mean.to(self.prior.dtype), 1 - momentum)


@register
@dataclass(frozen=True)
class PriorShare(Share):
    """The partner's part of the area, weighted by where objects usually are. It needs no model unless it learns.

    Args:
        width: standard deviation of a Gaussian around the center, as a fraction of the image's side.
        map: rows of numbers that replace the Gaussian, such as the mean object mask, resized to the image.
        learned: replaces both by the moving average of the model's saliency (class row or column mean).
        momentum: momentum of that average.
        times: evidence of each image, multiplied with the prior: "attention" on each patch, or "aligned" shares, whose
            odds relative to the area multiply those of the prior; "area" means the prior alone.
        block: whose attention is read.
    """

    name: ClassVar[str] = "prior"
    looks_up_partner: ClassVar[bool] = True
    width: float = 0.25
    map: tuple[tuple[float, ...], ...] | None = None
    learned: bool = False
    momentum: float = 0.99
    times: Literal["area", "attention", "aligned"] = "area"
    block: int = -1

    def __post_init__(self) -> None:
        check_positive("width", self.width)
        object.__setattr__(self, "map", _as_map(self.map))
        check_switch("learned", self.learned)
        check_fraction("momentum", self.momentum)
        check_choice("times", self.times, ("area", "attention", "aligned"))
        check_integer("block", self.block)

    @property
    def before_forward(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.learned and self.times == "area"

    @property
    def needs(self) -> Needs:
        return Needs(model=not self.before_forward)

    def plan(self, reader: "Reader") -> Plan:
        plan = ALIGNED.plan(reader) if self.times == "aligned" else Plan()
        if not self._reads_attention:
            return plan
        reader.need_attention("a prior share that is learned or multiplied with attention")
        return plan | Plan(saliency=frozenset([reader.resolve(self.block)]))

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module | None:
        return LearnedPrior() if self.learned else None

    def start(self, evidence: Evidence) -> None:
        if self.times == "aligned":
            ALIGNED.start(evidence)

    def weights(self, evidence: Evidence) -> Weights:
        saliency = self._saliency(evidence) if self._reads_attention else None
        if self.times == "attention":
            assert saliency is not None
            share = self._share_of_tokens(evidence, saliency)
        else:
            share = self._share_of_cells(evidence)
        if self.times == "aligned":
            share = shift_odds(share, ALIGNED.weights(evidence).partner.to(share.dtype), evidence.area)
        if isinstance(evidence.module, LearnedPrior) and saliency is not None:
            # After use, so that a label depends on earlier batches only.
            evidence.module.update(saliency.unflatten(1, self._grid(evidence)), self.momentum)
        share = share.expand(evidence.frame.batch)
        return Weights(1 - share, share)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        return (Shown("prior", self._prior(evidence, (SIDE, SIDE))),)

    @property
    def _reads_attention(self) -> bool:
        return self.learned or self.times == "attention"

    def _share_of_cells(self, evidence: Evidence) -> Tensor:
        mix = evidence.mix
        own = self._prior(evidence, (mix.mask.shape[1], mix.mask.shape[2])).flatten()
        partner = own.unsqueeze(0) if mix.source is None else own[mix.source]
        return prior_share(mix.mask.flatten(1).to(own.dtype), own, partner)

    def _share_of_tokens(self, evidence: Evidence, saliency: Tensor) -> Tensor:
        mix, size = evidence.mix, evidence.frame.size
        block = evidence.model.resolve(self.block)
        own = self._prior(evidence, self._grid(evidence)).flatten()
        partner = own.unsqueeze(0)
        if mix.source is not None:
            grid = (mix.mask.shape[1], mix.mask.shape[2])
            moved = self._prior(evidence, grid).flatten()[mix.source].unflatten(1, grid)
            partner = evidence.model.patch_mask(moved, block, size)
        mask = evidence.model.patch_mask(mix.mask, block, size).to(own.dtype)
        return prior_share(mask, own, partner, weight=saliency.to(own.dtype))

    def _saliency(self, evidence: Evidence) -> Tensor:
        return recorded(evidence.tape.saliency, "attention", evidence.model.resolve(self.block))

    def _grid(self, evidence: Evidence) -> Grid:
        return evidence.model.grids(evidence.frame.size)[evidence.model.resolve(self.block)]

    def _prior(self, evidence: Evidence, grid: Grid) -> Tensor:
        dtype, device = evidence.frame.dtype, evidence.mix.mask.device
        if isinstance(evidence.module, LearnedPrior):
            return _stretched(evidence.module.prior, grid).to(dtype)
        if self.map is not None:
            return _stretched(torch.tensor(self.map), grid).to(device, dtype)
        return gaussian_prior(grid, width=self.width, dtype=dtype).to(device)


def _stretched(prior: Tensor, grid: Grid) -> Tensor:
    return nn.functional.interpolate(prior[None, None], grid, mode="bilinear", align_corners=False)[0, 0]


def _as_map(rows: object) -> tuple[tuple[float, ...], ...] | None:
    """Rows of numbers as tuples. Raises an error for anything else."""
    if rows is None:
        return None
    try:
        found = torch.as_tensor(rows, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if found.ndim != 2 or found.numel() == 0 or not (found.isfinite() & (found >= 0)).all() or not found.any():
        raise ValueError(
            f"map must be rows of equal length with non-negative numbers, not all zero, got {str(rows)[:60]}"
        )
    return tuple(tuple(row) for row in found.tolist())
