"""The tap: statistics equal those of materialized attention, and the model does not notice."""

import copy
import io
import pickle

import pytest
import timm
import torch
from torch import nn

import dense
import reference
import vitmix
from support import SMALL_SWIN, close, never_waiting, same, tiny_batch, tiny_cct, tiny_vit
from vitmix import functional as F
from vitmix.attention import tap as taps
from vitmix.attention.readers import read_model
from vitmix.attention.tap import BlockHooks, Plan, Recorder, Tape

FAMILY = {
    "class token": dict(),
    "registers": dict(reg_tokens=3),
    "pooled": dict(class_token=False, global_pool="avg"),
    "pooled with class token": dict(global_pool="avg"),
    "query-key norm": dict(qk_norm=True),
    "layer scale, no class position": dict(init_values=0.1, no_embed_class=True),
    "not square": dict(img_size=(16, 24)),
    "distilled": dict(name="deit_tiny_distilled_patch16_224"),
}

ALIGNED = ["tl_align", "tl_align(blocks=[1])", "tl_align(normalize=False)", "tl_align(blocks=[])"]


def build(settings: dict) -> nn.Module:
    return tiny_vit(**settings).eval()


def size_of(model: nn.Module) -> tuple[int, int]:
    return tuple(model.patch_embed.img_size)


@pytest.mark.parametrize("settings", FAMILY.values(), ids=FAMILY)
def test_statistics_equal_unfused_attention(settings: dict) -> None:
    model = build(settings)
    images, _ = tiny_batch(3, size=size_of(model))
    prefix = 2 if "name" in settings else model.num_prefix_tokens
    maps = reference.attention_of(model, images)
    plain, keys = model(images), list(model.state_dict())
    rows = range(len(maps)) if model.has_class_token else ()
    with vitmix.AttentionTap(model, class_row=rows, column_mean=range(len(maps)), attention=[0]) as tap:
        assert all(block.attn.fused_attn for block in model.blocks)
        logits = model(images)
        assert list(model.state_dict()) == keys
    same(logits, plain)
    for block, attention in enumerate(maps):
        if rows:
            close(tap.class_row(block), reference.class_row(attention, prefix), 2e-6)
        close(tap.column_mean(block), reference.column_mean(attention, prefix), 2e-6)
    close(tap.attention(0), maps[0], 2e-6)


@pytest.mark.parametrize("settings", FAMILY.values(), ids=FAMILY)
@pytest.mark.parametrize(
    "text", ["tl_align", "tl_align(blocks=[1])", "tl_align(normalize=False)", "tl_align(blocks=[])"]
)
def test_aligned_targets_equal_dense_label_propagation(settings: dict, text: str) -> None:
    """One number per token against a row of K classes per token, through materialized attention."""
    model = build(settings).double()
    images, labels = tiny_batch(3, size=size_of(model))
    images = images.double()
    mixer = vitmix.create(text, 10, smoothing=0.1) if text == "tl_align" else vitmix.create(text, 10)
    with mixer.attach(model) as mixing:
        batch = mixing.mix(images, labels)
        model(batch.images)
        targets = mixing.targets(batch)
    maps = reference.attention_of(model, batch.images)
    distilled = "name" in settings
    expected = reference.tl_align_targets(
        maps,
        batch.mix.mask,
        reference.one_hot(labels, 10, mixer.smoothing),
        batch.mix.partner,
        model.patch_embed.grid_size,
        2 if distilled else model.num_prefix_tokens,
        blocks=None if mixer.share.blocks == "all" else set(mixer.share.blocks),
        residual=mixer.share.normalize,
        readout="two" if distilled else "class" if model.global_pool == "token" else "mean",
    )
    close(targets, expected, 1e-9)


@pytest.mark.parametrize("settings", [FAMILY["class token"], FAMILY["registers"], FAMILY["distilled"]])
def test_transmix_share_equals_slow_one(settings: dict) -> None:
    model = build(settings).double()
    images, labels = tiny_batch(3, size=size_of(model))
    with vitmix.transmix(10).attach(model) as mixing:
        batch = mixing.mix(images.double(), labels)
        model(batch.images)
        targets = mixing.targets(batch)
    attention = reference.attention_of(model, batch.images)[-1]
    prefix = attention.shape[-1] - 16
    share = reference.transmix_share(attention, batch.mix.mask, (4, 4), prefix)
    expected = F.mix_targets(reference.one_hot(labels, 10, 0.0), batch.mix.partner, share)
    close(targets, expected, 1e-9)


def test_two_vtms_at_one_block_bring_the_shares_of_both() -> None:
    model = tiny_vit(depth=3).train()
    images, labels = tiny_batch()
    mixer = vitmix.create("tl_align + vtm(block=2, tokens=2) + vtm(block=-1, tokens=3)", num_classes=10)
    with mixer.attach(model) as mixing:
        batch = mixing.mix(images, labels)
        assert mixing.loss(model(batch.images), batch).isfinite()
        assert batch.tape.bank_share[2].shape == (len(images), 2 * (2 + 3))


def test_sequence_pooling_reads_shares_by_its_weights() -> None:
    model = tiny_cct().double().eval()
    images, labels = tiny_batch(4)
    images = images.double()
    with vitmix.tl_align(10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        model(batch.images)
        targets = mixing.targets(batch)
    final = model.forward_features(batch.images)
    weight = model.sequence_pool_weights(final).detach()
    share = F.resample_mask(batch.mix.mask, (8, 8), rule="area", dtype=torch.float64).flatten(1).expand(4, -1)
    for attention in reference.attention_of(model, batch.images):
        share = F.align_share(attention, share)
    expected = F.mix_targets(F.label_rows(labels, 10, dtype=torch.float64), batch.mix.partner, (weight * share).sum(1))
    close(targets, expected, 1e-9)


def test_other_image_sizes() -> None:
    model = tiny_vit(dynamic_img_size=True).eval()
    images, labels = tiny_batch(4, size=(24, 32))
    for text in ("tl_align", "transmix", "smmix", "tokenmix", "vtm"):
        with torch.no_grad(), vitmix.create(text, 10).attach(model) as mixing:
            batch = mixing.mix(images, labels)
            assert batch.frame.grid == (6, 8)
            assert torch.isfinite(mixing.loss(model(batch.images), batch))
    with vitmix.AttentionTap(model, class_row=[-1]) as tap:
        model(images)
    assert tap.class_row(-1).shape == (4, 48)


def test_rollout_equals_multiplied_matrices() -> None:
    model = tiny_vit().double().eval()
    images, _ = tiny_batch(2)
    maps = [attention.mean(1) for attention in reference.attention_of(model, images.double())]
    with vitmix.AttentionTap(model, attention=[0, 1, 2]) as tap:
        model(images.double())
    layers = [tap._tape.layers[block] for block in range(3)]
    eye = torch.eye(17)
    product = maps[2] @ ((maps[1] + eye) / 2) @ ((maps[0] + eye) / 2)
    close(F.rollout_saliency(layers, class_token=True), product[:, 0, 1:], 1e-9)
    close(F.rollout_saliency(layers, class_token=False), product[:, 1:, 1:].mean(1), 1e-9)


ASKED = {
    "mixup": {},
    "transmix": dict(saliency={2}),
    "transmix(block=0)": dict(saliency={0}),
    "tl_align": dict(token_share={-1, 0, 1, 2}),
    "tl_align(blocks=[1])": dict(token_share={-1, 1}),
    "smmix(blocks=[1])": dict(final=True),
    "htm(block=1, rollout=1)": dict(layers={0}),
    "vtm(block=1)": dict(saliency={0}, tokens={0}),
    "vtm(block=2, rollout=1)": dict(layers={0, 1}, tokens={0, 1}),
    "vtm(block=2, choose=random)": dict(tokens={0, 1}),
    "tl_align(blocks=[2]) + vtm": dict(saliency={0, 1}, tokens={0, 1}, token_share={-1, 2}, bank_share={2}),
    "tl_align(blocks=[1]) + vtm": dict(saliency={0, 1}, tokens={0, 1}, token_share={-1, 1}),
}


@pytest.mark.parametrize("build_model", [tiny_vit, tiny_cct])
def test_a_tape_holds_what_its_method_asks_for_and_nothing_else(build_model) -> None:
    """Of a switch between all, whose hooks are on every block."""
    model, (images, labels) = build_model(), tiny_batch()
    mixer = vitmix.create(" | ".join(ASKED), 10)
    with mixer.attach(model) as mixing:
        for choice, (each, asked) in enumerate(zip(mixer.mixers, ASKED.values(), strict=True)):
            draw = each.draw(mixing.frame(images), torch.Generator().manual_seed(0))
            batch = mixing.mix(images, labels, draw=vitmix.Draw(choice, draw.values))
            model(batch.images)
            mixing.targets(batch)
            if build_model is tiny_cct and "token_share" in asked:  # pooled by the final tokens
                asked = asked | {"final": True}
            slots = ("class_row", "column_mean", "saliency", "token_share", "layers", "tokens", "bank_share")
            found = {name: set(getattr(batch.tape, name)) for name in slots if getattr(batch.tape, name)}
            found |= {"final": True} if batch.tape.final is not None else {}
            assert found == asked, each


@pytest.mark.parametrize("text", ["transmix", "tl_align", "smmix"])
def test_tokens_that_are_only_looked_at_are_passed_on_as_they_are(text: str) -> None:
    """Not as a view, which would have another memory layout in compiled models."""
    model = tiny_vit()
    images, labels = tiny_batch()
    seen: dict[str, list] = {"left": [], "entered": []}
    with vitmix.create(text, 10).attach(model) as mixing:
        for block in model.blocks:
            block.register_forward_pre_hook(lambda _, args: seen["entered"].append(args[0]))
            block.register_forward_hook(lambda *args: seen["left"].append(args[2]))
        batch = mixing.mix(images, labels)
        seen["left"].clear(), seen["entered"].clear()  # of the guide pass
        model(batch.images)
    assert all(one is other for one, other in zip(seen["left"][:-1], seen["entered"][1:], strict=True))


def hooks_on(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_nothing_is_left_behind() -> None:
    model = tiny_vit()
    images, labels = tiny_batch()
    for text in ("transmix", "tl_align", "smmix", "(mixup | cutmix) + htm + vtm"):
        with pytest.raises(KeyError), vitmix.create(text, 10).attach(model) as mixing:
            assert hooks_on(model) > 0
            mixing.mix(images, labels)
            raise KeyError
        assert hooks_on(model) == 0
        modes = [module.training for module in model.modules()]
        with pytest.raises(ValueError, match="out of range"):
            vitmix.create("transmix(block=7)", 10).attach(model)
        assert hooks_on(model) == 0 and modes == [module.training for module in model.modules()]
    with pytest.raises(RuntimeError), vitmix.AttentionTap(model, class_row=[0]):
        model(torch.randn(1, 5, 16, 16))
    assert hooks_on(model) == 0


def test_the_guide_pass_restores_every_mode() -> None:
    model = tiny_vit(drop_path_rate=0.5, proj_drop_rate=0.5).train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    images, labels = tiny_batch()
    with vitmix.smmix(10).attach(model) as mixing:
        one, two = mixing.mix(images, labels), mixing.mix(images, labels)
        assert modes == [module.training for module in model.modules()]
        same(one.clean_logits, two.clean_logits)  # evaluation mode: no dropout
        with pytest.raises(RuntimeError):
            mixing.mix(torch.randn(2, 5, 16, 16), labels[:2])
    assert modes == [module.training for module in model.modules()]


def test_guide_pass_stops_early_without_consistency() -> None:
    model = tiny_vit().eval()
    images, labels = tiny_batch()
    calls = []
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, i=index: calls.append(i))
    mixer = vitmix.Mixer(10, mask=vitmix.SalientMask(blocks=(1,)), extra=(vitmix.RegionLoss(),))
    with mixer.attach(model) as mixing:
        batch = mixing.mix(images, labels)
    assert calls == [0, 1]
    maps = reference.attention_of(model, images)
    close(batch.scores.flatten(1), reference.column_mean(maps[1], 1), 2e-6)
    with vitmix.smmix(10, blocks="all").attach(model) as mixing:
        scores = mixing.mix(images, labels).scores
    close(scores.flatten(1), sum(reference.column_mean(each, 1) for each in maps) / 3, 2e-6)


def test_a_guide_of_another_size() -> None:
    model, guide = tiny_vit(), tiny_vit(patch_size=2, embed_dim=12).eval()
    images, labels = tiny_batch()
    learner = vitmix.Learner(model, vitmix.smmix(10), guide=guide)
    learner(images, labels).loss.backward()
    assert all(parameter.grad is None for parameter in guide.parameters())
    batch = learner.mixing.mix(images, labels)
    fine = reference.column_mean(reference.attention_of(guide, images)[-1], 1).view(-1, 8, 8)
    close(batch.scores, nn.functional.avg_pool2d(fine, 2), 2e-6)
    same(batch.clean_logits, guide(images).detach())


@pytest.mark.parametrize("name", ["xcit_nano_12_p16_224", "davit_tiny", "gmlp_s16_224"])
def test_unreadable_models_get_one_error(name: str) -> None:
    model = timm.create_model(name, num_classes=10)
    for text in ("transmix", "tl_align", "smmix", "htm", "vtm"):
        with pytest.raises(ValueError, match="cannot be read|no attention this library can read"):
            vitmix.create(text, 10).attach(model)
    with pytest.raises(ValueError):
        vitmix.AttentionTap(model, class_row=[-1])


def test_unreadable_variants_of_the_family() -> None:
    for settings, words in (
        (dict(global_pool="max"), "global_pool='max'"),
        (dict(patch_drop_rate=0.5), "patch dropout"),
        (dict(block_fn=timm.models.vision_transformer.ParallelScalingBlock), "ParallelScalingBlock"),
    ):
        model = timm.models.vision_transformer.VisionTransformer(
            img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, **settings
        )
        with pytest.raises(ValueError, match=words):
            vitmix.tl_align(1000).attach(model)
    swin = timm.create_model("swin_tiny_patch4_window7_224", **SMALL_SWIN)
    for model in (tiny_cct(), swin):
        with pytest.raises(ValueError, match="no class token"):
            vitmix.AttentionTap(model, class_row=[-1])
    registers = tiny_vit(class_token=False, reg_tokens=2, global_pool="avg")
    with pytest.raises(ValueError, match="block 2 of this VisionTransformer has no class token; use column_mean"):
        vitmix.AttentionTap(registers, class_row=[-1])
    with pytest.raises(ValueError, match="an attention map needs attention, which this ResNet does not have"):
        vitmix.AttentionTap(timm.create_model("resnet18"), attention=[-1])


def test_a_slot_not_written_is_an_error() -> None:
    model = tiny_vit()
    images, labels = tiny_batch()
    for text, words in (("transmix", "attention of block 2"), ("tl_align", "carried share"), ("htm", "htm mixed")):
        with vitmix.create(text, 10).attach(model) as mixing:
            model(images)  # before mixing: belongs to no batch
            batch = mixing.mix(images, labels)
            with pytest.raises(RuntimeError, match=words):
                mixing.targets(batch)
    with vitmix.AttentionTap(model, class_row=[-1]) as tap, pytest.raises(RuntimeError, match="not recorded"):
        tap.class_row(-1)
    with vitmix.smmix(10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        with pytest.raises(RuntimeError, match="final tokens"):
            mixing.loss(torch.zeros(6, 10), batch)


@pytest.mark.parametrize(
    "text",
    ["cutmix + htm + vtm", "transmix(block=0)", "tl_align", "smmix", "mix(mask=box) + region", "htm(block=0, tau=9)"],
)
def test_validation_between_steps_is_plain(text: str) -> None:
    """A finished batch's tape does not touch other forward passes, of any size, in any mode."""
    model = tiny_vit()
    images, labels = tiny_batch()
    others = torch.randn(9, 3, 16, 16)
    plain = model(others)
    with vitmix.create(text, 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        loss = mixing.loss(model(batch.images), batch)
        with dense.Watch() as watch:
            same(model(others), plain)
        assert len(watch.maps) == len(model.blocks)  # and nothing is computed from its attention
        same(model(images), model(images))
        model.eval()
        same(model(others), plain)
        model.train()
        loss.backward()


def test_logits_of_other_images_in_evaluation_are_not_those_of_the_batch() -> None:
    """Also of a part that needs nothing but the logits, so that no block says which pass it is."""
    model, plan, (images, _) = tiny_vit(), Plan(logits=True), tiny_batch()
    recorder = Recorder(read_model(model), plan)
    recorder.tape = tape = Tape(plan, one_pass=True, batch=len(images))
    model.eval()(images[:2])
    assert tape.logits is None
    logits = model.train()(images)
    assert tape.logits is not None
    same(tape.logits, logits)
    recorder.remove()


def test_logits_of_other_images_are_not_those_of_the_batch_if_blocks_are_frozen() -> None:
    """The blocks are in evaluation mode and let others pass; that the whole model is in training mode says nothing."""
    model, plan, (images, _) = tiny_vit().train(), Plan(class_row=frozenset([0]), logits=True), tiny_batch()
    model.blocks.eval()
    recorder = Recorder(read_model(model), plan)
    recorder.tape = tape = Tape(plan, one_pass=True, batch=len(images))
    model(images[:2])
    assert tape.logits is None
    same(model(images), tape.logits)
    recorder.remove()


def test_a_second_pass_is_refused_if_the_logits_alone_are_recorded() -> None:
    """By the hooks of another mixer's plan."""
    model, plan, (images, _) = tiny_vit().train(), Plan(logits=True), tiny_batch()
    recorder = Recorder(read_model(model), plan | Plan(class_row=frozenset([0])))
    recorder.tape = Tape(plan, one_pass=True, batch=len(images))
    model(images)
    with pytest.raises(RuntimeError, match="the model ran twice"):
        model(images)
    recorder.remove()


def test_without_a_tape_a_hook_leaves_the_attention_as_it_is() -> None:
    reader = read_model(tiny_vit())
    recorder = Recorder(reader, Plan(bank=frozenset([1])))
    block = reader.block(1)
    assert BlockHooks(recorder, block, 1).shorten(block.attention, (), torch.rand(2, 17, 24)) is None
    recorder.remove()


@pytest.mark.parametrize("text", ["transmix", "tl_align", "smmix", "cutmix + htm(tau=1) + vtm", "tl_align + vtm"])
def test_autocast(text: str) -> None:
    model = tiny_vit()
    images, labels = tiny_batch()
    learner = vitmix.Learner(model, vitmix.create(text, 10))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = learner(images, labels)
    output.loss.backward()
    assert output.logits.dtype == torch.bfloat16 and output.loss.dtype == output.targets.dtype == torch.float32
    learner.step = 0
    exact = learner(images, labels)
    close(output.loss, exact.loss, 0.1)
    close(output.targets, exact.targets, 0.05)


@pytest.mark.parametrize("text", ["tl_align", "smmix", "cutmix + htm(tau=1) + vtm", "tl_align + vtm(block=1)"])
@pytest.mark.parametrize("build_model", [tiny_vit, tiny_cct])
def test_activation_checkpointing_changes_nothing(text: str, build_model) -> None:
    images, labels = tiny_batch()
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(3)
        model = build_model(drop_path_rate=0.0, attn_drop_rate=0.0).double()
        model.set_grad_checkpointing(checkpointing)
        learner = vitmix.Learner(model, vitmix.create(text, 10))
        output = learner(images.double(), labels)
        output.loss.backward()
        results.append((output, [p.grad.clone() for p in learner.parameters()]))
    (plain, gradients), (kept, again) = results
    close(kept.loss, plain.loss, 1e-12)
    close(kept.targets, plain.targets, 1e-12)
    for one, two in zip(gradients, again, strict=True):
        close(two, one, 1e-12)


def test_a_block_rerun_for_another_batch_is_refused() -> None:
    """Two forward passes, then backward, under checkpointing: the first batch's decision is gone."""
    images, labels = tiny_batch()
    for text in ("htm(tau=1)", "vtm"):
        model = tiny_vit()
        model.set_grad_checkpointing(True)
        learner = vitmix.Learner(model, vitmix.create(text, 10))
        first, second = learner(images, labels).loss, learner(images.flip(0) + 1, labels).loss
        with pytest.raises(RuntimeError, match="run backward for each mixed batch"):
            (first + second).backward()


def test_frozen_blocks_and_norms() -> None:
    images, labels = tiny_batch()
    model = tiny_vit()
    learner = vitmix.Learner(model, vitmix.create("htm(tau=1, block=1) + vtm", 10))
    model.blocks[2].norm1.eval()
    assert torch.isfinite(learner(images, labels).loss)
    model.blocks[1].eval()
    model.blocks[2].eval()
    assert torch.isfinite(learner(images, labels).loss)  # neither acts where its block is in evaluation mode


def test_copies_are_wired_to_themselves() -> None:
    images, labels = tiny_batch()
    for text in ("tl_align", "smmix", "cutmix + htm(tau=1) + vtm"):
        learner = vitmix.Learner(tiny_vit(), vitmix.create(text, 10))
        first = learner(images, labels)
        for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
            other.step = learner.step = 0
            tape = learner.mixing._recorder.tape
            again = other(images, labels)
            close(again.loss, first.loss, 1e-6)
            assert learner.mixing._recorder.tape is tape
            again.loss.backward()
            assert all(parameter.grad is None for parameter in learner.model.parameters())
    with vitmix.tl_align(10).attach(model := tiny_vit()) as mixing:
        batch = mixing.mix(images, labels)
        twin = copy.deepcopy(model)
        twin(torch.randn(2, 3, 16, 16))
        mixing.loss(model(batch.images), batch)
    stream = io.BytesIO()
    torch.save(learner.model.state_dict(), stream)
    assert list(learner.model.state_dict()) == list(tiny_vit().state_dict())


@pytest.mark.parametrize("text", ["transmix", "tl_align", "cutmix + htm(tau=1) + vtm"])
def test_compiled_model_in_a_loop_of_ones_own(text: str) -> None:
    images, labels = tiny_batch()
    model = tiny_vit()
    torch._dynamo.reset()
    with vitmix.create(text, 10).attach(model) as mixing:
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for _ in range(3):
            step = mixing.step
            batch = mixing.mix(images, labels)
            loss = mixing.loss(compiled(batch.images), batch)
            mixing.step = step
            batch = mixing.mix(images, labels)
            close(mixing.loss(model(batch.images), batch), loss, 1e-6)


def test_module_calls_are_not_repeated() -> None:
    """The tap alone runs no module twice; HTM adds one norm and one query-key product at its block, outside modules."""
    images, labels = tiny_batch()
    counts = {}
    for text in ("cutmix", "transmix", "tl_align", "cutmix + htm + vtm"):
        model, calls = tiny_vit(), []
        for module in model.modules():
            module.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        learner = vitmix.Learner(model, vitmix.create(text, 10))
        learner(images, labels)
        counts[text] = len(calls)
    assert len(set(counts.values())) == 1, counts


@pytest.mark.gpu
@pytest.mark.parametrize(
    "text", ["mixup", "cutmix", "tokenmix", "transmix", "tl_align", "smmix", "htm(tau=9)", "vtm", "mixup | smmix"]
)
def test_no_step_waits_for_the_gpu(text: str) -> None:
    model = tiny_vit().cuda()
    images, labels = (each.cuda() for each in tiny_batch())
    learner = vitmix.Learner(model, vitmix.create(text, 10))
    for _ in range(2):
        learner(images, labels).loss.backward()
    with never_waiting():
        for _ in range(3):
            learner(images, labels).loss.backward()


@pytest.mark.parametrize("settings", [FAMILY["class token"], FAMILY["distilled"]])
@pytest.mark.parametrize("text", ["tl_align", "tl_align(normalize=False)", "tl_align + vtm(block=2)"])
def test_a_brief_tape_gives_the_same_targets(settings: dict, text: str) -> None:
    """Learners compute of the last block only the rows that the classifier reads."""
    model = tiny_vit(**settings).double().train()
    images, labels = tiny_batch()
    targets = []
    for brief in (False, True):
        with vitmix.create(text, 10).attach(model, seed=0, step=0) as mixing:
            draw = mixing.draw(mixing.frame(images))
            batch = mixing.apply(images.double(), labels, draw, brief=brief)
            model(batch.images)
            targets.append(mixing.targets(batch))
            rows = batch.tape.token_share[2].shape[1]
        assert rows == ((2 if "name" in settings else 1) if brief else 16 + model.num_prefix_tokens)
    close(targets[1], targets[0], 1e-12)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_saliency_is_the_class_row_or_the_column_mean(pool: str) -> None:
    model, (images, _) = tiny_vit(global_pool=pool, class_token=pool == "token").eval(), tiny_batch(2)
    with vitmix.AttentionTap(model, class_row=[1] if pool == "token" else [], column_mean=[1], saliency=[1]) as tap:
        model(images)
        same(tap.saliency(1), tap.class_row(1) if pool == "token" else tap.column_mean(1))


def test_images_are_not_counted_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taps._count((torch.ones(3, 2),)) == 3 and taps._count(()) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert taps._count((torch.ones(3, 2),)) is None
