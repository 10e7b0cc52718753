"""RecursiveMix: the mixed batch of the previous step, reduced into a box, and a loss that recognizes it there."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from vitmix._checks import check_choice, check_fraction, check_not_negative
from vitmix._mix import Frame
from vitmix._registry import register
from vitmix.attention.tap import Plan
from vitmix.parts.base import Composed, Evidence, ExtraLoss, Mask, Needs, Unmixed, Values
from vitmix.parts.losses import sample_cross_entropy
from vitmix.parts.maps import pooled_boxes
from vitmix.parts.masks import box_mask, draw_boxes
from vitmix.parts.resized import Interpolation, paste_resized, resize_weights

if TYPE_CHECKING:
    from vitmix._mixer import Mixer
    from vitmix.attention.readers.base import Reader

__all__ = ["History", "HistoryLoss", "HistoryMask", "history_loss", "pooled_box"]

SHARED = "history"  # name of the module that the mask and the loss share


class History(nn.Module):
    """The mixed images, labels and logits of the previous step, and the classifier of the box, if there is a loss.

    State dicts hold the tensors, empty before the first step, so that a resumed training continues. They are not
    buffers: each process has its own, and data parallelism would send the first one's to all.
    """

    per_process: ClassVar[tuple[str, ...]] = ("images", "rows", "logits")

    def __init__(self, head: nn.Linear | None = None) -> None:
        super().__init__()
        self.head = head
        self.images: Tensor | None = None
        self.rows: Tensor | None = None
        self.logits: Tensor | None = None
        self.pasted: tuple[Tensor, Tensor] | None = None  # box and old logits of the current step

    def fits(self, images: Tensor) -> bool:
        """Whether the previous batch has at least as many images, of the same kind."""
        old = self.images
        return (
            old is not None
            and len(old) >= len(images)
            and (old.shape[1:], old.dtype) == (images.shape[1:], images.dtype)
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self.per_process:
            value = getattr(self, name)
            destination[prefix + name] = torch.empty(0) if value is None else value

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        keys = [prefix + name for name in self.per_process]
        found = {key: state_dict.get(key) for key in keys}  # none in a state dict of an earlier version
        kept = [value if value is not None and value.numel() else None for value in found.values()]
        if len({len(value) for value in kept if value is not None}) > 1:
            error_msgs.append(f"the tensors of {prefix}images, rows and logits must be of one batch")
            return
        self.images, self.rows, self.logits = kept
        rest = {key: value for key, value in state_dict.items() if key not in found}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)


def pooled_box(features: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """The mean `(B, C)` of feature maps `(B, C, h, w)` over a `box` `(1, 4)` of pixels of images of `size`.

    Bilinear samples, as many as the box has cells (RoI align).
    """
    top, bottom, left, right = box[0].to(features.dtype).unbind()
    down, along = features.shape[2] / size[0], features.shape[3] / size[1]
    corners = torch.stack([left * along, top * down, right * along, bottom * down])
    return pooled_boxes(features, corners.expand(len(features), 4), (1, 1), aligned=True).flatten(1)


def history_loss(box_logits: Tensor, old_logits: Tensor, share: Tensor) -> Tensor:
    """RecursiveMix's consistency: `share` times the cross-entropy of the box with the old prediction."""
    exact = torch.promote_types(old_logits.dtype, torch.float32)
    return (share * sample_cross_entropy(box_logits, old_logits.detach().to(exact).softmax(1))).mean()


@register
@dataclass(frozen=True)
class HistoryMask(Mask):
    """The whole mixed image of the previous step at the same place in the batch, reduced into a box: RecursiveMix.

    The first batch, and one that is larger than the one before, is not mixed.

    Args:
        most: the area is drawn from 0 to this part of the image, once per batch.
        interpolation: "nearest", as in the authors' code, or "bilinear" with a low-pass filter.
    """

    name: ClassVar[str] = "history"
    moves_pixels: ClassVar[bool] = True
    pastes_partner: ClassVar[bool] = False
    most: float = 0.5
    interpolation: Interpolation = "nearest"

    def __post_init__(self) -> None:
        check_fraction("most", self.most)
        check_choice("interpolation", self.interpolation, ("nearest", "bilinear"))

    @property
    def module_name(self) -> str:
        return SHARED

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module:
        return History()

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        share = self.most * torch.rand(1, generator=generator, dtype=torch.float64)
        return self.values(frame, draw_boxes(frame.size, share, generator=generator))

    def values(self, frame: Frame, box: Tensor) -> dict[str, Tensor]:
        """The numbers of a batch from its box `(1, 4)`."""
        top, bottom, left, right = box[0].tolist()
        sides = [(max(bottom - top, 1), frame.size[0]), (max(right - left, 1), frame.size[1])]
        rows, columns = (resize_weights(n, side, n / side, self.interpolation).float() for n, side in sides)
        return {"box": box, "rows": rows, "columns": columns}

    def where(self, values: Values, batch: Unmixed) -> Composed:
        history, images, box = batch.module, batch.images, values["box"]
        if not isinstance(history, History):
            raise ValueError("a history mask keeps the previous batch; attach the mixer to a model, or use a Learner")
        mask = box_mask(box, batch.frame.size)
        mixed, rows, old = images, batch.rows, batch.rows
        history.pasted = None
        if history.fits(images):
            assert history.images is not None and history.rows is not None
            before = history.images[: len(images)].to(images.device)  # on the host after loading
            sides = values["rows"], values["columns"]
            nearest = self.interpolation == "nearest"
            mixed = paste_resized(images, before, box.expand(len(images), 4), sides, nearest=nearest)
            old = history.rows[: len(images)].to(rows)
            rows = torch.lerp(rows, old, mask.to(rows.dtype).mean())
            if history.logits is not None:
                history.pasted = (box, history.logits[: len(images)].to(images.device))
        else:
            mask = torch.zeros_like(mask)
        history.images, history.rows, history.logits = mixed.detach(), rows, None
        return Composed(mask, mixed, old)


@register
@dataclass(frozen=True)
class HistoryLoss(ExtraLoss):
    """The tokens of the box predict what the model predicted for the pasted image: RecursiveMix.

    Args:
        weight: weight relative to the main loss (0.1 on CIFAR, 0.5 on ImageNet in the paper).
    """

    name: ClassVar[str] = "recognize"
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_not_negative("weight", self.weight)

    @property
    def needs(self) -> Needs:
        return Needs(model=True, one_label=True)

    def plan(self, reader: "Reader") -> Plan:
        return Plan(final=True)

    @property
    def module_name(self) -> str:
        return SHARED

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module:
        assert reader is not None
        return History(nn.Linear(reader.width, num_classes))

    def conflict(self, mixer: "Mixer") -> str | None:
        if mixer.mask.name != HistoryMask.name:
            return f"recognize needs a history mask, which pastes the previous batch, not {mixer.mask.name}"
        return None

    def value(self, logits: Tensor, targets: Tensor, evidence: Evidence) -> Tensor:
        history, reader = evidence.module, evidence.model
        assert isinstance(history, History) and history.head is not None
        history.logits = logits.detach()
        if history.pasted is None:
            return 0.0 * logits.float().mean()
        box, old = history.pasted
        tokens = evidence.final_tokens[:, reader.prefix :]
        tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        grid = reader.grids(evidence.frame.size)[reader.patch_depth - 1]
        features = tokens.transpose(1, 2).unflatten(2, grid)
        head = history.head
        pooled = pooled_box(features, box, evidence.frame.size).to(head.weight.dtype)
        return history_loss(head(pooled), old, evidence.area)
