"""Flows and attention statistics against the dense matrix they stand for, built here in plain steps."""

import pytest
import torch
from torch import Tensor

import dense
import reference
from support import close, same
from vitmix import functional as F
from vitmix.attention.flow import (
    ClassOnly,
    Flow,
    Given,
    Matrix,
    Pooled,
    Products,
    Reduced,
    Windows,
    cut_windows,
    join_windows,
)

BATCH, HEADS, TOKENS, WIDTH, PREFIX, BANK = 6, 3, 7, 5, 2, 4


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def softmaxed(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Attention `(B, H, N, M)`, one batch row at a time; of several biases each row has its own in turn."""
    rows = []
    for b in range(len(query)):
        scores = query[b] @ key[b].transpose(1, 2) * (scale if scale is not None else query.shape[-1] ** -0.5)
        rows.append((scores if bias is None else scores + bias[b % len(bias)]).softmax(-1))
    return torch.stack(rows)


SHAPES = {
    "plain": {},
    "a scale": dict(scale=0.9),
    "a bias": dict(bias=(1, HEADS)),
    "a bias for all heads": dict(bias=(1, 1)),
    "biases in turn": dict(bias=(3, HEADS), scale=0.2),
}


def products(shape: dict, queries: int = TOKENS, keys: int = TOKENS) -> tuple[Products, Tensor]:
    """A flow with its attention."""
    query, key = random(BATCH, HEADS, queries, WIDTH), random(BATCH, HEADS, keys, WIDTH)
    bias = random(*shape["bias"], queries, keys) if "bias" in shape else None
    attention = softmaxed(query, key, bias, shape.get("scale"))
    return Products(query, key, prefix=PREFIX, bias=bias, scale=shape.get("scale")), attention


def check_flow(flow: Flow, attention: Tensor) -> None:
    """Everything a flow with attention gives, of its attention `(B, H, N, N)` or of the mean `(B, N, N)`."""
    mean = attention.mean(1) if attention.ndim == 4 else attention
    share, weight = torch.rand(BATCH, TOKENS, dtype=torch.float64), torch.rand(BATCH, TOKENS, dtype=torch.float64)
    carried = (mean @ share.unsqueeze(2)).squeeze(2)
    close(flow.carry(share), carried, 1e-12)
    close(flow.update(share), (carried + share) / 2, 1e-12)
    close(flow.update(share, residual=False), carried, 1e-12)
    for rows in (1, 3):
        close(flow.update(share, rows=rows), ((carried + share) / 2)[:, :rows], 1e-12)
        close(flow.update(share, residual=False, rows=rows), carried[:, :rows], 1e-12)
    close(flow.pull(weight), (weight.unsqueeze(1) @ mean).squeeze(1), 1e-12)
    close(flow.pull(weight[:1]), (weight[:1].unsqueeze(1) @ mean).squeeze(1), 1e-12)
    close(flow.class_row(), mean[:, 0, flow.prefix :], 1e-12)
    close(flow.column_mean(), mean[:, flow.prefix :, flow.prefix :].mean(1), 1e-12)
    close(flow.mass().expand(BATCH, -1), mean.sum(2), 1e-12)
    for single in (flow.carry(share.float()), flow.update(share.float(), rows=1)):
        assert single.dtype == torch.float32


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_products_are_their_matrix(shape: dict) -> None:
    flow, attention = products(shape)
    check_flow(flow, attention)
    close(flow.maps(), attention, 1e-12)
    close(F.class_row(flow.query, flow.key, prefix=0, bias=flow.bias, scale=flow.scale), attention.mean(1)[:, 0], 1e-12)
    saliency = F.column_mean(flow.query, flow.key, prefix=PREFIX, bias=flow.bias, scale=flow.scale)
    close(saliency, reference.column_mean(attention, PREFIX), 1e-12)
    close(flow.class_row(), reference.class_row(attention, PREFIX), 1e-12)


def check_bank(long: Flow, attention: Tensor) -> None:
    """A flow whose last tokens are made a bank, of its attention `(B, H, N, N + bank)`."""
    bank = torch.rand(BATCH, BANK, dtype=torch.float64)
    flow = long.with_bank(BANK, bank)
    assert flow.tokens == TOKENS and flow.prefix == PREFIX
    mean, share = attention.mean(1), torch.rand(BATCH, TOKENS, dtype=torch.float64)
    carried = (mean @ torch.cat([share, bank], dim=1).unsqueeze(2)).squeeze(2)
    close(flow.carry(share), carried, 1e-12)
    close(flow.update(share, rows=2), ((carried + share) / 2)[:, :2], 1e-12)
    weight = torch.rand(BATCH, TOKENS, dtype=torch.float64)
    close(flow.pull(weight), (weight.unsqueeze(1) @ mean).squeeze(1)[:, :TOKENS], 1e-12)
    close(flow.class_row(), mean[:, 0, PREFIX:TOKENS], 1e-12)
    close(flow.column_mean(), mean[:, PREFIX:, PREFIX:TOKENS].mean(1), 1e-12)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_bank_adds_keys_and_their_shares(shape: dict) -> None:
    """The block computes a bank's tokens as queries too; the flow without them reads their shares as keys."""
    long, attention = products(shape, TOKENS + BANK, TOKENS + BANK)
    if long.bias is not None:  # that of the queries which stay
        long.bias = long.bias[:, :, :TOKENS]
    check_bank(long, attention[:, :, :TOKENS])
    _, attention = products({}, TOKENS + BANK, TOKENS + BANK)
    check_bank(Given(attention, prefix=PREFIX), attention[:, :, :TOKENS])


def test_given_attention_is_its_matrix() -> None:
    _, attention = products({})
    flow = Given(attention, prefix=PREFIX)
    check_flow(flow, attention)
    same(flow.maps(), attention)
    close(flow.head_saliency(class_token=True), attention[:, :, 0, PREFIX:], 1e-12)
    close(flow.head_saliency(class_token=False), attention[:, :, PREFIX:, PREFIX:].mean(2), 1e-12)
    assert Given(attention).prefix == 0
    rounded = Given(attention.half())
    share = torch.ones(BATCH, TOKENS)
    close(rounded.carry(share), share, 1e-6)  # its rows sum to one again
    assert rounded.pull(share).dtype == rounded.mass().dtype == torch.float32


def test_class_attention_leaves_patches_as_they_are() -> None:
    query, key = random(BATCH, HEADS, 1, WIDTH), random(BATCH, HEADS, TOKENS, WIDTH)
    row = softmaxed(query, key, None, None)
    mean = torch.eye(TOKENS, dtype=torch.float64).repeat(BATCH, 1, 1)
    mean[:, 0] = row.mean(1)[:, 0]
    flow = ClassOnly(query, key)
    check_flow(flow, mean)
    close(flow.maps(), row, 1e-12)


def test_attention_pooling_has_no_residual() -> None:
    query, key = random(BATCH, HEADS, 2, WIDTH), random(BATCH, HEADS, TOKENS, WIDTH)
    share = torch.rand(BATCH, TOKENS)
    flow = Pooled(query, key)
    expected = (softmaxed(query, key, None, None).mean(1) @ share.double().unsqueeze(2)).squeeze(2)
    for pooled in (flow.carry(share), flow.update(share)):
        close(pooled, expected, 1e-6)
        assert pooled.dtype == torch.float32
    assert flow.tokens == TOKENS


def test_fixed_weights_are_their_matrix() -> None:
    weights, share = random(TOKENS, TOKENS).softmax(1), torch.rand(BATCH, TOKENS, dtype=torch.float64)
    flow = Matrix(weights)
    expected = torch.stack([weights @ each for each in share])
    close(flow.carry(share), expected, 1e-12)
    close(flow.update(share, rows=3), ((expected + share) / 2)[:, :3], 1e-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(flow.carry(share.float()), expected, 1e-6)
    close(flow.carry(share.float()), expected, 1e-6)


WINDOWED = [((4, 6), (2, 3)), ((5, 4), (2, 3)), ((3, 3), (4, 4)), ((6, 5), (3, 5)), ((5, 6), (2, 3)), ((4, 5), (2, 3))]


@pytest.mark.parametrize("grid, window", WINDOWED)  # padded on no side, on both, and on one
@pytest.mark.parametrize("shift", [(0, 0), (1, 1), (0, 2)])
@pytest.mark.parametrize("pad_first", [False, True])
def test_windows_are_their_matrix(grid: tuple, window: tuple, shift: tuple, pad_first: bool) -> None:
    rows, columns = (-(-side // cells) * cells for side, cells in zip(grid, window, strict=True))
    count, cells, tokens = rows * columns // (window[0] * window[1]), window[0] * window[1], grid[0] * grid[1]
    query, key = random(BATCH * count, HEADS, cells, WIDTH), random(BATCH * count, HEADS, cells, WIDTH)
    flow = Windows(Products(query, key), grid, window, shift, pad_first=pad_first)
    attention = dense.spread_windows(softmaxed(query, key, None, None), grid, window, shift, pad_first)
    mean = attention.mean(1)
    share, weight = torch.rand(BATCH, tokens, dtype=torch.float64), torch.rand(1, tokens, dtype=torch.float64)
    close(flow.maps(), attention, 1e-12)
    close(flow.mass(), mean.sum(2), 1e-12)
    carried = (mean @ share.unsqueeze(2)).squeeze(2) / mean.sum(2)  # padding carries no share
    close(flow.carry(share), carried, 1e-12)
    close(flow.update(share), (carried + share) / 2, 1e-12)
    close(flow.pull(weight), (weight @ mean).squeeze(1), 1e-12)
    close(flow.column_mean(), mean.mean(1), 1e-12)
    values = random(2, *grid, 3)
    cut = cut_windows(values, window, shift, pad_first=pad_first)
    assert cut.shape == (2 * count, cells, 3)
    same(join_windows(cut, grid, window, shift, pad_first=pad_first), values)


def test_reduced_keys_are_their_matrix() -> None:
    grid, parts = (4, 6), ([range(2), range(2, 4)], [range(3), range(3, 6)])
    rows, columns = (torch.zeros(2, side, dtype=torch.float64) for side in grid)
    for weights, cells in ((rows, parts[0]), (columns, parts[1])):
        for number, cell in enumerate(cells):
            weights[number, cell] = 1 / len(cell)
    query, key, bias = random(BATCH, HEADS, 24, WIDTH), random(BATCH, HEADS, 4, WIDTH), random(1, HEADS, 24, 4)
    flow = Reduced(Products(query, key, bias=bias), rows, columns)
    attention = dense.spread_cells(softmaxed(query, key, bias, None), grid, parts)
    mean, share = attention.mean(1), torch.rand(BATCH, 24, dtype=torch.float64)
    close(flow.maps(), attention, 1e-12)
    close(flow.carry(share), (mean @ share.unsqueeze(2)).squeeze(2), 1e-12)
    close(flow.pull(share), (share.unsqueeze(1) @ mean).squeeze(1), 1e-12)
    close(flow.column_mean(), mean.mean(1), 1e-12)
    assert flow.tokens == 24
    single = Reduced(Products(query.float(), key.float(), bias=bias.float()), rows, columns)
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            close(single.carry(share.float()), (mean @ share.unsqueeze(2)).squeeze(2), 2e-6)
            close(single.pull(share.float()), (share.unsqueeze(1) @ mean).squeeze(1), 5e-6)


def test_a_bank_adds_keys_beside_the_reduced_ones() -> None:
    grid, parts = (4, 6), ([range(2), range(2, 4)], [range(3), range(3, 6)])
    rows, columns = (torch.zeros(2, side, dtype=torch.float64) for side in grid)
    for weights, cells in ((rows, parts[0]), (columns, parts[1])):
        for number, cell in enumerate(cells):
            weights[number, cell] = 1 / len(cell)
    query, key = random(BATCH, HEADS, 24 + BANK, WIDTH), random(BATCH, HEADS, 4 + BANK, WIDTH)
    bank, share = torch.rand(BATCH, BANK, dtype=torch.float64), torch.rand(BATCH, 24, dtype=torch.float64)
    flow = Reduced(Products(query, key), rows, columns).with_bank(BANK, bank)
    attention = softmaxed(query[:, :, :24], key, None, None)
    mean = dense.spread_cells(attention[..., :4], grid, parts).mean(1)
    of_bank = (attention[..., 4:].mean(1) @ bank.unsqueeze(2)).squeeze(2)
    close(flow.carry(share), (mean @ share.unsqueeze(2)).squeeze(2) + of_bank, 1e-12)
    close(flow.pull(share), (share.unsqueeze(1) @ mean).squeeze(1), 1e-12)


def test_statistics_have_no_gradient_and_float32_at_least() -> None:
    query, key = (random(2, HEADS, TOKENS, WIDTH).requires_grad_() for _ in range(2))
    flow = Products(query, key, bias=random(1, HEADS, TOKENS, TOKENS).requires_grad_())
    ones = torch.ones(2, TOKENS)
    for value in (flow.maps(), flow.class_row(), flow.column_mean(), flow.carry(ones), flow.pull(ones)):
        assert not value.requires_grad
    assert not Given(flow.maps().requires_grad_()).pull(ones).requires_grad
    half = Products(query.detach().bfloat16(), key.detach().bfloat16())
    exact = Products(half.query.double(), half.key.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for one, other in ((half.maps(), exact.maps()), (half.column_mean(), exact.column_mean())):
            assert one.dtype == torch.float32
            close(one, other, 2e-6)
        close(half.carry(ones), ones, 2e-6)
        close(half.pull(ones), exact.pull(ones), 1e-5)


@pytest.mark.parametrize("class_token", [False, True])
def test_rollout_goes_back_through_earlier_flows(class_token: bool) -> None:
    flows, maps = zip(*(products({}) for _ in range(3)), strict=True)
    eye = torch.eye(TOKENS, dtype=torch.float64)
    whole = maps[2].mean(1) @ ((maps[1].mean(1) + eye) / 2) @ ((maps[0].mean(1) + eye) / 2)
    expected = whole[:, 0, PREFIX:] if class_token else whole[:, PREFIX:, PREFIX:].mean(1)
    close(F.rollout_saliency(flows, class_token=class_token), expected, 1e-12)
    alone = maps[2].mean(1)
    expected = alone[:, 0, PREFIX:] if class_token else alone[:, PREFIX:, PREFIX:].mean(1)
    close(F.rollout_saliency(flows[2:], class_token=class_token), expected, 1e-12)
