"""How wrong a label rule is, measured where the truth is known: on images whose object masks are given."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitmix.mix import Mix, expand_mask, mix_images
from vitmix.mixer import AnyMixer
from vitmix.mixing import Evaluating, Mixing
from vitmix.shares import Weights
from vitmix.tap import Plan, Recorder, Tape


@dataclass(frozen=True)
class LabelError:
    """How far a rule's shares lie from the visible object shares, over `pairs` mixed images.

    `error` is the mean absolute difference, `bias` the mean signed one (positive: the partner gets too much).
    """

    error: float
    bias: float
    pairs: int


def visible_share(objects: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """The true share `(B,)`: visible partner object over visible objects, in pixels; and where it is defined `(B,)`.

    Args:
        objects: `(B, H, W)` bool, where the object is in each unmixed image.
    """
    shown = objects.unsqueeze(1).to(torch.float64)
    mask = expand_mask(mix.mask, (objects.shape[1], objects.shape[2])).to(torch.float64)
    both = mix_images(shown, mix.mask.to(torch.float64), mix.partner, mix.source).sum((1, 2, 3))
    own = ((1 - mask) * shown.squeeze(1)).sum((1, 2))
    return (both - own) / both.clamp_min(1e-12), both > 1e-9


def assigned_share(weights: Weights) -> Tensor:
    """The partner's part `(B,)` of a rule's two weights; half where both are zero."""
    total = weights.own + weights.partner
    return torch.where(total > 0, weights.partner / total.clamp_min(1e-12), 0.5)


def activation_maps(model: nn.Module, mixing: Mixing, images: Tensor, labels: Tensor) -> Tensor:
    """Maps `(B, rows, columns)` of each image's label: the classifier applied to every final token of a model."""
    reader = mixing.reader
    assert reader is not None
    recorder = Recorder(reader, plan := Plan(final=True))
    recorder.tape = tape = Tape(plan)
    try:
        model(images)
    finally:
        recorder.remove()
    assert tape.final is not None
    patches = tape.final[:, reader.prefix :]
    logits = reader.classify(patches.flatten(0, 1)).unflatten(0, patches.shape[:2])
    picked = logits[torch.arange(len(labels)), :, labels]
    return picked.view(len(images), *reader.grids((images.shape[2], images.shape[3]))[-1])


@torch.no_grad()
def label_error(
    model: nn.Module,
    rules: Mapping[str, AnyMixer],
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    *,
    seed: int = 0,
) -> dict[str, LabelError]:
    """The label error of each rule on the same images, with the model in evaluation mode.

    Rules with the same mask and pairing see the same mixed images, so that their errors can be compared pair by pair.
    Activation shares use maps of the model itself.

    Args:
        batches: (images, labels, objects) with objects `(B, H, W)` bool.
    """
    gathered: dict[str, list[Tensor]] = {name: [] for name in rules}
    with ExitStack() as stack:
        stack.enter_context(Evaluating(model))
        attached = {name: stack.enter_context(rule.attach(model, seed=seed, rank=0)) for name, rule in rules.items()}
        for images, labels, objects in batches:
            for name, mixing in attached.items():
                needs_maps = any(mixer.share.name == "activation" for mixer in mixing.mixer.mixers)
                maps = activation_maps(model, mixing, images, labels) if needs_maps else None
                batch = mixing.mix(images, labels, maps=maps)
                model(batch.images)
                given = assigned_share(batch.mixer.share.weights(mixing.evidence(batch)))
                mixing.targets(batch)
                true, counted = visible_share(objects, batch.mix)
                gathered[name].append((given.to(true.dtype) - true)[counted])
    results = {}
    for name, parts in gathered.items():
        difference = torch.cat(parts) if parts else torch.empty(0)
        if not len(difference):
            raise ValueError(f"no mixed pair of {name!r} shows any object; give batches with object masks")
        results[name] = LabelError(float(difference.abs().mean()), float(difference.mean()), len(difference))
    return results
