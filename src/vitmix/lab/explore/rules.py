"""The targets of all label rules for the same mixed image, from one pass of the model."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from vitmix._mixing import MixedBatch, Mixing
from vitmix._registry import parts
from vitmix.attention.tap import Plan, Tape
from vitmix.parts.base import Evidence, Share


@dataclass(frozen=True)
class Bar:
    """The target by one label rule on the same mixed image; `missing` says why there is none.

    Attributes:
        used: whether it is the rule of the method.
    """

    rule: str
    own: float = 0.0
    partner: float = 0.0
    used: bool = False
    missing: str = ""


@dataclass(frozen=True)
class Rule:
    """A label rule and its evidence, or why it cannot be applied."""

    share: Share
    evidence: Evidence
    missing: str = ""


def rules_of(mixing: Mixing, batch: MixedBatch, activation: Tensor | None) -> list[Rule]:
    """Every label rule on the mixed batch; the method's own rule has its settings.

    Args:
        activation: the model's activation maps, which also stand for the masks of objects.
    """
    evidence, rules = mixing.evidence(batch), []
    maps = batch.maps if batch.maps is not None else _on_token_grid(activation, batch)
    for name, kind in parts("share").items():
        own = batch.mixer.share.name == name
        share = batch.mixer.share if own else kind()
        missing = ""
        if not own and (share.needs.guide or share.needs.preview):
            missing = "needs another pass of the model"
        elif share.needs.maps and maps is None:
            missing = "the model has no activation maps"
        elif share.needs.model and mixing.reader is None:
            missing = "the attention of this model cannot be read"
        module = evidence.module if own or missing else share.module(mixing.reader, batch.mixer.num_classes)
        rules.append(Rule(share, dataclasses.replace(evidence, maps=maps, module=module), missing))
    return rules


def _on_token_grid(maps: Tensor | None, batch: MixedBatch) -> Tensor | None:
    """Maps on the model's token grid, which fits every mask."""
    if maps is None:
        return None
    grid = batch.frame.grid or batch.frame.size
    return functional.interpolate(maps.unsqueeze(1), tuple(grid), mode="bilinear", antialias=True).squeeze(1)


def plan_for(mixing: Mixing, batch: MixedBatch, rules: Sequence[Rule]) -> tuple[Plan, list[Rule]]:
    """What to record for the method, for every rule and for the view of the blocks."""
    reader = mixing.reader
    if reader is None:
        return Plan(), list(rules)
    plan, possible = batch.tape.plan, []
    if reader.has_attention:
        plan |= Plan(saliency=frozenset(range(reader.depth)))
    for rule in rules:
        try:
            plan |= Plan() if rule.missing else rule.share.plan(reader)
        except ValueError as problem:
            rule = dataclasses.replace(rule, missing=str(problem))
        possible.append(rule)
    return plan, possible


def bar_of(rule: Rule, tape: Tape, batch: MixedBatch) -> Bar:
    name, used = rule.share.name, rule.share == batch.mixer.share
    if rule.missing:
        return Bar(name, used=used, missing=rule.missing)
    try:
        weights = rule.share.weights(dataclasses.replace(rule.evidence, tape=tape))
    except ValueError as problem:
        return Bar(name, used=used, missing=str(problem))
    return Bar(name, float(weights.own[0]), float(weights.partner[0]), used)
