"""The studies of `vitmix analyze` on cases that can be computed by hand."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import vitmix
from support import close, tiny_cct, tiny_vit
from training import one_thread, train
from vitmix import analyze, cli
from vitmix import functional as F
from vitmix.adapters import read_model
from vitmix.analyze import fluctuation, labels, objects, pairs, results
from vitmix.analyze.results import correlation, root_mean_square, spread
from vitmix.analyze.studies import STUDIES, Batches
from vitmix.commands.analyze import NAMES
from vitmix.data import Shapes
from vitmix.data.augment import Augmentation
from vitmix.data.npz import npz_splits
from vitmix.data.sources import open_images
from vitmix.flow import Given
from vitmix.shares import AlignedShare, Weights
from vitmix.tap import AttentionTap

__all__ = ["one_thread"]
AUGMENTATION = Augmentation(size=16, crop_pct=1.0)


def test_spread_by_hand() -> None:
    found = spread(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert found.mean == 3 and found.n == 4 and found.std == pytest.approx(math.sqrt(14 / 3))
    margin = 1.959964 * math.sqrt(14 / 3) / 2
    assert (found.low, found.high) == pytest.approx((3 - margin, 3 + margin), rel=1e-6)
    assert found.text() == "3 ± 2.1"
    assert spread(torch.tensor([2.0])) == (2, None, 1, None, None)
    with pytest.raises(ValueError, match="nothing to average"):
        spread(torch.empty(0))
    with pytest.raises(ValueError, match="not finite"):
        spread(torch.tensor([1.0, math.nan]))
    # Yes and no have Wilson's interval, which is none of width zero where all are right: 1 / (1 + 1.96² / 10)
    sure = spread(torch.ones(10, dtype=torch.bool))
    assert (sure.mean, sure.high) == (1, 1) and sure.low == pytest.approx(10 / (10 + 1.959964**2))
    assert sure.text(100, ".1f") == "100.0 [72.2, 100.0]"
    rising = torch.tensor([1.0, 2.0, 3.0])
    assert correlation(rising, 5 - 2 * rising).mean == pytest.approx(-1)
    assert correlation(rising, torch.ones(3)).mean == 0
    related = correlation(torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([1.0, 3, 2, 5, 4]))  # r = 0.8
    bounds = [math.tanh(math.atanh(0.8) + sign * 1.959964 / math.sqrt(2)) for sign in (-1, 1)]
    assert (related.mean, related.low, related.high) == pytest.approx((0.8, *bounds))


def test_mirrored_pairs_are_one_outcome() -> None:
    """Of two outcomes that are always the same, the interval is that of one; n still counts both."""
    once = torch.tensor([1.0, 2.0, 3.0, 6.0])
    couples = torch.arange(4)
    twice, pairs = once.repeat(2), couples.repeat(2)
    for values, both in ((once, twice), (once > 2, twice > 2), (once > 0, twice > 0)):
        one, found = spread(values, couples), spread(both, pairs)
        assert found.n == 8 and (found.mean, found.low, found.high) == pytest.approx((one.mean, one.low, one.high))
        assert one == spread(values)  # who is in no couple is independent
    rms, single = root_mean_square(twice, pairs), root_mean_square(once)
    assert rms.n == 8 and (rms.low, rms.high) == pytest.approx((single.low, single.high))
    first, second = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([1.0, 3, 2, 5, 4])
    found, one = correlation(first.repeat(2), second.repeat(2), torch.arange(5).repeat(2)), correlation(first, second)
    assert found.n == 10 and (found.low, found.high) == pytest.approx((one.low, one.high))


def test_couples_by_hand() -> None:
    # Couples (1, 3) and (2, 8), and 6 by itself: the sums of their distances from 4 are -4, 2 and 2
    found = spread(torch.tensor([1.0, 2, 6, 8, 3]), torch.tensor([7, 1, 2, 1, 7]))
    margin = 1.959964 * math.sqrt(3 / 2 * (16 + 4 + 4)) / 5
    assert found.n == 5 and (found.mean, found.low, found.high) == pytest.approx((4, 4 - margin, 4 + margin), rel=1e-6)
    # Right, right; right, wrong; wrong, wrong: squares 1 + 0 + 1 of sums against 6 / 4, so 6 pairs are worth 4.5
    found = spread(torch.tensor([1, 1, 1, 0, 0, 0]).bool(), torch.tensor([0, 0, 1, 1, 2, 2]))
    half = 1.959964 / (4.5 + 1.959964**2) * math.sqrt(4.5 / 4 + 1.959964**2 / 4)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), rel=1e-6)
    # Outcomes that are always opposite make a mean exact, but no proportion of few is
    opposite, couples = torch.tensor([1.0, 0, 1, 0]), torch.tensor([0, 0, 1, 1])
    assert spread(opposite, couples).low == 0.5 and spread(opposite.bool(), couples) == spread(opposite.bool())
    assert spread(opposite[:2], couples[:2]).low is None  # one couple has no spread
    lone = spread(opposite[:2].bool(), couples[:2])
    assert lone.low is not None and lone.high is not None and lone.low < 0.1 and lone.high > 0.9


@pytest.mark.parametrize("yes_or_no", [False, True])
def test_intervals_hold_what_they_promise(yes_or_no: bool) -> None:
    """In 95 of 100 samples of couples that are half alike; as if independent, it would be 89."""
    generator, inside, trials = torch.Generator().manual_seed(0), 0, 2000
    couples = torch.arange(200).repeat(2)
    for _ in range(trials):
        shared, other = torch.rand(2, 200, generator=generator)
        again = torch.where(torch.rand(200, generator=generator) < 0.5, shared, other)
        values = torch.cat([shared, again])
        found = spread(values < 0.3 if yes_or_no else values, couples)
        assert found.low is not None and found.high is not None
        inside += found.low < (0.3 if yes_or_no else 0.5) < found.high
    assert inside / trials == pytest.approx(0.95, abs=0.012)


def test_who_shares_pictures_is_one() -> None:
    def couples(partner: list[int]) -> list[int]:
        return pairs.couples(torch.tensor(partner)).tolist()

    assert couples([4, 3, 2, 1, 0]) == [0, 1, 2, 1, 0]  # the middle of an odd batch by itself
    assert couples([1, 2, 3, 4, 0]) == [0] * 5  # every picture leads to the next
    assert couples([2, 5, 4, 1, 0, 3]) == [0, 1, 0, 1, 0, 1]
    one = torch.tensor([0, 1, 0])
    joined = pairs.joined([one, one[:2]])
    assert len(joined.unique()) == 4 and joined[0] == joined[2]  # other batches, other couples


def test_every_study_of_pairs_knows_its_couples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a study averages over mixed images: three batches of eight are twelve couples."""
    images, objects = torch.randn(8, 3, 16, 16), torch.rand(8, 16, 16) < 0.3
    batches = [analyze.Pictures(images, torch.arange(8), objects)] * 3
    model, method = tiny_vit().eval(), {"cutmix": vitmix.create("cutmix", 10)}
    seen: list[Tensor] = []

    def design(residuals: Tensor, couples: Tensor | None) -> tuple[float, int]:
        assert couples is not None and len(couples) == len(residuals)
        seen.append(couples)
        return 1.0, len(couples)

    monkeypatch.setattr(results, "design_effect", design)
    errors = analyze.label_error(model, method, batches)
    for measure in (
        lambda: analyze.mixed_accuracy(model, method, batches),
        lambda: labels.label_error_tables(errors),
        lambda: analyze.fluctuation_study(model, method["cutmix"], batches, num_classes=10),
        lambda: analyze.region_study(model, method, batches),
        lambda: analyze.presence_study(model, method, batches),
        lambda: analyze.coverage_study(model, method, batches),
    ):
        seen.clear()
        measure()
        assert seen and all(len(each.unique()) == 12 and len(each) == 24 for each in seen)


def test_mixed_top_by_hand() -> None:
    logits = torch.tensor([[3.0, 2, 1, 0], [3, 2, 1, 0], [0, 1, 2, 3], [0, 3, 0, 2]])
    own, partner = torch.tensor([0, 1, 0, 3]), torch.tensor([1, 2, 1, 1])
    top1, top2 = analyze.mixed_top(logits, own, partner)
    assert top1.tolist() == [True, False, False, True]
    assert top2.tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="two classes"):
        analyze.mixed_top(torch.zeros(2, 1), own[:2], partner[:2])


class Corners(nn.Module):
    """Knows its answer: the class of each image is written in its pixels, and it names the two it sees most of."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([(images[:, 0] == label).float().mean((1, 2)) for label in range(6)], 1)


def plain_batch(classes: int = 6) -> analyze.Pictures:
    """Images of one color each, which is their label."""
    labels = torch.arange(6) % classes
    return analyze.Pictures(labels.float().view(-1, 1, 1, 1).expand(6, 3, 16, 16).clone(), labels)


def test_mixed_accuracy_of_a_model_that_knows() -> None:
    half = vitmix.create("mix(mask=scattered(grid=[4, 4], share=0.5))", 6)
    table = analyze.mixed_accuracy(Corners(), {"half": half}, [plain_batch()])
    assert table.column("top-1") == [1.0] and table.column("top-2") == [1.0] and table.rows[0][1]["top-1"].n == 6
    with pytest.raises(ValueError, match="two classes or more, got one class"):
        analyze.mixed_accuracy(Corners(), {"half": half}, [plain_batch(1)])
    with pytest.raises(ValueError, match="'none' mixes none"):
        analyze.mixed_accuracy(Corners(), {"none": vitmix.create("none", 6)}, [plain_batch()])


def test_pairs_of_one_class_and_lone_samples_are_left_out() -> None:
    pictures = plain_batch()
    odd = analyze.Pictures(pictures.images[:5], torch.tensor([0, 1, 2, 3, 0]))  # 0 meets 0, the middle itself
    found = analyze.mixed_accuracy(Corners(), {"cutmix": vitmix.create("cutmix", 6)}, [odd])
    assert found.rows[0][1]["top-1"].n == 2


def test_region_attention_by_hand() -> None:
    attention = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]]).view(1, 1, 3, 3)
    mask = torch.tensor([[True, False, False]])
    # the partner has patch 0, the image itself patches 1 and 2
    expected = [0.7, (0.2 + 0.1) / 2, (0.3 + 0.1) / 2, (0.5 + 0.2 + 0.1 + 0.8) / 4]
    close(analyze.region_attention(Given(attention), mask), torch.tensor([expected]), 1e-6)
    assert analyze.region_attention(Given(attention), torch.zeros(1, 3, dtype=torch.bool)).isnan().any()


def test_presence_by_hand() -> None:
    heads = torch.tensor([[[1.0, 0], [1, 0]], [[0.5, 0.5], [0, 1]]]).unsqueeze(0)
    # the mean of the heads is [[.75, .25], [.5, .5]]: the first token is taken 1.25 times
    close(analyze.presence(Given(heads)), torch.tensor([[1.25, 0.75]]), 1e-6)
    close(analyze.presence(Given(torch.eye(5).view(1, 1, 5, 5))), torch.ones(1, 5), 1e-6)
    close(analyze.presence(Given(3 * heads)), torch.tensor([[1.25, 0.75]]), 1e-6)  # contributions are relative


def tiny_swin(window: int = 4) -> nn.Module:
    settings = dict(img_size=32, window_size=window, embed_dim=24, depths=(2, 1), num_heads=(2, 2), num_classes=4)
    return timm.create_model("swin_tiny_patch4_window7_224", **settings).eval()


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_vit(img_size=32),
        lambda: tiny_swin(4),
        lambda: tiny_swin(3),  # whose windows are padded
        lambda: timm.create_model("pvt_v1_tiny", img_size=32, num_classes=4),  # whose keys are reduced
    ],
)
def test_regions_and_presence_are_those_of_the_whole_matrix(make) -> None:
    """Against the slow twin: A as a matrix, added up as the papers write it."""
    model = make().eval()
    reader, mask = read_model(model), torch.zeros(1, 32, 32, dtype=torch.bool)
    mask[:, 4:20, :12] = True
    with torch.no_grad(), AttentionTap(model, attention=range(reader.patch_depth)) as tap:
        model(torch.randn(2, 3, 32, 32))
    for block in range(reader.patch_depth):
        flow, dense = tap.flow(block), tap.attention(block).double().mean(1)
        theirs = reader.patch_mask(mask, block, (32, 32)).expand(2, -1)
        patches = dense[:, flow.prefix :, flow.prefix :]
        found = analyze.region_attention(flow, theirs)
        for column, (query, key) in enumerate([(1, 1), (1, 0), (0, 1), (0, 0)]):
            cells = patches[:, theirs[0] == query][:, :, theirs[0] == key].flatten(1)
            if cells.shape[1]:
                close(found[:, column], cells.mean(1), 1e-6)
        relative = dense / dense.sum(-1, keepdim=True)  # what a token took of padding is nothing
        close(analyze.presence(flow), relative.sum(1), 1e-5)
        close(analyze.presence(flow).mean(), torch.tensor(1.0), 1e-5)


def test_regions_and_presence_of_uniform_attention() -> None:
    model = tiny_vit().eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.zero_()
            block.attn.qkv.bias.zero_()
    batches = [analyze.Pictures(torch.randn(6, 3, 16, 16), torch.arange(6))] * 2
    methods = {"smmix": vitmix.create("smmix", 10)}
    for name in ("partner to partner", "partner to own", "own to partner", "own to own"):
        found = analyze.region_study(model, methods, batches).column(name)
        assert found == pytest.approx([1 / 17] * 3, abs=1e-6)  # 16 patches and the class token
    table = analyze.presence_study(model, methods, batches)
    assert table.column("own") == pytest.approx([1.0] * 3, abs=1e-5) == table.column("partner")
    assert table.column("deviation") == pytest.approx([0.0] * 3, abs=1e-5)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_sharpness_by_hand() -> None:
    step = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    # two edges of one at the same place: L1 adds them, L2 takes the diagonal; mean 1/4
    expected = [2.0, math.sqrt(2), (0.75**2 + 3 * 0.25**2) / 4]
    close(analyze.sharpness(step), torch.tensor([expected]), 1e-6)
    close(analyze.sharpness(7 * step), torch.tensor([expected]), 1e-6)
    close(analyze.sharpness(torch.full((1, 3, 5), 2.0)), torch.zeros(1, 3), 1e-6)


def test_gradient_saliency_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    images, labels = torch.randn(3, 3, 2, 2), torch.tensor([0, 1, 1])
    wrong = model(images).softmax(1) - torch.eye(2)[labels]  # the loss's gradient at the logits
    expected = (wrong @ model[1].weight).view(3, 3, 2, 2).norm(dim=1)
    close(analyze.gradient_saliency(model, images, labels), expected, 1e-6)


def test_sharpness_of_a_pyramid_and_a_pooled_model() -> None:
    swin = tiny_swin()
    batch = analyze.Pictures(torch.randn(4, 3, 32, 32), torch.arange(4))
    table = analyze.sharpness_study(swin, [batch])
    assert [names for names, _ in table.rows] == [
        ("0", "attention"),
        ("1", "attention"),
        ("2", "attention"),
        ("grid 8x8", "gradient"),
        ("grid 4x4", "gradient"),
    ]
    assert all(values["TV, L1"].n == 4 for _, values in table.rows)
    assert analyze.region_study(swin, {"cutmix": vitmix.create("cutmix", 4)}, [batch]).rows


def test_similarity_share_by_hand() -> None:
    own, partner = torch.tensor([[[1.0, 0], [0, 1]]]), torch.tensor([[[-1.0, 0], [0, -2]]])
    mixed = torch.tensor([[[3.0, 0], [0, -1], [1, -1]]])
    # best cosines with own: 1, 0, .707; with the partner: 0, 1, .707
    expected = [1 / (1 + math.e), math.e / (1 + math.e), 0.5]
    close(analyze.similarity_share(mixed, own, partner), torch.tensor([expected]), 1e-6)


def test_rmse_by_hand() -> None:
    found = root_mean_square(torch.tensor([0.3, -0.4]))
    assert found.mean == pytest.approx(math.sqrt(0.125), rel=1e-6) and found.n == 2
    # delta method: the deviation of the squares .09 and .16 over twice the root, over the root of two
    margin = 1.959964 * 0.07 / math.sqrt(2) / (2 * math.sqrt(0.125)) / math.sqrt(2)
    assert found.high == pytest.approx(found.mean + margin, rel=1e-5)
    assert root_mean_square(torch.zeros(3)).mean == 0


@pytest.mark.parametrize(
    "make",
    [
        tiny_vit,
        tiny_cct,
        lambda: tiny_vit(class_token=False, global_pool="avg"),
        lambda: tiny_vit(class_token=False, global_pool="map"),
        lambda: tiny_vit("deit_tiny_distilled_patch16_224"),
    ],
)
def test_fluctuation_agrees_with_the_method_itself(make) -> None:
    model = make().eval()
    cutmix, aligned = vitmix.create("cutmix", 10), vitmix.create("tl_align", 10)
    pictures = analyze.Pictures(torch.randn(6, 3, 16, 16), torch.arange(6))
    shares, rmse = analyze.fluctuation_study(model, cutmix, [pictures], num_classes=10, seed=3)
    with torch.no_grad(), aligned.attach(model, seed=3, rank=0) as mixing:
        batch = mixing.mix(pictures.images, pictures.labels)
        model(batch.images)
        evidence = mixing.evidence(batch)
        given, area = AlignedShare().weights(evidence).partner, evidence.area
    assert shares.column("share", rule="area") == pytest.approx([float(area.mean())] * 3, abs=1e-6)
    reader = read_model(model)
    if reader.readout != "sequence" and reader.pooling is None:  # which weight the patches, after the last block
        assert shares.column("share", rule="aligned")[-1] == pytest.approx(float(given.mean()), abs=1e-6)
    expected = float((given - area).double().square().mean().sqrt())
    assert rmse.column("of shares") == pytest.approx([expected], abs=1e-6)
    assert rmse.column("of targets") == pytest.approx([expected * math.sqrt(2 / 10)], abs=1e-6)
    assert all(0.119 < each < 0.881 for each in shares.column("share", rule="similarity"))
    assert not any(module._forward_hooks for module in model.modules())


def test_smoothing_is_in_both_targets() -> None:
    pictures = analyze.Pictures(torch.randn(6, 3, 16, 16), torch.arange(6))
    model, found = tiny_vit().eval(), []
    for text in ("cutmix", "cutmix(smoothing=0.5)"):
        _, rmse = analyze.fluctuation_study(model, vitmix.create(text, 10), [pictures], num_classes=10)
        found += rmse.column("of targets")
    assert found[1] == pytest.approx(found[0] / 2, abs=1e-6)  # half of each target is the same for all classes


def test_a_class_token_is_compared_alone() -> None:
    """The tokens that no classifier reads need not be compared; and thousands of them are, a part at a time."""
    mixed, own, partner = torch.randn(3, 2, 600, 5).unbind(0)
    every = fluctuation.similarity_share(mixed, own, partner)
    close(every[:, 400:401], fluctuation.similarity_share(mixed[:, 400:401], own, partner), 1e-6)
    reader = read_model(tiny_vit())
    whole = fluctuation.read_at(reader, 0, every)
    close(fluctuation.similarity_at(reader, 0, mixed, own, partner), whole, 1e-6)


def test_an_image_mixed_with_its_own_copy_is_half_of_each() -> None:
    model = tiny_vit().eval()
    twins = torch.randn(1, 3, 16, 16).expand(4, -1, -1, -1)
    table, _ = analyze.fluctuation_study(
        model, vitmix.create("cutmix", 10), [analyze.Pictures(twins, torch.arange(4))], num_classes=10
    )
    assert table.column("share", rule="similarity") == pytest.approx([0.5] * 3, abs=1e-6)


def test_coverage_by_hand() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2, :2] = True
    objects[1, :2, 1:3] = True
    left = torch.zeros(1, 4, 4, dtype=torch.bool)
    left[:, :, :2] = True
    pasted, hidden = analyze.object_coverage(objects, vitmix.Mix(F.reversed_pairs(2), left))
    close(pasted, torch.tensor([0.5, 1.0]), 1e-6)  # half of object 1 lies left, all of object 0
    close(hidden, torch.tensor([1.0, 0.5]), 1e-6)


def test_cut_share_and_its_classes_by_hand() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2, :2] = True  # 4 pixels
    objects[1, :, 2:] = True  # 8 pixels
    left = torch.zeros(1, 4, 4, dtype=torch.bool)
    left[:, :, :2] = True
    # image 0 hides its 4 and shows none of the partner's 8; image 1 keeps its 8 and gets 4
    close(analyze.cut_share(objects, vitmix.Mix(F.reversed_pairs(2), left)), torch.tensor([1.0, 0.0]), 1e-6)
    found = labels.by_cut(torch.tensor([0.1, -0.3, 0.5]), torch.tensor([0.0, 0.2, 1.0]), torch.tensor([0, 1, 0]))
    assert found["0% to 25%"].mean == pytest.approx(0.2) and found["0% to 25%"].n == 2
    assert found["75% to 100%"].mean == pytest.approx(0.5) and len(found) == 2


@pytest.mark.parametrize("full", [False, True])
def test_label_error_is_zero_where_the_mask_is_empty_or_full(full: bool) -> None:
    """Whatever the rule: nothing of the partner is there, or nothing else."""
    model, share = tiny_vit().eval(), 1.0 if full else 0.0
    images, labels, objects = torch.randn(6, 3, 16, 16), torch.arange(6), torch.rand(6, 16, 16) < 0.3
    every = ("area", "attention", "aligned", "activation")
    texts = [f"mix(mask=scattered(share={share}), share={rule})" for rule in every]
    rules = {text: vitmix.create(text, 10) for text in texts}
    for found in analyze.label_error(model, rules, [(images, labels, objects)]).values():
        assert found.error < 1e-6 and found.pairs == 6


def test_a_rule_that_knows_nothing_falls_back_on_area() -> None:
    """An activation map without mass gives neither label anything."""
    area = torch.tensor([0.0, 1.0, 0.3, 0.3])
    own, partner = torch.tensor([0.0, 0, 0, 0.2]), torch.tensor([0.0, 0, 0, 0.6])
    close(analyze.assigned_share(Weights(own, partner), area), torch.tensor([0, 1, 0.3, 0.75]), 1e-6)


def test_rules_that_need_no_pass_make_none() -> None:
    """Area labels are known before the model runs, and activation maps are made once for all rules of a batch."""
    model, passes = tiny_vit().eval(), []
    model.patch_embed.register_forward_hook(lambda *_: passes.append(1))
    batch = (torch.randn(6, 3, 16, 16), torch.arange(6), torch.ones(6, 16, 16, dtype=torch.bool))
    for text, count in (("cutmix", 0), ("tl_align", 1), ("mix(mask=box, share=activation)", 1)):
        passes.clear()
        rules = {str(number): vitmix.create(text, 10) for number in range(2)}
        analyze.label_error(model, rules, [batch])
        assert len(passes) == (1 if "activation" in text else 2 * count)


def test_images_without_a_gradient_are_not_counted() -> None:
    model = tiny_vit().eval()
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():  # so sure of class 0 that the other probabilities vanish
        model.head.weight.zero_()
        model.head.weight[1] = torch.randn(24)
        model.head.bias[0] = 1e4
    with pytest.raises(ValueError, match="no image whose loss has a gradient"):
        analyze.sharpness_study(model, [analyze.Pictures(images, torch.zeros(4, dtype=torch.long))])
    table = analyze.sharpness_study(model, [analyze.Pictures(images, torch.tensor([0, 0, 0, 1]))])
    assert [values["variance"].n for _, values in table.rows] == [4, 4, 4, 1]


def test_hidden_mixing_by_hand() -> None:
    rows = [{"epoch": 1, "htm_samples": 0.0, "htm_tokens": 0.0}, {"epoch": 2, "htm_samples": 0.25, "htm_tokens": 0.05}]
    table = analyze.hidden_mixing(rows, batch=128, tokens=256)
    assert table.column("samples per batch") == [0, 32]
    assert table.column("tokens per sample") == pytest.approx([0, 51.2])
    with pytest.raises(ValueError, match="no such counts"):
        analyze.hidden_mixing([{"epoch": 1}], batch=8, tokens=4)


def test_counts_are_what_htm_decided() -> None:
    learner = vitmix.Learner(tiny_vit(), vitmix.create("htm(block=1, tau=9, rho=0)", 10))
    output = learner(torch.randn(6, 3, 16, 16), torch.arange(6))
    assert output.counts["htm_samples"] == 1 and 0 < output.counts["htm_tokens"] < 1
    assert not vitmix.Learner(tiny_vit(), vitmix.create("cutmix", 10))(
        torch.randn(6, 3, 16, 16), torch.arange(6)
    ).counts


# Objects


def test_batches_are_shuffled_and_keep_their_objects() -> None:
    images = open_images("shapes(size=16, length=24, test_length=24)", "test")
    finder = objects.object_finder(images, AUGMENTATION)
    batches = Batches(images, AUGMENTATION, count=12, batch=4, seed=1, finder=finder)
    assert [len(each.labels) for each in batches] == [4, 4, 4]
    first, again = (torch.cat([each.labels for each in batches]).tolist() for _ in range(2))
    assert batches._kept is not None  # the second time nothing was read
    assert first == again == images.labels[batches.rows].tolist() and sorted(batches.rows) != batches.rows.tolist()
    masks = torch.cat([each.objects for each in batches if each.objects is not None])
    assert torch.equal(masks, torch.from_numpy(images.objects(batches.rows.tolist())))


def test_boxes_of_arrays_mark_the_objects(tmp_path: Path) -> None:
    pixels = np.zeros((3, 16, 16, 3), np.uint8)
    boxes = np.array([[0, 0, 15, 15], [4, 8, 7, 13], [15, 0, 15, 0]], np.uint8)
    np.savez(tmp_path / "train.npz", images=pixels, labels=np.array([0, 1, 0]))
    np.savez(tmp_path / "val_0.npz", images=pixels[:2], labels=np.array([0, 1]), box=boxes[:2])
    np.savez(tmp_path / "val_1.npz", images=pixels[2:], labels=np.array([0]), box=boxes[2:])
    images = open_images(f"npz:{tmp_path}", "val")
    finder = objects.object_finder(images, AUGMENTATION)
    assert finder is not None
    found = finder([2, 1, 0])
    assert found.sum((1, 2)).tolist() == [1, 4 * 6, 16 * 16]
    assert found[1, 8:14, 4:8].all() and found[0, 0, 15]
    part = images.subset(np.array([1]), "part")
    assert torch.equal(finder([1]), objects.object_finder(part, AUGMENTATION)([0]))  # type: ignore[misc]
    assert objects.object_finder(open_images(f"npz:{tmp_path}", "train"), AUGMENTATION) is None


@pytest.mark.parametrize(
    ("box", "sentence"),
    [
        (np.array([[0.0, 0, 1, 1]] * 3), "float64"),
        (np.array([[0, 0, 5]] * 3), "(3, 3)"),
        (np.array([[0, 0, 15, 15], [4, 0, 3, 5], [0, 0, 1, 1]]), "[4, 0, 3, 5] for train.npz[1]"),
        (np.array([[0, 0, 15, 15], [0, 0, 1, 1], [0, 0, 1, 16]]), "[0, 0, 1, 16] for train.npz[2]"),
    ],
)
def test_wrong_boxes_are_no_objects(box: np.ndarray, sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((3, 16, 16, 3), np.uint8), labels=np.array([0, 1, 0]), box=box)
    images = npz_splits(str(tmp_path))["train"]()  # as pictures they are good enough
    with pytest.raises(ValueError, match=re.escape(sentence)):
        objects.object_finder(images, AUGMENTATION)


def test_a_folder_of_masks(tmp_path: Path) -> None:
    for number, name in enumerate(("cat/a.jpg", "cat/b.jpg", "dog/c.jpg")):
        for folder, ending in (("images", ".jpg"), ("masks", ".png")):
            path = (tmp_path / folder / name).with_suffix(ending)
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = np.zeros((32, 32), dtype=np.uint8)
            levels[:, : 8 * (number + 1)] = 1
            levels[:, 24:] = 2
            Image.fromarray(levels).save(path)
    images = open_images(f"imagefolder:{tmp_path / 'images'}?holdout=0.5", "train")
    finder = objects.object_finder(images, AUGMENTATION, masks=tmp_path / "masks", value=1)
    assert finder is not None
    found = finder(range(len(images)))
    places = [int("abc".index(Path(images.name(index)).stem)) for index in range(len(images))]
    assert found.sum((1, 2)).tolist() == [16 * 4 * (place + 1) for place in places]
    read = objects.MaskFolder(tmp_path / "masks", tmp_path / "images")
    with pytest.raises(ValueError, match="there is no mask .*for the image"):
        read("cat/z.jpg")
    Image.fromarray(np.zeros((20, 40), dtype=np.uint8)).save(tmp_path / "masks" / "cat" / "a.png")
    with pytest.raises(ValueError, match="a.png is 40x20 pixels and its image 32x32"):
        read("cat/a.jpg")
    (tmp_path / "masks" / "cat" / "b.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="b.png cannot be read: not an image"):
        read("cat/b.jpg")
    with pytest.raises(ValueError, match="no folder of masks"):
        objects.object_finder(images, AUGMENTATION, masks=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="goes with image files"):
        shapes = open_images("shapes(size=16, length=24)", "train")
        objects.object_finder(shapes, AUGMENTATION, masks=tmp_path / "masks")
    assert objects.object_finder(images, AUGMENTATION) is None
    with pytest.raises(ValueError, match="goes with a folder of them"):
        objects.object_finder(images, AUGMENTATION, value=1)


SHARED = Path(__file__).parents[1].parent / "shared" / "data" / "natural64"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")
def test_outlines_of_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oxford-IIIT Pet's trimaps as a folder of masks: they follow the image, and labels are measured on them."""
    pets = [row for row in json.loads((SHARED / "index.json").read_text()) if row["set"] == "pets"]
    for row in pets:
        for folder, file in (("images/val", row["file"]), ("masks", row["trimap"])):
            place = tmp_path / folder / str(row["label"]) / Path(file).name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(SHARED / file)
    images = open_images(f"imagefolder:{tmp_path / 'images'}", "val")
    augmentation = Augmentation(size=64, crop_pct=1.0)  # of square pictures nothing is lost
    finder = objects.object_finder(images, augmentation, masks=tmp_path / "masks", value=1)
    assert finder is not None
    parts = {Path(row["file"]).name: row["foreground"] for row in pets}
    found = finder(range(len(images))).double().mean((1, 2)).tolist()
    assert found == pytest.approx([parts[Path(images.name(index)).name] for index in range(len(images))], abs=0.01)
    small = ["img_size=32", "patch_size=8", "embed_dim=24", "depth=2", "num_heads=2", "num_classes=8"]
    given = ["analyze", "vit_tiny_patch16_224", "--model-args", *small, "--data", f"imagefolder:{tmp_path / 'images'}"]
    given += ["--split", "val", "--masks", str(tmp_path / "masks"), "--mask-value", "1", "--workers", "0"]
    assert cli.main([*given, "--study", "labels", "coverage", "--output", str(tmp_path / "found")]) == 0
    assert "salient window, aligned" in capsys.readouterr().out
    stored = json.loads((tmp_path / "found" / "labels.json").read_text())
    assert stored["tables"][0]["rows"][0]["error"]["n"] == len(pets) == 32


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("analyze") / "run"
    train(folder, method="cutmix + htm(block=1, tau=9)", epochs=1)
    yield folder


def test_analyze_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "found"
    assert cli.main(["analyze", str(run), "--images", "16", "--output", str(output), "--figure", "svg"]) == 0
    said = capsys.readouterr().out
    for title in ("Accuracy on mixed images", "Label error", "Token fluctuation: cutmix", "RMSE", "What HTM mixed"):
        assert title in said
    assert "Left out" not in said
    names = {path.name for path in output.iterdir()}
    studies = ("accuracy", "labels", "fluctuation", "regions", "presence", "sharpness", "coverage", "htm")
    assert names == {f"{name}.{ending}" for name in studies for ending in ("json", "txt", "svg")}
    assert studies == NAMES == tuple(STUDIES) and "64/64 images  accuracy" in said
    assert (output / "regions.txt").read_text().strip() in said
    stored = json.loads((output / "htm.json").read_text())
    assert stored["tables"][0]["rows"][0]["samples"]["mean"] == 1  # tau 9: everybody is easy
    assert stored["weights_sha256"] == hashlib.sha256((run / "best.safetensors").read_bytes()).hexdigest()
    assert json.loads((output / "labels.json").read_text())["tables"][0]["rows"][0]["error"]["n"] <= 16


def test_only_what_is_the_runs_own_goes_to_its_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its best weights on its own data with the usual methods, pictures and pairs; the rest must not replace that."""
    monkeypatch.chdir(tmp_path)
    own, here = run / "analysis" / "coverage.json", tmp_path / "analysis" / "coverage.json"
    for what in (run, run / "best.safetensors"):
        assert cli.main(["analyze", str(what), "--study", "coverage"]) == 0
        assert f"{run / 'analysis'}: coverage" in capsys.readouterr().out and own.is_file() and not here.parent.exists()
        content = own.read_bytes()
        own.unlink()
    own.write_bytes(content)
    data = "shapes(size=16, length=24, test_length=24)"
    for given in (
        [str(run), "--weights", "last"],
        [str(run / "last.safetensors")],
        [str(run / "best.safetensors"), "--data", data],
        [str(run), "--split", "train"],
        [str(run), "--size", "16"],
        [str(run), "--method", "cutmix"],
        [str(run), "--images", "8"],
        [str(run), "--batch", "8"],
        [str(run), "--seed", "1"],
    ):
        assert cli.main(["analyze", *given, "--study", "coverage"]) == 0
        said = capsys.readouterr().out
        assert "analysis: coverage, each as" in said and f"Not in {run / 'analysis'}" in said and here.is_file()
        here.unlink()
    assert cli.main(["analyze", str(run), "--seed", "1", "--study", "coverage", "--output", "other"]) == 0
    assert "other: coverage" in (said := capsys.readouterr().out) and "Not in" not in said
    assert own.read_bytes() == content
    monkeypatch.chdir(run)
    for given in ([".", "--weights", "last"], ["best.safetensors", "--data", data]):
        assert cli.main(["analyze", *given, "--study", "coverage"]) == 2
        assert "add --output FOLDER" in capsys.readouterr().err
    assert cli.main(["analyze", ".", "--seed", "1", "--study", "coverage", "--output", "analysis"]) == 0
    assert own.read_bytes() != content  # who names it means it


def test_the_head_is_that_of_eval(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which weights were measured is said: those of a bare name are random."""
    model = ["vit_tiny_patch16_224", "--model-args", "img_size=32", "patch_size=8", "embed_dim=24", "depth=2"]
    model += ["num_heads=2", "num_classes=14", "--data", "shapes(size=32, length=24, test_length=24)"]
    for given in (model, [str(run)]):
        assert cli.main(["eval", *given]) == 0
        expected = capsys.readouterr().out.partition("\n\n")[0]
        output = ["--output", str(tmp_path / "found"), "--study", "coverage"]
        assert cli.main(["analyze", *given, *output]) == 0
        assert capsys.readouterr().out.startswith(f"{expected}\n\n")
        assert expected.startswith("Model  ") and "\nData   " in expected
        assert ("with random weights" in expected and "Note: 14 outputs" in expected) == (given is model)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "what to analyze is missing"),
        (["--study", "magic"], "unknown study 'magic'"),
        (["RUN", "--study", "regions", "--method", "mixup"], "blends them"),
        (["RUN", "--study", "accuracy", "--method", "nomix"], "nomix"),
        (["RUN", "--study", "labels", "--method", "none"], "'none' mixes none"),
        (["RUN", "--study", "labels", "--method", "htm(block=1)"], "mixes none; name a method"),
        (["RUN", "--mask-value", "1"], "goes with a folder"),
        (["RUN", "--study", "labels", "--masks", "nowhere"], "no folder of masks"),
        (["RUN", "--images", "1"], "images must be an integer of at least 2"),
        (
            ["resnet18", "--data", "shapes(size=16, length=24, test_length=24)", "--study", "presence"],
            "needs attention",
        ),
        (["resnet18", "--data", "shapes(size=16, length=24, test_length=24)", "--study", "htm"], "read from a run"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(run) if each == "RUN" else each for each in arguments]
    assert cli.main(["analyze", *given]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_no_masks_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        path = tmp_path / "images" / "train" / Shapes.classes[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 20 * number, dtype=np.uint8)).save(path)
    data = f"imagefolder:{tmp_path / 'images'}"
    assert cli.main(["analyze", str(run), "--data", data, "--split", "train", "--study", "labels"]) == 2
    assert "have no masks" in capsys.readouterr().err


def test_methods_that_a_model_does_not_allow_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that nobody named: a model without attention still has an accuracy on mixed images."""
    data, output = "shapes(size=32, length=24, test_length=24)", tmp_path / "found"
    given = ["analyze", "resnet10t", "--model-args", "num_classes=12", "--size", "32", "--data", data, "--images", "16"]
    assert cli.main([*given, "--output", str(output), "--study", "accuracy", "labels", "coverage"]) == 0
    said = capsys.readouterr().out
    assert "Left out: smmix, since a salient box needs attention, and this ResNet has none." in said
    rows = json.loads((output / "labels.json").read_text())["tables"][0]["rows"]
    assert [labels.RULES[row["rule"]] for row in rows][:3] == ["cutmix", "tl_align", "mix(mask=box, share=activation)"]
    assert cli.main([*given, "--study", "accuracy", "--method", "smmix", "--output", str(output)]) == 2
    assert "needs attention" in capsys.readouterr().err


def test_a_stopped_command_says_what_it_finished(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(asked: object) -> list:
        raise KeyboardInterrupt

    monkeypatch.setitem(STUDIES, "regions", dataclasses.replace(STUDIES["regions"], measure=stop))
    given = ["analyze", str(run), "--images", "8", "--output", str(tmp_path / "found")]
    assert cli.main([*given, "--study", "accuracy", "regions"]) == 130
    assert capsys.readouterr().err == f"Stopped. Studies that were finished are in {tmp_path / 'found'}: accuracy.\n"
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"accuracy.json", "accuracy.txt", "accuracy.png"}
