"""Mask and share at work: from unmixed images and labels to mixed images and soft targets, for one drawn mixer."""

import torch
from torch import Tensor

from vitmix._mix import Frame, Mix, label_rows, mix_images
from vitmix._mixer import AnyMixer, Mixer
from vitmix._sampling import Draw
from vitmix.attention.readers import frame_of
from vitmix.attention.tap import Plan, Tape
from vitmix.parts.base import Composed, Evidence, Paste, Unmixed, Weights

__all__ = ["apply_mask", "mix_without_model", "share_targets", "unmixed_rows"]


def mix_without_model(
    mixer: AnyMixer,
    images: Tensor,
    labels: Tensor,
    maps: Tensor | None,
    generator: torch.Generator | None,
    draw: Draw | None,
) -> tuple[Tensor, Tensor]:
    if not mixer.input_only:
        raise ValueError(
            f"{mixer} reads the model, so it cannot be called on images alone; use mixer.attach(model) or Learner"
        )
    frame = frame_of(images, None)
    mixer.check_labels(labels)
    draw = (draw or mixer.draw(frame, generator)).to(images.device)
    chosen = mixer.mixers[draw.choice]
    rows = unmixed_rows(labels, chosen, images, frame)
    mixed, mix = apply_mask(chosen, Unmixed(images, rows, draw.values["partner"], frame), draw)
    values = draw.part("share")
    evidence = Evidence(mix, frame, Tape(Plan()), rows, smoothing=chosen.smoothing, maps=maps, values=values)
    return mixed, share_targets(chosen, evidence)


def unmixed_rows(labels: Tensor, mixer: Mixer, images: Tensor, frame: Frame) -> Tensor:
    rows = label_rows(labels, mixer.num_classes, dtype=frame.dtype).to(images.device)
    if len(rows) != frame.batch:
        raise ValueError(f"there must be one label per image, got {frame.batch} images and {len(rows)} labels")
    return rows


def apply_mask(mixer: Mixer, batch: Unmixed, draw: Draw) -> tuple[Tensor, Mix]:
    placed = mixer.mask.where(draw.part("mask"), batch)
    if not isinstance(placed, Paste | Composed):
        raise ValueError(
            f"`where` of the mask {mixer.mask.name} must return a vitmix.Paste, got {type(placed).__name__}"
        )
    on_tokens = [part.name for part in mixer.inner if part.applies_mask]
    if isinstance(placed, Composed):
        if on_tokens:
            raise ValueError(
                f"{on_tokens[0]} applies the mask to tokens, but a {mixer.mask.name} mask makes the mixed images "
                "itself; use another mask, such as box"
            )
        return placed.images, Mix(batch.partner, placed.mask, rows=placed.rows, moves=placed.moves)
    mix = Mix(batch.partner, placed.mask, placed.source)
    if on_tokens or not mixer.mask.mixes:
        return batch.images, mix
    return mix_images(batch.images, mix.mask, mix.partner, mix.source), mix


def share_targets(mixer: Mixer, evidence: Evidence) -> Tensor:
    weights = mixer.share.weights(evidence)
    if not isinstance(weights, Weights):
        got = type(weights).__name__
        raise ValueError(f"`weights` of the share {mixer.share.name} must return vitmix.Weights, got {got}")
    evidence.tape.label_share = weights.partner
    rows, mix = evidence.rows, evidence.mix
    if mix.rows is None:
        return mixer.share.targets(rows, mix.partner, weights, evidence.smoothing)
    # What is pasted has labels of its own, like a partner in a second half of the batch.
    partner = (torch.arange(len(rows), device=rows.device) + len(rows)).repeat(2)
    twice = Weights(weights.own.repeat(2), weights.partner.repeat(2))
    return mixer.share.targets(torch.cat([rows, mix.rows]), partner, twice, evidence.smoothing)[: len(rows)]
