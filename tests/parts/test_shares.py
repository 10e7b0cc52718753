"""Share rules and the targets they give, and the mixing of images and labels, beyond what every method must keep."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor

import reference
import vitmix
from support import close, same, tiny_batch, tiny_cct, tiny_vit
from vitmix import functional as F
from vitmix.parts.joint import JointMask


@pytest.mark.parametrize("blend", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("block", [0, -1])
@pytest.mark.parametrize("build, prefix", [(tiny_vit, 1), (tiny_cct, 0)])
def test_attention_shares_blend_attention_with_area(blend: float, block: int, build, prefix: int) -> None:
    model = build().double().eval()
    for each in model.blocks:
        torch.nn.init.normal_(each.attn.qkv.weight, std=0.5)
    images, labels = tiny_batch(4)
    with vitmix.create(f"transmix(blend={blend}, block={block})", 10).attach(model) as mixing:
        batch = mixing.mix(images.double(), labels)
        model(batch.images)
        targets = mixing.targets(batch)
    maps = reference.attention_of(model, batch.images)[block]
    attention = reference.class_row(maps, 1) if prefix else reference.column_mean(maps, 0)
    cell = 16 // round(attention.shape[1] ** 0.5)
    mask = batch.mix.mask.expand(4, -1, -1)
    tokens, area = mask[:, ::cell, ::cell].flatten(1), mask.double().mean((1, 2))
    share = torch.stack([a[t].sum() / a.sum() for a, t in zip(attention, tokens, strict=True)])
    mixed = blend * share + (1 - blend) * area
    assert (share - area).abs().max() > 1e-3
    for b, other in enumerate(batch.mix.partner.tolist()):
        assert abs(float(targets[b, other] - mixed[b])) < 1e-9 and abs(float(targets[b, b] - 1 + mixed[b])) < 1e-9


SHARES = ["mixup", "cutmix(per=sample)", "transmix", "tl_align", "tdattenmix", "mixpro(tokens=2, smoothing=0)"]
SHARES += [f"mix(mask=box, share={name})" for name in ("prior", "object", "activation")]


@pytest.mark.parametrize("text", SHARES)
def test_both_weights_of_a_label_add_up_to_one(text: str) -> None:
    images, labels = tiny_batch(4)
    with vitmix.create(text, 10).attach(model := tiny_vit(), seed=0) as mixing:
        batch = mixing.mix(images, labels, maps=torch.ones(4, 4, 4))
        mixing.loss(model(batch.images), batch)
        own, theirs = batch.mixer.share.weights(mixing.evidence(batch))
        targets = mixing.targets(batch)
    assert (targets < 1).all()
    close(own, targets[range(4), range(4)], 1e-6)
    close(theirs, targets[range(4), batch.mix.partner], 1e-6)


class BothWeights(vitmix.Share):
    """By area, for targets that read the weight of the image's own label too."""

    name: ClassVar[str] = "both_weights"

    def weights(self, evidence: vitmix.Evidence) -> vitmix.Weights:
        return vitmix.Weights(1 - evidence.area, evidence.area)

    def targets(self, rows: Tensor, partner: Tensor, weights: vitmix.Weights, smoothing: float) -> Tensor:
        return weights.own.unsqueeze(1) * rows + weights.partner.unsqueeze(1) * rows[partner]


@pytest.mark.parametrize("mask", [vitmix.BoxMask(), JointMask(gamma=0.1)])
def test_a_share_of_ones_own_gets_both_weights_of_every_image(mask: vitmix.Mask) -> None:
    """Co-Mixup's mixed images have labels of their own, beside those of the batch."""
    images, labels = tiny_batch(4)
    model, found = tiny_vit(), []
    for share in (vitmix.AreaShare(), BothWeights()):
        with vitmix.Mixer(10, mask=mask, share=share).attach(model, seed=3) as mixing:
            found.append(mixing.targets(mixing.mix(images, labels)))
    assert ((found[0] > 0) & (found[0] < 1)).any()
    close(found[1], found[0], 1e-6)


def test_alignment_averages_unless_told_not_to() -> None:
    attention, share = torch.randn(2, 3, 5, 5, dtype=torch.float64).softmax(-1), torch.rand(2, 5, dtype=torch.float64)
    carried = torch.stack([attention[b].mean(0) @ share[b] for b in range(2)])
    close(F.align_share(attention, share), (carried + share) / 2, 1e-12)
    close(F.align_share(attention, share, normalize=False), carried, 1e-12)


def test_area_is_the_mean_of_a_mask_in_the_precision_asked_for() -> None:
    mask = torch.rand(3, 4, 6) < 0.4
    close(F.area_share(mask, dtype=torch.float64), mask.double().mean((1, 2)), 1e-12)
    assert F.area_share(mask).dtype == torch.float32 and F.area_share(mask, dtype=torch.float64).dtype == torch.float64
    blend = torch.rand(2, 1, 1)
    close(F.area_share(blend), blend.flatten(), 1e-7)


def test_activation_targets_by_default() -> None:
    rows, partner = F.label_rows(torch.tensor([0, 1]), 3), F.reversed_pairs(2)
    weights = (torch.tensor([0.7, -0.1]), torch.tensor([0.2, 0.9]))
    close(F.activation_targets(rows, partner, weights), torch.tensor([[0.7, 0.2, 0.0], [0.9, 0.0, 0.0]]), 1e-7)
    unclamped = F.activation_targets(rows, partner, weights, smoothing=0.3, clamp=False)
    close(unclamped, torch.tensor([[0.65, 0.15, 0.1], [0.85, -0.15, 0.1]]), 1e-6)


def test_activation_maps_in_half_precision_and_without_mass() -> None:
    maps = torch.rand(2, 4, 4).half()
    maps[0] = -1
    mix = vitmix.Mix(F.reversed_pairs(2), torch.rand(1, 4, 4) < 0.5)
    own, theirs = F.activation_weights(maps, mix)
    assert own.dtype == theirs.dtype == torch.float32
    assert own[0] == theirs[1] == 0 and 0 < own[1] < 1
    assert abs(float(own[1] + theirs[0]) - 1) < 1e-3
    tiny = torch.full((2, 4, 4), 1e-7)  # so little that the guard against zero shows
    assert abs(float(sum(each[0] for each in F.activation_weights(tiny, mix))) - 1) < 0.02
    for source in (None, torch.arange(16).repeat(2, 1)):
        with pytest.raises(ValueError, match="maps of 3x4 do not fit a mask of 4x4"):
            F.activation_weights(torch.rand(2, 3, 4), vitmix.Mix(mix.partner, mix.mask, source))


def test_maps_must_be_one_for_each_image() -> None:
    images, labels = tiny_batch(4)
    mixer = vitmix.tokenmix(10, label="activation", grid=(4, 4))
    for shape in ((4, 16), (4, 1, 4, 4), (5, 4, 4)):
        with pytest.raises(ValueError, match="maps must be \\(4, h, w\\), one per image"):
            mixer(images, labels, maps=torch.rand(shape))
    with pytest.raises(ValueError, match="clamp must be True or False"):
        vitmix.ActivationShare(clamp=1)
    with pytest.raises(ValueError, match="unknown empty"):
        vitmix.ActivationShare(empty="none")
    with pytest.raises(ValueError, match="block must be an integer"):
        vitmix.AttentionShare(block=0.5)
    with pytest.raises(ValueError, match="normalize must be True or False"):
        vitmix.AlignedShare(normalize=1)
    with pytest.raises(ValueError, match="blocks must be 'all' or block numbers"):
        vitmix.AlignedShare(blocks=1)


def test_clamping_can_be_switched_off_in_a_method() -> None:
    images, labels = tiny_batch(4)
    maps = torch.zeros(4, 4, 4)
    maps[:, 0, 0] = 1
    targets = {}
    for clamp in (True, False):
        mixer = vitmix.Mixer(
            10, mask=vitmix.BoxMask(grid=(4, 4), aligned=True), share=vitmix.ActivationShare(clamp), smoothing=0.2
        )
        draw = vitmix.Draw(0, {"partner": F.reversed_pairs(4), "mask.box": torch.tensor([[0, 2, 0, 2]])})
        targets[clamp] = mixer(images, labels, maps=maps, draw=draw)[1]
    close(targets[False][0, 0], torch.tensor(0.02 - 0.1), 1e-6)
    same(targets[True], targets[False].clamp_min(0))


# Images, masks, labels


def test_masks_that_do_not_divide_are_refused_by_either_side() -> None:
    for size in ((9, 8), (8, 9)):
        with pytest.raises(ValueError, match=f"{size[0]}x{size[1]} does not divide into a 4x4 grid"):
            F.expand_mask(torch.zeros(1, 4, 4), size)
        with pytest.raises(ValueError, match=f"{size[0]}x{size[1]} does not divide into a 4x4 grid"):
            F.resample_mask(torch.zeros(1, *size), (4, 4), rule="area")
    with pytest.raises(ValueError, match="unknown rule 'mean', known: area, nearest"):
        F.resample_mask(torch.zeros(1, 8, 8), (4, 4), rule="mean")
    with pytest.raises(ValueError, match="does not divide"):
        F.resample_mask(torch.zeros(1, 8, 2), (4, 4), rule="area")


def test_one_cell_is_every_cell() -> None:
    blend = torch.tensor([[[0.3]], [[0.6]]])
    same(F.resample_mask(blend, (2, 3), rule="area"), blend.expand(2, 2, 3))
    assert F.expand_mask(blend, (4, 4)) is blend
    whole = torch.rand(2, 4, 4) < 0.5
    assert F.expand_mask(whole, (4, 4)) is whole
    tall = torch.rand(2, 2, 1)
    same(F.expand_mask(tall, (4, 3)), tall.repeat_interleave(2, 1).expand(2, 4, 3))
    same(F.expand_mask(tall.transpose(1, 2), (3, 4)), tall.transpose(1, 2).repeat_interleave(2, 2).expand(2, 3, 4))
    same(F.resample_mask(whole, (4, 2), rule="area"), whole.float().unflatten(2, (2, 2)).mean(3))
    same(F.resample_mask(whole, (2, 4), rule="area"), whole.float().unflatten(1, (2, 2)).mean(2))
    area = F.resample_mask(whole, (2, 2), rule="area", dtype=torch.float64)
    assert area.dtype == torch.float64 and F.resample_mask(whole, (2, 2), rule="area").dtype == torch.float32
    half = torch.rand(1, 4, 4).double()
    assert F.resample_mask(half, (2, 2), rule="area").dtype == torch.float64


def test_tokens_and_their_first_shares() -> None:
    tokens, mask, partner = torch.randn(2, 5, 3), torch.rand(2, 3) < 0.5, F.reversed_pairs(2)
    mixed = F.mix_tokens(tokens, mask, partner, prefix=2)
    for b in range(2):
        for t in range(5):
            same(mixed[b, t], tokens[1 - b, t] if t >= 2 and mask[b, t - 2] else tokens[b, t])
    same(F.mix_tokens(tokens, torch.ones(2, 5, dtype=torch.bool), partner), tokens[partner])
    share = F.initial_token_share(torch.rand(2, 3), torch.tensor([0.1, 0.2]), prefix=2)
    assert share.shape == (2, 5) and share[1, :2].tolist() == pytest.approx([0.2, 0.2])


def test_labels_that_are_refused() -> None:
    for labels, words in (
        ([0, 1], "labels must be a tensor, got list"),
        (torch.tensor([[0], [1]]), "flatten them"),
        (torch.zeros(2, 3, dtype=torch.long), "got \\(2, 3\\) torch.int64; convert them to float"),
        (torch.zeros(2, 4), "pass num_classes=4\\?"),
        (torch.zeros(2, 3, 1), "got \\(2, 3, 1\\) torch.float32; label maps are mixed by vitmix.DenseMix"),
        (torch.tensor([True, False]), "got \\(2,\\) torch.bool$"),
        (torch.tensor([0.0, 1.0]), "got \\(2,\\) torch.float32$"),
        (torch.tensor([0, 3]), "labels must lie in 0..2, got 3; check num_classes=3"),
        (torch.tensor([-2, 3]), "labels must lie in 0..2, got -2"),
    ):
        with pytest.raises(ValueError, match=words):
            F.label_rows(labels, 3)
    for dtype in (torch.uint8, torch.int32, torch.long):
        same(F.label_rows(torch.tensor([2, 0], dtype=dtype), 3), torch.tensor([[0.0, 0, 1], [1, 0, 0]]))
    assert F.label_rows(torch.empty(0, dtype=torch.long), 3).shape == (0, 3)
    assert F.label_rows(torch.tensor([0]), 3, dtype=torch.float64).dtype == torch.float64


def test_smoothing_of_nothing_is_nothing() -> None:
    rows = F.label_rows(torch.tensor([1]), 4)
    assert F.smooth_rows(rows, 0.0) is rows
    close(F.smooth_rows(rows, 0.2), torch.tensor([[0.05, 0.85, 0.05, 0.05]]), 1e-7)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("moved", [False, True])
def test_images_with_a_gradient_are_mixed_alike(layout: torch.memory_format, moved: bool) -> None:
    images = torch.randn(4, 3, 8, 8).to(memory_format=layout)
    mask, partner = torch.rand(4, 4, 4) < 0.5, F.rolled_pairs(4)
    source = torch.randint(0, 16, (4, 16)) if moved else None
    leaf = images.clone(memory_format=torch.preserve_format).requires_grad_()
    mixed = F.mix_images(leaf, mask, partner, source)
    same(mixed, F.mix_images(images, mask, partner, source))
    same(mixed, reference.mix_pixels(images, mask, partner, source))
    assert mixed.requires_grad
    with torch.no_grad():
        assert not F.mix_images(images, mask, partner, source).requires_grad
