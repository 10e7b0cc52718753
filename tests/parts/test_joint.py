"""Co-Mixup: costs, exact labelings, and what a jointly mixed batch looks like."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import reference_baselines as slow
import vitmix
from support import close, same, tiny_batch, tiny_vit
from vitmix._sampling import generator_for
from vitmix.parts import joint, labelings
from vitmix.parts.base import Guidance
from vitmix.parts.joint import (
    JointMask,
    Weighing,
    _objective,
    given_up,
    inner_cut,
    joint_cost,
    joint_parts,
    likeness,
    mix_blocks,
)
from vitmix.parts.joint import peak_distance as distance_of_peaks
from vitmix.parts.labelings import labeling, labeling_energy


def problem(seed: int, rows: int, columns: int, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Unary costs, a distance that need not be a metric, and the weight of an edge."""
    random = np.random.default_rng(seed)
    distance = random.choice([0.25, 1.0], (count, count)) if seed % 2 else random.random((count, count))
    distance = np.minimum(distance, distance.T)
    np.fill_diagonal(distance, 0)
    return random.normal(size=(rows, columns, count)) * random.choice([0.01, 0.3, 2]), distance, float(random.random())


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_labelings_have_the_least_energy(seed: int, rows: int, columns: int, count: int) -> None:
    unary, distance, edge = problem(seed, rows, columns, count)
    if count ** (rows * columns) > 6000:
        return
    found = labeling(unary, distance, edge)
    assert found.shape == (rows, columns)
    least = slow.least_labeling(unary.tolist(), distance.tolist(), edge)
    assert labeling_energy(found, unary, distance, edge) == pytest.approx(least, abs=1e-12)


def test_large_labelings_give_up_exactness_not_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    unary, distance, edge = problem(3, 5, 5, 6)
    exact = labeling_energy(labeling(unary / 50, distance, edge), unary / 50, distance, edge)
    monkeypatch.setattr(labelings, "MOST", 64)
    found = labeling(unary / 50, distance, edge)
    assert found.shape == (5, 5) and labeling_energy(found, unary / 50, distance, edge) >= exact - 1e-12


def test_labels_of_the_largest_cost_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prunes the frontiers of each row and cell until at most this many labelings are left."""
    monkeypatch.setattr(labelings, "MOST", 4)
    unary = np.array([[[0.3, 0.1, 0.2], [0.5, 0.4, 0.6]], [[0.9, 0.7, 0.8], [0.0, 0.2, 0.1]]])
    found = labelings._at_most([np.arange(3)] * 4, unary, 2)
    assert [each.tolist() for each in found] == [[1], [1], [1, 2], [0, 2]]
    assert all(np.prod([len(found[cell]) for cell in cells]) <= 4 for cells in ((0,), (0, 1), (0, 1, 2), (1, 2, 3)))


@pytest.mark.parametrize("halves", [False, True])
def test_costs_of_a_labeling(halves: bool) -> None:
    torch.manual_seed(0)
    count, n, side = 4, 2, 8
    saliency, weight = torch.rand(count, side, side, dtype=torch.float64), torch.rand(count, dtype=torch.float64)
    weighing = Weighing(beta=0.3, gamma=0.7, threshold=0.4)
    settings = dict(eta=0.2, gamma=0.7, threshold=0.4, omega=0.3, blocks=n)
    smooth = torch.nn.functional.avg_pool2d(saliency.unsqueeze(1), 2, stride=1).squeeze(1)
    peaks = [divmod(int(each.argmax()), 7) for each in smooth]
    random = np.random.default_rng(1)
    parts, extra = np.eye(count)[random.integers(count, size=(3, n, n))], random.random(count)
    for output in range(3):
        used = parts.sum((1, 2)).tolist()
        others = [each for number, each in enumerate(used) if number != output]
        expected = slow.joint_costs(saliency, weight.tolist(), peaks, others, extra.tolist(), settings)
        cost = joint_cost(saliency, weight, blocks=n, eta=0.2).numpy()
        like = likeness(distance_of_peaks(saliency), 0.3).numpy()
        cut = inner_cut(cost, like, parts, output, extra, weighing, halves=halves)
        close(torch.from_numpy(cut.unary[..., :count]), torch.tensor(expected, dtype=torch.float64), 1e-12)
        assert cut.edge == 0.3 / n**2
        assert (cut.distance == cut.distance.T).all() and not cut.distance.diagonal().any()
        assert (cut.parts.sum(1) == 1).all()
        pairs = [tuple(np.flatnonzero(row)) for row in cut.parts[count:]]
        assert pairs == (list(itertools.combinations(np.flatnonzero(used[output])[:3], 2)) if halves else [])
        for number, (one, other) in enumerate(pairs):
            close(
                torch.from_numpy(cut.unary[..., count + number]),
                torch.from_numpy(cut.unary[..., [one, other]].mean(-1) - 5e-4),
                1e-12,
            )
            near = np.flatnonzero(cut.distance[count + number, :count] == 0.25)
            assert near.tolist() == [one, other]


def test_the_threshold_of_the_program_acts_on_columns() -> None:
    cost, like = np.zeros((2, 2, 2)), np.array([[0.6, 0.4], [0.4, 0.6]])
    parts = np.eye(2)[np.array([[[0, 1], [0, 1]], [[0, 0], [0, 1]]])]  # the other output uses 3 and 1 blocks
    for by_column, expected in ((False, [2.2, 0.0]), (True, [1.8, 1.2])):
        weighing = Weighing(gamma=1.0, threshold=0.5, by_column=by_column)
        unary = inner_cut(cost, like, parts, 0, np.zeros(2), weighing, halves=False).unary
        close(torch.from_numpy(unary[0, 0]), torch.tensor(expected, dtype=torch.float64) * 2 / 4, 1e-12)


def test_outputs_that_use_the_same_inputs_are_pushed_apart() -> None:
    """Two images, each salient in one half: both outputs would show both halves."""
    saliency = torch.full((2, 8, 8), 1e-3)
    saliency[0, :, :4], saliency[1, :, 4:] = 1, 1
    cost = joint_cost(saliency, torch.tensor([0.5, 0.5]), blocks=2).numpy()
    start = np.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]])
    alike = joint_parts(cost, np.eye(2), start, Weighing(gamma=0.0))
    assert (alike[0] == alike[1]).all() and (alike[0].argmax(2) == [[0, 1], [0, 1]]).all()
    apart = joint_parts(cost, np.eye(2), start, Weighing(gamma=3.0, threshold=2.0, rounds=2))
    assert not (apart[0] == apart[1]).all()


def test_blocks_come_from_where_the_parts_say() -> None:
    images = torch.rand(3, 2, 8, 12, dtype=torch.float64)
    parts = torch.zeros(3, 2, 2, 3, dtype=torch.float64)
    parts[..., 0] = 1
    parts[1, 0, 1] = torch.tensor([0.0, 0.5, 0.5])
    mixed = mix_blocks(images, parts)
    same(mixed[0], images[0])
    same(mixed[1, :, 4:], images[0, :, 4:])
    close(mixed[1, :, :4, 6:], (images[1, :, :4, 6:] + images[2, :, :4, 6:]) / 2, 1e-12)


def test_images_of_other_groups_are_never_shown() -> None:
    images, saliency = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 16, 16), torch.rand(5, 16, 16)
    rows, frame = torch.eye(5), vitmix.Frame(5, (16, 16))
    mask = JointMask(group=2, gamma=0.1)
    batch = vitmix.Unmixed(images, rows, torch.arange(5), frame, Guidance(gradient=saliency))
    draw = mask.draw(frame, generator_for(0))
    close(torch.stack([draw["weight"][:2].sum(), draw["weight"][2:4].sum(), draw["weight"][4]]), torch.ones(3), 1e-12)
    assert int(draw["start"][:4].max()) == 1 and not draw["start"][4].any()
    made = mask.where(draw, batch)
    share = made.mask.mean((1, 2)).unsqueeze(1)
    assert made.rows is not None
    targets = (1 - share) * rows + share * made.rows
    close(targets.sum(1), torch.ones(5), 1e-6)
    outside = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2), torch.ones(1, 1)) == 0
    assert not targets[outside].any() and share[4] == 0 and (made.images[4] == 4).all()
    close(made.images.mean((1, 2, 3)), targets @ torch.arange(5.0), 1e-5)


def test_autocast_rounds_neither_pixels_nor_labels() -> None:
    torch.manual_seed(0)
    images, saliency, rows = torch.rand(7, 3, 32, 32), torch.rand(7, 32, 32) ** 6, torch.randn(7, 10).softmax(1)
    mask, frame = JointMask(gamma=0.05, omega=0.2), vitmix.Frame(7, (32, 32))
    batch = vitmix.Unmixed(images, rows, torch.arange(7), frame, Guidance(gradient=saliency))
    values = mask.draw(frame, generator_for(0))
    exact = mask.where(values, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = mask.where(values, batch)
    same(made.images, exact.images)
    assert exact.rows is not None and made.rows is not None
    same(made.rows, exact.rows)


def test_labels_of_half_precision_images_are_not_rounded() -> None:
    """With 5 blocks per side, the parts of an image are multiples of 1/50, which bfloat16 does not have."""
    torch.manual_seed(0)
    images, saliency, rows = torch.rand(7, 3, 20, 20), torch.rand(7, 20, 20) ** 6, torch.randn(7, 10).softmax(1)
    mask, frame = JointMask(blocks=5, gamma=0.05), vitmix.Frame(7, (20, 20))
    values, found = mask.draw(frame, generator_for(0)), []
    for dtype in (torch.float32, torch.bfloat16):
        batch = vitmix.Unmixed(images.to(dtype), rows, torch.arange(7), frame, Guidance(gradient=saliency))
        made = mask.where(values, batch)
        assert made.images.dtype == dtype and made.rows is not None
        found.append(made.rows)
    same(found[1], found[0])


def test_images_without_saliency_are_mixed_too() -> None:
    """Their peaks are all in the first place, so no two are alike."""
    frame, rows = vitmix.Frame(3, (8, 8)), torch.eye(3)
    batch = vitmix.Unmixed(
        torch.rand(3, 3, 8, 8), rows, torch.arange(3), frame, Guidance(gradient=torch.zeros(3, 8, 8))
    )
    mask = JointMask(blocks=2, omega=0.5)
    assert torch.isfinite(mask.where(mask.draw(frame, generator_for(0)), batch).images).all()


def test_comixup_needs_blocks_that_divide_the_image() -> None:
    with pytest.raises(ValueError, match="do not divide into 3 blocks per side"):
        vitmix.Learner(tiny_vit(), vitmix.comixup(10, blocks=3))(*tiny_batch())
    for size in ((32, 30), (30, 32)):
        with pytest.raises(ValueError, match="do not divide into 4 blocks per side"):
            JointMask().draw(vitmix.Frame(2, size), None)


def test_peaks_of_tiny_images_are_pixels() -> None:
    saliency, places = torch.zeros(3, 3, 2), ((0, 0), (2, 1), (1, 0))
    for image, (row, column) in enumerate(places):
        saliency[image, row, column] = 1
    expected = [[abs(a - c) + abs(b - d) for c, d in places] for a, b in places]
    assert distance_of_peaks(saliency).tolist() == expected


def test_outputs_of_the_same_inputs_give_up_one_each() -> None:
    used = np.array([[1, 1, 0, 1], [0, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]], dtype=bool)
    expected = np.zeros((4, 4))
    expected[0, 0] = expected[2, 1] = 1  # outputs of one input have none to give up
    same(torch.from_numpy(given_up(used)), torch.from_numpy(expected))


def test_rounds_end_when_nothing_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(joint, "labeling", lambda *problem: (made.append(1), labeling(*problem))[1])
    cost = np.random.default_rng(0).normal(size=(2, 2, 2))
    start = np.zeros((2, 2, 2), dtype=np.int64)
    joint_parts(cost, np.eye(2), start, Weighing(gamma=0.0, rounds=50))
    assert 2 <= len(made) <= 2 * 5


def test_outputs_of_different_inputs_give_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each output shows one input, its own, which nothing makes it give up in the last round."""
    asked = []
    monkeypatch.setattr(joint, "given_up", lambda used: (asked.append(used.copy()), given_up(used))[1])
    start = np.stack([np.full((2, 2), number) for number in range(2)])
    joint_parts(np.full((2, 2, 2), -1.0), np.eye(2), start, Weighing(gamma=3.0, threshold=0.0, rounds=2))
    assert [used.tolist() for used in asked] == [[[True, False], [False, True]]]


def test_outputs_that_show_an_input_in_one_block_give_it_up_too() -> None:
    """Both outputs show the second input in one block. Separated, one shows only the second, the other the first."""
    cost = np.zeros((2, 2, 2))
    cost[1] = 0.1
    cost[:, 0, 0] = 0.1, 0.0
    start = np.zeros((2, 2, 2), dtype=np.int64)
    parts = joint_parts(cost, np.eye(2), start, Weighing(beta=0.0, gamma=1.0, threshold=9.0, rounds=2))
    assert parts.sum((1, 2)).tolist() == [[0, 4], [4, 0]]


def test_the_objective_decides_when_rounds_end() -> None:
    random = np.random.default_rng(0)
    cost, parts = random.normal(size=(3, 2, 2)), random.choice([0, 0.5, 1], (4, 2, 2, 3))
    expected = 0.0
    for output, (i, j), image in itertools.product(range(4), itertools.product(range(2), repeat=2), range(3)):
        part = parts[output, i, j, image]
        near = [parts[output, x, y, image] for x, y in ((i + 1, j), (i, j + 1)) if max(x, y) < 2]
        others = sum(parts[other, ..., image].sum() for other in range(4) if other != output)
        expected += part * cost[image, i, j] + 0.3 / 2 / 4 * sum((part - each) ** 2 for each in near)
        expected += 0.7 / 4 * part * others
    assert _objective(parts, cost, Weighing(beta=0.3, gamma=0.7)) == pytest.approx(expected, rel=1e-12)


def test_an_objective_of_zero_does_not_end_the_rounds() -> None:
    """The best whole images cost as much as they gain; halves, from the second round on, cost less."""
    cost = np.array([[[-1.0, 2.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    start = np.array([[[0, 1], [0, 0]]])
    (parts,) = joint_parts(cost, np.eye(2), start, Weighing(beta=0.0, gamma=0.0))
    assert parts.tolist() == [[[1, 0], [0, 1]], [[0.5, 0.5], [0.5, 0.5]]]


def test_halves_are_of_the_most_used_images_and_of_the_first_among_equals() -> None:
    """Of more than 16 inputs, where NumPy's default sorting is not stable."""
    random = np.random.default_rng(0)
    for _ in range(20):
        start = random.integers(20, size=(1, 4, 4))
        used = np.bincount(start.ravel(), minlength=20)
        best = sorted(sorted(range(20), key=lambda each: (-used[each], each))[:3])
        cut = inner_cut(np.zeros((20, 4, 4)), np.eye(20), np.eye(20)[start], 0, np.zeros(20), Weighing(), halves=True)
        assert [tuple(np.flatnonzero(row)) for row in cut.parts[20:]] == list(itertools.combinations(best, 2))


def test_the_saliency_of_the_first_image_is_shown() -> None:
    gradient = torch.rand(3, 8, 8)
    (shown,) = JointMask().shown(SimpleNamespace(guidance=Guidance(gradient=gradient)))  # pyright: ignore
    same(shown.grid, gradient[0])
