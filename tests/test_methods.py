"""Every default of the parts and the methods, written out: the papers' values, and ours where they leave a choice."""

import dataclasses
from typing import Any

import pytest

import vitmix
from vitmix._registry import KINDS, parts
from vitmix.methods import METHODS

DEFAULTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "constant": dict(alpha=0.8, per="batch"),
    "box": dict(alpha=1.0, per="batch", aligned=False, grid=None),
    "block": dict(share=0.5, alpha=None, preset="separate", per="batch", grid=None),
    "scattered": dict(share=0.5, alpha=None, per="batch", grid=None),
    "salient_box": dict(source="max", destination="min", low=0.25, high=0.75, sizes="paper", blocks=(-1,), per="batch"),
    "area": {},
    "attention": dict(blend=0.5, block=-1),
    "aligned": dict(blocks="all", normalize=True),
    "activation": dict(clamp=True, empty="zero"),
    "region": dict(weight=1.0, head="shared"),
    "consistency": dict(weight=1.0, average="logits"),
    "htm": dict(
        block=2,
        tau=0.2,
        rho=0.005,
        score_weight=0.001,
        stop_gradient=False,
        choose="salient",
        score_at="block",
        rollout=0,
    ),
    "vtm": dict(block=2, tokens=5, choose="salient", rollout=0),
    "reversed": {},
    "rolled": dict(by=1),
    "derangement": {},
}

NOTHING, AREA = vitmix.NoMask(), vitmix.AreaShare()
BOX = vitmix.BoxMask(alpha=1.0, per="batch", aligned=False, grid=None)
SALIENT = vitmix.SalientMask(**DEFAULTS["salient_box"])
COMPOSED: dict[str, dict[str, Any]] = {
    "none": {},
    "mixup": dict(mask=vitmix.ConstantMask(alpha=0.8, per="batch")),
    "cutmix": dict(mask=BOX),
    "tokenmix": dict(mask=vitmix.BlockMask(**DEFAULTS["block"]), loss="bce"),
    "transmix": dict(mask=BOX, share=vitmix.AttentionShare(blend=0.5, block=-1)),
    "tl_align": dict(mask=BOX, share=vitmix.AlignedShare(blocks="all", normalize=True)),
    "smmix": dict(mask=SALIENT, extra=(vitmix.RegionLoss(1.0, "shared"), vitmix.ConsistencyLoss(1.0, "logits"))),
    "htm": dict(inner=(vitmix.HTM(**DEFAULTS["htm"]),)),
    "vtm": dict(inner=(vitmix.VTM(**DEFAULTS["vtm"]),)),
}


@pytest.mark.parametrize("name, part", [item for kind in KINDS for item in parts(kind).items()])
def test_defaults_of_parts(name: str, part: type) -> None:
    made = part()
    assert (
        part.name == name
        and {each.name: getattr(made, each.name) for each in dataclasses.fields(part)} == DEFAULTS[name]
    )


@pytest.mark.parametrize("name", METHODS)
def test_defaults_of_methods(name: str) -> None:
    plain = dict(mask=NOTHING, share=AREA, extra=(), inner=(), pairing=vitmix.Reversed(), smoothing=0.0, loss="ce")
    assert METHODS[name](7) == vitmix.Mixer(7, **(plain | COMPOSED[name]))
    bare = vitmix.Mixer(7)
    assert {name: getattr(bare, name) for name in plain} == plain


OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    "mixup": ("alpha=0.3, per=sample", dict(mask=vitmix.ConstantMask(0.3, "sample"))),
    "cutmix": (
        "alpha=2.0, per=sample, aligned=True, grid=[3, 5]",
        dict(mask=vitmix.BoxMask(2.0, "sample", True, (3, 5))),
    ),
    "tokenmix": (
        "share=0.3, alpha=2.0, preset=paper, per=sample, grid=[3, 5], label=activation, loss=ce",
        dict(mask=vitmix.BlockMask(0.3, 2.0, "paper", "sample", (3, 5)), share=vitmix.ActivationShare()),
    ),
    "transmix": (
        "alpha=2.0, per=sample, blend=0.1, block=0",
        dict(mask=vitmix.BoxMask(2.0, "sample"), share=vitmix.AttentionShare(0.1, 0)),
    ),
    "tl_align": (
        "alpha=2.0, per=sample, aligned=True, blocks=[1], normalize=False",
        dict(mask=vitmix.BoxMask(2.0, "sample", True), share=vitmix.AlignedShare((1,), False)),
    ),
    "smmix": (
        "source=min, destination=max, low=0.1, high=0.2, sizes=discrete, blocks=all, per=sample",
        dict(
            mask=vitmix.SalientMask("min", "max", 0.1, 0.2, "discrete", "all", "sample"),
            extra=(vitmix.RegionLoss(), vitmix.ConsistencyLoss()),
        ),
    ),
    "htm": (
        "block=1, tau=0.3, rho=0.1, score_weight=2.0, stop_gradient=True, choose=random_tokens, score_at=last, "
        "rollout=1",
        dict(inner=(vitmix.HTM(1, 0.3, 0.1, 2.0, True, "random_tokens", "last", 1),)),
    ),
    "vtm": ("block=1, tokens=2, choose=random, rollout=1", dict(inner=(vitmix.VTM(1, 2, "random", 1),))),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_settings_of_methods_reach_their_parts(name: str) -> None:
    settings, parts = OTHERWISE[name]
    assert vitmix.create(f"{name}({settings})", 7) == vitmix.Mixer(7, **parts)
    common = vitmix.create(f"{name}({settings}, smoothing=0.1, pairing=rolled(by=2))", 7)
    assert common == vitmix.Mixer(7, **parts, smoothing=0.1, pairing=vitmix.Rolled(2))
