"""Triton kernels: attention statistics from queries and keys, without the matrix of attention.

Scores exist for one tile of queries and keys at a time, so time grows with N*M and memory with N + M. Products of
half-precision queries and keys are added up in float32, and everything after them is float32. Results never depend on
the order in which programs run: each output has one writer, which adds heads and tiles in order.

A row statistic (the carried share, or the log-sum-exp of every row) goes over the keys once with a running maximum. A
column statistic goes over the tiles a second time, transposed, once every row's log-sum-exp is known.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)  # exp2 is what the hardware has


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    if PRECISION == "interpreter":  # which multiplies bfloat16 as if it were integers
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def _add_bias(scores, bias, rows, columns, queries, keys, stride_row, stride_column, transposed: tl.constexpr):
    """Scores of a tile, in units of log 2, plus the bias of these rows and columns."""
    row, column = (rows[None, :], columns[:, None]) if transposed else (rows[:, None], columns[None, :])
    inside = (row < queries) & (column < keys)
    place = row.to(tl.int64) * stride_row + column * stride_column
    return scores + tl.load(bias + place, mask=inside, other=0.0).to(tl.float32) * LOG2_E


@triton.jit
def _row_tile(
    query, key, share, bias, best, total, carried, rows, first, queries, keys, scale,
    key_row, bias_row, bias_column,
    DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr, CARRY: tl.constexpr,
    BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running maximum, sum and carried share of some rows after one more tile of keys."""
    columns = first + tl.arange(0, BLOCK_K)
    depth = tl.arange(0, BLOCK_D)
    place = key + columns[None, :] * key_row + depth[:, None]
    if MASKED or DEPTH < BLOCK_D:
        tile = tl.load(place, mask=(columns[None, :] < keys) & (depth[:, None] < DEPTH), other=0.0)
    else:
        tile = tl.load(place)
    scores = _product(query, tile, PRECISION)
    if BIASED:
        scores = _add_bias(scores * scale, bias, rows, columns, queries, keys, bias_row, bias_column, False)
        if MASKED:
            scores = tl.where(columns[None, :] < keys, scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # Where a bias hides every key so far, the maximum is -inf, and -inf - -inf is not a number.
        shift = tl.where(new_best == -float("inf"), 0.0, new_best)
        weight = tl.exp2(scores - shift[:, None])
    else:
        if MASKED:
            scores = tl.where(columns[None, :] < keys, scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1) * scale)
        shift = new_best
        weight = tl.exp2(scores * scale - shift[:, None])
    old = tl.exp2(best - shift)
    total = total * old + tl.sum(weight, 1)
    if CARRY:
        part = tl.load(share + columns, mask=columns < keys, other=0.0)
        carried = carried * old + tl.sum(weight * part[None, :], 1)
    return new_best, total, carried


@triton.jit
def _row_program(
    query, key, share, bias, out, heads, queries, groups, scale,
    query_batch, query_head, query_row, key_batch, key_head, key_row, share_batch,
    bias_group, bias_head, bias_row, bias_column, first_row,
    KEYS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    TAIL: tl.constexpr, CARRY: tl.constexpr, BIASED: tl.constexpr, UNROLL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    rows = first_row + tl.arange(0, BLOCK_Q)
    depth = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (depth[None, :] < DEPTH)
    first_head = 0 if CARRY else tl.program_id(2)
    last_head = heads if CARRY else first_head + 1
    query += batch * query_batch + rows[:, None].to(tl.int64) * query_row + depth[None, :]
    key += batch * key_batch
    share += batch * share_batch
    bias += (batch % groups) * bias_group
    mean = tl.zeros([BLOCK_Q], tl.float32)
    for head in range(first_head, last_head):
        tile = tl.load(query + head * query_head, mask=inside, other=0.0)
        best = tl.full([BLOCK_Q], -float("inf"), tl.float32)
        total = tl.zeros([BLOCK_Q], tl.float32)
        carried = tl.zeros([BLOCK_Q], tl.float32)
        keys = key + head * key_head
        added = bias + head * bias_head
        if UNROLL:
            for number in tl.static_range(KEYS // BLOCK_K):
                best, total, carried = _row_tile(
                    tile, keys, share, added, best, total, carried, rows, number * BLOCK_K, queries, KEYS, scale,
                    key_row, bias_row, bias_column,
                    DEPTH, BLOCK_D, BLOCK_K, False, CARRY, BIASED, PRECISION,
                )  # fmt: skip
        else:
            for number in range(KEYS // BLOCK_K):
                best, total, carried = _row_tile(
                    tile, keys, share, added, best, total, carried, rows, number * BLOCK_K, queries, KEYS, scale,
                    key_row, bias_row, bias_column,
                    DEPTH, BLOCK_D, BLOCK_K, False, CARRY, BIASED, PRECISION,
                )  # fmt: skip
        if KEYS % BLOCK_K:
            best, total, carried = _row_tile(
                tile, keys, share, added, best, total, carried, rows, KEYS // BLOCK_K * BLOCK_K, queries, KEYS, scale,
                key_row, bias_row, bias_column,
                DEPTH, BLOCK_D, TAIL, True, CARRY, BIASED, PRECISION,
            )  # fmt: skip
        if CARRY:
            mean += carried / total
        else:
            mean = best + tl.log2(total)
    if CARRY:
        tl.store(out + batch * queries + rows, mean / heads, mask=rows < queries)
    else:
        tl.store(out + (batch * heads + first_head) * queries + rows, mean, mask=rows < queries)


@triton.jit
def row_kernel(
    query, key, share, bias, out, heads, queries, groups, scale,
    query_batch, query_head, query_row, key_batch, key_head, key_row, share_batch,
    bias_group, bias_head, bias_row, bias_column,
    KEYS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, LAST_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, TAIL: tl.constexpr, CARRY: tl.constexpr, BIASED: tl.constexpr, UNROLL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` (B, N): the carried share; or (B, H, N): the log-sum-exp of every row in units of log 2.

    One program does a tile of queries: of all heads for the carried share, which is their mean, else of one. Keys come
    in tiles of BLOCK_K and a last one of TAIL, queries in tiles of BLOCK_Q and a last one of LAST_Q, just wide enough
    for the rest.
    """
    first_row = tl.program_id(0) * BLOCK_Q
    if LAST_Q < BLOCK_Q:
        if first_row + BLOCK_Q > queries:
            _row_program(
                query, key, share, bias, out, heads, queries, groups, scale,
                query_batch, query_head, query_row, key_batch, key_head, key_row, share_batch,
                bias_group, bias_head, bias_row, bias_column, first_row,
                KEYS, DEPTH, BLOCK_D, LAST_Q, BLOCK_K, TAIL, CARRY, BIASED, UNROLL, PRECISION,
            )  # fmt: skip
            return
    _row_program(
        query, key, share, bias, out, heads, queries, groups, scale,
        query_batch, query_head, query_row, key_batch, key_head, key_row, share_batch,
        bias_group, bias_head, bias_row, bias_column, first_row,
        KEYS, DEPTH, BLOCK_D, BLOCK_Q, BLOCK_K, TAIL, CARRY, BIASED, UNROLL, PRECISION,
    )  # fmt: skip


@triton.jit
def column_kernel(
    query, key, weight, bias, sums, out, heads, queries, keys, groups, scale,
    query_batch, query_head, query_row, key_batch, key_head, key_row, weight_batch,
    bias_group, bias_head, bias_row, bias_column,
    DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` (B, M): the weights of the rows, pulled to the columns; `sums` (B, H, N) is what `row_kernel` made."""
    batch = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    depth = tl.arange(0, BLOCK_D)
    inside = (columns[:, None] < keys) & (depth[None, :] < DEPTH)
    query += batch * query_batch
    key += batch * key_batch + columns[:, None].to(tl.int64) * key_row + depth[None, :]
    weight += batch * weight_batch
    bias += (batch % groups) * bias_group
    pulled = tl.zeros([BLOCK_K], tl.float32)
    for head in range(heads):
        tile = tl.load(key + head * key_head, mask=inside, other=0.0)
        for first in range(0, queries, BLOCK_Q):
            rows = first + tl.arange(0, BLOCK_Q)
            place = query + head * query_head + rows[None, :].to(tl.int64) * query_row + depth[:, None]
            turned = tl.load(place, mask=(rows[None, :] < queries) & (depth[:, None] < DEPTH), other=0.0)
            scores = _product(tile, turned, PRECISION) * scale
            if BIASED:
                added = bias + head * bias_head
                scores = _add_bias(scores, added, rows, columns, queries, keys, bias_row, bias_column, True)
            total = tl.load(sums + (batch * heads + head) * queries + rows, mask=rows < queries, other=float("inf"))
            share = tl.load(weight + rows, mask=rows < queries, other=0.0)
            pulled += tl.sum(tl.exp2(scores - total[None, :]) * share[None, :], 1)
    tl.store(out + batch * keys + columns, pulled / heads, mask=columns < keys)


def carried_share(query: Tensor, key: Tensor, share: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """See `vitmix.statistics.carried_share`."""
    out = query.new_empty(query.shape[0], query.shape[2], dtype=torch.float32)
    _rows(query, key, share.float().contiguous(), bias, scale, out)
    return out


def pulled_weight(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """See `vitmix.statistics.pulled_weight`."""
    batch, heads, queries, depth = query.shape
    keys = key.shape[2]
    weight = weight.float().contiguous()
    query, key = _unit_depth(query), _unit_depth(key)
    sums = query.new_empty(batch, heads, queries, dtype=torch.float32)
    out = query.new_empty(batch, keys, dtype=torch.float32)
    _rows(query, key, None, bias, scale, sums)
    block_q, block_k = _fit(queries, 64), _fit(keys, 64)
    column_kernel[(triton.cdiv(keys, block_k), batch)](
        query, key, weight, query if bias is None else bias, sums, out,
        heads, queries, keys, 1 if bias is None else len(bias), scale * LOG2_E.value,
        *query.stride()[:3], *key.stride()[:3], 0 if len(weight) == 1 else queries, *_bias_strides(bias),
        DEPTH=depth, BLOCK_D=_fit(depth, 128), BLOCK_Q=block_q, BLOCK_K=block_k,
        BIASED=bias is not None, PRECISION=_precision(query), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def _rows(query: Tensor, key: Tensor, share: Tensor | None, bias: Tensor | None, scale: float, out: Tensor) -> None:
    """Fills `out` with the carried share, or without a share with the log-sum-exp of every row."""
    query, key = _unit_depth(query), _unit_depth(key)
    batch, heads, queries, depth = query.shape
    keys = key.shape[2]
    block_q, block_k = _fit(queries, 64), _fit(keys, 64)
    row_kernel[(triton.cdiv(queries, block_q), batch, 1 if share is not None else heads)](
        query, key, out if share is None else share, query if bias is None else bias, out,
        heads, queries, 1 if bias is None else len(bias), scale * LOG2_E.value,
        *query.stride()[:3], *key.stride()[:3], keys, *_bias_strides(bias),
        KEYS=keys, DEPTH=depth, BLOCK_D=_fit(depth, 128), BLOCK_Q=block_q,
        LAST_Q=_fit(queries % block_q or block_q, block_q), BLOCK_K=block_k, TAIL=_fit(keys % block_k, block_k), CARRY=share is not None, BIASED=bias is not None,
        UNROLL=keys <= 4 * block_k, PRECISION=_precision(query), num_warps=4, num_stages=2,
    )  # fmt: skip


def _fit(length: int, most: int) -> int:
    """A power of two that holds a length if `most` does, and at least the 16 that a matrix product needs."""
    return min(most, max(16, triton.next_power_of_2(length)))


def _precision(query: Tensor) -> str:
    if not query.is_cuda:
        return "interpreter"
    return "ieee" if query.dtype == torch.float32 else "tf32"  # which means nothing to half precision


def _unit_depth(tokens: Tensor) -> Tensor:
    return tokens if tokens.stride(3) == 1 else tokens.contiguous()


def _bias_strides(bias: Tensor | None) -> tuple[int, int, int, int]:
    if bias is None:
        return 0, 0, 0, 0
    group, head, row, column = bias.stride()
    return group, 0 if bias.shape[1] == 1 else head, row, column
