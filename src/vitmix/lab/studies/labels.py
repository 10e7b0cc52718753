"""How wrong a label rule is, measured where the truth is known: on images whose object masks are given."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._guide import Evaluating
from vitmix._mix import Mix, expand_mask, mix_images
from vitmix._mixer import AnyMixer
from vitmix.lab.runs import Estimate, Row, Table
from vitmix.parts.shares import AreaShare, Weights

from .estimates import Gathered, spread
from .pairs import ImageBatch, activation_maps, need_masks, need_objects, needs_maps

STUDY = "label error"
CUTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # edges of the classes of how much object is out of sight
RULES = {
    "CutMix box, area": "cutmix",
    "CutMix box, attention (TransMix)": "transmix",
    "CutMix box, attention alone": "transmix(blend=1.0)",
    "CutMix box, aligned (TL-Align)": "tl_align",
    "CutMix box, activation (TokenMix)": "mix(mask=box, share=activation)",
    "blocks, area (TokenMix)": "tokenmix",
    "blocks, aligned": "mix(mask=block, share=aligned)",
    "blocks, activation (TokenMix)": "tokenmix(label=activation)",
    "salient window, area (SMMix)": "mix(mask=salient_box)",
    "salient window, attention": "mix(mask=salient_box, share=attention)",
    "salient window, aligned": "mix(mask=salient_box, share=aligned)",
    "salient window, activation": "mix(mask=salient_box, share=activation)",
}


@dataclass(frozen=True)
class LabelError:
    """How far a rule's shares lie from the visible object shares, over `pairs` mixed images.

    `error` is the mean absolute difference, `bias` the mean signed one (positive: the partner gets too much),
    `by_cut` the absolute difference where that much of the two objects is out of sight, `to_area` the absolute
    difference less that of the area on the same mixed images, where a rule of the same mask and pairing has it.
    """

    error: float
    bias: float
    pairs: int
    differences: Tensor = field(repr=False)
    by_cut: dict[str, Estimate]
    couples: Tensor = field(repr=False)
    to_area: Tensor | None = field(default=None, repr=False)


def visible_share(objects: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """The true share `(B,)`: visible partner object over visible objects, in pixels; and where it is defined `(B,)`.

    Args:
        objects: `(B, H, W)` bool, where the object is in each unmixed image.
    """
    own, theirs = visible_pixels(objects, mix)
    both = own + theirs
    return theirs / both.clamp_min(1e-12), both > 1e-9


def visible_pixels(objects: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """How many pixels `(B,)` of the own and of the partner's object a mixed image shows."""
    shown = objects.unsqueeze(1).to(torch.float64)
    mask = expand_mask(mix.mask, (objects.shape[1], objects.shape[2])).to(torch.float64)
    both = mix_images(shown, mix.mask.to(torch.float64), mix.partner, mix.source).sum((1, 2, 3))
    own = ((1 - mask) * shown.squeeze(1)).sum((1, 2))
    return own, both - own


def cut_share(objects: Tensor, mix: Mix) -> Tensor:
    """The part `(B,)` of both objects that the mixed image does not show; 0 where there is no object at all."""
    size = objects.sum((1, 2), dtype=torch.float64)
    total = size + size[mix.partner]
    own, theirs = visible_pixels(objects, mix)
    return torch.where(total > 0, 1 - (own + theirs) / total.clamp_min(1), 0.0).clamp(0, 1)


def assigned_share(weights: Weights, area: Tensor) -> Tensor:
    """The partner's part `(B,)` of a rule's two weights; that of the area where the rule gives neither anything."""
    total = weights.own + weights.partner
    return torch.where(total > 0, weights.partner / total.clamp_min(1e-12), area.to(total.dtype))


def by_cut(differences: Tensor, cuts: Tensor, couples: Tensor, edges: Sequence[float] = CUTS) -> dict[str, Estimate]:
    """Absolute differences in classes of how much was cut; a class without a pair is left out."""
    found = {}
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (cuts >= low) & ((cuts <= high) if high == edges[-1] else (cuts < high))
        if inside.any():
            found[f"{low:.0%} to {high:.0%}"] = spread(differences[inside].abs(), couples[inside])
    return found


@torch.no_grad()
def label_error(
    model: nn.Module,
    rules: Mapping[str, AnyMixer],
    batches: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    *,
    seed: int = 0,
) -> dict[str, LabelError]:
    """The label error of each rule on the same images, with the model in evaluation mode.

    Rules with the same mask and pairing see the same mixed images, so that their errors can be compared pair by pair.
    Activation shares use maps of the model itself.

    Args:
        batches: (images, labels, objects) with objects `(B, H, W)` bool.
    """
    for rule in rules.values():
        need_masks(rule, study=STUDY)
    gathered = {name: Gathered() for name in rules}
    with ExitStack() as stack:
        stack.enter_context(Evaluating(model))
        attached = {
            name: stack.enter_context(rule.attach(model, seed=seed, rank=0, step=0)) for name, rule in rules.items()
        }
        for images, labels, objects in batches:
            objects = need_objects(objects, STUDY)
            maps = None
            for name, mixing in attached.items():
                if maps is None and needs_maps(mixing.mixer):
                    maps = activation_maps(model, mixing, images, labels)
                batch = mixing.mix(images, labels, maps=maps)
                if not batch.mixer.share.before_forward:
                    model(batch.images)
                evidence = mixing.evidence(batch)
                given = assigned_share(batch.mixer.share.weights(evidence), evidence.area)
                mixing.targets(batch)
                true, visible = visible_share(objects, batch.mix)
                values = {"difference": given.to(true.dtype) - true, "cut": cut_share(objects, batch.mix)}
                gathered[name].add(values, batch, visible)
    results: dict[str, LabelError] = {}
    for name, found in gathered.items():
        if not len(found):
            raise ValueError(f"no mixed pair of {name!r} shows any object; give batches with object masks")
        difference, every = found.column("difference"), found.couples
        error, bias, cuts = float(difference.abs().mean()), float(difference.mean()), found.column("cut")
        results[name] = LabelError(error, bias, len(difference), difference, by_cut(difference, cuts, every), every)
    for name, base in _area_rules(rules).items():
        less = results[name].differences.abs() - results[base].differences.abs()
        results[name] = replace(results[name], to_area=less)
    return results


def _area_rules(rules: Mapping[str, AnyMixer]) -> dict[str, str]:
    """For rules that look further than the area, the one by area that sees the same mixed images."""

    def mixed(rule: AnyMixer) -> tuple[Any, ...]:
        return getattr(rule, "weights", None), *((each.mask, each.pairing) for each in rule.mixers)

    by_area = [name for name, rule in rules.items() if all(each.share == AreaShare() for each in rule.mixers)]
    found = {}
    for name in rules.keys() - by_area:
        same = [base for base in by_area if mixed(rules[base]) == mixed(rules[name])]
        found |= {name: same[0]} if same else {}
    return found


def label_error_study(
    model: nn.Module, rules: Mapping[str, AnyMixer], batches: Iterable[ImageBatch], *, seed: int = 0
) -> list[Table]:
    """The errors over all pairs, and where more and less of the objects is cut."""
    overall, cuts = list[Row](), list[Row]()
    for name, found in label_error(model, rules, batches, seed=seed).items():
        columns = {"error": found.differences.abs(), "bias": found.differences, "to area": found.to_area}
        values = {column: spread(each, found.couples) for column, each in columns.items() if each is not None}
        overall.append(((name,), values))
        cuts += [((name, cut), {"error": value}) for cut, value in found.by_cut.items()]
    note = (
        "error: |share - visible partner object / visible objects|; bias: the same with its sign, negative where the "
        "partner gets too little; to area: the error less that of the area on the same images. n: pairs that show an "
        "object."
    )
    return [
        Table("Label error", ("rule",), overall, (note,)),
        Table("Label error by the part of both objects that is out of sight", ("rule", "cut"), cuts),
    ]
