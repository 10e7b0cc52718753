"""Every default of the parts and the methods, written out: the papers' values, and ours where they leave a choice."""

import dataclasses
from typing import Any

import pytest
import torch

import vitmix
from vitmix._registry import KINDS, parts
from vitmix.methods import METHODS

DEFAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "constant": dict(alpha=0.8, per="batch"),
    "box": dict(alpha=1.0, per="batch", aligned=False, grid=None),
    "block": dict(share=0.5, alpha=None, preset="separate", per="batch", grid=None),
    "scattered": dict(share=0.5, alpha=None, per="batch", grid=None),
    "salient_box": dict(source="max", destination="min", low=0.25, high=0.75, sizes="paper", blocks=(-1,), per="batch"),
    "area": {},
    "attention": dict(blend=0.5, block=-1),
    "aligned": dict(blocks="all", normalize=True),
    "activation": dict(clamp=True, empty="zero"),
    "prior": dict(width=0.25, map=None, learned=False, momentum=0.99, times="area", block=-1),
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
    plain = dict(mask=NOTHING, share=AREA, extra=(), inner=(), pairing=vitmix.Reversed(), smoothing=0.0, loss=None)
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
        dict(mask=vitmix.BlockMask(0.3, 2.0, "paper", "sample", (3, 5)), share=vitmix.ActivationShare(), loss="ce"),
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


INSIDE = {
    "mixup": (False, True),
    "tokenmix(label=activation)": (False, True),
    "cutmix + consistency": (False, False),
    "cutmix + region": (True, False),
    "cutmix + consistency + region": (True, False),
    "mix(mask=salient_box)": (True, False),
    "mix(mask=salient_box(blocks=[]))": (False, True),
    "transmix": (True, False),
    "tl_align": (True, False),
    "cutmix + vtm": (True, False),
    "htm": (True, False),
    "mixup | tl_align": (True, False),
    "mixup | cutmix": (False, True),
}


@pytest.mark.parametrize("text", INSIDE)
def test_which_methods_look_inside_a_model_and_which_need_none(text: str) -> None:
    mixer = vitmix.create(text, 7)
    assert (mixer.looks_inside, mixer.input_only) == INSIDE[text] and mixer.num_classes == 7


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: vitmix.Mixer(7, extra=[vitmix.RegionLoss()]), "extra must be a tuple of extra parts"),
        (lambda: vitmix.Mixer(7, extra=(vitmix.RegionLoss(), vitmix.HTM())), "extra must be a tuple of extra parts"),
        (lambda: vitmix.Mixer(7, inner=(vitmix.VTM(), vitmix.RegionLoss())), "inner must be a tuple of inner parts"),
        (lambda: vitmix.Mixer(7, extra=(vitmix.RegionLoss(), vitmix.RegionLoss(2.0))), "region appears twice"),
        (lambda: vitmix.Mixer(7, inner=(vitmix.VTM(), vitmix.VTM())), "vtm appears twice"),
        (lambda: vitmix.Mixer(7, share=3), "share must be a vitmix.Share"),
        (lambda: vitmix.Mixer(7, loss="mse"), "unknown loss"),
        (lambda: vitmix.RegionLoss(head="other"), "unknown head"),
        (lambda: vitmix.ConsistencyLoss(-1.0), "weight must be zero or a positive"),
        (lambda: vitmix.ConsistencyLoss(average="all"), "unknown average"),
        (lambda: vitmix.HTM(block=0.5), "block must be an integer"),
        (lambda: vitmix.HTM(score_weight=-1), "score_weight must be zero or a positive"),
        (lambda: vitmix.HTM(choose="all"), "unknown choose"),
        (lambda: vitmix.HTM(score_at="first"), "unknown score_at"),
        (lambda: vitmix.HTM(rollout=-1), "rollout must be an integer of at least 0"),
        (lambda: vitmix.VTM(block=0.5), "block must be an integer"),
        (lambda: vitmix.VTM(choose="all"), "unknown choose"),
        (lambda: vitmix.VTM(rollout=-1), "rollout must be an integer of at least 0"),
        (lambda: vitmix.Switch((vitmix.none(3), vitmix.none(3)), (1.0,)), "at least two mixers and as many weights"),
        (lambda: vitmix.Switch((vitmix.none(3), vitmix.none(3)), (1.0, 0.0)), "each weight must be a positive"),
    ],
)
def test_bad_settings_of_parts(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_parts_that_go_together() -> None:
    """Two of a kind at other places, and the consistency loss beside HTM."""
    vitmix.Mixer(7, inner=(vitmix.VTM(1), vitmix.VTM(2), vitmix.HTM(1), vitmix.HTM(2)))
    vitmix.Mixer(7, extra=(vitmix.ConsistencyLoss(),), inner=(vitmix.HTM(),))
    vitmix.Mixer(7, share=vitmix.AlignedShare(), extra=(vitmix.RegionLoss(),), inner=(vitmix.VTM(),))
    for score_at in ("block", "last"):
        for choose in ("salient", "random_samples", "random_tokens"):
            vitmix.HTM(0, 0, 0, 0, choose=choose, score_at=score_at)


def test_a_switch_draws_by_its_weights_then_draws_of_its_choice() -> None:
    switch, frame = (
        vitmix.create("1*mixup | 5*cutmix(per=sample) | 2*none(pairing=derangement)", 7),
        vitmix.Frame(4, (8, 8)),
    )
    for seed in range(40):
        one, two = (torch.Generator().manual_seed(seed) for _ in range(2))
        uniform = float(torch.rand((), generator=two, dtype=torch.float64))
        choice = 0 if uniform < 1 / 8 else 1 if uniform < 6 / 8 else 2
        drawn, expected = switch.draw(frame, one), switch.mixers[choice].draw(frame, two)
        assert drawn.choice == choice and drawn.values.keys() == expected.values.keys()
        assert all(torch.equal(value, expected.values[name]) for name, value in drawn.values.items())
        shared = switch.draw(frame, torch.Generator().manual_seed(99), shared=torch.Generator().manual_seed(seed))
        assert shared.choice == choice
