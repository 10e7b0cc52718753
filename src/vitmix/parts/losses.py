"""Losses as pure functions of tensors, and the extra losses with their settings.

Losses are computed in at least float32 and averaged over the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitmix._checks import check_choice, check_not_negative
from vitmix._registry import register
from vitmix.attention.tap import Plan
from vitmix.parts.base import Evidence, ExtraLoss, Needs

if TYPE_CHECKING:
    from vitmix._mixer import Mixer
    from vitmix.attention.readers.base import Reader

__all__ = [
    "ConsistencyLoss",
    "RegionLoss",
    "consistency_loss",
    "region_loss",
    "region_means",
    "sample_cross_entropy",
    "soft_bce",
    "soft_cross_entropy",
]


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the batch of `-sum_k targets * log_softmax(logits)`."""
    return sample_cross_entropy(logits, targets).mean()


def sample_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy `(B,)` of each sample with its soft target."""
    logits = _at_least_float(logits)
    return -(targets.to(logits.dtype) * logits.log_softmax(-1)).sum(-1)


def soft_bce(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each class with its soft target, mean over batch and classes.

    Targets are clipped at one: with activation shares, two images of the same class can add up to more than one, and
    the loss of such a target has no minimum.
    """
    logits = _at_least_float(logits)
    return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype).clamp_max(1))


def main_loss(kind: Literal["ce", "bce"] | None) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss function of logits and targets that `Mixer.loss` names."""
    return soft_bce if kind == "bce" else soft_cross_entropy


def region_means(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the patch tokens `(B, n, d)` outside and inside the mask `(B or 1, n)`; zeros if a region is empty."""
    inside = mask.to(tokens.dtype)

    def mean(weight: Tensor) -> Tensor:
        total = weight.sum(1, keepdim=True)
        return (weight.unsqueeze(2) * tokens).sum(1) / total.clamp_min(torch.finfo(weight.dtype).tiny)

    return mean(1 - inside), mean(inside)


def region_loss(own_logits: Tensor, partner_logits: Tensor, rows: Tensor, partner: Tensor, mask: Tensor) -> Tensor:
    """SMMix's fine-grained loss: half the sum of the cross-entropies of the original and the partner's region.

    A region without tokens (`mask` `(B or 1, n)` full or empty) contributes zero.
    """
    inside = mask.to(_at_least_float(own_logits).dtype)
    own = sample_cross_entropy(own_logits, rows) * ((1 - inside).sum(1) > 0)
    theirs = sample_cross_entropy(partner_logits, rows[partner]) * (inside.sum(1) > 0)
    return (own + theirs).mean() / 2


def consistency_loss(
    logits: Tensor, clean_logits: Tensor, partner: Tensor, share: Tensor, *, average: str = "logits"
) -> Tensor:
    """SMMix's consistency: KL from the mixed prediction to the averaged predictions on the unmixed images.

    `clean_logits` are constants. `average`: average the "logits" before the softmax (the authors' code) or the
    "probabilities" after it (the paper's text).
    """
    check_choice("average", average, ("logits", "probabilities"))
    logits = _at_least_float(logits)
    clean = clean_logits.detach().to(logits.dtype)
    share = share.to(logits.dtype).unsqueeze(1)
    if average == "logits":
        expected = torch.lerp(clean, clean[partner], share).log_softmax(1)
    else:
        mixed = torch.lerp(clean.softmax(1), clean.softmax(1)[partner], share)
        expected = mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log()
    return functional.kl_div(logits.log_softmax(1), expected, reduction="batchmean", log_target=True)


def _at_least_float(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@register
@dataclass(frozen=True)
class RegionLoss(ExtraLoss):
    """The fine-grained loss of SMMix: the tokens of each region predict that region's class.

    Args:
        weight: weight relative to the main loss.
        head: "shared" classifies the mean tokens of the regions with the model's classifier, "separate" with an added
            linear layer.
    """

    name: ClassVar[str] = "region"
    uses_partner: ClassVar[bool] = True
    weight: float = 1.0
    head: Literal["shared", "separate"] = "shared"

    def __post_init__(self) -> None:
        check_not_negative("weight", self.weight)
        check_choice("head", self.head, ("shared", "separate"))

    @property
    def needs(self) -> Needs:
        return Needs(model=True, one_label=True)

    def plan(self, reader: "Reader") -> Plan:
        return Plan(final=True)

    @property
    def module_name(self) -> str:
        return "token_head"

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module | None:
        assert reader is not None
        return nn.Linear(reader.width, num_classes) if self.head == "separate" else None

    def conflict(self, mixer: "Mixer") -> str | None:
        movers = [part.name for part in mixer.inner if part.moves_tokens]
        if not movers:
            return super().conflict(mixer)
        return f"the region loss labels tokens by the input mask, but {movers[0]} moves tokens; use one or the other"

    def value(self, logits: Tensor, targets: Tensor, evidence: Evidence) -> Tensor:
        reader, mask = evidence.model, evidence.final_share
        own, theirs = region_means(evidence.final_tokens[:, reader.prefix :], mask)
        head = reader.classify if self.head == "shared" else evidence.module
        assert head is not None
        return region_loss(head(own), head(theirs), evidence.smooth_rows, evidence.mix.partner, mask)


@register
@dataclass(frozen=True)
class ConsistencyLoss(ExtraLoss):
    """The consistency loss of SMMix: KL to the averaged predictions on the unmixed images.

    Args:
        weight: weight relative to the main loss.
        average: average "logits", as in the authors' code, or "probabilities", as in the paper's text.
        by: weights of the average: the "area" of both images, or the "label", their parts of the target.
    """

    name: ClassVar[str] = "consistency"
    uses_partner: ClassVar[bool] = True
    weight: float = 1.0
    average: Literal["logits", "probabilities"] = "logits"
    by: Literal["area", "label"] = "area"

    def __post_init__(self) -> None:
        check_not_negative("weight", self.weight)
        check_choice("average", self.average, ("logits", "probabilities"))
        check_choice("by", self.by, ("area", "label"))

    @property
    def needs(self) -> Needs:
        return Needs(guide_logits=True, one_label=True)

    def value(self, logits: Tensor, targets: Tensor, evidence: Evidence) -> Tensor:
        clean = evidence.guidance.logits
        assert clean is not None
        share = evidence.area if self.by == "area" else evidence.share
        return consistency_loss(logits, clean, evidence.mix.partner, share, average=self.average)
