"""TokenMixup (HTM, VTM, score net) against vectors from the authors' modules (see tests/golden)."""

from functools import partial

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitmix
from support import DTYPES, Arrays, golden_cases, golden_compact, load, same, tensor
from vitmix import functional as F
from vitmix._sampling import Draw
from vitmix.attention.readers import Reader, read_model
from vitmix.attention.tap import Plan, Recorder, Tape
from vitmix.models import CompactTransformer, checkpoint_filter_fn
from vitmix.parts.hidden import Horizontal, HorizontalMix, ScoreNet, Vertical

TOLERANCE = {torch.float64: dict(atol=1e-9, rtol=1e-9), torch.float32: dict(atol=5e-5, rtol=1e-4)}


def close(actual: Tensor, expected: np.ndarray) -> None:
    wanted = torch.as_tensor(expected).to(actual.dtype)
    torch.testing.assert_close(actual.detach(), wanted, **TOLERANCE[actual.dtype])


def saliency_of(attention: Tensor, has_class: bool) -> Tensor:
    return attention[:, :, 0, 1:].mean(1) if has_class else attention.mean((1, 2))


def check_decision(decision: HorizontalMix, data: Arrays, *, partners: bool = True) -> None:
    """The decision of easy samples against the stored one, which lists easy samples only."""
    easy = tensor(data["easy_idx"])
    if partners:
        same(decision.partner[easy], data["sigma"])
    same(decision.take[easy], data["take_mask"])
    close(decision.own[easy], data["lam_self"])
    others = torch.ones(len(decision.easy), dtype=torch.bool)
    others[easy] = False
    same(decision.easy, ~others)
    same(decision.partner[others], torch.arange(len(others))[others])
    assert not decision.take[others].any() and (decision.own[others] == 1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("htm_*", "attn"))
def test_golden_htm_mixing(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    has_class, rho = bool(data["has_cls"]), float(data["rho"])
    labels, order = tensor(data["labels"], dtype), tensor(data["order"])
    difficulty = F.sample_difficulty(tensor(data["score_logits"], dtype), labels)
    close(difficulty, data["difficulty"])
    easy = difficulty <= float(data["tau"])
    same(easy, data["easy_mask"])
    same(easy.nonzero().squeeze(1), data["easy_idx"])
    saliency = saliency_of(tensor(data["attn"], dtype), has_class)
    close(saliency, data["saliency"])
    close(F.saliency_gain(saliency[easy], saliency, rho), data["gain"])
    decision = F.horizontal_mix(saliency, easy, rho=rho)
    # Where every gain is zero the partner is arbitrary and nothing is taken from it.
    check_decision(decision, data, partners=bool(data["gain"].sum(1).all()))
    tokens = tensor(data["tokens"], dtype).requires_grad_()
    mixed = F.mix_tokens(tokens, decision.take, decision.partner, prefix=int(has_class))
    close(mixed[order], data["mixed_tokens"])
    close(F.mix_targets(labels, decision.partner, 1 - decision.own)[order], data["mixed_labels"])
    (mixed[order] * tensor(data["cotangent"], dtype)).sum().backward()
    close(tokens.grad, data["grad_tokens"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("htm_scorenet_*"))
def test_golden_scorenet(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    classes, width = data["fc_weight"].shape
    net = ScoreNet(width, classes, class_token=bool(data["has_cls"])).to(dtype)
    fill(net, data, "fc_", "pool_")
    tokens, labels = tensor(data["tokens"], dtype).requires_grad_(), tensor(data["labels"], dtype)
    logits = net(tokens)
    close(logits, data["logits"])
    close(F.sample_cross_entropy(logits, labels), data["ce"])
    close(F.sample_difficulty(logits, labels), data["difficulty"])
    loss = F.soft_cross_entropy(logits, labels)
    close(loss, data["loss"])
    loss.backward()
    close(tokens.grad, data["grad_tokens"])


def fill(net: ScoreNet, data: Arrays, head: str, pool: str) -> None:
    names = {"head": head} if net.pool is None else {"head": head, "pool": pool}
    weights = {f"{ours}.{k}": tensor(data[theirs + k]) for ours, theirs in names.items() for k in ("weight", "bias")}
    net.load_state_dict(weights)


def layer_model(data: Arrays, dtype: torch.dtype) -> CompactTransformer:
    """A compact transformer whose only block has the weights of a golden layer."""
    classes, width = data["p.small_h_fc.weight"].shape
    names = {
        "pre_norm": "norm1",
        "norm1": "norm2",
        "self_attn.qkv": "attn.qkv",
        "self_attn.proj": "attn.proj",
        "linear1": "mlp.fc1",
        "linear2": "mlp.fc2",
    }
    model = CompactTransformer(
        img_size=8,
        num_classes=classes,
        embed_dim=width,
        depth=1,
        num_heads=int(data["heads"]),
        mlp_ratio=data["p.linear1.weight"].shape[0] / width,
        class_token=bool(data["has_cls"]),
        norm_layer=partial(nn.LayerNorm, eps=float(data["ln_eps"])),
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
    ).to(dtype)
    weights = {}
    for key, value in data.items():
        stem, _, kind = key.removeprefix("p.").rpartition(".")
        if key.startswith("p.") and stem in names:
            weights[f"{names[stem]}.{kind}"] = tensor(value)
    model.blocks[0].load_state_dict(weights)
    return model.train()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("htm_layer_*"))
def test_golden_htm_layer(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    model = layer_model(data, dtype)
    reader = read_model(model)
    settings = vitmix.HTM(block=0, tau=float(data["tau"]), rho=float(data["rho"]))
    net = settings.module(reader, data["labels"].shape[1]).to(dtype)
    fill(net, data, "p.small_h_fc.", "p.small_h_attention_pool.")
    actor, plan = settings.actor(reader, {}, net), settings.plan(reader)
    plan = plan | Plan(layers=frozenset([0]))
    tokens, labels, order = tensor(data["tokens"], dtype).requires_grad_(), tensor(data["labels"], dtype), data["order"]
    before = reader.block(0).attend(tokens, (), {}).maps()
    close(before, data["attn_before"])
    saliency = saliency_of(before, bool(data["has_cls"]))
    close(saliency, data["saliency"])
    logits = net(tokens)
    close(logits, data["score_logits"])
    difficulty = F.sample_difficulty(logits, labels)
    close(difficulty, data["difficulty"])
    easy = difficulty <= settings.tau
    same(easy, data["easy_mask"])
    close(F.saliency_gain(saliency[easy], saliency, settings.rho), data["gain"])
    recorder = Recorder(reader, plan)
    recorder.tape = tape = Tape(plan, (actor,), labels)
    out = model.blocks[0](tokens)
    check_decision(actor.decision, data)
    close(
        F.mix_tokens(tokens, actor.decision.take, actor.decision.partner, prefix=reader.prefix)[order],
        data["mixed_tokens"],
    )
    close(tape.targets[order], data["mixed_labels"])
    close(tape.layers[0].maps()[order], data["attn_after"])
    close(out[order], data["out"])
    (out[order] * tensor(data["cotangent"], dtype)).sum().backward()
    close(tokens.grad, data["grad_tokens"])
    recorder.remove()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("*", "total_loss"))
def test_golden_htm_vtm_model(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    model = golden_compact(data, dtype).train()
    inner: list[vitmix.HTM | vitmix.VTM] = []
    if int(data["vtm_layer"]) >= 0:
        inner.append(vitmix.VTM(block=int(data["vtm_layer"]), tokens=int(data["kappa"])))
    if int(data["htm_layer"]) >= 0:
        weight, stop = float(data["scorenet_lambda"]), bool(data["stopgrad"])
        settings = dict(tau=float(data["tau"]), rho=float(data["rho"]), score_weight=weight, stop_gradient=stop)
        inner.append(vitmix.HTM(block=int(data["htm_layer"]), **settings))
    learner = vitmix.Learner(model, vitmix.Mixer(int(data["num_classes"]), inner=tuple(inner)))
    images, labels = tensor(data["image"], dtype), tensor(data["labels"], dtype)
    nets = [part for part in learner.added.values() if isinstance(part, ScoreNet)]
    layer = f"classifier.blocks.{int(data['htm_layer'])}."
    for net in nets:
        fill(net, data, f"sd.{layer}small_h_fc.", f"sd.{layer}small_h_attention_pool.")
    batch = learner.mixing.mix(images, labels)
    logits = model(batch.images)
    losses = learner.mixing.losses(logits, batch)
    order = data.get("order", np.arange(len(images)))
    close(logits[order], data["logits"])
    close(learner.mixing.targets(batch)[order], data["out_labels"])
    close(losses["main"], data["main_loss"])
    close(losses["loss"], data["total_loss"])
    for actor in batch.tape.actors:
        if isinstance(actor, Horizontal):
            close(losses["score"], data["score_loss"] * float(data["scorenet_lambda"]))
            check_decision(actor.decision, data)
            close(actor.module(actor.scored), data["score_logits"])
            close(F.sample_difficulty(actor.module(actor.scored), labels), data["difficulty"])
            block = learner.mixing.reader.block(actor.block)
            flow = block.attend(actor.scored, (), {})
            close(F.rollout_saliency([flow], class_token=block.class_token), data["saliency"])
        if isinstance(actor, Vertical):
            same(torch.stack(actor.positions), data["sel_idx"])
    losses["loss"].backward()
    check_gradients(model, learner, data, layer)
    model.eval()
    close(model(images), data["eval_logits"])
    close(learner(images), data["eval_logits"])


def check_gradients(model: CompactTransformer, learner: vitmix.Learner, data: Arrays, layer: str) -> None:
    """Every stored gradient, compared under our names."""
    stored = {k.removeprefix("grad."): tensor(v) for k, v in data.items() if k.startswith("grad.")}
    expected = checkpoint_filter_fn(stored, model)
    ours = dict(model.named_parameters())
    assert expected and expected.keys() <= ours.keys()
    for name, gradient in expected.items():
        close(ours[name].grad, gradient)
    for net in learner.added.values():
        for part, name in ((net.head, "small_h_fc"), (net.pool, "small_h_attention_pool")):
            for kind in ("weight", "bias"):
                if (key := f"{layer}{name}.{kind}") in stored:
                    close(getattr(part, kind).grad, stored[key])


def vertical_setup(data: Arrays, model: nn.Module, dtype: torch.dtype) -> tuple[Reader, Recorder, Tape, Tensor]:
    """A model whose last block is the golden one, with the earlier blocks' inputs and saliency put on the tape."""
    reader = read_model(model)
    has_class = bool(data["has_cls"])
    settings = vitmix.VTM(block=-1, tokens=int(data["kappa"]))
    plan = settings.plan(reader)
    plan = plan | Plan(layers=plan.bank)
    tape = Tape(plan, (settings.actor(reader, {}, None),))
    prior = tensor(data["prior_tokens"], dtype).requires_grad_()
    for block, attention in enumerate(data["prior_attn"]):
        tape.tokens[block] = prior[block]
        tape.saliency[block] = saliency_of(tensor(attention, dtype), has_class)
    recorder = Recorder(reader, plan)
    recorder.tape = tape
    return reader, recorder, tape, prior


def check_vertical(data: Arrays, model: nn.Module, dtype: torch.dtype) -> None:
    reader, recorder, tape, prior = vertical_setup(data, model, dtype)
    block = model.blocks[reader.depth - 1]
    tokens = tensor(data["tokens"], dtype).requires_grad_()
    cross = block.attn(block.norm1(tokens))
    close(cross, data["cross_out"])
    (actor,) = tape.actors
    same(torch.stack(actor.positions), data["sel_idx"])
    close(actor.bank(reader.depth - 1, tape), data["bank"])
    maps = tape.layers[reader.depth - 1].maps()
    if "attn_full" in data:
        close(maps, data["attn_full"])
        same(torch.stack(actor.positions) - 1, data["sel_patch_idx"])
    else:
        close(maps[..., : tokens.shape[1]], data["attn_self_part"])
    close(block(tokens), data["layer_out"])
    if "cotangent" in data:
        (cross * tensor(data["cotangent"], dtype)).sum().backward()
        close(tokens.grad, data["grad_tokens"])
        close(prior.grad, data["grad_prior"])
    model.eval()
    close(block.attn(block.norm1(tokens)), data["eval_attn_out"])
    close(block(tokens), data["eval_layer_out"])
    recorder.remove()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("vtm_nocls"))
def test_golden_vtm_nocls(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    width = data["tokens"].shape[-1]
    model = CompactTransformer(
        img_size=8,
        embed_dim=width,
        depth=len(data["prior_tokens"]) + 1,
        num_heads=int(data["heads"]),
        mlp_ratio=data["p.linear1.weight"].shape[0] / width,
        norm_layer=partial(nn.LayerNorm, eps=float(data["ln_eps"])),
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
    ).to(dtype)
    names = {"pre_norm": "norm1", "norm1": "norm2", "self_attn.proj": "attn.proj"}
    names |= {"linear1": "mlp.fc1", "linear2": "mlp.fc2", "qkv_fused": "attn.qkv"}
    load_block(model.blocks[-1], data, names)
    check_vertical(data, model.train(), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("vtm_cls"))
def test_golden_vtm_cls(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    width = data["tokens"].shape[-1]
    model = VisionTransformer(
        img_size=8,
        patch_size=2,
        embed_dim=width,
        depth=len(data["prior_tokens"]) + 1,
        num_heads=int(data["heads"]),
        mlp_ratio=data["p.ffn.fc1.weight"].shape[0] / width,
        norm_layer=partial(nn.LayerNorm, eps=float(data["ln_eps"])),
    ).to(dtype)
    names = {"attention_norm": "norm1", "ffn_norm": "norm2", "attn.out": "attn.proj"}
    names |= {"ffn.fc1": "mlp.fc1", "ffn.fc2": "mlp.fc2", "qkv_fused": "attn.qkv"}
    load_block(model.blocks[-1], data, names)
    check_vertical(data, model.train(), dtype)


def load_block(block: nn.Module, data: Arrays, names: dict[str, str]) -> None:
    """A block's weights from the `p.` keys of a golden file; separate q, k, v must be what the fused key stacks."""
    weights = {}
    for key, value in data.items():
        stem, _, kind = key.removeprefix("p.").rpartition(".")
        if key.startswith("p.") and stem in names:
            weights[f"{names[stem]}.{kind}"] = tensor(value)
    block.load_state_dict(weights)
    attention = "self_attn" if "p.self_attn.query.weight" in data else "attn"
    stacked = np.concatenate([data[f"p.{attention}.{part}.weight"] for part in ("query", "key", "value")])
    same(tensor(stacked), data["p.qkv_fused.weight"])


def test_golden_draw_is_unused_by_plain_htm() -> None:
    """The salient form of HTM and VTM draws nothing: the golden decisions depend on no random number."""
    frame = vitmix.Frame(4, (16, 16), (4, 4), grids=((4, 4),) * 3)
    drawn = vitmix.create("htm + vtm", 10).draw(frame, torch.Generator())
    assert isinstance(drawn, Draw) and set(drawn.values) == {"partner"}
