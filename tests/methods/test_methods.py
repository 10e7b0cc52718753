"""Every default of the parts and the methods, written out: the papers' values, and ours where they leave a choice."""

import dataclasses
from typing import Any

import pytest
import torch

import vitmix
from vitmix._registry import KINDS, parts
from vitmix.methods import METHODS
from vitmix.parts.decoupled import DecoupledLoss
from vitmix.parts.embedded import Embedded
from vitmix.parts.fourier import FourierMask
from vitmix.parts.guided import GuidedShare
from vitmix.parts.history import HistoryLoss, HistoryMask
from vitmix.parts.joint import JointMask
from vitmix.parts.lattice import LatticeMask
from vitmix.parts.manifold import Manifold
from vitmix.parts.merged import MergedMask
from vitmix.parts.objects import ObjectShare
from vitmix.parts.peak import PeakMask
from vitmix.parts.progressive import CellMask, ProgressiveShare
from vitmix.parts.puzzle import PuzzleMask
from vitmix.parts.resized import ResizedMask
from vitmix.parts.token_labels import TokenLabelLoss
from vitmix.parts.top_cells import TopCellsMask

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
    "consistency": dict(weight=1.0, average="logits", by="area"),
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
    "fourier": dict(alpha=1.0, decay=3.0, max_soft=0.0, per="batch"),
    "resized": dict(low=0.1, high=0.8, interpolation="nearest"),
    "lattice": dict(alpha=1.0, least=2, most=6),
    "peak_box": dict(alpha=1.0, per="sample", order="rgb", mean=None, std=None),
    "top_cells": dict(alpha=2.0, cells=None, scores="attention", blocks=(-1,)),
    "manifold": dict(alpha=2.0, blocks=None, pixels=True),
    "cells": dict(alpha=1.0, tokens=4, clamp=True, grid=None),
    "progressive": dict(block=-1),
    "decoupled": dict(weight=0.1, scaled=False),
    "object": dict(relative=0.0, blend=1.0),
    "tokens": dict(weight=0.5),
    "embedded": {},
    "puzzle": dict(
        alpha=1.0,
        blocks=(2, 4, 8, 16),
        labels=3,
        beta=1.2,
        gamma=0.5,
        eta=0.2,
        neighborhood=4,
        transport=True,
        cost=0.8,
        cell=None,
        mean=None,
        std=None,
    ),
    "joint": dict(
        alpha=2.0,
        blocks=4,
        group=20,
        beta=0.32,
        gamma=1.0,
        threshold=0.83,
        eta=0.05,
        omega=0.001,
        rounds=4,
    ),
    "history": dict(most=0.5, interpolation="nearest"),
    "merged": dict(alpha=1.0, merged=0.5, block=None),
    "guided": dict(blend=0.5, blocks=(-1,)),
    "recognize": dict(weight=0.5),
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
    "fmix": dict(mask=FourierMask(**DEFAULTS["fourier"])),
    "resizemix": dict(mask=ResizedMask(**DEFAULTS["resized"])),
    "gridmix": dict(mask=LatticeMask(**DEFAULTS["lattice"])),
    "saliencymix": dict(mask=PeakMask(**DEFAULTS["peak_box"])),
    "attentive_cutmix": dict(mask=TopCellsMask(**DEFAULTS["top_cells"])),
    "manifold_mixup": dict(inner=(Manifold(**DEFAULTS["manifold"]),)),
    "mixpro": dict(mask=CellMask(**DEFAULTS["cells"]), share=ProgressiveShare(block=-1)),
    "decouplemix": dict(mask=BOX, extra=(DecoupledLoss(weight=0.1, scaled=False),)),
    "oa_cutmix": dict(mask=BOX, share=ObjectShare(relative=0.0, blend=1.0)),
    "token_labeling": dict(
        mask=vitmix.BoxMask(1.0, "batch", True, None), extra=(TokenLabelLoss(weight=0.5),), inner=(Embedded(),)
    ),
    "puzzlemix": dict(mask=PuzzleMask(**DEFAULTS["puzzle"])),
    "comixup": dict(mask=JointMask(**DEFAULTS["joint"])),
    "recursivemix": dict(mask=HistoryMask(**DEFAULTS["history"]), extra=(HistoryLoss(weight=0.5),)),
    "mergemix": dict(mask=MergedMask(**DEFAULTS["merged"])),
    "tdattenmix": dict(
        mask=vitmix.SalientMask(**(DEFAULTS["salient_box"] | {"sizes": "discrete"})),
        share=GuidedShare(blend=0.5, blocks=(-1,)),
        extra=(vitmix.RegionLoss(1.0, "separate"), vitmix.ConsistencyLoss(1.0, "logits", "label")),
    ),
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
    "fmix": ("alpha=2.0, decay=1.5, max_soft=0.1, per=sample", dict(mask=FourierMask(2.0, 1.5, 0.1, "sample"))),
    "resizemix": ("low=0.2, high=0.3, interpolation=bilinear", dict(mask=ResizedMask(0.2, 0.3, "bilinear"))),
    "gridmix": ("alpha=2.0, least=3, most=4", dict(mask=LatticeMask(2.0, 3, 4))),
    "saliencymix": (
        "alpha=2.0, per=batch, order=bgr, mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 3.0]",
        dict(mask=PeakMask(2.0, "batch", "bgr", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))),
    ),
    "attentive_cutmix": (
        "alpha=1.0, cells=6, scores=features, blocks=all",
        dict(mask=TopCellsMask(1.0, 6, "features", "all")),
    ),
    "manifold_mixup": ("alpha=1.0, blocks=[1], pixels=False", dict(inner=(Manifold(1.0, (1,), False),))),
    "mixpro": (
        "alpha=2.0, tokens=2, clamp=False, grid=[3, 5], block=0",
        dict(mask=CellMask(2.0, 2, False, (3, 5)), share=ProgressiveShare(0)),
    ),
    "decouplemix": (
        "alpha=2.0, per=sample, weight=0.5, scaled=True",
        dict(mask=vitmix.BoxMask(2.0, "sample"), extra=(DecoupledLoss(0.5, True),)),
    ),
    "oa_cutmix": (
        "alpha=2.0, per=sample, relative=0.3, blend=0.5",
        dict(mask=vitmix.BoxMask(2.0, "sample"), share=ObjectShare(0.3, 0.5)),
    ),
    "token_labeling": (
        "alpha=2.0, per=sample, aligned=False, grid=[3, 5], weight=1.0, embedded=False",
        dict(mask=vitmix.BoxMask(2.0, "sample", False, (3, 5)), extra=(TokenLabelLoss(1.0),)),
    ),
    "puzzlemix": (
        "alpha=2.0, blocks=[3], labels=2, beta=1.0, gamma=0.1, eta=0.3, neighborhood=2, transport=False, cost=0.1, "
        "cell=5, mean=[0.1], std=[0.2]",
        dict(mask=PuzzleMask(2.0, (3,), 2, 1.0, 0.1, 0.3, 2, False, 0.1, 5, (0.1,), (0.2,))),
    ),
    "comixup": (
        "alpha=1.0, blocks=2, group=5, beta=0.1, gamma=0.2, threshold=0.3, eta=0.4, omega=0.6, rounds=3",
        dict(mask=JointMask(1.0, 2, 5, 0.1, 0.2, 0.3, 0.4, 0.6, 3)),
    ),
    "tdattenmix": (
        "low=0.1, high=0.2, blocks=all, blend=0.3",
        dict(
            mask=vitmix.SalientMask("max", "min", 0.1, 0.2, "discrete", "all", "batch"),
            share=GuidedShare(0.3, "all"),
            extra=(vitmix.RegionLoss(head="separate"), vitmix.ConsistencyLoss(by="label")),
        ),
    ),
    "mergemix": ("alpha=2.0, merged=0.1, block=1", dict(mask=MergedMask(2.0, 0.1, 1))),
    "recursivemix": (
        "most=0.3, interpolation=bilinear, weight=0.1",
        dict(mask=HistoryMask(0.3, "bilinear"), extra=(HistoryLoss(0.1),)),
    ),
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
    together = [
        vitmix.Mixer(7, inner=(vitmix.VTM(1), vitmix.VTM(2), vitmix.HTM(1), vitmix.HTM(2))),
        vitmix.Mixer(7, extra=(vitmix.ConsistencyLoss(),), inner=(vitmix.HTM(),)),
        vitmix.Mixer(7, share=vitmix.AlignedShare(), extra=(vitmix.RegionLoss(),), inner=(vitmix.VTM(),)),
    ]
    assert [len(mixer.inner) + len(mixer.extra) for mixer in together] == [4, 2, 2]
    assert all(vitmix.create(str(mixer), 7) == mixer for mixer in together)
    for score_at in ("block", "last"):
        for choose in ("salient", "random_samples", "random_tokens"):
            mixing = vitmix.HTM(0, 0, 0, 0, choose=choose, score_at=score_at)
            assert (mixing.choose, mixing.score_at) == (choose, score_at)


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
