"""The guide pass: a forward pass on the unmixed images, before mixing, for methods that look at them first."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._mix import Frame, Grid
from vitmix._mixer import Mixer
from vitmix.attention.readers import Reader, logits_of, unwrap
from vitmix.attention.summaries import forget_casts
from vitmix.attention.tap import Plan, Recorder, Tape, recorded
from vitmix.parts.base import Guidance
from vitmix.parts.losses import sample_cross_entropy

__all__ = ["Evaluating", "GuidePass", "guide_plan", "logits_and_gradient"]


@dataclass
class GuidePass:
    """How a guide is run for each mixer of a switch.

    Attributes:
        model: the guide; the trained model itself unless `separate`.
        plans: what is recorded for each of the mixers; None for those that need no guide pass.
        gaze: a network that is told the labels and says where the objects are, instead of the guide's attention.
        recorder: the hooks on the guide, shared with the trained model unless `separate`.
    """

    model: nn.Module
    reader: Reader | None
    mixers: tuple[Mixer, ...]
    plans: tuple[Plan | None, ...]
    separate: bool
    gaze: nn.Module | None = None
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        self._plain = unwrap(self.model)
        self._observers = [self.reader and each.mask.observer(self.reader) for each in self.mixers]

    def check(self, size: Grid) -> None:
        """Raises an error if the guide does not support the image size."""
        if self.separate and self.reader is not None:
            try:
                self.reader.grids(size)
            except ValueError as problem:
                raise ValueError(f"the guide does not support these images: {problem}") from None

    def run(self, images: Tensor, rows: Tensor, frame: Frame, choice: int) -> Guidance:
        """What one mixer of a switch needs to know about the unmixed images."""
        mixer, plan = self.mixers[choice], self.plans[choice]
        if plan is None:
            return Guidance()
        self.check(frame.size)
        observed = self._observe(images, choice)
        reader, tape, needs = self.reader, Tape(plan), mixer.needs
        if self.recorder is not None:
            self.recorder.tape = tape
        logits = gradient = None
        with torch.no_grad(), Evaluating(self._plain):
            if needs.guide_gradient:
                logits, gradient = logits_and_gradient(self.model, images, rows)
            elif needs.guide_logits or needs.guide_features:
                logits = logits_of(self.model(images))
            elif plan.column_mean:
                assert reader is not None
                reader.stop_after(max(plan.column_mean), images)
        forget_casts()
        tape.close()
        other = self.separate and needs.guide_logits
        if logits is not None and other and logits.shape[-1] != mixer.num_classes:
            raise ValueError(
                f"the guide has {logits.shape[-1]} classes and the method {mixer.num_classes}; use a guide with the "
                "same classes"
            )
        features = _channel_mean(tape, reader, frame.size) if plan.final and reader is not None else None
        if self.gaze is not None and needs.guide_blocks is not None:
            return Guidance(self._gaze(images, rows, frame), logits, gradient, features, observed)
        if not plan.column_mean:
            return Guidance(None, logits, gradient, features, observed)
        assert reader is not None
        grids, final = reader.grids(frame.size), frame.final_grid
        assert final is not None
        scores = [
            _fit_scores(recorded(tape.column_mean, "column mean", block).view(-1, *grids[block]), final)
            for block in sorted(plan.column_mean)
        ]
        return Guidance(torch.stack(scores).mean(0), logits, gradient, features, observed)

    def _gaze(self, images: Tensor, rows: Tensor, frame: Frame) -> Tensor:
        """What the gaze network returns, on the model's grid."""
        gaze: Any = self.gaze
        assert frame.final_grid is not None
        with torch.no_grad(), Evaluating(gaze):
            scores = gaze.gaze(images, rows)
        forget_casts()
        return _fit_scores(scores, frame.final_grid)

    def _observe(self, images: Tensor, choice: int) -> Tensor | None:
        """What the mask's own observer of the guide returns; nothing is recorded meanwhile."""
        observer = self._observers[choice]
        if observer is None:
            return None
        if self.recorder is not None:
            self.recorder.tape = None
        with torch.no_grad(), Evaluating(self._plain):
            observed = observer(images)
        forget_casts()
        return observed


def guide_plan(mixer: Mixer, reader: Reader | None, *, gazes: bool = False) -> Plan | None:
    """What to record of the guide for a mixer; None if it needs no guide pass. With a gaze network, no attention."""
    needs = mixer.needs
    blocks = needs.guide_blocks
    if not needs.guide:
        return None
    features = Plan(final=needs.guide_features)
    if needs.guide_features and reader is not None and isinstance(reader.final_module, nn.LayerNorm):
        raise ValueError(
            f"the channel mean of this {reader.name}'s features is constant, because they are normalized; use "
            "attention, or a convolutional guide, attach(model, guide=...)"
        )
    if reader is None or blocks is None or gazes:
        return features
    asking = next(part.name for part in mixer.parts if part.needs.guide_blocks is not None)
    reader.need_attention(asking, "use a guide with attention, attach(model, guide=...)")
    if blocks == "all":
        blocks = tuple(range(reader.patch_depth))
    return features | Plan(column_mean=frozenset(map(reader.resolve_patches, blocks)))


def logits_and_gradient(model: nn.Module, images: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of the cross-entropy per pixel `(B, H, W)`, as the root mean square over channels."""
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        logits = logits_of(model(images))
        if logits.shape != rows.shape:
            raise ValueError(
                f"the gradient of a loss needs logits of shape {tuple(rows.shape)}, got {tuple(logits.shape)}; use a "
                "guide with the method's classes, or check num_classes"
            )
        (gradient,) = torch.autograd.grad(sample_cross_entropy(logits, rows).sum(), images)
    return logits.detach(), gradient.square().mean(1).sqrt()


def _channel_mean(tape: Tape, reader: Reader, size: Grid) -> Tensor:
    """The channel mean `(B, rows, columns)` of the final patch tokens."""
    assert tape.final is not None
    return tape.final[:, reader.prefix :].mean(2).unflatten(1, reader.grids(size)[reader.patch_depth - 1])


def _fit_scores(scores: Tensor, grid: Grid) -> Tensor:
    """Scores `(B, h, w)` of a block or a guide with another token grid, resampled by area."""
    if (scores.shape[1], scores.shape[2]) == grid:
        return scores
    return nn.functional.interpolate(scores.unsqueeze(1), grid, mode="area").squeeze(1)


class Evaluating:
    """A context of evaluation mode. Afterwards every module gets its previous mode back, also frozen ones.

    This is a class, because older versions of `torch.compile` cannot trace a generator.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modes = [(module, module.training) for module in model.modules()]

    def __enter__(self) -> None:
        for module, _ in self.modes:
            module.training = False

    def __exit__(self, *error: object) -> None:
        for module, training in self.modes:
            module.training = training
