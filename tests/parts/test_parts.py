"""Masks, pairings, shares, losses and hidden mixing: fast = slow, and what must hold for any input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data import mixup as timm_mixup
from torch import nn
from torchvision.transforms import v2

import reference
import vitmix
from support import close, same, tiny_vit, unmixed
from vitmix import functional as F
from vitmix._mix import check_label_range, check_label_rows
from vitmix._sampling import pack, unpack
from vitmix.parts.base import Normalization
from vitmix.parts.hidden import HorizontalMix, ScoreNet

sides = st.integers(2, 9)
batches = st.integers(1, 7)
seeds = st.integers(0, 10_000)


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Pairings


@given(batches, seeds)
def test_pairings_give_everyone_one_partner(batch: int, seed: int) -> None:
    pairings = (vitmix.Reversed(), vitmix.Rolled(), vitmix.Rolled(by=3), vitmix.Derangement())
    for pairing in pairings:
        partner = pairing.draw(batch, gen(seed))
        same(partner.sort().values, torch.arange(batch))
    if batch > 1:
        assert not (F.random_derangement(batch, generator=gen(seed)) == torch.arange(batch)).any()
    same(F.reversed_pairs(batch), torch.arange(batch).flip(0))
    same(F.rolled_pairs(batch, by=1), torch.arange(batch).roll(-1))


# Masks


@given(st.tuples(sides, sides), seeds, st.floats(0, 1))
def test_boxes_lie_inside_and_cover_at_most_their_share(size: tuple[int, int], seed: int, share: float) -> None:
    boxes = F.draw_boxes(size, torch.full((5,), share), generator=gen(seed))
    mask = F.box_mask(boxes, size)
    for box, each in zip(boxes.tolist(), mask, strict=True):
        top, bottom, left, right = box
        assert 0 <= top <= bottom <= size[0] and 0 <= left <= right <= size[1]
        assert int(each.sum()) == (bottom - top) * (right - left)
        assert each[top:bottom, left:right].all()
    assert F.area_share(mask, dtype=torch.float64).max() <= share + 1e-9


@pytest.mark.parametrize("size", [(224, 224), (14, 14), (33, 48), (2, 3)])
def test_boxes_are_those_of_torchvision_and_timm(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    share = torch.rand(60, generator=gen(0), dtype=torch.float64)
    center = (torch.rand(60, 2, generator=gen(1)) * torch.tensor(size)).long()
    boxes = F.boxes_around(center, size, share).tolist()
    for box, (row, column), part in zip(boxes, center.tolist(), share.tolist(), strict=True):
        cutmix = v2.CutMix(num_classes=2)
        drawn = iter((torch.tensor([column]), torch.tensor([row])))
        with monkeypatch.context() as patch:
            patch.setattr(cutmix._dist, "sample", lambda _, part=part: torch.tensor(1 - part, dtype=torch.float64))
            patch.setattr(torch, "randint", lambda *_, drawn=drawn, **__: next(drawn))
            left, top, right, bottom = cutmix.make_params([torch.zeros(1, 3, *size)])["box"]
        assert box == [top, bottom, left, right]
        drawn = iter((row, column))
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "randint", lambda *_, drawn=drawn, **__: next(drawn))
            top, bottom, left, right = map(int, timm_mixup.rand_bbox((3, *size), 1 - part))
        assert (box[0], box[2]) == (top, left)
        # The timm of the papers' programs has the same ends; timm 1.0.30 lets odd sides end one pixel later.
        for end, theirs, side in ((box[1], bottom, size[0]), (box[3], right, size[1])):
            odd = int(side * math.sqrt(part)) % 2
            assert end == theirs or (odd and end + 1 == theirs)


@pytest.mark.parametrize(("size", "mean"), [((14, 14), 0.271), ((32, 32), 0.299)])
def test_mean_share_of_boxes_is_that_of_the_released_rule(size: tuple[int, int], mean: float) -> None:
    boxes = F.draw_boxes(size, F.beta_share(40_000, 1.0, generator=gen(0)), generator=gen(1))
    assert abs(float(F.area_share(F.box_mask(boxes, size)).mean()) - mean) < 0.003


def test_box_area_follows_beta_away_from_the_border() -> None:
    shares = F.beta_share(4000, 1.0, generator=gen(0))
    assert abs(float(shares.mean()) - 0.5) < 0.02 and abs(float(shares.var()) - 1 / 12) < 0.01
    small = F.beta_share(4000, 0.2, generator=gen(0))
    assert abs(float(small.var()) - 1 / (4 * 1.4)) < 0.01
    tiny = F.beta_share(4000, 1e-4, generator=gen(0))
    assert ((tiny < 0.01) | (tiny > 0.99)).float().mean() > 0.99 and abs(float(tiny.mean()) - 0.5) < 0.05


@given(st.tuples(sides, sides), st.floats(0, 1), seeds)
def test_blocks_never_exceed_what_is_wanted(grid: tuple[int, int], share: float, seed: int) -> None:
    wanted = torch.full((6,), math.floor(share * grid[0] * grid[1]))
    masks = F.draw_blocks(grid, wanted, generator=gen(seed))
    assert masks.shape == (6, *grid) and (masks.sum((1, 2)) <= wanted).all()
    same(F.draw_blocks(grid, wanted, generator=gen(seed)), masks)


def test_default_blocks_keep_the_share_and_the_parts_apart() -> None:
    frame = vitmix.Frame(300, (224, 224), (14, 14))
    parts = {}
    for preset in ("separate", "paper", "released"):
        masks = vitmix.BlockMask(preset=preset, per="sample").draw(frame, gen(1))["mask"]
        parts[preset] = sum(reference.components(mask) for mask in masks) / len(masks)
        count = masks.sum((1, 2)).float().mean()
        assert 90 < float(count) <= (112 if preset == "released" else 98)
    assert 1.1 < parts["paper"] < 1.6 and 2.1 < parts["released"] < 2.8 and parts["separate"] > 2.1


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (7, 1), (2, 2), (3, 20)])
def test_blocks_on_narrow_grids(grid: tuple[int, int]) -> None:
    wanted = grid[0] * grid[1] // 2
    counts = F.draw_blocks(grid, torch.full((4,), wanted), generator=gen(0)).sum((1, 2))
    assert (counts <= wanted).all()
    assert 1 not in grid or (counts >= min(wanted, 1)).all()  # a block may be as high as the only row


@given(st.tuples(sides, sides), st.floats(0, 1), seeds)
def test_scattered_masks_have_the_exact_count(grid: tuple[int, int], share: float, seed: int) -> None:
    mask = vitmix.ScatteredMask(share=share, per="sample")
    drawn = mask.draw(vitmix.Frame(4, (0, 0), grid), gen(seed))["mask"]
    assert (drawn.sum((1, 2)) == math.floor(share * grid[0] * grid[1])).all()


@given(st.tuples(sides, sides), seeds, st.data())
def test_best_window_is_the_slow_one(grid: tuple[int, int], seed: int, data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, grid[0])), data.draw(st.integers(1, grid[1]))
    # Whole numbers: sums are exact, and ties are frequent, so first-wins is tested too.
    scores = torch.randint(0, 4, (3, *grid), generator=gen(seed)).float()
    sizes = torch.tensor([height]), torch.tensor([width])
    for largest in (True, False):
        found = F.best_window(scores, *sizes, largest=largest).tolist()
        assert found == [list(reference.best_window(each, height, width, largest)) for each in scores]
    sums = F.window_sums(scores, *sizes)
    assert int(torch.isfinite(sums[0]).sum()) == (grid[0] - height + 1) * (grid[1] - width + 1)


@pytest.mark.parametrize("source", ["max", "min", "random"])
@pytest.mark.parametrize("destination", ["max", "min", "random", "same"])
def test_salient_box_variants(source: str, destination: str) -> None:
    """All of SMMix's table A4 and more: the window lands where asked and shows what was asked."""
    grid, batch = (4, 6), 5
    frame = vitmix.Frame(batch, (8, 12), grid)
    mask = vitmix.SalientMask(source=source, destination=destination)
    partner, scores = F.reversed_pairs(batch), torch.rand(batch, *grid, generator=gen(3))
    values = mask.draw(frame, gen(4))
    height, width = values["window"][0].tolist()
    inside, origin = mask.where(values, unmixed(frame, partner, scores))
    assert inside.shape == (batch, *grid) and (inside.sum((1, 2)) == height * width).all()
    for b in range(batch):
        cells = inside[b].flatten().nonzero().squeeze(1)
        top, left = divmod(int(cells[0]), grid[1])
        from_top, from_left = divmod(int(origin[b, cells[0]]), grid[1])
        if source != "random":
            wanted = reference.best_window(scores[partner[b]], height, width, source == "max")
            assert (from_top, from_left) == wanted
        if destination in ("max", "min"):
            assert (top, left) == reference.best_window(scores[b], height, width, destination == "max")
        if destination == "same":
            assert (top, left) == (from_top, from_left)
        sizes = torch.tensor([height]), torch.tensor([width])
        for side, corner, uniform in ((source, (from_top, from_left), 0), (destination, (top, left), 1)):
            if side == "random":
                window = F.random_window(values["place"][uniform], grid, *sizes)
                assert corner == tuple(window[b].tolist())
        expected = [(i + from_top) * grid[1] + j + from_left for i in range(height) for j in range(width)]
        assert origin[b, cells].tolist() == expected


@given(st.tuples(sides, sides), st.floats(0, 1), st.floats(0, 1), seeds, st.sampled_from(["paper", "discrete"]))
def test_salient_box_is_never_empty_or_full(grid, low, high, seed, sizes) -> None:
    low, high = min(low, high), max(low, high)
    frame = vitmix.Frame(2, (0, 0), grid)
    values = vitmix.SalientMask(low=low, high=high, sizes=sizes).draw(frame, gen(seed))
    window = values["window"][0].tolist()
    assert all(1 <= side <= cells - 1 for side, cells in zip(window, grid, strict=True))


def test_salient_box_sizes_follow_their_rule() -> None:
    frame, seen = vitmix.Frame(2, (0, 0), (14, 14)), {"paper": [], "discrete": []}
    for rule, heights in seen.items():
        for seed in range(600):
            heights.append(vitmix.SalientMask(sizes=rule).draw(frame, gen(seed))["window"][0, 0].item())
    # floor(U(.25, .75) * 14): 3 has half the width of the others, 10 the other half; discrete: 3..10 alike
    assert set(seen["paper"]) == set(seen["discrete"]) == set(range(3, 11))
    assert 20 < seen["paper"].count(3) < 70 and 20 < seen["paper"].count(10) < 70
    assert all(50 < seen["discrete"].count(height) < 105 for height in range(3, 11))


def test_windows_of_a_batch_or_of_each_sample() -> None:
    frame = vitmix.Frame(64, (32, 32), (8, 8))
    for sizes in ("paper", "discrete"):
        one = vitmix.SalientMask(low=0.0, high=1.0, sizes=sizes).draw(frame, gen(1))["window"]
        own = vitmix.SalientMask(low=0.0, high=1.0, sizes=sizes, per="sample").draw(frame, gen(1))["window"]
        assert one.shape == (1, 2) and own.shape == (64, 2)
        assert torch.equal(own[:1], one) and len(own.unique(dim=0)) > 4
        assert own.min() >= 1 and own.max() <= 7
    mixer = vitmix.create("smmix(per=sample)", 10)
    with mixer.attach(tiny_vit().eval(), seed=0, rank=0) as mixing:
        mask = mixing.mix(torch.randn(8, 3, 16, 16), torch.arange(8)).mix.mask
    assert len(mask.sum((1, 2)).unique()) > 1


# Mixing pixels, tokens, labels


@given(batches, st.sampled_from([(1, 1), (2, 3), (4, 6)]), seeds, st.booleans(), st.booleans())
def test_mix_images_is_the_slow_one(batch: int, grid: tuple[int, int], seed: int, whole: bool, moved: bool) -> None:
    images = torch.randn(batch, 2, 4, 6, generator=gen(seed), dtype=torch.float64)
    masks = 1 if whole else batch
    mask = torch.rand(masks, *grid, generator=gen(seed)) < 0.5
    partner = torch.randperm(batch, generator=gen(seed))
    source = torch.randint(0, grid[0] * grid[1], (batch, grid[0] * grid[1]), generator=gen(seed)) if moved else None
    before = images.clone()
    mixed = F.mix_images(images, mask, partner, source)
    same(images, before)
    same(mixed, reference.mix_pixels(images, mask, partner, source))
    blend = torch.rand(masks, *grid, generator=gen(seed), dtype=torch.float64)
    close(F.mix_images(images, blend, partner, source), reference.mix_pixels(images, blend, partner, source), 1e-12)


def test_mix_images_keeps_layout_dtype_and_gradient() -> None:
    images = torch.randn(4, 3, 8, 8)
    mask, partner = torch.rand(4, 8, 8) < 0.5, F.reversed_pairs(4)
    source = torch.randint(0, 64, (4, 64))
    moved = F.mix_images(images.to(memory_format=torch.channels_last), mask, partner, source)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    same(moved, F.mix_images(images, mask, partner, source))
    last = F.mix_images(images.to(memory_format=torch.channels_last), mask, partner)
    assert last.is_contiguous(memory_format=torch.channels_last)
    same(last, F.mix_images(images, mask, partner))
    turned = images.transpose(2, 3)  # neither layout
    assert F.mix_images(turned, mask, partner, source).is_contiguous()
    for dtype in (torch.float16, torch.bfloat16, torch.uint8):
        assert F.mix_images(images.to(dtype), mask, partner).dtype == dtype
    leaf = images.clone().requires_grad_()
    F.mix_images(leaf, mask, partner).sum().backward()
    close(leaf.grad.sum(), torch.tensor(images.numel() * 1.0), 1e-3)
    with pytest.raises(ValueError, match="floating-point"):
        F.mix_images(images.to(torch.uint8), torch.full((1, 1, 1), 0.3), partner)


@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), seeds)
def test_resampled_masks(grid: tuple[int, int], seed: int) -> None:
    mask = torch.rand(2, grid[0] * 3, grid[1] * 2, generator=gen(seed)) < 0.5
    area = F.resample_mask(mask, grid, rule="area", dtype=torch.float64)
    nearest = F.resample_mask(mask, grid, rule="nearest")
    for b in range(2):
        for i in range(grid[0]):
            for j in range(grid[1]):
                cell = mask[b, 3 * i : 3 * i + 3, 2 * j : 2 * j + 2]
                assert abs(float(area[b, i, j]) - float(cell.double().mean())) < 1e-12
                assert bool(nearest[b, i, j]) == bool(cell[0, 0])
    up = F.resample_mask(area, (grid[0] * 2, grid[1] * 4), rule="area")
    same(up[:, ::2, ::4], area)
    close(up.mean((1, 2)), area.mean((1, 2)), 1e-12)
    same(F.resample_mask(area, (grid[0] * 6, grid[1]), rule="area"), area.repeat_interleave(6, dim=1))


@given(batches, st.integers(2, 6), st.floats(0, 1), seeds)
def test_targets_are_the_slow_ones(batch: int, classes: int, smoothing: float, seed: int) -> None:
    labels = torch.randint(0, classes, (batch,), generator=gen(seed))
    rows = F.smooth_rows(F.label_rows(labels, classes, dtype=torch.float64), smoothing)
    expected = reference.one_hot(labels, classes, smoothing)
    close(rows, expected, 1e-12)
    partner, share = torch.randperm(batch, generator=gen(seed)), torch.rand(batch, generator=gen(seed)).double()
    targets = F.mix_targets(rows, partner, share)
    for b in range(batch):
        close(targets[b], (1 - share[b]) * expected[b] + share[b] * expected[partner[b]], 1e-12)
    close(targets.sum(1), torch.ones(batch), 1e-9)
    soft = torch.rand(batch, classes, generator=gen(seed))
    same(F.label_rows(soft, classes), soft)
    assert F.label_rows(soft.bfloat16(), classes).dtype == torch.float32


# Shares


@given(batches, st.floats(0, 0.4), seeds, st.booleans())
def test_activation_targets_are_the_slow_ones(batch: int, smoothing: float, seed: int, moved: bool) -> None:
    grid, classes = (3, 4), 5
    maps = torch.randn(batch, *grid, generator=gen(seed), dtype=torch.float64)
    mask = torch.rand(1, *grid, generator=gen(seed)) < 0.5
    source = torch.randint(0, 12, (batch, 12), generator=gen(seed)) if moved else None
    labels, partner = torch.arange(batch) % classes, F.reversed_pairs(batch)
    weights = F.activation_weights(maps, vitmix.Mix(partner, mask, source))
    rows = F.label_rows(labels, classes, dtype=torch.float64)
    targets = F.activation_targets(rows, partner, weights, smoothing=smoothing, clamp=False)
    expected = reference.activation_targets(maps, mask, source, labels, partner, classes, smoothing)
    close(targets, expected, 1e-9)
    close(F.activation_targets(rows, partner, weights, smoothing=smoothing), expected.clamp_min(0), 1e-9)


def test_the_map_of_a_label_is_its_own_among_the_top_classes() -> None:
    values = torch.rand(2, 3, 2, 2, generator=gen(0))
    indices = torch.tensor([4, 7, 2]).view(1, 3, 1, 1).expand(2, 3, 2, 2).clone()
    indices[1, 1, 0, 0] = 5  # elsewhere another class is among them
    expected = values[:, 1].clone()
    expected[1, 0, 0] = 0
    same(F.class_maps(values, indices, torch.tensor([7, 7])), expected)


def test_images_are_normalized_as_imagenets_unless_told_otherwise() -> None:
    assert Normalization() == (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)


def test_labels_on_another_device_are_not_looked_at() -> None:
    """It would have to wait for them; those without values show that nobody did."""
    labels = torch.full((4,), 10, device="meta")
    check_label_range(labels, 10)
    with pytest.raises(ValueError, match="labels must lie in 0..9, got 10"):
        check_label_range(torch.full((4,), 10), 10)


def test_activation_weights_of_finer_maps_and_masks_agree() -> None:
    maps = torch.rand(4, 8, 8, dtype=torch.float64)
    coarse = torch.rand(1, 4, 4) < 0.5
    fine = F.expand_mask(coarse, (16, 16))
    partner = F.reversed_pairs(4)
    for one, other in zip(
        F.activation_weights(maps, vitmix.Mix(partner, coarse)),
        F.activation_weights(maps, vitmix.Mix(partner, fine)),
        strict=True,
    ):
        close(one, other, 1e-12)


def test_negative_activations_count_as_zero_before_cells_are_averaged() -> None:
    maps = torch.randn(2, 8, 8, dtype=torch.float64)
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[:, :2, :2] = True
    partner, same_place = F.reversed_pairs(2), torch.arange(16).expand(2, 16)
    plain = F.activation_weights(maps, vitmix.Mix(partner, mask))
    for one, other in zip(F.activation_weights(maps, vitmix.Mix(partner, mask, same_place)), plain, strict=True):
        close(one, other, 1e-7)


def test_no_class_is_more_than_certain_to_binary_cross_entropy() -> None:
    """Activation shares of two images of one class may add up to two, by which the loss would fall without end."""
    logits = torch.tensor([[5.0, -5.0], [50.0, -50.0]], dtype=torch.float64)
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    close(F.soft_bce(logits, 1.8 * sure), F.soft_bce(logits, sure), 0)
    assert float(F.soft_bce(logits, 1.8 * sure)) > 0


def test_a_map_without_mass_counts_nothing_or_its_area() -> None:
    maps = torch.rand(4, 4, 4) / 100  # of little mass, but of some
    maps[1] = -1
    images, labels = torch.randn(4, 3, 16, 16), torch.arange(4)
    mask = vitmix.BlockMask(grid=(4, 4))
    draw = vitmix.Mixer(4, mask=mask).draw(vitmix.Frame(4, (16, 16)), gen(0))
    area = float(draw.values["mask.mask"].float().mean())
    sums = {}
    for empty in ("zero", "area"):
        mixer = vitmix.Mixer(4, mask=mask, share=vitmix.ActivationShare(empty=empty))
        sums[empty] = mixer(images, labels, maps=maps, draw=draw)[1]
    assert float(sums["zero"][1, 1]) == 0 and float(sums["zero"][2, 1]) == 0
    same(sums["area"][[0, 3]], sums["zero"][[0, 3]])
    assert abs(float(sums["area"][1, 1]) - (1 - area)) < 1e-6 and abs(float(sums["area"][2, 1]) - area) < 1e-6


def test_uniform_attention_gives_area() -> None:
    mask = torch.rand(3, 12) < 0.5
    close(F.attention_share(torch.full((3, 12), 0.07), mask), mask.float().mean(1), 1e-6)
    share = F.initial_token_share(mask.double(), mask.double().mean(1), prefix=1)
    attention = torch.full((3, 2, 13, 13), 1 / 13, dtype=torch.float64)
    for _ in range(4):
        share = F.align_share(attention, share)
    close(share[:, 0], mask.double().mean(1), 1e-9)


# Losses


def test_a_region_of_one_token_counts_and_an_empty_one_does_not() -> None:
    logits, rows, partner = torch.randn(1, 3, generator=gen(0)), torch.eye(3)[:1], torch.tensor([0])
    whole = F.sample_cross_entropy(logits, rows).mean()
    for tokens, sides in ((0, 1), (1, 2), (3, 2), (4, 1)):  # of four, the partner's
        mask = (torch.arange(4) < tokens).unsqueeze(0)
        close(F.region_loss(logits, logits, rows, partner, mask), sides * whole / 2, 1e-6)


def test_label_rows_may_leave_the_range_by_four_roundings() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        eps = max(torch.finfo(dtype).eps, 1e-3 / 4)
        check_label_rows(torch.tensor([[1 + 4 * eps]]).to(dtype))
        check_label_rows(torch.tensor([[-4 * eps]]).to(dtype))
        for outside in (1 + 5 * eps, -5 * eps):
            with pytest.raises(ValueError, match="must lie in 0..1"):
                check_label_rows(torch.tensor([[outside]]).to(dtype))


def test_label_rows_may_miss_one_by_four_roundings() -> None:
    rows = torch.tensor([[1, 2**-5]], dtype=torch.bfloat16)
    check_label_rows(rows, "a part")
    with pytest.raises(ValueError, match="must sum to 1 for a part, got one that sums to 1.03"):
        check_label_rows(torch.cat([rows, rows[:, 1:] / 8], dim=1), "a part")


def test_predictions_are_averaged_as_logits_or_as_probabilities() -> None:
    with pytest.raises(ValueError, match="unknown average .mean., known: logits, probabilities"):
        F.consistency_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([1, 0]), torch.zeros(2), average="mean")


@given(batches, st.integers(2, 6), seeds)
def test_losses_are_the_slow_ones(batch: int, classes: int, seed: int) -> None:
    logits = torch.randn(batch, classes, generator=gen(seed), dtype=torch.float64) * 3
    clean = torch.randn(batch, classes, generator=gen(seed + 1), dtype=torch.float64)
    targets = torch.rand(batch, classes, generator=gen(seed), dtype=torch.float64)
    partner, share = torch.randperm(batch, generator=gen(seed)), torch.rand(batch, generator=gen(seed)).double()
    assert math.isclose(F.soft_cross_entropy(logits, targets), reference.soft_cross_entropy(logits, targets))
    assert math.isclose(F.soft_bce(logits, targets), reference.soft_bce(logits, targets), rel_tol=1e-9)
    for average in ("logits", "probabilities"):
        ours = F.consistency_loss(logits, clean, partner, share, average=average)
        assert math.isclose(ours, reference.kl_consistency(logits, clean, partner, share, average), abs_tol=1e-12)
    head = nn.Linear(3, classes).double().requires_grad_(False)
    tokens = torch.randn(batch, 5, 3, generator=gen(seed), dtype=torch.float64)
    mask = torch.tensor([True, False, True, False, False]).repeat(batch, 1)
    own, theirs = F.region_means(tokens, mask)
    ours = F.region_loss(head(own), head(theirs), targets, partner, mask)
    assert math.isclose(ours, reference.region_loss(tokens, mask, head, targets, partner), rel_tol=1e-9)


def test_region_loss_of_an_empty_side_is_the_other_side() -> None:
    tokens, rows, partner = torch.randn(4, 6, 3), torch.eye(4, 3), F.reversed_pairs(4)
    head = nn.Linear(3, 3)
    mask = torch.zeros(4, 6, dtype=torch.bool)
    own, theirs = F.region_means(tokens, mask)
    loss = F.region_loss(head(own), head(theirs), rows, partner, mask)
    close(loss, F.soft_cross_entropy(head(tokens.mean(1)), rows) / 2, 1e-6)
    full = F.region_loss(head(theirs), head(own), rows, partner, ~mask)
    close(full, F.soft_cross_entropy(head(tokens.mean(1)), rows[partner]) / 2, 1e-6)


def test_half_precision_logits_are_lifted() -> None:
    logits = torch.randn(4, 5)
    targets = torch.rand(4, 5)
    assert F.soft_cross_entropy(logits.bfloat16(), targets).dtype == torch.float32
    assert F.soft_bce(logits.half(), targets).dtype == torch.float32


# Hidden mixing


@given(st.integers(1, 5), seeds, st.sampled_from([0.0, 0.1, 0.4]))
def test_horizontal_mix_is_the_slow_one(batch: int, seed: int, rho: float) -> None:
    saliency = torch.rand(batch, 6, generator=gen(seed), dtype=torch.float64)
    easy = torch.rand(batch, generator=gen(seed + 1)) < 0.6
    best, partners, take, own = reference.horizontal(saliency, easy.tolist(), rho)
    decision = F.horizontal_mix(saliency, easy, rho=rho)
    gain = (saliency[decision.partner] - saliency - rho).clamp_min(0).sum(1)
    assert math.isclose(float(gain[easy].sum()), max(best, 0.0), abs_tol=1e-9)
    assert len(set(decision.partner[easy].tolist())) == int(easy.sum())
    if rho == 0.1 and decision.partner.tolist() == partners:  # elsewhere several assignments may tie
        same(decision.take, take)
        close(decision.own, torch.tensor(own, dtype=torch.float64), 1e-9)


def test_score_net_pools_patches_only() -> None:
    net = ScoreNet(6, 4, class_token=False, prefix=2)
    tokens = torch.randn(3, 7, 6)
    other = tokens.clone()
    other[:, :2] = 9
    same(net(tokens), net(other))


def test_vertical_attention_is_the_slow_one() -> None:
    """The whole block: keys and values of current and picked tokens, queries of current ones."""
    model = tiny_vit(depth=2).double().train()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    inputs: dict[int, torch.Tensor] = {}
    branch: list[torch.Tensor] = []
    with vitmix.create("vtm(block=1, tokens=3)", 10).attach(model) as mixing:
        for index, block in enumerate(model.blocks):
            block.register_forward_pre_hook(lambda _, args, i=index: inputs.__setitem__(i, args[0].detach()))
        model.blocks[1].attn.register_forward_hook(lambda *args: branch.append(args[2].detach()))
        batch = mixing.mix(images, torch.tensor([0, 1]))
        mixing.loss(model(batch.images), batch)
    attention = model.blocks[1].attn
    (maps, _) = reference.attention_of(model.eval(), images)
    row = reference.class_row(maps, 1)
    for b in range(2):
        order = sorted(range(16), key=lambda t: -float(row[b, t]))[:3]
        bank = torch.stack([inputs[0][b, 1 + t] for t in order])
        normed = model.blocks[1].norm1(torch.cat([inputs[1][b], bank]))
        query, key, value = attention.qkv(normed).chunk(3, dim=-1)
        out = attention.proj(reference.attend(query[:17], key, value, attention.num_heads))
        close(branch[0][b], out.detach(), 1e-9)


def random_decision(batch: int, patches: int, seed: int) -> HorizontalMix:
    """A decision of HTM on random saliency, some samples easy."""
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.rand(batch, patches, generator=generator)
    return F.horizontal_mix(saliency, torch.rand(batch, generator=generator) < 0.6, rho=0.1)


@given(st.integers(1, 9), st.integers(0, 2), st.integers(0, 999))
def test_exchange_equals_mixing_and_so_does_its_gradient(batch: int, prefix: int, seed: int) -> None:
    mix = random_decision(batch, 5, seed)
    tokens = torch.randn(batch, prefix + 5, 3, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(batch, prefix + 5, 3, dtype=torch.float64)
    results = []
    for function in (
        lambda: F.exchange_tokens(tokens, mix, prefix=prefix),
        lambda: F.mix_tokens(tokens, mix.take, mix.partner, prefix=prefix),
    ):
        mixed = function()
        (gradient,) = torch.autograd.grad((mixed * slope).sum(), tokens)
        results.append((mixed, gradient))
    same(results[0][0], results[1][0])
    close(results[0][1], results[1][1], 1e-12)


def test_draws_travel_as_one() -> None:
    values = [
        torch.arange(5),
        torch.rand(2, 3),
        torch.rand(3) > 0.5,
        torch.empty(0),
        torch.rand(1, dtype=torch.float64),
    ]
    packed = pack(values)
    assert packed.ndim == 1 and packed.dtype == torch.uint8
    for back, value in zip(unpack(packed.clone(), values), values, strict=True):
        assert back.dtype == value.dtype and back.shape == value.shape
        same(back, value)
    assert not len(pack([])) and pack([]).dtype == torch.uint8
