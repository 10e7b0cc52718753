"""What masks draw, number by number: counts, sizes, odds, and which numbers a mask asks for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
import vitmix
from support import same, unmixed
from vitmix import functional as F

sides = st.integers(2, 9)
seeds = st.integers(0, 10_000)
FRAME = vitmix.Frame(5, (56, 84), (14, 21))


def gen(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("per, count", [("batch", 1), ("sample", 5)])
def test_shares_and_boxes_of_a_batch_or_of_each_sample(per: str, count: int) -> None:
    share = F.beta_share(count, 0.7, generator=gen())
    blend = vitmix.ConstantMask(0.7, per)
    drawn = blend.draw(FRAME, gen())
    assert list(drawn) == ["share"] and drawn["share"].dtype == torch.float32 and share.dtype == torch.float64
    same(drawn["share"], share)
    mask, source = blend.where(drawn, unmixed(FRAME, F.reversed_pairs(5), None))
    assert source is None and mask.flatten().tolist() == drawn["share"].tolist() and mask.shape[1:] == (1, 1)
    for mask, size in ((vitmix.BoxMask(0.7, per), (56, 84)), (vitmix.BoxMask(0.7, per, True), (14, 21))):
        generator = gen()
        boxes = F.draw_boxes(size, F.beta_share(count, 0.7, generator=generator), generator=generator)
        drawn = mask.draw(FRAME, gen())
        same(drawn["box"], boxes)
        inside, source = mask.where(drawn, unmixed(FRAME, F.reversed_pairs(5), None))
        assert source is None and inside.shape == (count, *size)
        same(inside, F.box_mask(boxes, size))
    own = vitmix.BoxMask(0.7, per, True, (7, 7))
    assert own.where(own.draw(FRAME, gen()), unmixed(FRAME, F.reversed_pairs(5), None))[0].shape == (count, 7, 7)


def test_centers_of_boxes_are_uniform_numbers_in_double_precision() -> None:
    """The draws of a seed decide which boxes a training sees, so their type may not change."""
    share = torch.tensor([0.3, 0.5, 0.7, 0.9])
    uniform = torch.rand(4, 2, generator=gen(), dtype=torch.float64)
    center = torch.tensor([[int(row * 12), int(column * 9)] for row, column in uniform.tolist()])
    same(F.draw_boxes((12, 9), share, generator=gen()), F.boxes_around(center, (12, 9), share))


def test_what_a_mask_knows_of_a_batch() -> None:
    frame = vitmix.Frame(5, (8, 8))
    assert frame == vitmix.Frame(5, (8, 8), grid=None, dtype=torch.float32, grids=(), no_grid="")
    assert frame.final_grid is None and vitmix.Frame(5, (8, 8), (2, 2)).final_grid == (2, 2)
    assert vitmix.Frame(5, (8, 8), (2, 2), grids=((4, 4), (1, 1))).final_grid == (1, 1)


def test_nothing_is_a_mask_of_nothing() -> None:
    mask, source = vitmix.NoMask().where({}, unmixed(FRAME, F.reversed_pairs(5), None))
    assert mask.tolist() == [[[False]]] and source is None and not vitmix.NoMask().draw(FRAME, None)


@pytest.mark.parametrize("preset, smallest, more", [("separate", 1, 0), ("paper", 21, 0), ("released", 1, 21)])
@pytest.mark.parametrize("per, count", [("batch", 1), ("sample", 5)])
@pytest.mark.parametrize("alpha", [None, 2.0])
def test_blocks_want_their_share_of_tokens(preset, smallest, more, per, count, alpha) -> None:
    """A fourteenth of 14 x 21 tokens is 21: the least block of the paper, and what the released program adds."""
    for share in (0.29, 0.5, 1.0):
        generator = gen()
        part = F.beta_share(count, alpha, generator=generator) if alpha else torch.full((count,), share)
        wanted = torch.tensor([min(math.floor(float(each) * 294 + 1e-4) + more, 294) for each in part])
        expected = F.draw_blocks((14, 21), wanted, smallest=smallest, generator=generator)
        mask = vitmix.BlockMask(share, alpha, preset, per)
        same(mask.draw(FRAME, gen())["mask"], expected)
        same(mask.where({"mask": expected}, unmixed(FRAME, F.reversed_pairs(5), None))[0], expected)


def test_a_fourteenth_of_a_small_grid_is_one_token() -> None:
    frame = vitmix.Frame(64, (4, 4), (2, 2))
    counts = vitmix.BlockMask(0.5, preset="released", per="sample").draw(frame, gen())["mask"].sum((1, 2))
    assert counts.max() == 3
    assert vitmix.BlockMask(0.5, per="sample").draw(frame, gen())["mask"].sum((1, 2)).max() == 2


def test_shares_of_tokens_are_counted_without_rounding_down() -> None:
    """0.29 x 100 is 28.999... in floating point."""
    frame = vitmix.Frame(2, (10, 10), (10, 10))
    for hundredth in range(101):
        drawn = vitmix.ScatteredMask(hundredth / 100).draw(frame, gen())["mask"]
        assert drawn.shape == (1, 10, 10) and int(drawn.sum()) == hundredth


def test_scattered_tokens_are_anywhere_with_equal_odds() -> None:
    drawn = F.draw_scattered((3, 5), torch.full((3000,), 5), generator=gen())
    assert (drawn.float().mean(0) - 1 / 3).abs().max() < 0.04
    generator = gen()
    share = F.beta_share(64, 2.0, generator=generator)
    counts = vitmix.ScatteredMask(alpha=2.0, per="sample").draw(vitmix.Frame(64, (4, 4), (4, 4)), gen())["mask"]
    assert counts.sum((1, 2)).tolist() == [math.floor(16 * float(each)) for each in share]


@given(st.integers(2, 40), st.integers(0, 1000))
def test_discrete_windows_have_the_height_asked_for(rows: int, seed: int) -> None:
    """The n-th part of n cells is one, however it is rounded."""
    for height in range(1, rows):
        mask = vitmix.SalientMask(low=(height + 1e-6) / rows, high=(height + 0.5) / rows, sizes="discrete")
        window = mask.draw(vitmix.Frame(1, (rows, 2 * rows), (rows, 2 * rows)), gen(seed))["window"]
        assert window.tolist() == [[height, 2 * height]]


def test_paper_windows_are_a_part_of_either_side() -> None:
    frame = vitmix.Frame(500, (0, 0), (8, 20))
    uniform = torch.rand(500, generator=gen(), dtype=torch.float64)
    drawn = vitmix.SalientMask(low=0.2, high=0.9, per="sample").draw(frame, gen())
    for part, (height, width) in zip(uniform.tolist(), drawn["window"].tolist(), strict=True):
        side = 0.2 + 0.7 * part
        assert (height, width) == (max(math.floor(8 * side), 1), math.floor(20 * side))
    assert drawn["place"].shape == (2, 500, 2) and not len(drawn["scores"])
    assert len(drawn["place"].unique()) > 1900
    random = vitmix.SalientMask(blocks=()).draw(frame, gen())["scores"]
    assert random.shape == (500, 8, 20) and len(random.unique()) > 70_000


def test_windows_leave_room_on_narrow_grids() -> None:
    for grid in ((1, 5), (5, 1), (2, 2)):
        for low in (0.0, 1.0):
            drawn = vitmix.SalientMask(low=low, high=low).draw(vitmix.Frame(1, (10, 10), grid), gen())["window"]
            expected = [[1 if low == 0 else max(side - 1, 1) for side in grid]]
            assert drawn.tolist() == expected


def test_what_is_pasted_lies_on_the_grid() -> None:
    """Also outside of the window, where nothing is taken but every cell is looked up."""
    corners = torch.tensor([[0, 0], [2, 3], [0, 3], [2, 0]])
    size = torch.full((4,), 2)
    inside, source = F.window_region(corners, corners.flip(0), size, size, (4, 5))
    assert source.min() == 0 and source.max() == 19 and source.shape == (4, 20)
    for b in range(4):
        shift = corners.flip(0)[b] - corners[b]
        for i in range(4):
            for j in range(5):
                row, column = min(max(i + int(shift[0]), 0), 3), min(max(j + int(shift[1]), 0), 4)
                assert int(source[b, 5 * i + j]) == 5 * row + column
                within = all(0 <= at - int(corner) < 2 for at, corner in zip((i, j), corners[b], strict=True))
                assert bool(inside[b, i, j]) == within


def test_guides_are_asked_where_scores_decide() -> None:
    for source in ("max", "min", "random"):
        for destination in ("max", "min", "random", "same"):
            scored = source != "random" or destination in ("max", "min")
            mask = vitmix.SalientMask(source=source, destination=destination, blocks=[1, -1])
            assert mask.needs.guide_blocks == ((1, -1) if scored else None)
            assert vitmix.SalientMask(source=source, destination=destination, blocks=()).needs.guide_blocks is None
    for mask in (vitmix.NoMask(), vitmix.ConstantMask(), vitmix.BoxMask(), vitmix.BlockMask(), vitmix.ScatteredMask()):
        assert mask.needs.guide_blocks is None
    assert vitmix.SalientMask(blocks="all").needs.guide_blocks == "all"


def test_sums_of_windows_are_exact() -> None:
    scores = torch.rand(2, 30, 40) + 1000
    sums = F.window_sums(scores, torch.tensor([3, 30]), torch.tensor([4, 40]))
    assert sums.dtype == torch.float64
    assert abs(float(sums[0, 27, 36]) - float(scores[0, 27:, 36:].double().sum())) < 1e-6
    assert abs(float(sums[1, 0, 0]) - float(scores[1].double().sum())) < 1e-6
    assert int(sums[0].isfinite().sum()) == 28 * 37 and int(sums[1].isfinite().sum()) == 1


@pytest.mark.parametrize(
    "mask, words",
    [
        (lambda: vitmix.ConstantMask(0), "alpha must be a positive"),
        (lambda: vitmix.BoxMask(0), "alpha must be a positive"),
        (lambda: vitmix.BoxMask(per="all"), "unknown per 'all', known: batch, sample"),
        (lambda: vitmix.BoxMask(aligned=1), "aligned must be True or False"),
        (lambda: vitmix.BoxMask(grid=(0, 1)), "grid must be"),
        (lambda: vitmix.BlockMask(alpha=0), "alpha must be a positive"),
        (lambda: vitmix.BlockMask(preset="other"), "unknown preset"),
        (lambda: vitmix.BlockMask(per="all"), "unknown per"),
        (lambda: vitmix.ScatteredMask(1.5), "share must lie"),
        (lambda: vitmix.ScatteredMask(alpha=-1), "alpha must be a positive"),
        (lambda: vitmix.ScatteredMask(grid=(1,)), "grid must be"),
        (lambda: vitmix.SalientMask(destination="none"), "unknown destination"),
        (lambda: vitmix.SalientMask(low=-0.1), "low must lie"),
        (lambda: vitmix.SalientMask(high=1.1), "high must lie"),
        (lambda: vitmix.SalientMask(sizes="all"), "unknown sizes"),
        (lambda: vitmix.SalientMask(blocks=1), "blocks must be 'all' or block numbers"),
        (lambda: vitmix.SalientMask(per="all"), "unknown per"),
    ],
)
def test_bad_settings_of_masks(mask, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mask()


def test_every_setting_that_is_named_is_taken() -> None:
    for source in ("max", "min", "random"):
        for destination in ("max", "min", "random", "same"):
            assert vitmix.SalientMask(source, destination, 0.5, 0.5, "discrete", (), "sample").low == 0.5
    for per in ("batch", "sample"):
        vitmix.ConstantMask(per=per)
        for preset in ("separate", "paper", "released"):
            vitmix.BlockMask(preset=preset, per=per)


def test_salient_boxes_need_images_that_divide_into_tokens() -> None:
    for frame, words in (
        (vitmix.Frame(1, (8, 8)), "needs a model's token grid"),
        (vitmix.Frame(1, (8, 8), (1, 1)), "images of 8x8 give only one"),
        (vitmix.Frame(1, (9, 8), (4, 4)), "4x4 final tokens, got 9x8"),
        (vitmix.Frame(1, (8, 9), (4, 4)), "4x4 final tokens, got 8x9"),
    ):
        with pytest.raises(ValueError, match=words):
            vitmix.SalientMask().draw(frame, gen())
    with pytest.raises(ValueError, match="is drawn on the model's tokens: because"):
        vitmix.BlockMask().draw(vitmix.Frame(1, (8, 8), no_grid="because"), gen())
    assert vitmix.BlockMask(grid=(2, 2)).draw(vitmix.Frame(1, (8, 8), (4, 4)), gen())["mask"].shape == (1, 2, 2)
    frame = vitmix.Frame(1, (8, 8), (4, 4), grids=((4, 4), (2, 2)))
    assert vitmix.SalientMask(blocks=()).draw(frame, gen())["scores"].shape == (1, 2, 2)


def test_aspects_of_blocks_are_log_uniform() -> None:
    """Blocks of one size on a large grid; of those that came out whole, the sides tell the aspect up to rounding."""
    masks = F.draw_blocks((60, 60), torch.full((4000,), 400), smallest=400, generator=gen(0))
    heights, widths = masks.any(2).sum(1), masks.any(1).sum(1)
    whole = (masks.sum((1, 2)) == heights * widths) & (heights * widths > 370)
    aspect = (heights[whole] / widths[whole]).log() / math.log(1 / 0.3)
    assert len(aspect) > 1000 and aspect.abs().max() < 1.05
    expected = torch.linspace(-1, 1, len(aspect))
    assert (aspect.sort().values - expected).abs().max() < 0.2  # sides are whole; a uniform aspect is off by 0.5


@given(st.tuples(sides, sides), st.floats(0, 1), st.integers(1, 9), seeds)
def test_blocks_are_the_slow_ones(grid: tuple[int, int], share: float, smallest: int, seed: int) -> None:
    wanted = (torch.tensor([1, share, share / 2]) * grid[0] * grid[1]).long()
    masks = F.draw_blocks(grid, wanted, smallest=smallest, generator=gen(seed))
    rounds = torch.cat([torch.rand(8, 3, 4, generator=g, dtype=torch.float64) for g in [gen(seed)] for _ in range(60)])
    for each, count, uniform in zip(masks, wanted.tolist(), rounds.unbind(1), strict=True):
        same(each, reference.blocks(grid, count, smallest, uniform.tolist()))


def test_blocks_may_be_single_tokens_unless_told_otherwise() -> None:
    wanted = torch.full((20,), 30)
    same(F.draw_blocks((8, 8), wanted, generator=gen()), F.draw_blocks((8, 8), wanted, smallest=1, generator=gen()))


@given(st.tuples(sides, sides), st.data())
def test_random_windows_have_equal_odds_at_every_place(grid: tuple[int, int], data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, grid[0])), data.draw(st.integers(1, grid[1]))
    rows, columns = grid[0] - height + 1, grid[1] - width + 1
    # The middle of each of rows x columns cells of the unit square, and its far corner, where rounding may lead.
    middles = torch.cartesian_prod((torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns)
    found = F.random_window(middles, grid, torch.tensor([height]), torch.tensor([width]))
    same(found, torch.cartesian_prod(torch.arange(rows), torch.arange(columns)))
    corner = F.random_window(torch.ones(1, 2), grid, torch.tensor([height]), torch.tensor([width]))
    assert corner.tolist() == [[rows - 1, columns - 1]]


def test_shares_are_drawn_in_double_precision() -> None:
    drawn = F.beta_share(4, 0.3, generator=gen(0)).tolist()
    assert drawn == pytest.approx(
        [0.9792959061627542, 0.5002362963183858, 0.013490413789388808, 0.0007531780212], 1e-10
    )


@pytest.mark.parametrize("seed", range(3))
def test_blocks_are_drawn_from_eight_candidates_at_a_time(seed: int) -> None:
    """Masks hardly ever depend on how many there are; what is drawn after them does."""
    drawn, expected = gen(seed), gen(seed)
    F.draw_blocks((6, 6), torch.full((3,), 18), generator=drawn)
    states = []
    for _ in range(6):
        torch.rand(8, 3, 4, generator=expected, dtype=torch.float64)
        states.append(expected.get_state())
    assert any(torch.equal(drawn.get_state(), state) for state in states)
