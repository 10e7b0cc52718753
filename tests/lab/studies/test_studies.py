"""The studies of `vitmix analyze` on cases that can be computed by hand."""

import math

import pytest
import timm
import torch
from torch import Tensor, nn

import vitmix
from support import close, tiny_cct, tiny_vit
from vitmix import functional as F
from vitmix.attention.flow import Given
from vitmix.attention.readers import read_model
from vitmix.attention.tap import AttentionTap
from vitmix.lab.runs import Epoch
from vitmix.lab.studies import fluctuation, labels
from vitmix.lab.studies.accuracy import mixed_accuracy, mixed_top
from vitmix.lab.studies.coverage import object_coverage
from vitmix.lab.studies.estimates import root_mean_square
from vitmix.lab.studies.fluctuation import fluctuation_study, similarity_share
from vitmix.lab.studies.hidden import hidden_mixing
from vitmix.lab.studies.labels import assigned_share, cut_share, label_error
from vitmix.lab.studies.pairs import ImageBatch
from vitmix.lab.studies.regions import presence, presence_study, region_attention, region_study
from vitmix.lab.studies.saliency import sharpness, sharpness_study
from vitmix.parts.shares import AlignedShare, Weights


def test_mixed_top_by_hand() -> None:
    logits = torch.tensor([[3.0, 2, 1, 0], [3, 2, 1, 0], [0, 1, 2, 3], [0, 3, 0, 2]])
    own, partner = torch.tensor([0, 1, 0, 3]), torch.tensor([1, 2, 1, 1])
    top1, top2 = mixed_top(logits, own, partner)
    assert top1.tolist() == [True, False, False, True]
    assert top2.tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="two classes"):
        mixed_top(torch.zeros(2, 1), own[:2], partner[:2])


class Corners(nn.Module):
    """Knows its answer: the class of each image is written in its pixels, and it names the two it sees most of."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([(images[:, 0] == label).float().mean((1, 2)) for label in range(6)], 1)


def plain_batch(classes: int = 6) -> ImageBatch:
    """Images of one color each, which is their label."""
    labels = torch.arange(6) % classes
    return ImageBatch(labels.float().view(-1, 1, 1, 1).expand(6, 3, 16, 16).clone(), labels)


def test_mixed_accuracy_of_a_model_that_knows() -> None:
    half = vitmix.create("mix(mask=scattered(grid=[4, 4], share=0.5))", 6)
    table = mixed_accuracy(Corners(), {"half": half}, [plain_batch()])
    assert table.column("top-1") == [1.0] and table.column("top-2") == [1.0] and table.rows[0][1]["top-1"].n == 6
    with pytest.raises(ValueError, match="found no pair of two classes"):
        mixed_accuracy(Corners(), {"half": half}, [plain_batch(1)])
    with pytest.raises(ValueError, match="'none' does not mix images"):
        mixed_accuracy(Corners(), {"none": vitmix.create("none", 6)}, [plain_batch()])


def test_pairs_of_one_class_and_lone_samples_are_left_out() -> None:
    images = plain_batch()
    odd = ImageBatch(images.images[:5], torch.tensor([0, 1, 2, 3, 0]))  # 0 meets 0, the middle itself
    found = mixed_accuracy(Corners(), {"cutmix": vitmix.create("cutmix", 6)}, [odd])
    assert found.rows[0][1]["top-1"].n == 2


def test_region_attention_by_hand() -> None:
    attention = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]]).view(1, 1, 3, 3)
    mask = torch.tensor([[True, False, False]])
    # the partner has patch 0, the image itself patches 1 and 2
    expected = [0.7, (0.2 + 0.1) / 2, (0.3 + 0.1) / 2, (0.5 + 0.2 + 0.1 + 0.8) / 4]
    close(region_attention(Given(attention), mask), torch.tensor([expected]), 1e-6)
    assert region_attention(Given(attention), torch.zeros(1, 3, dtype=torch.bool)).isnan().any()


def test_presence_by_hand() -> None:
    heads = torch.tensor([[[1.0, 0], [1, 0]], [[0.5, 0.5], [0, 1]]]).unsqueeze(0)
    # the mean of the heads is [[.75, .25], [.5, .5]]: the first token is taken 1.25 times
    close(presence(Given(heads)), torch.tensor([[1.25, 0.75]]), 1e-6)
    close(presence(Given(torch.eye(5).view(1, 1, 5, 5))), torch.ones(1, 5), 1e-6)
    close(presence(Given(3 * heads)), torch.tensor([[1.25, 0.75]]), 1e-6)  # contributions are relative


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
        found = region_attention(flow, theirs)
        for column, (query, key) in enumerate([(1, 1), (1, 0), (0, 1), (0, 0)]):
            cells = patches[:, theirs[0] == query][:, :, theirs[0] == key].flatten(1)
            if cells.shape[1]:
                close(found[:, column], cells.mean(1), 1e-6)
        relative = dense / dense.sum(-1, keepdim=True)  # what a token took of padding is nothing
        close(presence(flow), relative.sum(1), 1e-5)
        close(presence(flow).mean(), torch.tensor(1.0), 1e-5)


def test_regions_and_presence_of_uniform_attention() -> None:
    model = tiny_vit().eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.zero_()
            block.attn.qkv.bias.zero_()
    batches = [ImageBatch(torch.randn(6, 3, 16, 16), torch.arange(6))] * 2
    methods = {"smmix": vitmix.create("smmix", 10)}
    for name in ("partner to partner", "partner to own", "own to partner", "own to own"):
        found = region_study(model, methods, batches).column(name)
        assert found == pytest.approx([1 / 17] * 3, abs=1e-6)  # 16 patches and the class token
    table = presence_study(model, methods, batches)
    assert table.column("own") == pytest.approx([1.0] * 3, abs=1e-5) == table.column("partner")
    assert table.column("deviation") == pytest.approx([0.0] * 3, abs=1e-5)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_sharpness_by_hand() -> None:
    step = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    # two edges of one at the same place: L1 adds them, L2 takes the diagonal; mean 1/4
    expected = [2.0, math.sqrt(2), (0.75**2 + 3 * 0.25**2) / 4]
    close(sharpness(step), torch.tensor([expected]), 1e-6)
    close(sharpness(7 * step), torch.tensor([expected]), 1e-6)
    close(sharpness(torch.full((1, 3, 5), 2.0)), torch.zeros(1, 3), 1e-6)


def test_sharpness_of_a_pyramid_and_a_pooled_model() -> None:
    swin = tiny_swin()
    batch = ImageBatch(torch.randn(4, 3, 32, 32), torch.arange(4))
    table = sharpness_study(swin, [batch])
    assert [names for names, _ in table.rows] == [
        ("0", "attention"),
        ("1", "attention"),
        ("2", "attention"),
        ("grid 8x8", "gradient"),
        ("grid 4x4", "gradient"),
    ]
    assert all(values["TV, L1"].n == 4 for _, values in table.rows)
    assert region_study(swin, {"cutmix": vitmix.create("cutmix", 4)}, [batch]).rows


def test_similarity_share_by_hand() -> None:
    own, partner = torch.tensor([[[1.0, 0], [0, 1]]]), torch.tensor([[[-1.0, 0], [0, -2]]])
    mixed = torch.tensor([[[3.0, 0], [0, -1], [1, -1]]])
    # best cosines with own: 1, 0, .707; with the partner: 0, 1, .707
    expected = [1 / (1 + math.e), math.e / (1 + math.e), 0.5]
    close(similarity_share(mixed, own, partner), torch.tensor([expected]), 1e-6)


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
    images = ImageBatch(torch.randn(6, 3, 16, 16), torch.arange(6))
    shares, rmse = fluctuation_study(model, {"cutmix": cutmix}, [images], seed=3)
    with torch.no_grad(), aligned.attach(model, seed=3, rank=0) as mixing:
        batch = mixing.mix(images.images, images.labels)
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
    images = ImageBatch(torch.randn(6, 3, 16, 16), torch.arange(6))
    model, found = tiny_vit().eval(), []
    for text in ("cutmix", "cutmix(smoothing=0.5)"):
        _, rmse = fluctuation_study(model, {text: vitmix.create(text, 10)}, [images])
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
    table, _ = fluctuation_study(model, {"cutmix": vitmix.create("cutmix", 10)}, [ImageBatch(twins, torch.arange(4))])
    assert table.column("share", rule="similarity") == pytest.approx([0.5] * 3, abs=1e-6)


def test_coverage_by_hand() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2, :2] = True
    objects[1, :2, 1:3] = True
    left = torch.zeros(1, 4, 4, dtype=torch.bool)
    left[:, :, :2] = True
    pasted, hidden = object_coverage(objects, vitmix.Mix(F.reversed_pairs(2), left))
    close(pasted, torch.tensor([0.5, 1.0]), 1e-6)  # half of object 1 lies left, all of object 0
    close(hidden, torch.tensor([1.0, 0.5]), 1e-6)


def test_cut_share_and_its_classes_by_hand() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2, :2] = True  # 4 pixels
    objects[1, :, 2:] = True  # 8 pixels
    left = torch.zeros(1, 4, 4, dtype=torch.bool)
    left[:, :, :2] = True
    # image 0 hides its 4 and shows none of the partner's 8; image 1 keeps its 8 and gets 4
    close(cut_share(objects, vitmix.Mix(F.reversed_pairs(2), left)), torch.tensor([1.0, 0.0]), 1e-6)
    found = labels.in_classes(torch.tensor([0.1, -0.3, 0.5]), torch.tensor([0.0, 0.2, 1.0]), torch.tensor([0, 1, 0]))
    assert found["0% to 25%"].mean == pytest.approx(0.2) and found["0% to 25%"].n == 2
    assert found["75% to 100%"].mean == pytest.approx(0.5) and len(found) == 2


def test_label_errors_by_area_and_object_size_by_hand() -> None:
    """Image by image in plain code: the class of each pair, and the mean error in the class."""
    generator = torch.Generator().manual_seed(3)
    images, objects = torch.randn(40, 3, 16, 16), torch.zeros(40, 16, 16, dtype=torch.bool)
    for index, side in enumerate(torch.randint(1, 16, (40,), generator=generator).tolist()):
        objects[index, :side, :side] = True
    rule = vitmix.create("cutmix(per=sample)", 40)
    found = label_error(torch.nn.Identity(), {"box": rule}, [(images, torch.arange(40), objects)], seed=5)["box"]
    with rule.attach(torch.nn.Identity(), seed=5, rank=0, step=0) as mixing:
        mix = mixing.mix(images, torch.arange(40)).mix
    by_area, by_size = dict[int, list[float]](), dict[int, list[float]]()
    for own, partner in enumerate(mix.partner.tolist()):
        mask = mix.mask[own]
        own_seen, partner_seen = int((objects[own] & ~mask).sum()), int((objects[partner] & mask).sum())
        if own_seen + partner_seen:
            area = int(mask.sum()) / 256
            error = abs(area - partner_seen / (own_seen + partner_seen))
            size = int(objects[own].sum() + objects[partner].sum()) / 512
            by_area.setdefault(min(4, int(area * 5)), []).append(error)
            by_size.setdefault(min(4, int(size * 5)), []).append(error)
    for expected, given in ((by_area, found.by_area), (by_size, found.by_size)):
        assert len(given) >= 3 and list(given) == [f"{20 * low}% to {20 * low + 20}%" for low in sorted(expected)]
        for low, value in zip(sorted(expected), given.values(), strict=True):
            assert value.n == len(expected[low]) and value.mean == pytest.approx(sum(expected[low]) / value.n, abs=1e-6)


@pytest.mark.parametrize("full", [False, True])
def test_label_error_is_zero_where_the_mask_is_empty_or_full(full: bool) -> None:
    """Whatever the rule: nothing of the partner is there, or nothing else."""
    model, share = tiny_vit().eval(), 1.0 if full else 0.0
    images, labels, objects = torch.randn(6, 3, 16, 16), torch.arange(6), torch.rand(6, 16, 16) < 0.3
    every = ("area", "attention", "aligned", "activation")
    texts = [f"mix(mask=scattered(share={share}), share={rule})" for rule in every]
    rules = {text: vitmix.create(text, 10) for text in texts}
    for found in label_error(model, rules, [(images, labels, objects)]).values():
        assert found.error < 1e-6 and found.pairs == 6


def test_a_rule_that_knows_nothing_falls_back_on_area() -> None:
    """An activation map without mass gives neither label anything."""
    area = torch.tensor([0.0, 1.0, 0.3, 0.3])
    own, partner = torch.tensor([0.0, 0, 0, 0.2]), torch.tensor([0.0, 0, 0, 0.6])
    close(assigned_share(Weights(own, partner), area), torch.tensor([0, 1, 0.3, 0.75]), 1e-6)


def test_rules_that_need_no_pass_make_none() -> None:
    """Area labels are known before the model runs, and activation maps are made once for all rules of a batch."""
    model, passes = tiny_vit().eval(), []
    model.patch_embed.register_forward_hook(lambda *_: passes.append(1))
    batch = (torch.randn(6, 3, 16, 16), torch.arange(6), torch.ones(6, 16, 16, dtype=torch.bool))
    for text, count in (("cutmix", 0), ("tl_align", 1), ("mix(mask=box, share=activation)", 1)):
        passes.clear()
        rules = {str(number): vitmix.create(text, 10) for number in range(2)}
        label_error(model, rules, [batch])
        assert len(passes) == (1 if "activation" in text else 2 * count)


def test_images_without_a_gradient_are_not_counted() -> None:
    model = tiny_vit().eval()
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():  # so sure of class 0 that the other probabilities vanish
        model.head.weight.zero_()
        model.head.weight[1] = torch.randn(24)
        model.head.bias[0] = 1e4
    with pytest.raises(ValueError, match="no image whose loss has a gradient"):
        sharpness_study(model, [ImageBatch(images, torch.zeros(4, dtype=torch.long))])
    table = sharpness_study(model, [ImageBatch(images, torch.tensor([0, 0, 0, 1]))])
    assert [values["variance"].n for _, values in table.rows] == [4, 4, 4, 1]


def test_hidden_mixing_by_hand() -> None:
    counts = [{"htm_samples": 0.0, "htm_tokens": 0.0}, {"htm_samples": 0.25, "htm_tokens": 0.05}]
    rows = [Epoch(number + 1, each) for number, each in enumerate(counts)]
    table = hidden_mixing(rows, batch=128, tokens=256)
    assert table.column("samples per batch") == [0, 32]
    assert table.column("tokens per sample") == pytest.approx([0, 51.2])
    with pytest.raises(ValueError, match="which this run does not have"):
        hidden_mixing([Epoch(1, {})], batch=8, tokens=4)


def test_counts_are_what_htm_decided() -> None:
    learner = vitmix.Learner(tiny_vit(), vitmix.create("htm(block=1, tau=9, rho=0)", 10))
    output = learner(torch.randn(6, 3, 16, 16), torch.arange(6))
    assert output.counts["htm_samples"] == 1 and 0 < output.counts["htm_tokens"] < 1
    assert not vitmix.Learner(tiny_vit(), vitmix.create("cutmix", 10))(
        torch.randn(6, 3, 16, 16), torch.arange(6)
    ).counts
