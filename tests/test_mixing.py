"""A method at work: what each batch draws, which losses are summed with which weights, and when hidden mixing acts."""

import math

import pytest
import torch
from torch import Tensor, nn

import dense
import reference
import vitmix
from support import close, same, tiny_batch, tiny_vit
from vitmix import functional as F

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


def test_every_step_of_a_learner_is_mixed_anew() -> None:
    images, labels = tiny_batch()
    learner = vitmix.Learner(tiny_vit(), vitmix.create("mixup", 10))
    targets = {str(learner(images, labels).targets.tolist()) for _ in range(6)}
    assert learner.step == len(targets) == 6


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


def test_extra_losses_enter_with_their_weights() -> None:
    """Region and consistency against slow twins on the model's own tokens and logits, each with a weight of its own."""
    model = tiny_vit().double()
    images, labels = tiny_batch(5)
    images = images.double()
    text = "mix(mask=salient_box, smoothing=0.2) + region(weight=0.3) + consistency(weight=0.7)"
    with vitmix.create(text, 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        logits = model(batch.images)
        parts = {name: part.detach() for name, part in mixing.losses(logits, batch).items()}
    model.requires_grad_(False)
    tokens, mask = model.forward_features(batch.images)[:, 1:], batch.mix.mask.flatten(1)
    rows = reference.one_hot(labels, 10, 0.2)
    region = reference.region_loss(tokens, mask, model.head, rows, batch.mix.partner)
    share, clean = mask.double().mean(1), model.eval()(images)
    consistency = reference.kl_consistency(logits.detach(), clean, batch.mix.partner, share, "logits")
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


# Hidden mixing


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


def whole_maps(watch: dense.Watch) -> list[Tensor]:
    """Head means of what the model computed; statistics take one head at a time."""
    return [each.detach().mean(1) for each in watch.maps if each.shape[1] > 1]


def test_aligned_shares_of_a_bank_are_carried_with_its_tokens() -> None:
    """TL-Align with VTM against dense matrices: keys of the bank bring the shares their tokens had where they were."""
    model = tiny_vit().double().train()
    images, labels = tiny_batch(4)
    with vitmix.create("tl_align + vtm(block=2, tokens=3)", 10).attach(model) as mixing:
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
        share = ((attention @ share.unsqueeze(2)).squeeze(2) + share) / 2
    keys = torch.cat([share, *bank], dim=1)
    final = ((last[:, 0] * keys).sum(1) + share[:, 0]) / 2
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
