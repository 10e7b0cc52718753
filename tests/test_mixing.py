"""A method at work: what each batch draws, which losses are summed with which weights, and when hidden mixing acts."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import dense
import reference
import vitmix
from support import close, same, tiny_batch, tiny_vit
from test_mixers import EVERY
from vitmix import functional as F
from vitmix._guide import _fit_scores

# Draws


def as_text(values: dict[str, Tensor]) -> str:
    return str({name: value.tolist() for name, value in values.items()})


@pytest.mark.parametrize("text", ["mixup", "cutmix", "tokenmix", "smmix", "none(pairing=derangement)"])
def test_every_batch_draws_anew(text: str) -> None:
    with vitmix.create(text, 10).attach(tiny_vit()) as mixing:
        frame = mixing.frame(torch.zeros(8, 3, 16, 16))
        draws = {as_text(mixing.draw(frame).values) for _ in range(12)}
        assert mixing.step == 12
    assert len(draws) > 9  # two of a few boxes may be alike by chance


@pytest.mark.parametrize("text", EVERY)
def test_draws_come_from_their_generator_alone(text: str) -> None:
    mixer = vitmix.create(text, 10)
    with mixer.attach(tiny_vit()) as mixing:
        frame = mixing.frame(torch.zeros(8, 3, 16, 16))
    state = torch.get_rng_state()
    one, two = (mixer.draw(frame, torch.Generator().manual_seed(5)) for _ in range(2))
    assert one.choice == two.choice and as_text(one.values) == as_text(two.values)
    same(torch.get_rng_state(), state)
    assert list(one.values)[0] == "partner" and len(one.values["partner"]) == 8


def test_every_step_of_a_learner_is_mixed_anew() -> None:
    images, labels = tiny_batch()
    learner = vitmix.Learner(tiny_vit(), vitmix.create("mixup", 10))
    targets = {str(learner(images, labels).targets.tolist()) for _ in range(6)}
    assert learner.step == len(targets) == 6


def test_a_draw_can_be_repeated_by_hand() -> None:
    """From the seed, the step and the rank, which is zero where it is not given."""
    mixer = vitmix.create("mixup | cutmix(per=sample, pairing=derangement)", 10)
    frame = vitmix.Frame(8, (16, 16))
    for settings, seed, rank in ((dict(seed=0), 0, 0), (dict(seed=5, rank=3), 5, 3)):
        learner = vitmix.Learner(tiny_vit(), mixer, **settings)
        with mixer.attach(tiny_vit(), **settings) as mixing:
            for step in range(4):
                shared, own = vitmix.generator_for(seed, step, 0), vitmix.generator_for(seed, step, 1 + rank)
                expected = mixer.draw(frame, own, shared=shared)
                for drawn in (mixing.draw(frame), learner.mixing.draw(frame)):
                    assert drawn.choice == expected.choice and as_text(drawn.values) == as_text(expected.values)


def test_numbers_of_ones_own_leave_the_step_alone() -> None:
    images, labels = tiny_batch(4)
    mixer = vitmix.create("cutmix(per=sample)", 10)
    learner = vitmix.Learner(tiny_vit(), mixer)
    draw = mixer.draw(learner.mixing.frame(images), torch.Generator().manual_seed(1))
    expected = mixer(images, labels, draw=draw)
    mixed = learner.mixing.mix(images, labels, generator=torch.Generator().manual_seed(1))
    for batch in (mixed, learner.mixing.mix(images, labels, draw=draw)):
        same(batch.images, expected[0])
        same(learner.mixing.targets(batch), expected[1])
    same(learner(images, labels, draw=draw).targets, expected[1])
    assert learner.step == 0


def test_the_rank_of_a_process_is_asked_for_at_each_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, frame = vitmix.create("cutmix(per=sample)", 10), vitmix.Frame(8, (16, 16))
    with mixer.attach(tiny_vit(), seed=0) as mixing, mixer.attach(tiny_vit(), seed=0, rank=3) as third:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
        assert as_text(mixing.draw(frame).values) == as_text(third.draw(frame).values)


# Losses


@pytest.mark.parametrize("text", ["mixup", "tl_align(smoothing=0.1)", "vtm"])
@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_the_main_loss_is_the_one_asked_for(text: str, loss: str) -> None:
    images, labels = tiny_batch()
    model = tiny_vit().double()
    mixer = vitmix.create(text, 10)
    mixer = vitmix.Mixer(10, mixer.mask, mixer.share, inner=mixer.inner, smoothing=mixer.smoothing, loss=loss)
    output = vitmix.Learner(model, mixer)(images.double(), labels)
    slow = {"ce": reference.soft_cross_entropy, "bce": reference.soft_bce}[loss]
    assert math.isclose(output.loss.detach(), slow(output.logits.detach(), output.targets), rel_tol=1e-9)
    same(output.parts["main"], output.loss)


@pytest.mark.parametrize("average", ["logits", "probabilities"])
@pytest.mark.parametrize("head", ["shared", "separate"])
def test_extra_losses_enter_with_their_weights(average: str, head: str) -> None:
    """Region and consistency against slow twins on the model's own tokens and logits, each with a weight of its own."""
    model = tiny_vit().double()
    images, labels = tiny_batch(5)
    images = images.double()
    extra = f"region(weight=0.3, head={head}) + consistency(weight=0.7, average={average})"
    with vitmix.create(f"mix(mask=salient_box, smoothing=0.2) + {extra}", 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        logits = model(batch.images)
        parts = {name: part.detach() for name, part in mixing.losses(logits, batch).items()}
        classify = mixing.modules["token_head"].requires_grad_(False) if head == "separate" else model.head
        assert list(mixing.modules) == (["token_head"] if head == "separate" else [])
    model.requires_grad_(False)
    tokens, mask = model.forward_features(batch.images)[:, 1:], batch.mix.mask.flatten(1)
    rows = reference.one_hot(labels, 10, 0.2)
    region = reference.region_loss(tokens, mask, classify, rows, batch.mix.partner)
    share, clean = mask.double().mean(1), model.eval()(images)
    consistency = reference.kl_consistency(logits.detach(), clean, batch.mix.partner, share, average)
    targets = F.mix_targets(rows, batch.mix.partner, share)
    main = reference.soft_cross_entropy(logits.detach(), targets)
    for name, expected in (("main", main), ("region", 0.3 * region), ("consistency", 0.7 * consistency)):
        assert math.isclose(parts[name], expected, rel_tol=1e-9)
    assert math.isclose(parts["loss"], main + 0.3 * region + 0.7 * consistency, rel_tol=1e-9)


@pytest.mark.parametrize("stop", [False, True])
def test_the_score_net_learns_and_moves_the_tokens_unless_stopped(stop: bool) -> None:
    images, labels = tiny_batch()
    model = tiny_vit()
    learner = vitmix.Learner(model, vitmix.create(f"htm(block=1, tau=0, stop_gradient={stop})", 10))
    (net,) = learner.added.values()
    nn.init.normal_(net.head.weight)
    with vitmix.create(f"htm(block=1, tau=0, score_weight=0.25, stop_gradient={stop})", 10).attach(model) as mixing:
        (own,) = mixing.modules.values()
        own.load_state_dict(net.state_dict())
        tokens: list[Tensor] = []
        model.blocks[1].register_forward_pre_hook(lambda _, args: tokens.append(args[0]))
        batch = mixing.mix(images, labels)
        score = mixing.losses(model(batch.images), batch)["score"]
    expected = reference.soft_cross_entropy(own(tokens[0]).detach(), F.label_rows(labels, 10))
    close(score, torch.tensor(0.25 * expected), 1e-6)
    embed, head = torch.autograd.grad(score, [model.patch_embed.proj.weight, own.head.weight], allow_unused=True)
    assert head.abs().sum() > 0
    assert embed is None if stop else embed.abs().sum() > 0


def test_score_losses_of_two_nets_are_summed() -> None:
    images, labels = tiny_batch()
    mixer = vitmix.create(
        "mix(inner=[htm(block=0, tau=0, score_weight=0.5), htm(block=-1, tau=0, score_weight=2.0)])", 10
    )
    learner = vitmix.Learner(tiny_vit(), mixer)
    assert list(learner.added) == ["htm_0", "htm_last1"]  # by which checkpoints name them
    for net in learner.added.values():
        nn.init.normal_(net.head.weight)
    tokens: list[Tensor] = []
    for block in (learner.model.blocks[0], learner.model.blocks[2]):
        block.register_forward_pre_hook(lambda _, args: tokens.append(args[0].detach()))
    score = learner(images, labels).parts["score"]
    nets, rows = learner.added.values(), F.label_rows(labels, 10)
    first, last = (float(F.soft_cross_entropy(n(t), rows).detach()) for n, t in zip(nets, tokens, strict=True))
    assert math.isclose(float(score), 0.5 * first + 2 * last, rel_tol=1e-5)
    last_block = vitmix.Learner(tiny_vit(), vitmix.create("htm(block=1, score_at=last)", 10))
    assert list(last_block.added) == ["htm_last_1"]


# Hidden mixing


@pytest.mark.parametrize("other", ["vtm(block=1)", "htm(block=1, tau=9)", "tl_align", "smmix"])
def test_a_switch_leaves_the_model_to_the_method_that_was_drawn(other: str) -> None:
    """Hooks of the other one are in place and must do nothing."""
    images, labels = tiny_batch()
    model = tiny_vit()
    learner = vitmix.Learner(model, vitmix.create(f"{other} | mixup", 10))
    mixup = vitmix.create("mixup", 10)
    draw = mixup.draw(learner.mixing.frame(images), torch.Generator().manual_seed(0))
    output = learner(images, labels, draw=vitmix.Draw(1, draw.values))
    mixed, targets = mixup(images, labels, draw=draw)
    same(output.targets, targets)
    same(output.logits, model(mixed))
    assert list(output.parts) == ["main"] and not output.counts


@pytest.mark.parametrize("text", ["htm(tau=9, block=1)", "vtm(block=1)", "cutmix + htm(tau=9, block=1) + vtm"])
def test_hidden_mixing_leaves_evaluation_alone(text: str) -> None:
    """A mixed batch run in evaluation mode goes through the plain model, and its targets are those of the input."""
    images, labels = tiny_batch()
    model = tiny_vit()
    with vitmix.create(text, 10).attach(model) as mixing:
        batch = mixing.mix(images, labels, draw=(draw := mixing.draw(mixing.frame(images))))
        trained = model(batch.images)
        mixing.targets(batch)
        model.eval()
        batch = mixing.mix(images, labels, draw=draw)
        evaluated, targets = model(batch.images), mixing.targets(batch)
        share = F.area_share(batch.mix.mask).expand(len(images))
        counts = mixing.counts(batch)
    same(evaluated, model(batch.images))
    same(targets, F.mix_targets(F.label_rows(labels, 10), batch.mix.partner, share))
    assert not torch.equal(trained, evaluated) and not counts


def test_aligned_shares_of_an_evaluated_batch_know_no_bank() -> None:
    images, labels = tiny_batch(4)
    model = tiny_vit().double().eval()
    targets = []
    for text in ("tl_align", "tl_align + vtm(block=1)"):
        with vitmix.create(text, 10).attach(model, seed=0) as mixing:
            batch = mixing.mix(images.double(), labels)
            model(batch.images)
            targets.append(mixing.targets(batch))
    same(targets[0], targets[1])


def whole_maps(watch: dense.Watch) -> list[Tensor]:
    """Head means of what the model computed; statistics take one head at a time."""
    return [each.detach().mean(1) for each in watch.maps if each.shape[1] > 1]


@pytest.mark.parametrize("normalize", [True, False])
def test_aligned_shares_of_a_bank_are_carried_with_its_tokens(normalize: bool) -> None:
    """TL-Align with VTM against dense matrices: keys of the bank bring the shares their tokens had where they were."""
    model = tiny_vit().double().train()
    images, labels = tiny_batch(4)
    with vitmix.create(f"tl_align(normalize={normalize}) + vtm(block=2, tokens=3)", 10).attach(model) as mixing:
        batch = mixing.mix(images.double(), labels)
        with dense.Watch() as watch:
            model(batch.images)
        targets = mixing.targets(batch)
    first, second, last = whole_maps(watch)
    assert last.shape[-1] == 17 + 2 * 3
    pixels = batch.mix.mask.double().expand(4, 16, 16)
    share = torch.stack([each.unfold(0, 4, 4).unfold(1, 4, 4).mean((2, 3)).flatten() for each in pixels])
    share = torch.cat([pixels.mean((1, 2)).unsqueeze(1), share], dim=1)
    bank = []
    for attention in (first, second):
        picked = attention[:, 0, 1:].topk(3).indices + 1
        bank.append(share.gather(1, picked))
        carried = (attention @ share.unsqueeze(2)).squeeze(2)
        share = (carried + share) / 2 if normalize else carried
    carried = (last[:, 0] * torch.cat([share, *bank], dim=1)).sum(1)
    final = (carried + share[:, 0]) / 2 if normalize else carried
    assert (torch.cat(bank, dim=1) > 0).any()
    close(targets, F.mix_targets(F.label_rows(labels, 10, dtype=torch.float64), batch.mix.partner, final), 1e-9)


@pytest.mark.parametrize("rollout", [0, 1, 2])
def test_vertical_mixing_attends_to_the_most_salient_tokens(rollout: int) -> None:
    """Which tokens are in the bank, by the keys that attention gets: saliency rolled out by multiplied matrices."""
    model = tiny_vit().double().train()
    images, labels = tiny_batch(4)
    inputs: list[Tensor] = []
    normed: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    with vitmix.create(f"vtm(block=2, tokens=3, rollout={rollout})", 10).attach(model) as mixing:
        model.blocks[2].norm1.register_forward_pre_hook(lambda _, args: normed.append(args[0].detach()))
        batch = mixing.mix(images.double(), labels)
        with dense.Watch() as watch:
            mixing.loss(model(batch.images), batch)
    first, second, _ = whole_maps(watch)
    rolled = second @ (first + torch.eye(17)) / 2 if rollout else second
    expected = [inputs[2]]
    for tokens, attention in ((inputs[0], first), (inputs[1], rolled)):
        picked = attention[:, 0, 1:].topk(3).indices + 1
        expected.append(torch.stack([each[places] for each, places in zip(tokens, picked, strict=True)]))
    close(normed[0], torch.cat(expected, dim=1), 1e-12)


def test_targets_of_vertical_mixing_may_be_asked_for_before_the_model_runs() -> None:
    images, labels = tiny_batch()
    with vitmix.create("cutmix + vtm", 10).attach(model := tiny_vit()) as mixing:
        batch = mixing.mix(images, labels)
        mixing.targets(batch)
        with pytest.raises(RuntimeError, match="vtm mixed nothing"):
            mixing.loss(torch.zeros(6, 10), batch)
        mixing.loss(model(batch.images), batch)


def test_what_is_no_tensor_of_logits_is_told() -> None:
    images, labels = tiny_batch()
    with vitmix.create("cutmix", 10).attach(tiny_vit()) as mixing:
        batch = mixing.mix(images, labels)
        for wrong, words in (
            ([1, 2], "got list; if it has several outputs, pass the logits"),
            (torch.zeros(2, 6, 10), "got \\(2, 6, 10\\); if it has several outputs, pass the logits"),
            (torch.zeros(6, 9), "got \\(6, 9\\); check num_classes"),
            (torch.zeros(5, 10), "\\(5, 10\\); check num_classes"),
        ):
            with pytest.raises(ValueError, match=f"must return logits of shape \\(6, 10\\).*{words}"):
                mixing.loss(wrong, batch)


def test_a_part_gets_the_numbers_that_it_drew() -> None:
    with vitmix.create("cutmix", 10).attach(tiny_vit()) as mixing:
        batch = mixing.mix(*tiny_batch())
        values = mixing.evidence(batch, "mask", batch.mixer.mask).values
        assert values and values == batch.draw.part("mask")


def test_a_given_frame_is_kept() -> None:
    images, labels = tiny_batch()
    with vitmix.create("cutmix", 10).attach(tiny_vit()) as mixing:
        frame = replace(mixing.frame(images), dtype=torch.float64)
        batch = mixing.apply(images, labels, mixing.draw(frame), frame=frame)
        assert batch.frame is frame and mixing.targets(batch).dtype == torch.float64


def test_shares_may_be_carried_through_a_single_block() -> None:
    for text, carries in (("tl_align", True), ("cutmix", False), ("cutmix | tl_align", True)):
        with vitmix.create(text, 10).attach(tiny_vit(depth=1)) as mixing:
            assert mixing.carries_shares == carries


# Guides


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_model_that_is_its_own_guide_is_listened_to_once() -> None:
    model, guide = tiny_vit(), tiny_vit()
    with vitmix.create("tl_align(blocks=[-1])", 10).attach(model):
        one_block = hooks_on(model)
    with vitmix.create("mix(mask=salient_box)", 10).attach(model):
        assert hooks_on(model) == one_block
    with vitmix.create("mix(mask=salient_box)", 10).attach(model, guide=guide):
        assert hooks_on(model) == 0 and hooks_on(guide) == one_block
    assert hooks_on(guide) == 0


def test_a_guide_is_left_alone_after_its_pass() -> None:
    """Nothing is computed from its attention when it runs for another reason."""
    model, guide = tiny_vit(), tiny_vit().eval()
    images, labels = tiny_batch()
    with vitmix.create("smmix", 10).attach(model, guide=guide) as mixing:
        batch = mixing.mix(images, labels)
        with dense.Watch() as watch:
            guide(images)
        assert len(watch.maps) == len(guide.blocks)
        mixing.loss(model(batch.images), batch).backward()


def test_erasing_follows_the_precision_of_the_images() -> None:
    images, labels = tiny_batch(4)
    learner = vitmix.Learner(tiny_vit().bfloat16(), vitmix.create("cutmix", 10))
    boxes, fill = torch.tensor([[0, 8, 0, 8]] * 4), torch.zeros(4, 3, 16, 16)
    assert learner(images.bfloat16(), labels, erase=(boxes, fill)).loss.isfinite()


def test_without_mixing_the_images_are_not_copied() -> None:
    images, labels = tiny_batch()
    with vitmix.create("none", 10).attach(tiny_vit()) as mixing:
        assert mixing.mix(images, labels).images is images


def test_scores_of_another_grid_are_resampled() -> None:
    scores = torch.rand(4, 2, 3, generator=torch.Generator().manual_seed(0))  # as many images as the grid has rows
    same(_fit_scores(scores, (2, 3)), scores)
    same(_fit_scores(scores, (4, 3)), scores.repeat_interleave(2, dim=1))


def test_images_of_another_size_are_refused_where_attention_is_read() -> None:
    images = torch.zeros(2, 3, 24, 24)
    with vitmix.transmix(10).attach(tiny_vit()) as mixing, pytest.raises(ValueError, match="24"):
        mixing.frame(images)
    with vitmix.cutmix(10).attach(tiny_vit()) as mixing:
        assert mixing.frame(images).grid is None
