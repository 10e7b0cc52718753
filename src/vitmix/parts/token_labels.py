"""A label for every token, from a teacher's maps: token labeling (LV-ViT). The maps come with the batch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from vitmix._checks import check_not_negative
from vitmix._mix import Mix, smooth_rows
from vitmix._registry import register
from vitmix.attention.tap import Plan
from vitmix.parts.base import Evidence, ExtraLoss, Needs
from vitmix.parts.losses import sample_cross_entropy

if TYPE_CHECKING:
    from vitmix._mixer import Mixer
    from vitmix.attention.readers.base import Reader

__all__ = ["TokenLabelLoss", "mixed_token_labels"]


def mixed_token_labels(labels: Tensor, token_share: Tensor, mix: Mix) -> Tensor:
    """Labels `(B, n, K)` of mixed tokens, from labels `(B, n, K)` of the unmixed ones.

    A token of the partner has the partner's label at the cell that it shows; a token with pixels of both has a blend.

    Args:
        token_share: `(B or 1, n)` the partner's part of each token.
    """
    theirs = labels[mix.partner]
    if mix.source is not None:
        theirs = theirs.gather(1, mix.source.unsqueeze(2).expand(-1, -1, labels.shape[2]))
    return torch.lerp(labels, theirs, token_share.to(labels.dtype).unsqueeze(2))


@register
@dataclass(frozen=True)
class TokenLabelLoss(ExtraLoss):
    """Every final patch token predicts a teacher's label at its cell, with a linear head of its own: token labeling.

    The maps `(B, K, rows, columns)` of probabilities on the model's final grid come with the batch, as `maps`.

    Args:
        weight: weight relative to the main loss.
    """

    name: ClassVar[str] = "tokens"
    uses_partner: ClassVar[bool] = True
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_not_negative("weight", self.weight)

    @property
    def needs(self) -> Needs:
        return Needs(model=True, label_maps=True)

    def plan(self, reader: "Reader") -> Plan:
        return Plan(final=True)

    @property
    def module_name(self) -> str:
        return "token_label_head"

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module:
        assert reader is not None
        return nn.Linear(reader.width, num_classes)

    def conflict(self, mixer: "Mixer") -> str | None:
        movers = [part.name for part in mixer.inner if part.moves_tokens]
        movers += [mixer.mask.name] if mixer.mask.moves_pixels else []
        if movers:
            return f"token labels belong to cells of the image, but {movers[0]} moves tokens or pixels; drop one"
        return super().conflict(mixer)

    def value(self, logits: Tensor, targets: Tensor, evidence: Evidence) -> Tensor:
        reader, head = evidence.model, evidence.module
        assert head is not None
        tokens = evidence.final_tokens[:, reader.prefix :]
        labels = smooth_rows(self._labels(evidence, tokens.shape[1]).flatten(0, 1), evidence.smoothing)
        labels = mixed_token_labels(labels.unflatten(0, tokens.shape[:2]), evidence.final_share, evidence.mix)
        return sample_cross_entropy(head(tokens), labels).mean()

    def _labels(self, evidence: Evidence, count: int) -> Tensor:
        """The labels `(B, n, K)` of the unmixed tokens."""
        maps, (batch, classes) = evidence.maps, evidence.rows.shape
        if maps is None:
            raise ValueError(
                "token labels need a teacher's maps; pass maps=(B, K, rows, columns) of probabilities on the model's "
                "final grid with the batch"
            )
        if maps.ndim != 4 or maps.shape[:2] != (batch, classes) or maps.shape[2] * maps.shape[3] != count:
            grid = evidence.model.grids(evidence.frame.size)[evidence.model.patch_depth - 1]
            raise ValueError(
                f"maps must be ({batch}, {classes}, {grid[0]}, {grid[1]}), probabilities of each class for each final "
                f"token, got {tuple(maps.shape)}"
            )
        return maps.to(evidence.rows.dtype).flatten(2).transpose(1, 2)
