"""THE CONTRACT that every method keeps, the text form, randomness, and bad input."""

import copy
import dataclasses
import math
import pickle
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitmix
from support import close, same, tiny_batch, tiny_cct, tiny_vit
from vitmix import functional as F
from vitmix._registry import KINDS, parts
from vitmix._sampling import Draw, generator_for
from vitmix._text import create, to_text
from vitmix.methods import METHODS

# Every composition of the papers' tables that lives on a plain ViT; adding a method here adds all of the contract.
COMPOSITIONS = [
    "mixup(per=sample)",
    "cutmix(per=sample, smoothing=0.1)",
    "cutmix(aligned=True, pairing=rolled(by=2))",
    "tokenmix(preset=paper, alpha=1.0, per=sample)",
    "tokenmix(label=activation, smoothing=0.1)",
    "mix(mask=box, share=activation)",
    "mix(mask=scattered(share=0.3), share=aligned)",
    "mix(mask=block, share=aligned, loss=bce)",
    "tl_align(blocks=[-1], normalize=False)",
    "tl_align(aligned=True, pairing=derangement) + vtm",
    "mix(mask=salient_box, share=attention)",
    "mix(mask=box, share=prior(width=0.2))",
    "mix(mask=salient_box, share=prior(times=attention))",
    "mix(mask=block, share=prior(map=[[0.5, 1, 0.5]], times=aligned))",
    "mix(mask=salient_box(source=random, destination=same), share=activation) + region",
    "smmix(sizes=discrete, blocks=all)",
    "smmix(blocks=[])",
    "cutmix + consistency(weight=0.5, average=probabilities) + region(head=separate)",
    "htm(tau=1.0, rho=0.001, stop_gradient=True)",
    "cutmix + htm(tau=1.0, rollout=1) + vtm(block=-1, rollout=2)",
    "htm(choose=random_samples)",
    "htm(tau=1.0, choose=random_tokens)",
    "htm(tau=1.0, score_at=last)",
    "vtm(choose=random, tokens=3)",
    "fmix(decay=2.0, max_soft=0.2, per=sample)",
    "resizemix(interpolation=bilinear, low=0.3)",
    "mix(mask=resized, share=attention)",
    "saliencymix(per=batch, order=bgr, mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5])",
    "attentive_cutmix(cells=3, blocks=all)",
    "mix(mask=top_cells, share=aligned)",
    "mergemix(alpha=2.0, merged=0.25, block=0)",
    "mix(mask=merged, share=aligned) + region",
    "manifold_mixup(blocks=[0, -1], pixels=False)",
    "cutmix + manifold(alpha=0.2) + vtm",
    "mixpro(tokens=1, clamp=False, smoothing=0.1)",
    "mix(mask=box, share=progressive) + region",
    "mixup + decoupled(weight=0.5, scaled=True)",
    "mix(mask=block, share=object(relative=0.75, blend=0.8))",
    "mix(mask=salient_box, share=object) + decoupled",
    "mix(mask=salient_box, smoothing=0.1) + tokens(weight=1.0)",
    "token_labeling(aligned=False, per=sample)",
    "token_labeling(embedded=False)",
    "cutmix(aligned=true) + embedded",
    "tl_align(aligned=true, per=sample) + embedded + vtm(block=1, tokens=2)",
    "fmix(max_soft=0.2) + embedded + consistency",
    "puzzlemix(blocks=[4], labels=2, transport=False, smoothing=0.1)",
    "mix(mask=puzzle(cell=2, cost=0.01), share=attention) + region",
    "mix(mask=history(interpolation=bilinear, most=1.0), share=attention) + recognize",
    "comixup(group=3, blocks=2, omega=0.5, gamma=0.1, threshold=0.2)",
    "mix(mask=joint(rounds=2), share=aligned, smoothing=0.1)",
    "puzzlemix | comixup | recursivemix",
    "mix(mask=box, share=guided(blend=1.0, blocks=all)) + consistency(by=label)",
    "mixup | cutmix",
    "0.2*mixup | 0.8*transmix",
    "(mixup | cutmix) + htm(tau=1.0) + vtm(tokens=4)",
    "mixup(loss=bce) | cutmix(loss=bce) | tokenmix",
]
EVERY = [*METHODS, *COMPOSITIONS]
MODELS = {"vit": tiny_vit, "cct": tiny_cct}


def maps_for(text: str, batch: int, model: torch.nn.Module | None = None) -> torch.Tensor | None:
    """Maps of the label, or of all classes on the model's final grid, if a part needs them."""
    needs = [mixer.needs for mixer in create(text, 10).mixers]
    if any(each.label_maps for each in needs):
        side = 8 if isinstance(model, vitmix.models.CompactTransformer) else 4
        return torch.rand(batch, 10, side, side).softmax(1)
    return torch.rand(batch, 16, 16) if any(each.maps for each in needs) else None


@pytest.mark.parametrize("text", EVERY)
def test_contract_text_copy_pickle(text: str) -> None:
    mixer = create(text, 10)
    again = create(str(mixer), 10)
    assert again == mixer and str(again) == str(mixer) and hash(again) == hash(mixer)
    for twin in (copy.deepcopy(mixer), pickle.loads(pickle.dumps(mixer))):
        assert twin == mixer
    for each in mixer.mixers:
        with pytest.raises(dataclasses.FrozenInstanceError):
            each.smoothing = 0.5


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("text", EVERY)
@pytest.mark.parametrize("batch", [1, 5])
def test_contract_step(text: str, kind: str, batch: int) -> None:
    """Shapes, dtypes, target sums, inputs untouched, same draw same bits, finite gradients for every parameter."""
    mixer, model = create(text, 10), MODELS[kind](drop_path_rate=0.0, attn_drop_rate=0.0)
    images, labels = tiny_batch(batch)
    before, maps = images.clone(), maps_for(text, batch, model)
    merges = any(each.needs.guide_observer for each in mixer.mixers)
    guide = tiny_vit() if merges and kind != "vit" else None  # only such a model can be the guide
    learner = vitmix.Learner(model, mixer, guide=guide, seed=3)
    for _ in mixer.mixers:
        step, twin = learner.step, copy.deepcopy(learner)  # with the state that some parts keep
        output = learner(images, labels, maps=maps)
        output.loss.backward()
        assert images._version == 0 and torch.equal(images, before)
        assert output.logits.shape == output.targets.shape == (batch, 10)
        assert output.targets.dtype == torch.float32 and not output.targets.requires_grad
        sums = output.targets.sum(1)
        if "activation" in text:
            assert (output.targets >= 0).all() and (sums < 2 + 1e-5).all()
        else:
            close(sums, torch.ones(batch), 1e-5)
        close(output.loss, sum(output.parts.values()), 1e-5)
        twin.step = step
        again = twin(images, labels, maps=maps)
        same(again.targets, output.targets)
        same(again.loss, output.loss)
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    assert any(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    learner.eval()
    same(learner(images, labels).logits, model(images))
    same(learner(images), model(images))


@pytest.mark.parametrize("text", EVERY)
def test_contract_pixels(text: str) -> None:
    """Every cell is the sample's own or its partner's; share zero is the identity; labels follow the partner."""
    mixer, model = create(text, 10), tiny_vit().eval()
    images, labels = tiny_batch(6)
    images = images.abs() + labels.view(-1, 1, 1, 1) * 100  # the origin of every pixel can be read off its value
    with mixer.attach(model) as mixing:
        for step in range(3):
            mixing.step = step
            batch = mixing.mix(images, labels, maps=maps_for(text, 6))
            model(batch.images)
            targets = mixing.targets(batch)
            if batch.mix.mask.dtype == torch.bool and batch.mix.rows is None:
                origin = (batch.images / 100).floor().long()[:, 0]
                own = labels.view(-1, 1, 1).expand_as(origin)
                theirs = labels[batch.mix.partner].view(-1, 1, 1).expand_as(origin)
                mask = F.expand_mask(batch.mix.mask, (16, 16)).expand_as(origin)
                same(origin, torch.where(mask, theirs, own))
            allowed = torch.zeros(6, 10, dtype=torch.bool)
            allowed[torch.arange(6), labels] = True
            allowed[torch.arange(6), labels[batch.mix.partner]] = True
            if batch.mix.rows is not None:  # of what is pasted, if it is not the partner alone
                allowed |= batch.mix.rows > 0
            if not mixer.mixers[0].smoothing and "htm" not in text and "manifold" not in text:
                assert not targets[~allowed].any()


@pytest.mark.parametrize("text", EVERY)
def test_contract_soft_labels_and_dtypes(text: str) -> None:
    mixer = create(text, 10)
    images, labels = tiny_batch(4)
    maps = maps_for(text, 4)
    hard = vitmix.Learner(tiny_vit(), mixer)
    soft, last = copy.deepcopy(hard), copy.deepcopy(hard)
    one, two = hard(images, labels, maps=maps), soft(images, F.label_rows(labels, 10), maps=maps)
    same(one.targets, two.targets)
    same(one.loss, two.loss)
    close(last(images.to(memory_format=torch.channels_last), labels, maps=maps).loss, one.loss, 1e-5)
    for dtype in (torch.bfloat16, torch.float64):
        other = vitmix.Learner(tiny_vit().to(dtype), mixer)
        output = other(images.to(dtype), labels, maps=maps)
        output.loss.backward()
        assert torch.isfinite(output.loss)
        assert output.targets.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    if mixer.input_only:
        mixed, targets = mixer_call(mixer, images.half(), labels, maps)
        assert mixed.dtype == torch.float16 and targets.dtype == torch.float32


def mixer_call(mixer, images, labels, maps):
    mixer = dataclasses.replace(mixer, **with_grid(mixer)) if isinstance(mixer, vitmix.Mixer) else mixer
    if isinstance(mixer, vitmix.Switch):
        mixer = vitmix.Switch(tuple(dataclasses.replace(m, **with_grid(m)) for m in mixer.choices), mixer.weights)
    return mixer(images, labels, maps=maps, generator=torch.Generator().manual_seed(1))


def with_grid(mixer: vitmix.Mixer) -> dict:
    return {"mask": dataclasses.replace(mixer.mask, grid=(4, 4))} if hasattr(mixer.mask, "grid") else {}


@pytest.mark.parametrize("text", EVERY)
def test_drop_in_call_equals_the_attached_form(text: str) -> None:
    mixer = create(text, 10)
    images, labels = tiny_batch(6)
    maps = maps_for(text, 6)
    if not mixer.input_only:
        with pytest.raises(ValueError, match="reads the model"):
            mixer(images, labels)
        return
    mixed, targets = mixer_call(mixer, images, labels, maps)
    with mixer.attach(tiny_vit()) as mixing:
        mixing.normalization = vitmix.Normalization()  # without a model, no other is known
        batch = mixing.mix(images, labels, maps=maps, generator=torch.Generator().manual_seed(1))
        same(batch.images, mixed)
        same(mixing.targets(batch), targets)


def test_methods_are_the_named_ones() -> None:
    names = [
        "attentive_cutmix",
        "comixup",
        "cutmix",
        "decouplemix",
        "fmix",
        "gridmix",
        "htm",
        "manifold_mixup",
        "mergemix",
        "mixpro",
    ]
    names += [
        "mixup",
        "none",
        "oa_cutmix",
        "puzzlemix",
        "recursivemix",
        "resizemix",
        "saliencymix",
        "smmix",
        "tdattenmix",
    ]
    names += ["tl_align", "token_labeling", "tokenmix", "transmix", "vtm"]
    assert vitmix.list_methods() == names
    for name in names:
        assert create(name, 7) == getattr(vitmix, name)(7) and str(create(name, 7)) == name


# Text


def test_text_examples() -> None:
    switch = create("0.2*mixup(alpha=0.8) | 0.8*transmix", 10)
    assert switch == vitmix.Switch((vitmix.mixup(10), vitmix.transmix(10)), (0.2, 0.8))
    nested = create("(mixup | cutmix) | 2*none", 10)
    assert nested.weights == (0.5, 0.5, 2.0)
    both = create("(mixup | cutmix) + htm(block=1) + vtm(block=2, tokens=80)", 10)
    for mixer in both.mixers:
        assert mixer.inner == (vitmix.HTM(block=1), vitmix.VTM(tokens=80))
    own = vitmix.Mixer(10, mask=vitmix.ScatteredMask(0.25), share=vitmix.AlignedShare(), smoothing=0.1)
    assert str(own) == "mix(mask=scattered(share=0.25), share=aligned, smoothing=0.1)"
    assert create("smmix", 10, sizes="discrete") == create("smmix(sizes=discrete)", 10)
    assert create("cutmix", 10, pairing="derangement").pairing == vitmix.Derangement()
    assert create("tl_align", 10, blocks=[1, 2]).share.blocks == (1, 2)
    assert create("cutmix + region", 10) == vitmix.Mixer(10, mask=vitmix.BoxMask(), extra=(vitmix.RegionLoss(),))


def any_part(kind: str) -> st.SearchStrategy:
    values = {
        "mask": [
            vitmix.NoMask(),
            vitmix.ConstantMask(0.3),
            vitmix.BoxMask(1e-7, "sample", True, (7, 7)),
            vitmix.BlockMask(0.25, 2.0, "paper"),
            vitmix.ScatteredMask(grid=(3, 2)),
            vitmix.SalientMask("random", "max", 0.1, 0.9, "discrete", (1, -2)),
        ],
        "share": [
            vitmix.AreaShare(),
            vitmix.AttentionShare(0.123456789, -3),
            vitmix.AlignedShare((0, 4), False),
            vitmix.ActivationShare(False, "area"),
        ],
        "extra": [
            (),
            (vitmix.RegionLoss(0.5),),
            (vitmix.RegionLoss(), vitmix.ConsistencyLoss()),
            (vitmix.ConsistencyLoss(2, "logits"),),
        ],
        "pairing": [vitmix.Reversed(), vitmix.Rolled(-2), vitmix.Derangement()],
    }
    return st.sampled_from(values[kind])


@given(any_part("mask"), any_part("share"), any_part("extra"), any_part("pairing"), st.floats(0, 1), st.booleans())
def test_every_mixer_has_a_text(mask, share, extra, pairing, smoothing, bce) -> None:
    inner = (vitmix.VTM(3, 9),)
    loss = "bce" if bce else "ce"
    mixer = vitmix.Mixer(5, mask, share, extra, inner, pairing, smoothing, loss)
    assert create(to_text(mixer), 5) == mixer
    switch = vitmix.Switch((mixer, vitmix.none(5, loss=loss)), (0.1, 1e-3))
    assert create(to_text(switch), 5) == switch


@pytest.mark.parametrize(
    "text, words",
    [
        ("cutmux", "did you mean 'cutmix'"),
        ("cutmix(alhpa=1)", "did you mean 'alpha'"),
        ("cutmix + hmt", "did you mean 'htm'"),
        ("mix(mask=bxo)", "unknown mask 'bxo'.*did you mean 'box'"),
        ("mix(share=align)", "did you mean 'aligned'"),
        ("mix(mask=box(alpha=2, alpa=1))", "did you mean 'alpha'"),
        ("cutmix(alpha=1", "expected ',' or '\\)' after '1', found the end of the string"),
        ("cutmix)", "or the end of the string after 'cutmix', found '\\)'"),
        ("0.5 cutmix", "expected '\\*' after '0.5', found 'cutmix'"),
        ("cutmix |", "expected a method after '\\|', found the end of the string"),
        ("cutmix(alpha=1, alpha=2)", "given twice"),
        ("cutmix; import os", "cannot parse"),
        ("__import__('os')", "cannot parse"),
        ("", "non-empty string"),
        ("0*cutmix | mixup", "each weight must be a positive"),
        ("cutmix(alpha=box(alpha=1))", "takes a word or a number"),
        ("-3*cutmix", "a weight needs several methods"),
        ("smmix(blocks=0)", "blocks must be 'all' or block numbers"),
        ("tl_align(blocks=last)", "blocks must be 'all' or block numbers"),
        ("cutmix(aligned=no)", "aligned must be True or False, got 'no'"),
        ("htm(stop_gradient=off)", "stop_gradient must be True or False"),
        ("mix(mask=3)", "mask must be a vitmix.Mask"),
        ("cutmix(pairing=3)", "pairing must be a vitmix.Pairing"),
        ("mix(extra=region)", "extra must be a tuple of extra parts"),
        ("TL-Align", "did you mean 'tl_align'"),
        ("mixup + cutmix", "use '\\|' to alternate between methods"),
        ("smmix + consistency", "consistency appears twice"),
        ("cutmix + htm + htm", "htm appears twice"),
    ],
)
def test_bad_text(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create(text, 10)


def test_settings_beside_a_text() -> None:
    with pytest.raises(ValueError, match="the setting alpha needs a plain method name"):
        create("cutmix | mixup", 10, alpha=1.0)
    both = create("cutmix | mixup(smoothing=0.2)", 10, smoothing=0.1)
    assert [each.smoothing for each in both.mixers] == [0.1, 0.2]


def test_share_zero_is_the_identity() -> None:
    images, labels = tiny_batch(5)
    nothing = {
        "mixup": {"mask.share": torch.zeros(1)},
        "cutmix": {"mask.box": torch.zeros(1, 4, dtype=torch.long)},
        "transmix": {"mask.box": torch.zeros(1, 4, dtype=torch.long)},
        "tl_align": {"mask.box": torch.zeros(1, 4, dtype=torch.long)},
        "tokenmix": {"mask.mask": torch.zeros(1, 4, 4, dtype=torch.bool)},
    }
    for text, values in nothing.items():
        draw = Draw(0, {"partner": F.reversed_pairs(5), **values})
        with create(text, 10).attach(model := tiny_vit().eval()) as mixing:
            batch = mixing.mix(images, labels, draw=draw)
            model(batch.images)
            same(batch.images, images)
            same(mixing.targets(batch), F.label_rows(labels, 10))


@pytest.mark.gpu
@pytest.mark.parametrize("text", EVERY)
def test_gpu_equals_cpu(text: str) -> None:
    images, labels = tiny_batch(6)
    maps = maps_for(text, 6)
    torch.backends.cuda.matmul.allow_tf32 = False
    learner = vitmix.Learner(tiny_vit().double(), create(text, 10))
    moved = copy.deepcopy(learner).cuda()
    for _ in learner.mixer.mixers:
        one = learner(images.double(), labels, maps=maps)
        two = moved(images.double().cuda(), labels.cuda(), maps=None if maps is None else maps.cuda())
        close(two.targets.cpu(), one.targets, 1e-6)
        close(two.loss.cpu(), one.loss, 1e-6)


def test_every_part_has_a_name_of_its_own() -> None:
    names = [name for kind in KINDS for name in parts(kind)]
    assert len(names) == len(set(names))


# Randomness


def test_a_draw_is_a_function_of_seed_step_and_rank() -> None:
    mixer = create("mixup | cutmix(per=sample) | tokenmix(per=sample, pairing=derangement, loss=ce)", 10)
    model = tiny_vit()

    def draws(seed: int, rank: int) -> list[Draw]:
        with mixer.attach(model, seed=seed, rank=rank, step=0) as mixing:
            return [mixing.draw(vitmix.Frame(8, (16, 16), (4, 4))) for _ in range(40)]

    def equal(one: Draw, two: Draw) -> bool:
        return one.choice == two.choice and all(torch.equal(one.values[k], two.values[k]) for k in one.values)

    first, again, other_rank, other_seed = draws(0, 0), draws(0, 0), draws(0, 1), draws(1, 0)
    assert all(map(equal, first, again))
    assert [draw.choice for draw in first] == [draw.choice for draw in other_rank]
    assert {draw.choice for draw in first} == {0, 1, 2}
    assert not any(map(equal, first, other_rank))
    assert [draw.choice for draw in first] != [draw.choice for draw in other_seed]
    with mixer.attach(model, seed=0, rank=0) as mixing:
        mixing.step = 17
        assert equal(mixing.draw(vitmix.Frame(8, (16, 16), (4, 4))), first[17])


def test_global_generators_are_left_alone() -> None:
    images, labels = tiny_batch()
    learner = vitmix.Learner(tiny_vit(), create("mixup | smmix | tokenmix(loss=ce) | (cutmix + htm)", 10))
    state = torch.get_rng_state()
    for _ in range(8):
        learner(images, labels)
    same(torch.get_rng_state(), state)
    torch.manual_seed(5)
    one = vitmix.cutmix(10)(images, labels)[0]
    torch.manual_seed(5)
    same(vitmix.cutmix(10)(images, labels)[0], one)


@pytest.mark.parametrize("text", ["mix", "mix(mask=none)", "mix(mask=nothing)"])  # the last as version 0.1 wrote it
def test_no_mask_has_a_name(text: str) -> None:
    assert create(text, 10) == vitmix.none(10)


def test_a_switch_has_one_loss() -> None:
    with pytest.warns(UserWarning, match="mixup will be trained with binary cross-entropy, the loss of tokenmix"):
        switch = create("mixup(alpha=0.8) | tokenmix", 10)
    assert [mixer.loss for mixer in switch.mixers] == ["bce", "bce"]
    assert create(str(switch), 10) == switch  # says so in its text, so without a warning
    assert [mixer.loss for mixer in create("mixup | tokenmix", 10, loss="ce").mixers] == ["ce", "ce"]
    assert [mixer.loss for mixer in create("mixup | cutmix", 10).mixers] == [None, None]
    with pytest.raises(ValueError, match=r"must have the same loss.*mixup\(loss=ce\) has ce, tokenmix has bce"):
        create("mixup(loss=ce) | tokenmix", 10)


def test_the_warning_of_a_switch_points_to_where_it_is_made() -> None:
    choices = (vitmix.mixup(10), vitmix.tokenmix(10))
    with pytest.warns(UserWarning, match="will be trained with binary cross-entropy") as found:
        vitmix.Switch(choices, (1.0, 1.0))
    assert (found[0].filename, found[0].lineno) == (__file__, sys._getframe().f_lineno - 1)


@pytest.mark.parametrize("text", ["mixup(loss=bce) | tokenmix", "mixup | tokenmix(loss=ce)"])
def test_every_choice_of_a_switch_is_trained_with_its_loss(text: str) -> None:
    """An untrained classifier of 100 classes has a cross-entropy near log(100) and a binary one near log(2)."""
    learner = vitmix.Learner(tiny_vit(num_classes=100), create(text, 100))
    expected = math.log(100) if "ce" == learner.mixer.mixers[0].loss else math.log(2)
    for choice, mixer in enumerate(learner.mixer.mixers):
        draw = mixer.draw(learner.mixing.frame(torch.zeros(4, 3, 16, 16)), torch.Generator().manual_seed(0))
        loss = learner(torch.zeros(4, 3, 16, 16), torch.arange(4), draw=dataclasses.replace(draw, choice=choice)).loss
        assert abs(loss.item() - expected) < 0.1 * expected


def test_switch_follows_its_odds() -> None:
    switch, frame = create("0.2*mixup | 0.8*none", 10), vitmix.Frame(1, (4, 4))
    choices = [switch.draw(frame, generator_for(0, step)).choice for step in range(2000)]
    assert abs(choices.count(0) / 2000 - 0.2) < 0.03


def test_generators_of_neighbors_differ() -> None:
    seen = {
        int(torch.randint(2**62, (), generator=generator_for(s, t, r))) for s in (0, 1) for t in (0, 1) for r in (0, 1)
    }
    assert len(seen) == 8


# The low-level loop


def test_five_lines_train() -> None:
    """The object layer in a plain loop: the loss of a repeated batch falls, added parameters are optimized."""
    images, labels = tiny_batch()
    model = tiny_vit()
    with create("cutmix + htm(tau=1.0, score_weight=1.0)", 10).attach(model) as mixing:
        optimizer = torch.optim.AdamW([*model.parameters(), *mixing.parameters()], lr=3e-3)
        losses = []
        for _ in range(60):
            batch = mixing.mix(images, labels)
            loss = mixing.loss(model(batch.images), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


@pytest.mark.parametrize(
    "text", ["tl_align", "transmix", "smmix", "cutmix + region", "cutmix + vtm", "cutmix + htm(tau=9)"]
)
def test_other_passes_between_mixing_and_loss(text: str) -> None:
    """One in evaluation mode changes nothing; one in training mode might be the mixed batch's, and is refused."""
    images, labels = tiny_batch(4)
    model, draw = tiny_vit(), None
    with create(text, 10).attach(model) as mixing:
        draw = mixing.draw(mixing.frame(images))
        batch = mixing.mix(images, labels, draw=draw)
        expected = mixing.loss(model(batch.images), batch)
        batch = mixing.mix(images, labels, draw=draw)
        logits = model(batch.images)
        model.eval()(images.flip(0))
        model.train()
        same(mixing.loss(logits, batch), expected)
        batch = mixing.mix(images, labels, draw=draw)
        model(images.flip(0))
        with pytest.raises(RuntimeError, match="the model ran twice between mixing a batch and its loss"):
            model(batch.images)
        batch = mixing.mix(images, labels, draw=draw)  # and all goes on
        same(mixing.loss(model(batch.images), batch), expected)


def test_targets_by_area_before_the_model_runs() -> None:
    images, labels = tiny_batch(4)
    model = tiny_vit()
    with create("smmix", 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        targets = mixing.targets(batch)
        mixing.loss(model(batch.images), batch).backward()
        same(mixing.targets(batch), targets)


def test_many_learners_are_compiled_in_one_process() -> None:
    compiled = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled[-1] += 1
        return module.forward

    images, labels = tiny_batch(4)
    with torch._dynamo.config.patch(cache_size_limit=1):
        for text in ("cutmix", "tl_align", "tokenmix"):
            learner = vitmix.Learner(tiny_vit(depth=1), create(text, 10))
            learner.compile(backend=backend)
            compiled.append(0)
            learner(images, labels)
    assert compiled == [1, 1, 1]


def test_accumulation_with_given_draws() -> None:
    """Two micro-batches with given draws give the mean of their gradients."""
    images, labels = tiny_batch(8)
    learner = vitmix.Learner(tiny_vit().double(), create("tl_align", 10))
    images = images.double()
    frame = learner.mixing.frame(images[:4])
    draws = [learner.mixing.draw(frame) for _ in range(2)]
    parts = (slice(0, 4), slice(4, 8))
    for part, draw in zip(parts, draws, strict=True):
        (learner(images[part], labels[part], draw=draw).loss / 2).backward()
    summed = [p.grad.clone() for p in learner.parameters()]
    learner.zero_grad()
    total = (
        sum(learner(images[part], labels[part], draw=draw).loss for part, draw in zip(parts, draws, strict=True)) / 2
    )
    total.backward()
    for one, two in zip(summed, learner.parameters(), strict=True):
        close(one, two.grad, 1e-12)


def test_idle_parameters_get_a_zero_gradient() -> None:
    images, labels = tiny_batch()
    learner = vitmix.Learner(tiny_vit(), create("mixup + region(head=separate) | cutmix + htm(tau=1.0)", 10))
    seen = set()
    for _ in range(12):
        learner.zero_grad()
        output = learner(images, labels)
        output.loss.backward()
        assert all(parameter.grad is not None for parameter in learner.parameters())
        seen.add(tuple(sorted(output.parts)))
    assert seen == {("main", "region"), ("main", "score")}
    for parameter in learner.added.parameters():
        torch.nn.init.zeros_(parameter)
    assert learner(images, labels).loss.isfinite()


def test_erasing_happens_after_mixing() -> None:
    images, labels = tiny_batch(4)
    seen = []
    model = tiny_vit()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    boxes = torch.tensor([[0, 8, 0, 8], [0, 0, 0, 0], [4, 16, 4, 16], [0, 16, 0, 16]])
    learner = vitmix.Learner(model, create("cutmix", 10))
    learner(images, labels)
    learner.step = 0
    learner(images, labels, erase=(boxes, torch.full((4, 3, 1, 1), 7.0)))
    mask = F.box_mask(boxes, (16, 16)).unsqueeze(1)
    same(seen[1], torch.where(mask, torch.tensor(7.0), seen[0]))


# Bad input


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: vitmix.cutmix(10, alpha=-1.0), "alpha must be a positive finite number, got -1.0"),
        (lambda: vitmix.cutmix(10, alpha=float("nan")), "alpha must be .* got nan"),
        (lambda: vitmix.mixup(10, per="image"), "unknown per 'image'"),
        (lambda: vitmix.mixup(0), "num_classes must be an integer of at least 1"),
        (lambda: vitmix.cutmix(10, smoothing=1.5), "smoothing must lie between 0 and 1"),
        (lambda: vitmix.tokenmix(10, share=float("nan")), "share must lie between 0 and 1"),
        (lambda: vitmix.tokenmix(10, grid=(0, 3)), "grid must be"),
        (lambda: vitmix.tokenmix(10, label="teacher"), "label must be 'area' or 'activation'"),
        (lambda: vitmix.transmix(10, blend=2.0), "blend must lie between 0 and 1"),
        (lambda: vitmix.smmix(10, low=0.9, high=0.1), "low must not exceed high"),
        (lambda: vitmix.smmix(10, source="same"), "unknown source 'same'"),
        (lambda: vitmix.htm(10, tau=-0.1), "tau must be zero or a positive"),
        (lambda: vitmix.htm(10, rho=float("inf")), "rho must be zero or a positive"),
        (lambda: vitmix.vtm(10, tokens=0), "tokens must be an integer of at least 1"),
        (lambda: vitmix.RegionLoss(weight=-1), "weight must be zero or a positive"),
        (lambda: create("tl_align + htm", 10), "htm needs the labels before the forward pass"),
        (lambda: create("smmix + htm", 10), "region loss labels tokens by the input mask"),
        (lambda: vitmix.Switch((vitmix.none(3), vitmix.none(4)), (1.0, 1.0)), "same num_classes"),
        (lambda: vitmix.Switch((vitmix.none(3),), (1.0,)), "a switch needs at least two mixers"),
    ],
)
def test_bad_settings(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "text, words",
    [
        ("transmix(block=3)", "block 3 is out of range.*3 blocks"),
        ("tl_align(blocks=[-4])", "block -4 is out of range"),
        ("htm(block=9)", "block 9 is out of range"),
        ("vtm(block=0)", "no earlier block"),
        ("htm(rollout=3)", "cannot be rolled out through 3"),
        ("smmix(blocks=[5])", "block 5 is out of range"),
    ],
)
def test_bad_blocks(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create(text, 10).attach(tiny_vit())


def test_bad_batches() -> None:
    images, labels = tiny_batch(4)
    mixer = vitmix.cutmix(10)
    for bad, words in (
        (labels + 8, "labels must lie in 0..9, got 11"),
        (labels - 1, "labels must lie in 0..9, got -1"),
        (labels.float(), "labels must be \\(B,\\) integers or \\(B, 10\\) probabilities"),
        (torch.rand(4, 7), "pass num_classes=7"),
        (labels[:3], "got 4 images and 3 labels"),
    ):
        with pytest.raises(ValueError, match=words):
            mixer(images, bad)
    with pytest.raises(ValueError, match="convert them to float"):
        mixer(images, torch.nn.functional.one_hot(labels, 10))
    with pytest.raises(ValueError, match="images must be \\(B, C, H, W\\)"):
        mixer(images[0], labels)
    with pytest.raises(ValueError, match="a batch needs at least one image"):
        mixer(images[:0], labels[:0])
    with pytest.raises(ValueError, match="16x16 does not divide into a 5x5 grid"):
        vitmix.tokenmix(10, grid=(5, 5))(images, labels)
    with pytest.raises(ValueError, match="a block mask needs a token grid"):
        vitmix.tokenmix(10)(images, labels)
    with pytest.raises(ValueError, match="activation shares need the activation map"):
        vitmix.tokenmix(10, label="activation", grid=(4, 4))(images, labels)
    with pytest.raises(ValueError, match="maps must be \\(4, h, w\\)"):
        vitmix.tokenmix(10, label="activation", grid=(4, 4))(images, labels, maps=torch.rand(3, 4, 4))
    learner = vitmix.Learner(tiny_vit(), vitmix.cutmix(10))
    learner.compile(backend="eager")
    with pytest.raises(ValueError, match="labels must lie in 0..9, got 11"):
        learner(images, labels + 8)
    with pytest.raises(ValueError, match="expects images of 16x16, got 18x16"):
        vitmix.Learner(tiny_vit(), vitmix.tl_align(10))(torch.randn(4, 3, 18, 16), labels)
    with pytest.raises(ValueError, match="do not divide into patches of 4x4"):
        vitmix.Learner(tiny_vit(dynamic_img_size=True), vitmix.tl_align(10))(torch.randn(4, 3, 18, 16), labels)
    with pytest.raises(ValueError, match="logits and labels must have the same shape"):
        vitmix.Learner(tiny_vit(), vitmix.cutmix(10)).eval()(images, labels[:1])
    with pytest.raises(ValueError, match="cannot pick 17 tokens out of 16"):
        vitmix.Learner(tiny_vit(), vitmix.vtm(10, tokens=17))(images, labels)
    with pytest.raises(ValueError, match="must return logits of shape \\(4, 7\\), got \\(4, 10\\)"):
        vitmix.Learner(tiny_vit(), vitmix.cutmix(7))(images, labels)


def test_masks_on_models_without_attention() -> None:
    """TokenMix's masks and labels on a convolutional network, with the grid given."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 10)
    )
    images, labels = tiny_batch()
    for text in ("cutmix", "mixup", "tokenmix(grid=[4, 4])", "tokenmix(grid=[4, 4], label=activation)"):
        learner = vitmix.Learner(model, create(text, 10))
        assert torch.isfinite(learner(images, labels, maps=maps_for(text, 6)).loss)
