"""Flows of blocks that group, merge or overlap tokens, against the dense matrix they stand for."""

import pytest
import torch
from torch import Tensor

from support import close
from vitmix.attention.flow import Flow, Products
from vitmix.attention.groups import Followed, Groups, Merging, Overlapping

BATCH, HEADS, WIDTH = 3, 2, 5


def attention(batch: int, queries: int, keys: int) -> tuple[Products, Tensor]:
    """A flow and its matrix `(batch, H, queries, keys)`."""
    query, key = (torch.randn(batch, HEADS, count, WIDTH, dtype=torch.float64) for count in (queries, keys))
    return Products(query, key), (query @ key.transpose(2, 3) * WIDTH**-0.5).softmax(-1)


def check(flow: Flow, matrix: Tensor, *, maps: Tensor | None = None) -> None:
    """What a flow carries and pulls, of its matrix `(B, N, M)`."""
    share, weight = (torch.rand(BATCH, count, dtype=torch.float64) for count in (matrix.shape[2], matrix.shape[1]))
    close(flow.carry(share), (matrix @ share.unsqueeze(2)).squeeze(2), 1e-12)
    close(flow.pull(weight), (weight.unsqueeze(1) @ matrix).squeeze(1), 1e-12)
    close(flow.pull(weight[:1]), (weight[:1].unsqueeze(1) @ matrix).squeeze(1), 1e-12)
    if maps is not None:
        close(flow.maps(), maps, 1e-12)


@pytest.mark.parametrize("asking, groups", [(8, 2), (4, 2), (12, 4)])  # of as many tokens as keys, fewer, and more
def test_groups_are_their_matrix(asking: int, groups: int) -> None:
    tokens = 8
    queries, keys = (torch.randperm(count).view(groups, -1) for count in (asking, tokens))
    inner, parts = attention(BATCH * groups, asking // groups, tokens // groups)
    expected = torch.zeros(BATCH, HEADS, asking, tokens, dtype=torch.float64)
    for image in range(BATCH):
        for group in range(groups):
            for i, row in enumerate(queries[group]):
                for j, column in enumerate(keys[group]):
                    expected[image, :, row, column] = parts[image * groups + group, :, i, j]
    flow = Groups(inner, queries, keys)
    check(flow, expected.mean(1), maps=expected)
    weight = torch.rand(1, asking, dtype=torch.float64)
    close(flow.pull_keys(weight), flow.pull(weight), 0)
    assert flow.tokens == tokens


@pytest.mark.parametrize("shrinks", [True, False])
def test_merging_gives_each_token_what_its_cell_receives(shrinks: bool) -> None:
    cells = torch.tensor([0, 0, 1, 1, 2, 2, 0])
    inner, parts = attention(BATCH, 3, 7)
    flow = Merging(inner, cells, 3, (lambda share: share[:, [1, 3, 5]] / 2) if shrinks else None)
    expected = parts[:, :, cells]
    close(flow.maps(), expected, 1e-12)
    share, weight = (torch.rand(BATCH, 7, dtype=torch.float64) for _ in range(2))
    carried = (expected.mean(1) @ share.unsqueeze(2)).squeeze(2)
    close(flow.carry(share), carried, 1e-12)
    close(flow.pull(weight), (weight.unsqueeze(1) @ expected.mean(1)).squeeze(1), 1e-12)
    kept = (share[:, [1, 3, 5]] / 2)[:, cells]
    updated = (carried + kept) / 2 if shrinks else carried
    close(flow.update(share), updated, 1e-12)
    close(flow.update(share, rows=2), updated[:, :2], 1e-12)
    close(flow.update(share, residual=False), carried, 1e-12)
    assert flow.tokens == 7 and flow.prefix == inner.prefix


def test_what_follows_acts_on_what_was_carried() -> None:
    inner, parts = attention(BATCH, 4, 4)
    flow = Followed(inner, lambda share: share.cumsum(1))
    check(flow, parts.mean(1), maps=parts)
    share = torch.rand(BATCH, 4, dtype=torch.float64)
    carried = (parts.mean(1) @ share.unsqueeze(2)).squeeze(2)
    close(flow.update(share), ((carried + share) / 2).cumsum(1), 1e-12)
    close(flow.update(share, residual=False, rows=2), carried.cumsum(1)[:, :2], 1e-12)
    close(flow.mass().expand(BATCH, 4), torch.ones(BATCH, 4), 0)


@pytest.mark.parametrize("grid, kernel, padding, stride", [((3, 4), 3, 1, 1), ((4, 6), 3, 1, 2), ((4, 2), 2, 0, 2)])
def test_overlapping_windows_are_their_matrix(grid: tuple[int, int], kernel: int, padding: int, stride: int) -> None:
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in grid)
    cells, tokens = kernel * kernel, grid[0] * grid[1]
    inner = torch.randn(BATCH, HEADS, rows * columns, cells, cells, dtype=torch.float64).softmax(-1)
    added = torch.zeros(BATCH, HEADS, tokens, tokens, dtype=torch.float64)
    for window in range(rows * columns):
        top, left = window // columns * stride - padding, window % columns * stride - padding
        places = [(top + cell // kernel, left + cell % kernel) for cell in range(cells)]
        for i, (y, x) in enumerate(places):
            for j, (v, u) in enumerate(places):
                if 0 <= y < grid[0] and 0 <= x < grid[1] and 0 <= v < grid[0] and 0 <= u < grid[1]:
                    added[:, :, y * grid[1] + x, v * grid[1] + u] += inner[:, :, window, i, j]
    expected = added / added.mean(1, keepdim=True).sum(3, keepdim=True)
    flow = Overlapping(inner, grid, kernel=kernel, padding=padding, stride=stride)
    check(flow, expected.mean(1), maps=expected)
    share = torch.rand(BATCH, tokens)
    assert flow.carry(share).dtype == torch.float32
