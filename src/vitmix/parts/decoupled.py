"""A loss that keeps the two classes of a mixed image from competing: DecoupleMix."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vitmix._checks import check_not_negative, check_switch
from vitmix._registry import register
from vitmix.parts.base import Evidence, ExtraLoss, Needs

if TYPE_CHECKING:
    from vitmix._mixer import Mixer

__all__ = ["DecoupledLoss", "decoupled_loss"]

UNMIXED = 1e-3  # a smaller part of either image does not count as mixed


def decoupled_loss(logits: Tensor, own: Tensor, partner: Tensor, share: Tensor, *, scaled: bool = False) -> Tensor:
    """Mean over the batch of `-log(p_a / (1 - p_b)) - log(p_b / (1 - p_a))`; a is the original class, b the partner's.

    Each term is the cross-entropy of one class against all classes but the other. Samples with equal classes, or with
    nearly all of the share on one side, contribute zero.

    Args:
        own, partner: `(B,)` classes.
        share: `(B,)` the partner's part of the target.
        scaled: weights the first term by `1 - share` and the second by `share`.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    share = share.to(logits.dtype)
    differ = own != partner
    terms = [
        _without(logits, other, differ).logsumexp(1) - logits.gather(1, kept.unsqueeze(1)).squeeze(1)
        for kept, other in ((own, partner), (partner, own))
    ]
    total = (1 - share) * terms[0] + share * terms[1] if scaled else terms[0] + terms[1]
    mixed = differ & (share >= UNMIXED) & (share <= 1 - UNMIXED)
    return torch.where(mixed, total, 0).mean()


def _without(logits: Tensor, classes: Tensor, differ: Tensor) -> Tensor:
    columns = torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill((columns == classes.unsqueeze(1)) & differ.unsqueeze(1), float("-inf"))


@register
@dataclass(frozen=True)
class DecoupledLoss(ExtraLoss):
    """The decoupled regularizer of DecoupleMix: each class of a mixed image against all classes but the other.

    Args:
        weight: weight relative to the main loss (the paper's eta).
        scaled: weights the two terms by the two parts of the target.
    """

    name: ClassVar[str] = "decoupled"
    uses_partner: ClassVar[bool] = True
    weight: float = 0.1
    scaled: bool = False

    def __post_init__(self) -> None:
        check_not_negative("weight", self.weight)
        check_switch("scaled", self.scaled)

    @property
    def needs(self) -> Needs:
        return Needs(one_label=True, one_class=True)

    def conflict(self, mixer: "Mixer") -> str | None:
        movers = [part.name for part in mixer.inner if part.sets_targets]
        if movers:
            return (
                f"the decoupled loss knows two classes per image, but {movers[0]} mixes in more; use one or the other"
            )
        return super().conflict(mixer)

    def value(self, logits: Tensor, targets: Tensor, evidence: Evidence) -> Tensor:
        rows, partner = evidence.rows, evidence.mix.partner
        if rows.device.type == "cpu" and not torch.compiler.is_compiling() and bool((rows.amax(1) < 1 - 1e-3).any()):
            raise ValueError("the decoupled loss needs one class per image, got soft label rows; give class indices")
        classes = rows.argmax(1)
        return decoupled_loss(logits, classes, classes[partner], evidence.share, scaled=self.scaled)
