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
from vitmix.lab.runs import Estimate, Table, TableRow
from vitmix.parts.shares import AreaShare, Weights

from .estimates import Gathered, spread
from .pairs import ImageBatch, activation_maps, need_masks, need_objects, needs_maps

STUDY = "label error"
# Edges of the classes in which the error is also given.
CUTS = (0.0, 0.25, 0.5, 0.75, 1.0)
AREAS = SIZES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# "MASK, LABEL RULE": the figure has a panel for each mask and a line for each label rule.
RULES = {
    "CutMix box, area": "cutmix",
    "CutMix box, attention (TransMix)": "transmix",
    "CutMix box, attention alone": "transmix(blend=1.0)",
    "CutMix box, aligned (TL-Align)": "tl_align",
    "CutMix box, activation (TokenMix)": "mix(mask=box, share=activation)",
    "CutMix box, saliency (HTM)": "mix(mask=box, share=guided(blend=1.0))",
    "CutMix box, prior": "mix(mask=box, share=prior)",
    "blocks, area (TokenMix)": "tokenmix",
    "blocks, attention (TransMix)": "mix(mask=block, share=attention)",
    "blocks, aligned": "mix(mask=block, share=aligned)",
    "blocks, activation (TokenMix)": "tokenmix(label=activation)",
    "blocks, saliency (HTM)": "mix(mask=block, share=guided(blend=1.0))",
    "blocks, prior": "mix(mask=block, share=prior)",
    "salient window, area (SMMix)": "mix(mask=salient_box)",
    "salient window, attention": "mix(mask=salient_box, share=attention)",
    "salient window, aligned": "mix(mask=salient_box, share=aligned)",
    "salient window, activation": "mix(mask=salient_box, share=activation)",
    "salient window, saliency (HTM)": "mix(mask=salient_box, share=guided(blend=1.0))",
    "salient window, prior": "mix(mask=salient_box, share=prior)",
}


@dataclass(frozen=True)
class LabelError:
    """How far a rule's shares lie from the visible object shares, over `pairs` mixed images.

    `error` is the mean absolute difference, `bias` the mean signed one (positive: the partner gets too much). The
    absolute difference is also given by the part of the two objects that is hidden (`by_cut`), by the partner's part of
    the area (`by_area`) and by the mean size of the two objects, as a part of the image (`by_size`). `to_area` is the
    absolute difference minus that of the area on the same mixed images, if a rule of the same mask and pairing has it.
    """

    error: float
    bias: float
    pairs: int
    differences: Tensor = field(repr=False)
    by_cut: dict[str, Estimate]
    by_area: dict[str, Estimate]
    by_size: dict[str, Estimate]
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
    """The part `(B,)` of both objects that the mixed image does not show; 0 if there is no object."""
    size = objects.sum((1, 2), dtype=torch.float64)
    total = size + size[mix.partner]
    own, theirs = visible_pixels(objects, mix)
    return torch.where(total > 0, 1 - (own + theirs) / total.clamp_min(1), 0.0).clamp(0, 1)


def object_size(objects: Tensor, mix: Mix) -> Tensor:
    """The mean size `(B,)` of the two objects, as a part of the image."""
    size = objects.double().mean((1, 2))
    return (size + size[mix.partner]) / 2


def assigned_share(weights: Weights, area: Tensor) -> Tensor:
    """The partner's part `(B,)` of a rule's two weights; that of the area if both weights are zero."""
    total = weights.own + weights.partner
    return torch.where(total > 0, weights.partner / total.clamp_min(1e-12), area.to(total.dtype))


def in_classes(
    differences: Tensor, values: Tensor, couples: Tensor, edges: Sequence[float] = CUTS
) -> dict[str, Estimate]:
    """Absolute differences in classes of another value; a class without a pair is left out."""
    found = {}
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (values >= low) & ((values <= high) if high == edges[-1] else (values < high))
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
                values = {
                    "difference": given.to(true.dtype) - true,
                    "cut": cut_share(objects, batch.mix),
                    "area": evidence.area.expand(len(true)),
                    "size": object_size(objects, batch.mix),
                }
                gathered[name].add(values, batch, visible)
    results = {name: _label_error(name, found) for name, found in gathered.items()}
    for name, base in _area_rules(rules).items():
        less = results[name].differences.abs() - results[base].differences.abs()
        results[name] = replace(results[name], to_area=less)
    return results


def _label_error(name: str, found: Gathered) -> LabelError:
    if not len(found):
        raise ValueError(f"no mixed pair of {name!r} shows any object; give batches with object masks")
    difference, every = found.column("difference"), found.couples
    by_cut, by_area, by_size = (
        in_classes(difference, found.column(column), every, edges)
        for column, edges in (("cut", CUTS), ("area", AREAS), ("size", SIZES))
    )
    error, bias = float(difference.abs().mean()), float(difference.mean())
    return LabelError(error, bias, len(difference), difference, by_cut, by_area, by_size, every)


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
    """The errors over all pairs, and by how much is hidden, by the partner's area and by the size of the objects."""
    overall, cuts, areas, sizes = (list[TableRow]() for _ in range(4))
    for name, found in label_error(model, rules, batches, seed=seed).items():
        columns = {"error": found.differences.abs(), "bias": found.differences, "to area": found.to_area}
        values = {column: spread(each, found.couples) for column, each in columns.items() if each is not None}
        overall.append(((name,), values))
        for rows, by in ((cuts, found.by_cut), (areas, found.by_area), (sizes, found.by_size)):
            rows += [((name, group), {"error": value}) for group, value in by.items()]
    note = (
        "error: |share - visible partner object / visible objects|; bias: the same with its sign, negative where the "
        "partner gets too little; to area: the error minus that of the area on the same images. n: pairs that show an "
        "object."
    )
    return [
        Table("Label error", ("rule",), overall, (note,)),
        Table("Label error by the hidden part of both objects", ("rule", "hidden"), cuts),
        Table("Label error by the partner's part of the area", ("rule", "area"), areas),
        Table("Label error by the mean size of both objects", ("rule", "size"), sizes),
    ]
