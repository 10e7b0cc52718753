"""The baselines of the papers' tables: fast equals slow, properties over random inputs, and what is refused."""

import math

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import reference_baselines as slow
import vitmix
from support import close, same, tiny_batch, tiny_vit
from vitmix import functional as F
from vitmix._mixing import per_process
from vitmix._registry import KINDS, parts
from vitmix._sampling import Draw, generator_for
from vitmix.parts.base import Guidance
from vitmix.parts.cuts import _source_side, grid_energy, grid_labels
from vitmix.parts.decoupled import decoupled_loss
from vitmix.parts.fourier import FourierMask, low_frequency_image, ranked_mask
from vitmix.parts.guided import guided_share
from vitmix.parts.history import History, HistoryMask, history_loss, pooled_box
from vitmix.parts.lattice import LatticeMask, lattice_mask
from vitmix.parts.manifold import Manifold
from vitmix.parts.maps import pooled_boxes
from vitmix.parts.masks import box_reach
from vitmix.parts.objects import object_share
from vitmix.parts.peak import PeakMask, fine_grained_saliency, gray_levels
from vitmix.parts.progressive import CellMask, progressive_share
from vitmix.parts.puzzle import (
    PuzzleMask,
    _numbered,
    move_blocks,
    puzzle_costs,
    puzzle_labels,
    puzzle_mix,
    transport_plan,
)
from vitmix.parts.resized import ResizedMask, paste_resized, resize_weights, resized_pixels
from vitmix.parts.token_labels import mixed_token_labels
from vitmix.parts.top_cells import TopCellsMask, top_cells

SEEDS = st.integers(0, 10_000)


def batch_of(images: torch.Tensor, partner: torch.Tensor) -> vitmix.Unmixed:
    size = (images.shape[2], images.shape[3])
    return vitmix.Unmixed(images, torch.zeros(len(images), 1), partner, vitmix.Frame(len(images), size))


# FMix


@pytest.mark.parametrize("size", [(6, 8), (7, 5), (4, 9)])
@pytest.mark.parametrize("decay", [0.0, 1.5, 3.0])
def test_low_frequency_images_are_the_slow_ones(size: tuple[int, int], decay: float) -> None:
    normals = torch.randn(1, size[0], size[1] // 2 + 1, 2, dtype=torch.float64)
    image = low_frequency_image(normals, size, decay=decay)[0]
    close(image, torch.tensor(slow.low_frequency(normals[0], size, decay), dtype=torch.float64), 1e-10)


@given(SEEDS, st.sampled_from([0.0, 0.3]))
def test_fmix_has_the_drawn_area(seed: int, soft: float) -> None:
    frame = vitmix.Frame(3, (12, 10))
    mask = FourierMask(max_soft=soft, per="sample").draw(frame, generator_for(seed))["mask"]
    assert mask.shape == (3, 12, 10) and mask.dtype == (torch.float32 if soft else torch.bool)
    again = F.beta_share(3, 1.0, generator=generator_for(seed))
    close(F.area_share(mask, dtype=torch.float64), again, 1.01 / 120)


@pytest.mark.parametrize("share", [0.005, 0.3, 0.995])
@pytest.mark.parametrize("up", [True, False])
def test_a_mask_with_an_empty_soft_band_is_hard(share: float, up: bool) -> None:
    image = torch.rand(1, 12, 10, dtype=torch.float64)
    drawn = torch.tensor([share], dtype=torch.float64), torch.tensor([up])
    same(ranked_mask(image, *drawn, max_soft=0.008), ranked_mask(image, *drawn).double())


# ResizeMix


@given(SEEDS)
def test_resizemix_pastes_the_whole_partner(seed: int) -> None:
    images = torch.rand(4, 3, 12, 9, dtype=torch.float64)
    mask, batch = ResizedMask(), batch_of(images, F.rolled_pairs(4))
    scale, *center = torch.rand(9, generator=generator_for(seed), dtype=torch.float64).tolist()
    scale = 0.1 + 0.7 * scale
    values = mask.values(batch.frame, scale, (torch.tensor(center).view(4, 2) * torch.tensor([12, 9])).long())
    made = mask.where(values, batch)
    boxes = values["box"].tolist()
    same(made.images, slow.resized(images, batch.partner.tolist(), boxes, max(scale, 1 / 9)))
    assert all(0 <= top < bottom <= 12 and 0 <= left < right <= 9 for top, bottom, left, right in boxes)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_resizemix_on_a_device_is_that_of_the_host(interpolation: str) -> None:
    images = torch.rand(4, 3, 17, 24)
    mask, batch = ResizedMask(interpolation=interpolation), batch_of(images, F.rolled_pairs(4))
    for seed in range(6):
        values = mask.draw(batch.frame, generator_for(seed))
        weights, nearest = (values["rows"], values["columns"]), interpolation == "nearest"
        moved = paste_resized(images, images[batch.partner], values["box"], weights, nearest=nearest)
        close(moved, mask.where(values, batch).images, 0 if nearest else 1e-6)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_weights_of_a_reduction_are_in_double_precision(interpolation: str) -> None:
    weights = resize_weights(3, 7, 3 / 7, interpolation)
    assert weights.dtype == torch.float64
    close(weights[:3].sum(1), torch.ones(3, dtype=torch.float64), 1e-14)


def test_the_smallest_box_has_one_pixel() -> None:
    """49 times its reciprocal is rounded to less than one."""
    values = ResizedMask().values(vitmix.Frame(1, (49, 49)), 0.0, torch.tensor([[3, 4]]))
    assert values["box"].tolist() == [[3, 4, 4, 5]]


def test_the_zoom_of_a_box_is_its_part_of_the_image() -> None:
    zoom = resized_pixels(torch.tensor([[1, 3, 2, 8], [0, 6, 0, 10]]), (torch.eye(6), torch.eye(10))).zoom
    assert zoom is not None and zoom.tolist() == pytest.approx([0.2, 1.0])


def test_pixels_are_pasted_whole_under_autocast() -> None:
    """A product with weights would round them to half precision."""
    images, history = torch.rand(4, 3, 16, 16), History()
    mask, frame = ResizedMask(), vitmix.Frame(4, (16, 16))
    values = mask.draw(frame, generator_for(1))
    old = vitmix.Unmixed(images.flip(0), torch.eye(4), torch.arange(4), frame, module=history)
    new = vitmix.Unmixed(images, torch.eye(4), torch.arange(4), frame, module=history)
    pasted = HistoryMask().values(frame, torch.tensor([[2, 11, 3, 10]]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = values["rows"], values["columns"]
        moved = paste_resized(images, images.flip(0), values["box"], weights, nearest=True)
        HistoryMask().where(pasted, old)
        recalled = HistoryMask().where(pasted, new).images
    assert torch.isin(moved, images).all() and torch.isin(recalled, images).all()


# GridMix


@given(SEEDS)
def test_lattices_are_the_slow_ones(seed: int) -> None:
    share, area, aspect, *place = torch.rand(5, generator=generator_for(seed), dtype=torch.float64).tolist()
    settings = (0.5 + area / 2, 0.5 + 1.5 * aspect, tuple(place))
    holes = 2 + seed % 5
    named = dict(zip(("area", "aspect", "place"), settings, strict=True))
    mask = lattice_mask((30, 21), share, holes=holes, **named)
    same(mask, slow.holes((30, 21), share, holes, *settings))


def test_a_lattice_keeps_a_line_of_each_patch() -> None:
    """Also if the partner is to have all of it."""
    mask = lattice_mask((12, 12), 1.0, holes=3, area=1.0, aspect=1.0, place=(0.0, 0.0))
    hole = torch.arange(12) % 4 < 3
    same(mask, hole.unsqueeze(1) & hole)


def test_lattices_of_tiny_images() -> None:
    for side in (1, 2, 3):
        mask = LatticeMask().draw(vitmix.Frame(1, (side, side)), generator_for(side))["mask"]
        assert mask.shape == (1, side, side)


# SaliencyMix


def test_saliency_is_the_slow_one() -> None:
    gray = torch.randint(0, 256, (2, 13, 17), generator=generator_for(0), dtype=torch.int32)
    fast = fine_grained_saliency(gray)
    for number in range(2):
        same(fast[number], torch.tensor(slow.saliency(gray[number].tolist())))


def test_gray_levels_need_three_channels() -> None:
    for channels in (1, 4):
        with pytest.raises(ValueError):
            gray_levels(torch.zeros(1, channels, 2, 2, dtype=torch.uint8))


def test_saliency_needs_a_normalization_of_three_channels() -> None:
    for channels in (1, 2, 4):
        with pytest.raises(ValueError):
            PeakMask().saliency(torch.rand(1, 3, 8, 8), vitmix.Normalization((0.0,) * channels, (1.0,) * channels))


def test_saliency_of_normalized_images_is_that_of_their_pixels() -> None:
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    mask = PeakMask(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (mask.mean, mask.std))
    same(mask.saliency((pixels / 255 - mean) / std), mask.saliency(pixels))
    with pytest.raises(ValueError, match="needs color images"):
        mask.saliency(pixels[:, :1])


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 1)])
def test_saliency_of_the_smallest_images_has_levels(size: tuple[int, int]) -> None:
    """A pixel may have no surround."""
    levels = fine_grained_saliency(torch.tensor([0, 7, 255]).view(3, 1, 1).expand(3, *size))
    assert levels.min() >= 0 and levels.max() <= 255


def test_saliencymix_boxes_are_around_the_peaks_of_the_partners() -> None:
    images = torch.randint(0, 256, (3, 3, 32, 32), generator=generator_for(1), dtype=torch.uint8)
    partner, share = torch.tensor([1, 2, 0]), torch.tensor([0.05], dtype=torch.float64)
    mask = PeakMask().where({"reach": box_reach((32, 32), share)}, batch_of(images, partner)).mask
    for number, other in enumerate(partner.tolist()):
        levels = torch.tensor(slow.saliency(gray_levels(images[other : other + 1])[0].tolist()))
        center = divmod(int(levels.flatten().argmax()), 32)
        same(mask[number], F.box_mask(F.boxes_around(torch.tensor([center]), (32, 32), share), (32, 32))[0])


# Attentive CutMix


@given(SEEDS, st.integers(1, 12))
def test_top_cells_are_the_slow_ones(seed: int, count: int) -> None:
    scores = torch.randint(0, 4, (2, 3, 4), generator=generator_for(seed)).double()  # with ties
    fast = top_cells(scores, torch.tensor([count]))
    for number in range(2):
        same(fast[number], slow.top_cells(scores[number], count))


@pytest.mark.parametrize("size", [(8, 24), (24, 8)])
def test_cells_of_images_that_are_not_square_are_all_counted(size: tuple[int, int]) -> None:
    with vitmix.attentive_cutmix(10).attach(tiny_vit(img_size=size), seed=0) as mixing:
        batch = mixing.mix(*tiny_batch(4, size=size))
    count = math.floor(float(batch.draw.values["mask.share"]) * 12)
    assert 1 < count and batch.mix.mask.sum((1, 2)).tolist() == [count] * 4


def test_features_of_a_guide_serve_a_model_without_tokens() -> None:
    frame = vitmix.Frame(4, (64, 64), no_grid="it has none")
    assert hash(TopCellsMask(blocks=[0, -1])) == hash(TopCellsMask(blocks=(0, -1)))  # pyright: ignore
    assert TopCellsMask(scores="features").draw(frame, generator_for(0))["share"].shape == (1,)
    with pytest.raises(ValueError, match="a mask of the top cells is drawn on the model's tokens: it has none"):
        TopCellsMask().draw(frame, generator_for(0))


def test_attentive_cutmix_by_the_features_of_a_resnet() -> None:
    images, labels = torch.randn(4, 3, 64, 64), torch.arange(4)
    guide = timm.create_model("resnet50", num_classes=3, layers=(1, 1, 1, 1), channels=(8, 8, 8, 8)).eval()
    model = tiny_vit(img_size=64, patch_size=16)
    with vitmix.attentive_cutmix(10, scores="features").attach(model, guide=guide) as mixing:
        batch = mixing.mix(images, labels)
    features = guide.forward_features(images).mean(1)
    close(batch.guidance.features, features, 1e-6)
    count = batch.mix.mask.sum((1, 2))
    assert batch.mix.mask.shape == (4, 2, 2) and (count == count[0]).all()
    same(batch.mix.mask, top_cells(features[batch.mix.partner], count[:1]))
    with pytest.raises(ValueError, match="features is constant"):
        vitmix.attentive_cutmix(10, scores="features").attach(model)


def test_features_of_a_guide_are_those_of_its_patches() -> None:
    """And not of its class token; a pooling transformer normalizes after the pooling."""
    images, guide = torch.randn(4, 3, 16, 16), tiny_vit(global_pool="avg").eval()
    with vitmix.attentive_cutmix(10, scores="features").attach(tiny_vit(), guide=guide) as mixing:
        features = mixing.mix(images, torch.arange(4)).guidance.features
    tokens = guide.forward_features(images)
    assert guide.num_prefix_tokens == 1
    close(features, tokens[:, 1:].mean(2).view(4, 4, 4), 1e-6)


# Manifold Mixup


def test_manifold_places_are_uniform() -> None:
    frame = vitmix.Frame(4, (16, 16), (4, 4), grids=((4, 4),) * 12)
    places = [int(Manifold().draw(frame, generator_for(seed))["shares"].argmax()) for seed in range(500)]
    assert set(places) == {0, 1, 2, 3, 4}  # pixels and a third of the blocks
    assert min(places.count(place) for place in set(places)) > 60
    only = Manifold(blocks=(-1,), pixels=False).draw(frame, generator_for(0))["shares"]
    assert only.nonzero().tolist() == [[12]]


def test_manifold_mixup_at_the_pixels_is_mixup() -> None:
    images, labels = tiny_batch(5)
    model = tiny_vit()
    learner = vitmix.Learner(model, vitmix.manifold_mixup(10, blocks=()))
    draw = learner.mixing.draw(learner.mixing.frame(images))
    output = learner(images, labels, draw=draw)
    share, partner = draw.values["inner0.shares"][0], draw.values["inner0.partner"]
    learner.mixing.close()
    close(output.logits, model(torch.lerp(images, images[partner], share)), 1e-6)
    close(output.targets, F.mix_targets(F.label_rows(labels, 10), partner, share.expand(5)), 1e-6)


def test_manifold_mixup_without_blocks_needs_the_first_one_alone() -> None:
    """Its targets are mixed at the input of that block."""
    assert [Manifold(blocks=blocks).block for blocks in ((), (2, 0), (-1, 1))] == [0, 0, 1]
    output = vitmix.Learner(tiny_vit(depth=1), vitmix.manifold_mixup(10, blocks=()), seed=0)(*tiny_batch(4))
    assert ((output.targets > 0) & (output.targets < 1)).any()


def test_manifold_mixup_mixes_targets_at_the_first_place() -> None:
    """Also if tokens are blended later, so that a hidden mixing in between sees mixed targets."""
    images, labels = tiny_batch(5)
    model, seen = tiny_vit(), []
    with vitmix.manifold_mixup(10, blocks=(0, 2), pixels=False).attach(model, seed=0) as mixing:
        batch = mixing.mix(images, labels)
        model.blocks[1].register_forward_pre_hook(lambda *_: seen.append(batch.tape.targets))
        model(batch.images)
        same(seen[0], mixing.targets(batch))
        assert not torch.equal(seen[0], F.label_rows(labels, 10))


def test_manifold_mixup_survives_activation_checkpointing() -> None:
    images, labels = tiny_batch(4)
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = tiny_vit()
        model.set_grad_checkpointing(checkpointing)
        output = vitmix.Learner(model, vitmix.manifold_mixup(10, blocks=(1, 2), pixels=False))(images, labels)
        output.loss.backward()
        found.append((output.targets, model.patch_embed.proj.weight.grad))
    close(found[0][0], found[1][0], 0)
    close(found[0][1], found[1][1], 1e-6)


def test_a_block_that_is_run_again_mixes_no_targets() -> None:
    images, labels = tiny_batch(4)
    model = tiny_vit()
    model.set_grad_checkpointing(True)
    with vitmix.manifold_mixup(10, blocks=(1, 2), pixels=False).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        loss = mixing.loss(model(batch.images), batch)
        before = mixing.targets(batch).clone()
        loss.backward()
        close(mixing.targets(batch), before, 0)
        assert ((before > 0) & (before < 1)).any()


# MixPro


@given(SEEDS)
def test_cells_of_the_drawn_number(seed: int) -> None:
    frame = vitmix.Frame(5, (28, 28), (7, 7))
    mask = CellMask(tokens=2).draw(frame, generator_for(seed))["mask"]
    assert mask.shape == (5, 7, 7)
    for each in mask:
        cells = each[::2, ::2]
        assert 1 <= int(cells.sum()) <= 15
        same(cells.repeat_interleave(2, 0).repeat_interleave(2, 1)[:7, :7], each)


def test_a_single_cell_is_kept() -> None:
    frame = vitmix.Frame(3, (16, 16), (4, 4))
    for seed in range(3):
        assert not CellMask(tokens=4).draw(frame, generator_for(seed))["mask"].any()


def test_progressive_shares_go_from_area_to_attention() -> None:
    area, attention = torch.tensor([0.2]), torch.tensor([0.8])
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    for logits, expected in (([50.0, 0, 0], 0.8), ([0, 50.0, 0], 0.2)):
        close(progressive_share(attention, area, targets, torch.tensor([logits])), torch.tensor([expected]), 1e-6)


# DecoupleMix


@given(SEEDS, st.booleans())
def test_decoupled_loss_is_the_slow_one(seed: int, scaled: bool) -> None:
    generator = generator_for(seed)
    logits = 3 * torch.randn(6, 5, generator=generator, dtype=torch.float64)
    own, partner = torch.randint(0, 5, (2, 6), generator=generator)
    share = torch.rand(6, generator=generator, dtype=torch.float64)
    share[0], share[1] = 0, 1
    expected = slow.decoupled(logits, own.tolist(), partner.tolist(), share.tolist(), scaled)
    assert abs(float(decoupled_loss(logits, own, partner, share, scaled=scaled)) - expected) < 1e-12


def test_a_thousandth_of_an_image_counts_as_mixed() -> None:
    logits, shares = torch.tensor([[0.3, -0.2, 0.9]], dtype=torch.float64), [0.0, 0.0005, 0.001, 0.0015, 0.5]
    for share in (*shares, *(1 - each for each in shares)):
        loss = decoupled_loss(logits, torch.tensor([0]), torch.tensor([1]), torch.tensor([share], dtype=torch.float64))
        assert bool(loss != 0) == (0.001 <= share <= 0.999)


def test_decoupled_loss_of_certain_predictions_is_finite() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    loss = decoupled_loss(logits, torch.tensor([1]), torch.tensor([0]), torch.tensor([0.5]))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()


def test_decoupled_loss_needs_two_classes() -> None:
    images, _ = tiny_batch(4)
    learner = vitmix.Learner(tiny_vit(), vitmix.decouplemix(10))
    with pytest.raises(ValueError, match="needs one class per image"):
        learner(images, torch.full((4, 10), 0.1))
    rounded = torch.zeros(4, 10)
    rounded[:, 0], rounded[:, 1] = 0.999, 0.001
    assert learner(images, rounded).loss.isfinite()
    with pytest.raises(ValueError, match="mixes in more"):
        vitmix.create("decouplemix + htm", 10)


# OA-CutMix


@given(SEEDS, st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.5, 1.0]))
def test_object_share_is_the_slow_one(seed: int, relative: float, blend: float) -> None:
    generator = generator_for(seed)
    masks = (torch.rand(4, 6, 5, generator=generator, dtype=torch.float64) < 0.15).double()
    masks[0] = 0
    mask = F.box_mask(F.draw_boxes((6, 5), torch.rand(4, generator=generator), generator=generator), (6, 5))
    partner = torch.randperm(4, generator=generator)
    area = F.area_share(mask, dtype=torch.float64)
    share = object_share(masks, vitmix.Mix(partner, mask), area, relative=relative, blend=blend)
    expected = slow.objects(masks, mask, partner.tolist(), relative, blend)
    close(share, torch.tensor(expected, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("relative", [0.0, 0.4])
def test_where_a_map_is_negative_there_is_no_object(relative: float) -> None:
    maps = torch.rand(4, 6, 5, generator=generator_for(0), dtype=torch.float64) - 0.5
    mask = F.box_mask(torch.tensor([[1, 5, 0, 3]] * 4), (6, 5))
    mix, area = vitmix.Mix(F.rolled_pairs(4), mask), F.area_share(mask, dtype=torch.float64)
    found, expected = (object_share(each, mix, area, relative=relative) for each in (maps, maps.clamp_min(0)))
    same(found, expected)


def test_object_shares_of_uniform_objects_are_areas() -> None:
    images, labels = tiny_batch(6)
    mixer = vitmix.oa_cutmix(10, relative=0.4)
    generators = [generator_for(3), generator_for(3)]
    _, targets = mixer(images, labels, maps=torch.ones(6, 16, 16), generator=generators[0])
    close(targets, vitmix.cutmix(10)(images, labels, generator=generators[1])[1], 1e-6)
    with pytest.raises(ValueError, match="object shares need the object mask"):
        mixer(images, labels)
    for shape in ((6, 10, 4, 4), (5, 16, 16), (7, 16, 16)):
        with pytest.raises(ValueError, match="one object mask per image"):
            mixer(images, labels, maps=torch.ones(shape))


# Token labels


@given(SEEDS, st.booleans())
def test_token_labels_are_the_slow_ones(seed: int, moved: bool) -> None:
    generator = generator_for(seed)
    labels = torch.rand(3, 4, 5, generator=generator, dtype=torch.float64)
    share = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    source = torch.randint(0, 4, (3, 4), generator=generator) if moved else None
    partner = torch.randperm(3, generator=generator)
    mix = vitmix.Mix(partner, torch.zeros(3, 2, 2, dtype=torch.bool), source)
    close(mixed_token_labels(labels, share, mix), slow.token_labels(labels, share, partner.tolist(), source), 1e-12)


def test_token_labels_need_maps_of_every_class() -> None:
    images, labels = tiny_batch(4)
    learner = vitmix.Learner(tiny_vit(), vitmix.token_labeling(10))
    with pytest.raises(ValueError, match="token labels need a teacher's maps"):
        learner(images, labels)
    with pytest.raises(ValueError, match=r"maps must be \(4, 10, 4, 4\)"):
        learner(images, labels, maps=torch.rand(4, 4, 4))
    for shape in ((4, 9, 4, 4), (3, 10, 4, 4), (4, 10, 4, 3), (4, 10, 16), (4, 10, 4, 4, 1)):
        with pytest.raises(ValueError, match=r"maps must be \(4, 10, 4, 4\)"):
            learner(images, labels, maps=torch.rand(shape))
    with pytest.raises(ValueError, match="two parts need different maps"):
        vitmix.create("mix(mask=box, share=activation) + tokens", 10)
    with pytest.raises(ValueError, match="Flatten"):
        vitmix.create("cutmix + tokens", 10).attach(torch.nn.Flatten())


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_token_logits_are_added_at_evaluation(weight: float) -> None:
    """Also while a learner is attached, and in models that pool their tokens, whose classifier reads them later."""
    images, labels = tiny_batch(4)
    for pool in ("token", "avg"):
        model = tiny_vit(global_pool=pool)
        learner = vitmix.Learner(model, vitmix.token_labeling(10)).train()
        learner(images, labels, maps=torch.full((4, 10, 4, 4), 0.1)).loss.backward()
        head = learner.added["token_label_head"]
        added = vitmix.TokenLabelClassifier(model, head, weight=weight).eval()
        with torch.no_grad():
            tokens = model.forward_features(images)
            found = model.forward_head(tokens) + weight * head(tokens[:, model.num_prefix_tokens :]).amax(1)
            close(added(images), found, 1e-6)
        learner.train()(images, labels, maps=torch.full((4, 10, 4, 4), 0.1)).loss.backward()
    with pytest.raises(ValueError, match="weight"):
        vitmix.TokenLabelClassifier(model, head, weight=-1.0)


# Puzzle Mix


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 3, 3), (2, 4, 4), (1, 5, 3), (4, 1, 2)])
def test_cuts_are_optimal(shape: tuple[int, int, int]) -> None:
    """Against every labeling, with costs of very different sizes."""
    rows, columns, _ = shape
    chance = np.random.default_rng(sum(shape))
    for number in range(6):
        size = 10.0 ** (2 * number - 6)
        unary = size * chance.normal(size=shape) * chance.choice([1e-9, 1, 1e4], size=shape)
        down, right = size * chance.random((rows - 1, columns)), size * chance.random((rows, columns - 1))
        energy = grid_energy(grid_labels(unary, down, right), unary, down, right)
        best = slow.least_energy(unary.tolist(), down.tolist(), right.tolist())
        assert abs(energy - best) <= 1e-11 * np.abs(unary).sum()


def test_a_flow_that_is_turned_back_does_not_overflow() -> None:
    """Seven units pass an edge on the short way; then three more come the long way, which sends them back over it."""
    source, sink = 6, 7
    edges = {(source, 0): 7, (0, 1): 100, (1, 0): 100, (1, sink): 7, (source, 2): 3, (2, 1): 3}
    edges |= {(0, 3): 3, (3, 4): 3, (4, 5): 3, (5, sink): 4}
    capacity = np.zeros((8, 8))
    for edge, value in edges.items():
        capacity[edge] = value
    reached = _source_side(csr_array(capacity), source, sink)
    assert reached.nonzero()[0].tolist() == [source]  # what leaves the source is the minimum cut


def test_cuts_are_optimal_for_colors_outside_their_range() -> None:
    """As of images in 0..255, or of erased places with noise: jumps would outweigh the smoothness of borders."""
    images = 255 * torch.rand(4, 3, 9, 9)
    sizes = {"blocks": 3, "labels": 3, "neighborhood": 1}
    costs = puzzle_costs(torch.rand(4, 9, 9), images, F.rolled_pairs(4), 0.5, beta=1.2, gamma=0.5, eta=0.2, **sizes)
    for unary, down, right in zip(*(each.numpy() for each in costs), strict=True):
        energy = grid_energy(grid_labels(unary, down, right), unary, down, right)
        assert down.min() >= 0 and right.min() >= 0
        assert abs(energy - slow.least_energy(unary.tolist(), down.tolist(), right.tolist())) < 1e-9


@pytest.mark.parametrize("cost", [0.001, 0.05, 0.8])
def test_transport_is_the_slow_one(cost: float) -> None:
    for seed in range(5):
        generator = generator_for(seed)
        saliency = torch.rand(2, 4, 4, generator=generator)
        saliency = saliency / saliency.sum((1, 2), keepdim=True)
        visible = torch.rand(2, 4, 4, generator=generator) < 0.6
        plan = transport_plan(saliency.double(), visible, cost=cost)
        for number in range(2):
            expected = slow.plan(saliency[number].tolist(), visible[number].tolist(), cost)
            assert sorted(map(tuple, plan[number].nonzero().tolist())) == sorted(expected)


def test_transport_between_four_blocks_counts_the_whole_distance() -> None:
    """A side of two blocks is 1 apart: the empty corner is worth a move of one side, but not of the diagonal."""
    saliency = torch.tensor([[[0.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    for place, moves in (((0, 1), True), ((0, 0), False)):
        visible = torch.zeros(1, 2, 2, dtype=torch.bool)
        visible[0][place] = True
        plan = transport_plan(saliency, visible, cost=0.6)
        expected = slow.plan(saliency[0].tolist(), visible[0].tolist(), 0.6)
        assert sorted(map(tuple, plan[0].nonzero().tolist())) == sorted(expected)
        assert bool(plan[0, 3, place[0] * 2 + place[1]]) == moves


def test_moved_blocks_keep_their_pixels() -> None:
    images = torch.rand(2, 3, 8, 12)
    stay = torch.eye(4, dtype=torch.bool).expand(2, -1, -1)
    same(move_blocks(images, stay), images)
    swap = torch.zeros(2, 4, 4, dtype=torch.bool)
    swap[:, 0, 3] = True
    moved = move_blocks(images, swap)
    same(moved[:, :, 4:, 6:], images[:, :, :4, :6])
    assert not moved[:, :, :4].any() and not moved[:, :, 4:, :6].any()


def test_puzzlemix_prefers_salient_blocks() -> None:
    """With saliency in one half of each image, the mask shows the salient halves of both."""
    images = torch.full((2, 3, 32, 32), 0.5)
    saliency = torch.full((2, 32, 32), 1e-3)
    saliency[0, :, :16], saliency[1, :, 16:] = 1, 1
    frame, partner = vitmix.Frame(2, (32, 32)), torch.tensor([1, 0])
    batch = vitmix.Unmixed(images, torch.zeros(2, 1), partner, frame, Guidance(gradient=saliency))
    values = {"share": torch.tensor(0.5, dtype=torch.float64), "blocks": torch.tensor(4)}
    made = PuzzleMask(transport=False, mean=(0.0,) * 3, std=(1.0,) * 3).where(values, batch)
    mask = made.mask
    assert made.moves is None  # without transport
    assert (mask[0, :, :16] == 0).all() and (mask[0, :, 16:] == 1).all()
    assert (mask[1, :, :16] == 1).all() and (mask[1, :, 16:] == 0).all()


def test_blocks_of_images_that_are_not_square_are_transported_whole() -> None:
    images, saliency = torch.rand(2, 3, 8, 16), torch.full((2, 8, 16), 0.01)
    saliency[0, :4, :8], saliency[1, :4, :8], saliency[1, 4:, :8] = 1, 0.8, 0.3  # hidden salient blocks move
    batch = vitmix.Unmixed(
        images, torch.zeros(2, 1), torch.tensor([1, 0]), vitmix.Frame(2, (8, 16)), Guidance(gradient=saliency)
    )
    values = {"share": torch.tensor(0.5), "blocks": torch.tensor(2)}
    settings = [dict(), dict(cell=2), dict(transport=False)]
    whole, smaller, unmoved = (PuzzleMask(beta=0, cost=0.01, **each).where(values, batch) for each in settings)
    assert not torch.equal(whole.images, unmoved.images)
    same(smaller.images, whole.images)


def test_places_without_a_pixel_have_row_minus_one() -> None:
    found = _numbered(torch.tensor([-1, 0, 15, 16], dtype=torch.int32), 16)
    assert found.row.tolist() == [-1, 0, 0, 1] and found.column.tolist()[1:] == [0, 15, 0]


def test_puzzlemix_needs_blocks_that_divide_the_image() -> None:
    mask = PuzzleMask(blocks=(3, 4))
    drawn = {int(mask.draw(vitmix.Frame(2, (8, 8)), generator_for(seed))["blocks"]) for seed in range(9)}
    assert drawn == {4}
    with pytest.raises(ValueError, match="do not divide into 3 or 4 blocks"):
        mask.draw(vitmix.Frame(2, (7, 7)), None)
    with pytest.raises(ValueError, match="cells of 3 pixels do not divide blocks of 16; set cell to a divisor"):
        PuzzleMask(blocks=(2, 4), cell=3).draw(vitmix.Frame(2, (32, 32)), generator_for(0))
    for cell, blocks, size in ((16, 4, (32, 32)), (3, 4, (16, 24))):  # not smaller than a block; not square
        PuzzleMask(blocks=(blocks,), cell=cell).draw(vitmix.Frame(2, size), generator_for(0))
    PuzzleMask(blocks=(2, 4), cell=3, transport=False).draw(vitmix.Frame(2, (32, 32)), generator_for(0))
    learner = vitmix.Learner(tiny_vit(in_chans=1), vitmix.puzzlemix(10))
    with pytest.raises(ValueError, match="mean and std are of 3 channels, but images have 1"):
        learner(torch.randn(2, 1, 16, 16), torch.arange(2))


@pytest.mark.parametrize("transport", [False, True])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_puzzlemix_in_a_graph_has_the_strides_of_its_result(format: torch.memory_format, transport: bool) -> None:
    images = torch.rand(2, 3, 16, 16).contiguous(memory_format=format)
    numbers = torch.tensor(0.5), torch.tensor(4), [0.5] * 3 + [0.2] * 3, [1.2, 0.5, 0.2, 0.8], [3, 4, 0]
    inputs = images, torch.rand(2, 16, 16), torch.tensor([1, 0]), *numbers, transport
    torch.library.opcheck(puzzle_mix, inputs, test_utils=("test_schema", "test_faketensor"))


def test_puzzlemix_averages_colors_over_the_neighborhood() -> None:
    """And shows every pixel where it is, if nothing is transported."""
    differ, partner = set(), torch.tensor([1, 0])
    for seed in range(6):
        images, saliency = torch.rand(2, 4, 16, 16, generator=generator_for(seed)).split([3, 1], dim=1)
        saliency, masks = saliency.squeeze(1).square(), {}
        for pixels in (1, 2, 4):
            sizes = {"blocks": 4, "labels": 3, "neighborhood": pixels}
            costs = puzzle_costs(saliency, images, partner, 0.5, beta=0.6, gamma=1.0, eta=0.0, **sizes)
            masks[pixels] = puzzle_labels(costs).float().repeat_interleave(4, 1).repeat_interleave(4, 2) / 2
            numbers = torch.tensor(0.5), torch.tensor(4), [0.0] * 3 + [1.0] * 3, [0.6, 1.0, 0.0, 0.8], [3, pixels, 0]
            _, mask, shown = puzzle_mix(images, saliency, partner, *numbers, False)
            same(mask, masks[pixels])
            same(shown, torch.arange(256, dtype=torch.int32).view(16, 16).expand(2, 2, -1, -1))
        differ |= {pair for pair in ((1, 2), (2, 4)) if not torch.equal(*(masks[each] for each in pair))}
    assert len(differ) == 2


PUZZLE = "puzzlemix(blocks=[4], labels=2, beta=1.0, gamma=1.0, eta=0.0, transport=False)"


@pytest.mark.parametrize("method", ["saliencymix", PUZZLE])
def test_colors_are_those_of_the_known_normalization(method: str) -> None:
    """The mask of images is the same, whatever they were normalized with, if it is known."""
    pixels, labels = torch.rand(4, 3, 4, 4, generator=generator_for(1)), torch.arange(4)
    pixels = pixels.repeat_interleave(4, 2).repeat_interleave(4, 3)

    def mask(colors: vitmix.Normalization, given: str, *, tell: bool) -> torch.Tensor:
        torch.manual_seed(0)
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in colors)
        with vitmix.create(given, 10).attach(tiny_vit(), seed=3, step=0) as mixing:
            if tell:
                mixing.normalization = colors
            mixing._guide_pass.run = lambda *_: vitmix.parts.Guidance(gradient=pixels.mean(1))
            return mixing.mix((pixels - mean) / std, labels).mix.mask

    other = vitmix.Normalization((0.9, 0.1, 0.2), (0.05, 0.6, 0.3))
    known = mask(vitmix.Normalization(), method, tell=True)
    assert known.float().std() > 0
    same(mask(other, method, tell=True), known)
    start = method.removesuffix(")") + (", " if "(" in method else "(")
    same(mask(other, f"{start}mean=[0.9, 0.1, 0.2], std=[0.05, 0.6, 0.3])", tell=False), known)
    assert not torch.equal(mask(other, method, tell=False), known)


def test_the_normalization_of_a_model_is_the_default() -> None:
    model = tiny_vit()
    cfg = model.pretrained_cfg
    with vitmix.create("saliencymix", 10).attach(model) as mixing:
        assert mixing.normalization == vitmix.Normalization(tuple(cfg["mean"]), tuple(cfg["std"]))
    bare = torch.nn.Linear(1, 1)
    for half in ({}, {"mean": cfg["mean"]}, {"std": cfg["std"]}):  # both or none
        bare.pretrained_cfg = half
        with vitmix.create("saliencymix", 10).attach(bare) as mixing:
            assert mixing.normalization == vitmix.Normalization()


def test_the_saliency_peak_can_be_computed_ahead() -> None:
    images, labels = tiny_batch(4)
    method = vitmix.create("mixup | saliencymix | saliencymix(per=batch)", 10)
    with method.attach(tiny_vit(), seed=3, step=0) as mixing:
        ahead = method.ahead(images, mixing.normalization)
        assert sorted(ahead) == ["1.mask.peak", "2.mask.peak"]
        frame, seen = mixing.frame(images), set()
        for _ in range(20):
            draw = mixing.draw(frame)
            seen.add(draw.choice)
            later, before = (mixing.mix(images, labels, draw=each) for each in (draw, draw.with_ahead(ahead)))
            same(before.images, later.images)
            ruined = draw.with_ahead({name: 0 * value for name, value in ahead.items()})
            if draw.choice == 1:
                assert ruined.part("mask")["peak"].sum() == 0
        assert seen == {0, 1, 2}


# RecursiveMix


def test_recursivemix_pastes_what_was_mixed_before() -> None:
    images, labels = tiny_batch(4)
    learner = vitmix.Learner(tiny_vit(), vitmix.recursivemix(10, most=1.0))
    seen: list[torch.Tensor] = []
    learner.model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    first = learner(images, labels)
    same(seen[0], images)
    same(first.targets, F.label_rows(labels, 10))
    draw = learner.mixing.draw(learner.mixing.frame(images))
    second = learner(images.flip(3), labels.flip(0), draw=draw)
    top, bottom, left, right = draw.values["mask.box"][0].tolist()
    share = (bottom - top) * (right - left) / 256
    assert share > 0
    expected = images.flip(3).clone()
    small = torch.nn.functional.interpolate(images, (bottom - top, right - left), mode="nearest")
    expected[:, :, top:bottom, left:right] = small
    close(seen[1], expected, 1e-6)
    close(second.targets, (1 - share) * F.label_rows(labels.flip(0), 10) + share * first.targets, 1e-6)
    assert second.parts["recognize"] > 0
    second.loss.backward()
    assert learner.added["history"].head.weight.grad.abs().sum() > 0


def test_a_box_of_an_oblong_image_is_pooled_over_its_tokens() -> None:
    features = torch.rand(2, 3, 4, 8, dtype=torch.float64)
    pooled = pooled_box(features, torch.tensor([[2, 6, 8, 24]]), (8, 32))
    close(pooled, features[:, :, 1:3, 2:6].mean((2, 3)), 1e-12)


def test_recursivemix_in_double_precision() -> None:
    """The loss of the box is as precise as the model."""
    images, labels = tiny_batch(4)
    torch.manual_seed(0)
    learner = vitmix.Learner(tiny_vit(drop_path_rate=0.0).double(), vitmix.recursivemix(10, most=1.0), seed=0)
    final: list[torch.Tensor] = []
    learner.model.norm.register_forward_hook(lambda *given: final.append(given[2]))
    old = learner(images.double(), labels).logits
    draw = learner.mixing.draw(learner.mixing.frame(images))
    output, box = learner(images.double(), labels, draw=draw), draw.values["mask.box"]
    features = final[1][:, 1:].mT.unflatten(2, (4, 4))
    share = F.area_share(F.box_mask(box, (16, 16)), dtype=torch.float64)
    boxed = learner.added["history"].head(pooled_box(features, box, (16, 16)))
    close(output.parts["recognize"], 0.5 * history_loss(boxed, old, share), 1e-12)


def test_recursivemix_keeps_nothing_in_the_memory_of_cuda_graphs() -> None:
    """The next step overwrites it."""
    images, labels = tiny_batch(4)
    learner, made = vitmix.Learner(tiny_vit(), vitmix.recursivemix(10)), []
    learner.compile(mode="reduce-overhead")

    def compiled(*inputs: object) -> vitmix.Output:
        output = learner._forward_mixed(*inputs)
        history = learner.added["history"]
        made.extend(getattr(history, name) for name in history.per_process)
        return output

    learner._compiled[0] = compiled
    learner(images, labels)
    history = learner.added["history"]
    for name, before in zip(history.per_process, made, strict=True):
        same(getattr(history, name), before)
        assert getattr(history, name).data_ptr() != before.data_ptr()


@pytest.mark.gpu
def test_recursivemix_runs_with_cuda_graphs() -> None:
    images, labels = (each.cuda() for each in tiny_batch(4))
    model = tiny_vit(drop_path_rate=0.0).cuda()
    eager = vitmix.Learner(model, vitmix.recursivemix(10), seed=0, step=0)
    expected = [eager(images, labels).targets for _ in range(5)]
    eager.mixing.close()
    compiled = vitmix.Learner(model, vitmix.recursivemix(10), seed=0, step=0)
    compiled.compile(fullgraph=True, mode="reduce-overhead")
    for targets in expected:
        torch.compiler.cudagraph_mark_step_begin()
        output = compiled(images, labels)
        output.loss.backward()
        close(output.targets, targets, 1e-6)
        compiled.zero_grad()  # CUDA graphs overwrite gradients in the next step, so these cannot add up


def test_recursivemix_drops_a_history_that_does_not_fit() -> None:
    images, labels = tiny_batch(4)
    learner = vitmix.Learner(tiny_vit(), vitmix.recursivemix(10))
    for batch, rows in ((images[:3], labels[:3]), (images, labels)):  # the second batch is larger
        same(learner(batch, rows).targets, F.label_rows(rows, 10))
    learner(images[:2], labels[:2])
    with pytest.raises(ValueError, match="keeps the previous batch"):
        vitmix.create("mix(mask=history)", 10)(images, labels)
    with pytest.raises(ValueError, match="recognize needs a history mask"):
        vitmix.create("cutmix + recognize", 10)


@pytest.mark.parametrize("other", [torch.rand(4, 3, 8, 16), torch.rand(4, 3, 16, 16, dtype=torch.float64)])
def test_recursivemix_pastes_nothing_of_another_kind(other: torch.Tensor) -> None:
    """The images before had another size or precision."""
    labels = torch.arange(4)
    with vitmix.create("mix(mask=history(most=1))", 10).attach(torch.nn.Linear(1, 1), seed=0) as mixing:
        mixing.mix(torch.rand(4, 3, 16, 16), labels)
        batch = mixing.mix(other, labels)
        same(batch.images, other)
        same(mixing.targets(batch), F.label_rows(labels, 10, dtype=other.dtype))


def test_a_history_without_a_loss_is_resumed() -> None:
    """It has images and labels, and no logits."""
    images, labels = tiny_batch(4)
    mixer, expected = vitmix.create("mix(mask=history(most=1))", 10), []
    with mixer.attach(tiny_vit(), seed=0) as one, mixer.attach(tiny_vit(), seed=0) as two:
        one.mix(images, labels)
        two.load_state_dict(one.state_dict())
        expected = one.mix(images, labels)
        same(two.mix(images, labels).images, expected.images)
    assert not torch.equal(expected.images, images)


def test_recursivemix_recognizes_nothing_where_nothing_is_pasted() -> None:
    """Neither in the first batch, nor in one that is larger than the one before."""
    images, labels = tiny_batch(6)
    learner = vitmix.Learner(tiny_vit(), vitmix.recursivemix(10, most=1.0), seed=0)
    losses = [float(learner(images[:count], labels[:count]).parts["recognize"]) for count in (4, 4, 6)]
    assert losses[0] == losses[2] == 0 and losses[1] > 0


def test_in_a_switch_the_previous_step_is_the_last_one_of_recursivemix() -> None:
    learner = vitmix.Learner(tiny_vit(), vitmix.create("cutmix | recursivemix(most=1.0)", 10))
    history = next(each for each in learner.modules() if isinstance(each, History))
    images, labels = tiny_batch(4)
    kept = []
    for choice in (1, 0, 1):
        drawn = learner.mixer.mixers[choice].draw(learner.mixing.frame(images), generator_for(choice))
        learner(images, labels, draw=Draw(choice, drawn.values))
        kept.append((history.images, history.rows, history.logits))
    assert all(before is after for before, after in zip(*kept[:2], strict=True))
    assert kept[2][0] is not kept[0][0] and history.pasted is not None
    same(history.pasted[1], kept[0][2])


def test_recursivemix_resumes_with_its_history() -> None:
    """State dicts hold it, so that a resumed training equals an uninterrupted one bit for bit."""
    images, labels = tiny_batch(4)

    def learner() -> vitmix.Learner:
        torch.manual_seed(3)
        return vitmix.Learner(tiny_vit(), vitmix.recursivemix(10, most=1.0), seed=5, step=0)

    whole, empty = learner(), learner().state_dict()
    assert [empty[f"added.history.{name}"].numel() for name in ("images", "rows", "logits")] == [0, 0, 0]
    for _ in range(2):
        whole(images, labels)
    state = whole.state_dict()
    assert state["added.history.images"].shape == images.shape
    resumed = learner()
    resumed.load_state_dict(state)
    assert per_process(whole.mixing.modules) == ["history.images", "history.rows", "history.logits"]
    for _ in range(2):
        expected, found = whole(images.flip(0), labels), resumed(images.flip(0), labels)
        for name in ("loss", "logits", "targets"):
            same(getattr(found, name), getattr(expected, name))
        assert found.parts["recognize"] > 0
    resumed.load_state_dict(empty)
    same(resumed(images, labels).targets, F.label_rows(labels, 10))
    earlier = {key: value for key, value in state.items() if "history" not in key or "head" in key}
    resumed.load_state_dict(earlier)  # of a version that did not save it
    same(resumed(images, labels).targets, F.label_rows(labels, 10))
    with pytest.raises(RuntimeError, match="must be of one batch"):
        resumed.load_state_dict(state | {"added.history.rows": torch.zeros(9, 10)})


# TdAttenMix


@given(SEEDS, st.sampled_from([0.0, 0.5, 1.0]))
def test_guided_share_is_the_slow_one(seed: int, blend: float) -> None:
    generator = generator_for(seed)
    scores = torch.rand(3, 4, 4, generator=generator, dtype=torch.float64)
    scores[0] = 0
    mask = torch.rand(3, 4, 4, generator=generator) < 0.4
    source = torch.randint(0, 16, (3, 16), generator=generator)
    partner = torch.randperm(3, generator=generator)
    share = guided_share(
        scores, vitmix.Mix(partner, mask, source), F.area_share(mask, dtype=torch.float64), blend=blend
    )
    expected = slow.guided(scores, mask, source, partner.tolist(), blend)
    close(share, torch.tensor(expected, dtype=torch.float64), 1e-12)


def test_consistency_by_the_label_uses_the_share_of_the_target() -> None:
    images, labels = tiny_batch(4)
    model = tiny_vit().eval()
    with vitmix.create("mix(mask=salient_box, share=guided) + consistency(by=label)", 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        logits = model(batch.images)
        parts = mixing.losses(logits, batch)
        targets = mixing.targets(batch)
    share = targets[torch.arange(4), labels[batch.mix.partner]]
    assert not torch.allclose(share, F.area_share(batch.mix.mask))
    expected = F.consistency_loss(logits, batch.clean_logits, batch.mix.partner, share)
    close(parts["consistency"], expected.detach(), 1e-6)


# What does not go together


@pytest.mark.parametrize(
    "text, words",
    [
        ("mix(mask=resized, share=activation)", "look up the partner at the pasted positions"),
        ("mix(mask=resized, share=object)", "look up the partner at the pasted positions"),
        ("mix(mask=resized, share=guided)", "look up the partner at the pasted positions"),
        ("mix(mask=resized) + tokens", "moves tokens or pixels"),
        ("mix(mask=history) + region", "needs one partner per image"),
        ("mix(mask=joint) + region", "needs one partner per image"),
        ("mix(mask=joint) + tokens", "needs one partner per image"),
        ("mix(mask=puzzle, share=prior)", "look up the partner at the pasted positions"),
        ("token_labeling + htm", "moves tokens or pixels"),
        ("tl_align + manifold", "needs the labels before the forward pass"),
        ("mixpro + htm", "needs the labels before the forward pass"),
        ("smmix + manifold", "region loss labels tokens by the input mask"),
        ("manifold_mixup(blocks=[], pixels=False)", "blocks must be block numbers"),
        ("attentive_cutmix(blocks=[])", "blocks must name at least one block"),
        ("resizemix(low=0.9)", "low must not exceed high"),
        ("gridmix(least=7)", "least must not exceed most"),
        ("saliencymix(mean=[0.5])", "mean must be three numbers"),
        ("puzzlemix(mean=[-1, 0], std=0.5)", "mean and std must be one number per channel"),
        ("puzzlemix(mean=0.5, std=[0.5])", "mean and std must be one number per channel"),
        ("puzzlemix(mean=[0, 0], std=[1])", "mean and std must be one number per channel"),
        ("puzzlemix(mean=[], std=[])", "mean and std must be one number per channel"),
        ("puzzlemix(mean=[a], std=[1])", "mean must be a finite number, got 'a'"),
        ("saliencymix(mean=[0, 0, 1e999], std=[1, 1, 1])", "mean must be a finite number, got inf"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vitmix.create(text, 10)


@pytest.mark.parametrize("frozen", [0, 1])
def test_manifold_mixup_mixes_tokens_and_targets_or_neither(frozen: int) -> None:
    """A frozen block in evaluation mode must not leave blended tokens with plain targets, or the reverse."""
    images, labels = tiny_batch(4)
    model = tiny_vit(depth=2)
    model.blocks[frozen].eval()
    mixer = vitmix.manifold_mixup(10, blocks=(0, 1), pixels=False)
    for step in range(4):
        output = vitmix.Learner(model, mixer, seed=0, step=step)(images, labels)
        close(output.logits, model(images), 1e-6)
        assert (output.targets == 1).any(1).all()


def test_manifold_mixup_blends_in_models_of_two_blocks() -> None:
    images, labels = tiny_batch(4)
    model = tiny_vit(depth=2)
    output = vitmix.Learner(model, vitmix.manifold_mixup(10, pixels=False), seed=0)(images, labels)
    assert not torch.allclose(output.logits, model(images))


def test_mixpro_needs_the_logits_before_the_targets() -> None:
    with vitmix.create("mixpro(tokens=2)", 10).attach(tiny_vit()) as mixing:
        batch = mixing.mix(*tiny_batch(4))
        with pytest.raises(RuntimeError, match="the logits were not recorded"):
            _ = mixing.evidence(batch).logits


def test_mixpro_reads_the_logits_of_the_whole_classifier() -> None:
    images, labels = tiny_batch(4)
    whole = torch.nn.Sequential(tiny_vit(num_classes=0), torch.nn.Linear(tiny_vit().embed_dim, 10))
    output = vitmix.Learner(whole, vitmix.create("mixpro(tokens=2)", 10), seed=0)(images, labels)
    output.loss.backward()
    assert torch.isfinite(output.loss) and output.logits.shape == (4, 10)


def test_features_of_a_backbone_in_a_larger_module_can_be_scores() -> None:
    images, labels = torch.randn(4, 3, 64, 64), torch.arange(4)
    whole = torch.nn.Sequential(timm.create_model("resnet10t", num_classes=0), torch.nn.Linear(512, 10))
    output = vitmix.Learner(whole, vitmix.attentive_cutmix(10, scores="features"), seed=0)(images, labels)
    assert torch.isfinite(output.loss)


# Compilation


@pytest.mark.parametrize(
    "text",
    [
        "resizemix",
        "saliencymix",
        "manifold_mixup",
        "mixpro(tokens=2)",
        "decouplemix",
        "puzzlemix",
        "comixup",
        "recursivemix",
    ],
)
def test_a_compiled_learner_equals_an_eager_one(text: str) -> None:
    model = tiny_vit()
    images, labels = tiny_batch(6)
    eager = vitmix.Learner(model, vitmix.create(text, 10), seed=0, step=0)
    compiled = vitmix.Learner(model, vitmix.create(text, 10), seed=0, step=0)
    compiled.added.load_state_dict(eager.added.state_dict())
    compiled.compile(backend="eager", fullgraph=True)
    expected = [eager(images, labels) for _ in range(2)]
    eager.mixing.close()
    for one in expected:
        two = compiled(images, labels)
        two.loss.backward()
        close(two.targets, one.targets, 1e-6)
        close(two.loss, one.loss.detach(), 1e-5)


BAD = {
    "fourier": {"alpha": 0, "decay": -1, "max_soft": 2, "per": "image"},
    "resized": {"low": -1, "high": 2, "interpolation": "cubic"},
    "history": {"most": 2, "interpolation": "cubic"},
    "lattice": {"alpha": 0, "least": 0, "most": 2.5},
    "peak_box": {"alpha": 0, "per": "image", "order": "gbr", "mean": (0.5,), "std": (1.0, 1.0, 0.0)},
    "cells": {"alpha": 0, "tokens": 0, "clamp": 1},
    "puzzle": {"alpha": 0, "blocks": (1,), "labels": 1, "beta": -1, "gamma": 2, "eta": -1, "neighborhood": 0}
    | {"transport": 1, "cost": -1, "cell": 0, "mean": (0.5,), "std": (1.0, 1.0, 0.0)},
    "joint": {"alpha": 0, "blocks": 1, "group": 1, "beta": -1, "gamma": -1, "threshold": -1, "eta": -1}
    | {"omega": 2, "rounds": 0},
    "top_cells": {"alpha": 0, "cells": 0, "scores": "pixels", "blocks": ()},
    "guided": {"blend": 2, "blocks": "first"},
    "object": {"relative": 2, "blend": 2},
    "decoupled": {"weight": -1, "scaled": 1},
    "recognize": {"weight": -1},
    "tokens": {"weight": -1},
    "manifold": {"alpha": 0, "pixels": 1},
    "merged": {"alpha": 0, "merged": 2, "block": 0.5},
    "htm": {"score_weight": -1},
}


@pytest.mark.parametrize(("name", "setting"), [(name, setting) for name, bad in BAD.items() for setting in bad])
def test_each_setting_of_a_part_is_checked(name: str, setting: str) -> None:
    part = next(parts(kind)[name] for kind in KINDS if name in parts(kind))
    with pytest.raises(ValueError, match=rf"\b{setting}\b"):
        part(**{setting: BAD[name][setting]})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_box_is_of_its_own_image_in_any_precision_and_batch(dtype):
    """Half precision cannot count to the size of a large batch."""
    own = torch.arange(2100) % 2
    maps = own.to(dtype).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    found = pooled_boxes(maps, torch.tensor([[0.0, 0, 3, 3]]).expand(len(maps), 4), (1, 1), aligned=False)
    assert found.dtype == dtype and found.flatten().equal(own.to(dtype))


def test_object_weights_sum_to_one():
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)
    mixer = vitmix.create("oa_cutmix(smoothing=0)", num_classes=4)
    with mixer.attach(torch.nn.Linear(1, 1), seed=0) as mixing:
        batch = mixing.mix(images, labels, maps=torch.rand(4, 8, 8))
        targets = mixing.targets(batch)
    torch.testing.assert_close(targets.sum(1), torch.ones(4))


@pytest.mark.parametrize("blocks", [(), [2, 4], 4])
def test_blocks_of_a_puzzle_are_numbers(blocks):
    with pytest.raises(ValueError, match=r"blocks must be numbers such as \[2, 4, 8\]"):
        PuzzleMask(blocks=blocks)


def test_a_share_of_each_image_weighs_pasted_labels():
    """RecursiveMix's own share is one of the whole batch."""
    images, labels = torch.rand(4, 3, 16, 16), torch.arange(4)
    model = tiny_vit().train()
    with vitmix.create("mix(mask=history, share=attention, smoothing=0)", 10).attach(model, seed=0) as mixing:
        for step in range(2):
            batch = mixing.mix(images, labels + 4 * step)
            logits = model(batch.images)
            targets = mixing.targets(batch)
            mixing.loss(logits, batch)
    torch.testing.assert_close(targets.sum(1), torch.ones(4))
    assert len(targets[:, 4:8].sum(1).unique()) > 1 and (targets[:, :4].sum(1) > 0).all()
