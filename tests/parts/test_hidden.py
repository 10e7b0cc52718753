"""Hidden mixing in a model, step by step: what enters the block, which labels leave, what random baselines do."""

import math
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn

import reference
import vitmix
from support import SMALL_SWIN, close, same, tiny_batch, tiny_cct, tiny_vit
from vitmix import functional as F
from vitmix.attention.readers import read_model
from vitmix.parts import assignment
from vitmix.parts.hidden import ScoreNet, check_replay

MODELS = {
    "class token": lambda: tiny_vit(),
    "registers": lambda: tiny_vit(reg_tokens=2),
    "pooled, with a class token": lambda: tiny_vit(global_pool="avg"),
    "sequence pooling": lambda: wide(tiny_cct(attn_drop_rate=0.0, drop_path_rate=0.0)),
}


def wide(model: nn.Module) -> nn.Module:
    """Weights by which attention is far from uniform."""
    for block in model.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.5)
    return model


class Watched:
    """A model with HTM at block 1, run on one batch: the tokens before and after its mixing, and what came of it."""

    def __init__(self, model: nn.Module, text: str, batch: int = 4) -> None:
        self.model = model.double().train()
        self.images, self.labels = tiny_batch(batch)
        self.images = self.images.double()
        before: list[Tensor] = []
        after: list[Tensor] = []
        handle = model.blocks[1].register_forward_pre_hook(lambda _, args: before.append(args[0].detach()))
        with vitmix.create(text, 10).attach(model) as mixing:
            (self.net,) = mixing.modules.values()
            nn.init.normal_(self.net.head.weight)
            model.blocks[1].register_forward_pre_hook(lambda _, args: after.append(args[0].detach()))
            self.draw = mixing.draw(mixing.frame(self.images))
            self.mixed = mixing.mix(self.images, self.labels, draw=self.draw)
            self.parts = mixing.losses(model(self.mixed.images), self.mixed)
            self.targets, self.counts = mixing.targets(self.mixed), mixing.counts(self.mixed)
            (self.actor,) = self.mixed.tape.actors
        handle.remove()
        self.before, self.after = before[-1], after[-1]
        self.prefix = self.before.shape[1] - math.prod(self.mixed.frame.grids[1])

    def saliency(self, rollout: int, class_token: bool) -> Tensor:
        """The class row or the column mean at block 1, by whole matrices."""
        maps = [each.mean(1) for each in reference.attention_of(self.model, self.images)]
        whole = maps[1] @ (maps[0] + torch.eye(maps[0].shape[1])) / 2 if rollout else maps[1]
        return whole[:, 0, self.prefix :] if class_token else whole[:, self.prefix :, self.prefix :].mean(1)


def check_mixing(seen: Watched, partner: list[int], take: Tensor, own: list[float]) -> None:
    rows = F.label_rows(seen.labels, 10, dtype=torch.float64)
    for b, other in enumerate(partner):
        expected = seen.before[b].clone()
        for t in take[b].nonzero().flatten().tolist():
            expected[seen.prefix + t] = seen.before[other, seen.prefix + t]
        same(seen.after[b], expected)
        close(seen.targets[b], own[b] * rows[b] + (1 - own[b]) * rows[other], 1e-9)


@pytest.mark.parametrize("rollout", [0, 1])
@pytest.mark.parametrize("kind", MODELS)
def test_horizontal_mixing_in_a_model_is_the_slow_one(kind: str, rollout: int) -> None:
    settings = f"block=1, rho=0.0005, rollout={rollout}"
    model = MODELS[kind]()
    state = torch.get_rng_state()
    difficulty = F.sample_difficulty(
        (first := Watched(model, f"htm({settings}, tau=0)")).net(first.before), F.label_rows(first.labels, 10)
    )
    assert not first.counts["htm_samples"] and not first.counts["htm_tokens"]
    same(first.after, first.before)
    # As hard as the second of the four: it is easy still, the two others are not.
    torch.set_rng_state(state)
    tau = float(difficulty.detach().sort().values[1])
    seen = Watched(model, f"htm({settings}, tau={tau!r})")
    easy = (difficulty.detach() <= tau).tolist()
    assert sum(easy) == 2
    saliency = seen.saliency(rollout, kind in ("class token", "registers"))
    _, partner, take, own = reference.horizontal(saliency, easy, 0.0005)
    assert take.any()
    check_mixing(seen, partner, take, own)
    assert float(seen.counts["htm_samples"]) == 0.5
    close(seen.counts["htm_tokens"], take.float().mean(), 1e-7)


def test_random_samples_are_five_of_a_batch() -> None:
    seen = Watched(tiny_vit(), "htm(block=1, rho=0.0005, tau=0, choose=random_samples)", batch=8)
    easy = seen.draw.values["inner0.easy"]
    assert int(easy.sum()) == 5 and float(seen.counts["htm_samples"]) == 5 / 8
    drawn = [vitmix.HTM(choose="random_samples").draw(vitmix.Frame(8, (16, 16)), None)["easy"] for _ in range(40)]
    assert 10 < sum(each.float() for each in drawn).min() and all(int(each.sum()) == 5 for each in drawn)
    saliency = seen.saliency(0, True)
    decision = F.horizontal_mix(saliency, easy, rho=0.0005)
    check_mixing(seen, decision.partner.tolist(), decision.take, decision.own.tolist())
    small = vitmix.HTM(choose="random_samples").draw(vitmix.Frame(3, (16, 16)), None)["easy"]
    assert small.all()


def test_random_tokens_are_as_many_as_salient_ones_of_random_pairs() -> None:
    seen = Watched(tiny_vit(), "htm(block=1, rho=0.0005, tau=9, choose=random_tokens)", batch=6)
    pairs, noise = seen.draw.values["inner0.pairs"], seen.draw.values["inner0.noise"]
    saliency = seen.saliency(0, True)
    salient = [sum(float(saliency[p, t] - saliency[b, t]) > 0.0005 for t in range(16)) for b, p in enumerate(pairs)]
    count = round(sum(salient) / 6)
    take = torch.zeros(6, 16, dtype=torch.bool)
    for b in range(6):
        take[b, sorted(range(16), key=lambda t: float(noise[b, t]))[:count]] = True
    kept = [float(saliency[b][~take[b]].sum()) for b in range(6)]
    taken = [float(saliency[p][take[b]].sum()) for b, p in enumerate(pairs)]
    check_mixing(seen, pairs.tolist(), take, [k / (k + t) for k, t in zip(kept, taken, strict=True)])
    assert 0 < count < 16 and sorted(pairs.tolist()) == list(range(6)) and len(noise.unique(dim=0)) == 6
    none = Watched(tiny_vit(), "htm(block=1, rho=0.0005, tau=0, choose=random_tokens)", batch=6)
    same(none.after, none.before)
    same(none.targets, F.label_rows(none.labels, 10, dtype=torch.float64))
    half = torch.tensor([True, False] * 3)
    two = none.actor._random_tokens(saliency, half)
    same(two.partner, torch.where(half, none.draw.values["inner0.pairs"], torch.arange(6)))
    assert not two.take[~half].any() and (two.own[~half] == 1).all()


@pytest.mark.parametrize("kind", MODELS)
def test_difficulty_at_the_last_block_is_that_of_an_unmixed_pass(kind: str) -> None:
    model = MODELS[kind]()
    seen = Watched(model, "htm(block=1, tau=9, rho=0.0005, score_at=last, score_weight=1.0)")
    model.eval()
    final = model.forward_features(seen.images)
    logits = seen.net(final).detach()
    expected = reference.soft_cross_entropy(logits, F.label_rows(seen.labels, 10))
    assert math.isclose(float(seen.parts["score"].detach()), expected, rel_tol=1e-9)
    assert (seen.net.pool is None) == (kind in ("class token", "registers"))
    reader = read_model(model)
    assert seen.net.prefix == reader.prefix and seen.net.head.in_features == reader.width
    assert model.training is False and seen.parts["score"].requires_grad


@pytest.mark.parametrize("class_token", [False, True])
def test_the_score_net_begins_small_and_weighs_patches_by_one_score(class_token: bool) -> None:
    net = ScoreNet(400, 50, class_token=class_token, prefix=2).double().requires_grad_(False)
    for layer in (net.head,) if class_token else (net.head, net.pool):
        assert 0.017 < float(layer.weight.std()) < 0.023 and not layer.bias.any()
    tokens = torch.randn(2, 7, 400, dtype=torch.float64)
    pooled = tokens[:, 0]
    if not class_token:
        patches = tokens[:, 2:]
        weight = torch.stack([(each @ net.pool.weight[0] + net.pool.bias).softmax(0) for each in patches])
        pooled = torch.stack(
            [sum(w * t for w, t in zip(*each, strict=True)) for each in zip(weight, patches, strict=True)]
        )
    close(net(tokens), (pooled @ net.head.weight.T + net.head.bias), 1e-9)


def test_vertical_mixing_with_random_tokens_takes_those_of_the_largest_numbers() -> None:
    model = tiny_vit().double().train()
    images, labels = tiny_batch(3)
    inputs: list[Tensor] = []
    normed: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    with vitmix.create("vtm(block=-1, tokens=4, choose=random)", 10).attach(model) as mixing:
        model.blocks[2].norm1.register_forward_pre_hook(lambda _, args: normed.append(args[0].detach()))
        draw = mixing.draw(mixing.frame(images))
        noise = draw.values["inner0.noise"]
        assert noise.shape == (2, 3, 16) and len(noise.unique()) > 90
        batch = mixing.mix(images.double(), labels, draw=draw)
        mixing.loss(model(batch.images), batch)
    for b in range(3):
        bank = [inputs[block][b, 1 + noise[block, b].topk(4).indices] for block in range(2)]
        same(normed[0][b], torch.cat([inputs[2][b], *bank]))


def test_tokens_of_a_sample_are_gathered_from_it() -> None:
    tokens, saliency = torch.randn(3, 7, 2), torch.rand(3, 7)
    positions = F.top_tokens(saliency, 3)
    for b in range(3):
        assert positions[b].tolist() == sorted(range(7), key=lambda t: -float(saliency[b, t]))[:3]
        same(F.pick_tokens(tokens, positions)[b], tokens[b, positions[b]])
    same(F.top_tokens(saliency, 7).sort().values, torch.arange(7).expand(3, 7))
    with pytest.raises(ValueError, match="cannot pick 8 tokens out of 7"):
        F.top_tokens(saliency, 8)


def test_a_replay_is_of_the_same_tokens_up_to_rounding() -> None:
    """Half a percent, or half a hundredth, is what another order of additions may do in half precision."""
    entered = torch.tensor([[100.0, 0.0, 1.0]])
    check_replay(entered + 100, None)
    for change in ([0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [0.0, 0.009, 0.0], [0.0, 0.0, -0.018]):
        check_replay(entered + torch.tensor(change), entered)
    for change in ([1.5, 0.0, 0.0], [0.0, 0.015, 0.0], [0.0, 0.0, 0.03]):
        with pytest.raises(RuntimeError, match="reran a block of an earlier batch"):
            check_replay(entered + torch.tensor(change), entered)
    with pytest.raises(RuntimeError, match="reran a block of an earlier batch"):
        check_replay(entered.repeat(2, 1), entered)
    check_replay(entered, entered[:, :2])  # the same memory: not run again


def test_hidden_mixing_checks_its_blocks() -> None:
    model = tiny_vit()
    for text, words in (
        ("htm(block=1, rollout=2)", "saliency at block 1 cannot be rolled out through 2 earlier blocks"),
        ("vtm(block=0)", "no earlier block to take tokens from"),
        ("vtm(block=-3)", "no earlier block to take tokens from"),
    ):
        with pytest.raises(ValueError, match=words):
            vitmix.create(text, 10).attach(model)
    for text in ("htm(block=1, rollout=1)", "htm(block=0)", "vtm(block=1)", "vtm(block=-2)", "vtm(block=1, rollout=5)"):
        vitmix.create(text, 10).attach(model).close()
    swin = timm.create_model("swin_tiny_patch4_window7_224", **SMALL_SWIN)
    with pytest.raises(ValueError, match="cannot be rolled out through 1 earlier blocks of the same stage"):
        vitmix.create("htm(block=2, rollout=1)", 10).attach(swin)
    resnet = timm.create_model("resnet18")
    for name in ("htm", "vtm"):
        with pytest.raises(ValueError, match=f"{name} needs attention, which this ResNet does not have"):
            vitmix.create(name, 10).attach(resnet)


def test_only_more_than_the_threshold_is_taken() -> None:
    saliency, easy = torch.tensor([[0.25, 0.25, 0.25], [0.75, 0.875, 0.25]]), torch.tensor([True, False])
    assert F.take_salient(saliency, torch.tensor([1, 1]), easy, 0.5).tolist() == [[False, True, False], [False] * 3]
    assert F.take_salient(saliency, torch.tensor([1, 0]), ~easy, 0.0).tolist() == [[False] * 3] * 2


def test_other_images_leave_the_bank_of_a_batch_alone() -> None:
    """An evaluation of other images before the loss, where backward runs the blocks again."""
    images, labels = tiny_batch(4)
    gradients = []
    for others in (False, True):
        torch.manual_seed(2)
        model = tiny_vit()
        model.set_grad_checkpointing(True)
        with vitmix.create("vtm(block=2, tokens=3)", 10).attach(model) as mixing:
            batch = mixing.mix(images, labels)
            logits = model(batch.images)
            if others:
                model.eval()(torch.ones(3, 3, 16, 16))
                model.train()
            mixing.loss(logits, batch).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    same(gradients[0], gradients[1])


def test_tau_for_a_rate_is_a_quantile_of_the_difficulties() -> None:
    model, part = tiny_vit(), vitmix.HTM(block=1)
    with vitmix.Mixer(10, inner=(part,)).attach(model, seed=0) as mixing:
        batch = mixing.mix(*tiny_batch(6))
        mixing.loss(model(batch.images), batch)
        (actor,) = batch.tape.actors
        with torch.no_grad():
            found = [actor.at_rate(rate) for rate in (0, 0.5, 1)]
    assert found[0].tau < found[1].tau < found[2].tau
    assert all(replace(each, tau=part.tau) == part for each in found)


def test_nothing_is_exchanged_in_evaluation_mode() -> None:
    images, labels = tiny_batch(4)
    model = tiny_vit()
    with vitmix.create("cutmix + htm(block=1, tau=9)", 10).attach(model) as mixing:
        exchanged = []
        for training in (False, True):
            batch = mixing.mix(images, labels)
            model.train(training)(batch.images)
            exchanged.append(batch.tape.actors[0].exchange is not None)
    assert exchanged == [False, True]


def test_tokens_without_a_prefix_are_exchanged_by_default() -> None:
    mix = F.horizontal_mix(torch.rand(4, 6), torch.tensor([True, True, False, True]), rho=0.1)
    tokens = torch.randn(4, 6, 2)
    assert mix.take.any()
    same(F.exchange_tokens(tokens, mix), F.mix_tokens(tokens, mix.take, mix.partner))


def test_borrowed_tokens_are_counted_where_they_came_from() -> None:
    images, labels = tiny_batch(3)
    model = tiny_vit(reg_tokens=2).train()
    with vitmix.create("vtm(block=2, tokens=3)", 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        (actor,) = batch.tape.actors
        assert actor.borrowed is None  # the model has not run
        mixing.loss(model(batch.images), batch)
        expected = torch.zeros(3, math.prod(batch.frame.grids[2]), dtype=torch.long)
        for positions in actor.positions:
            for counts, chosen in zip(expected, positions.tolist(), strict=True):
                for position in chosen:
                    counts[position - 3] += 1
        assert expected.sum(1).tolist() == [6, 6, 6]
        same(actor.borrowed, expected)


def test_a_gain_that_is_no_number_counts_as_none() -> None:
    """As in the kernel; of partners with the same total gain, the first by SciPy's rules."""
    values = torch.tensor([[0.5, 0.75, 0.0], [float("nan")] * 3, [0.5, 1.0, 0.5], [0.75, 0.25, 0.5]])
    assert assignment.assign_on_host(values, torch.ones(4, dtype=torch.bool), 0.1).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_partners_on_the_host_need_no_kernel(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Where Triton is installed, too: without its interpreter, its kernels run on a GPU only."""
    kernel = pytest.importorskip("vitmix.attention._kernels.assignment")
    monkeypatch.setattr(kernel, "assign_partners", lambda *_: pytest.fail("the kernel of a GPU was asked"))
    saliency, easy = torch.rand(5, 7, dtype=dtype), torch.tensor([True, True, False, True, False])
    same(F.assign_partners(saliency, easy, 0.1), assignment.assign_on_host(saliency, easy, 0.1))


def test_a_rerun_is_not_looked_at_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="reran a block of an earlier batch"):
        check_replay(torch.ones(1, 2), torch.zeros(1, 2))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    check_replay(torch.ones(1, 2), torch.zeros(1, 2))
