"""Triton kernels: attention statistics from queries and keys, without the attention matrix.

Scores exist for one tile at a time, so time grows with N*M and memory with N + M. Products of half-precision queries
and keys are accumulated in float32, and everything after them is float32. Each result has one writer, which adds its
tiles in order, so results do not depend on the order in which programs run.

There are three statistics of a row of scores against all columns, one for each `MODE`:

    carry   softmax(scores) @ given             rows are queries, columns keys, `given` the share of each key
    sums    the log-sum-exp in units of log 2   rows are queries, columns keys
    pull    sum of exp(scores - sums) * given   rows are keys, columns queries, `given` the weight of each query

A column statistic of attention is therefore `sums`, then `pull` with queries and keys exchanged. Up to 256 columns in
half precision are loaded once and stay in shared memory while the rows stream; others stream for each tile of rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "LOG2_E",
    "SHORT",
    "TILE",
    "carried_shares",
    "long_kernel",
    "one_query_kernel",
    "pulled_weight",
    "short_kernel",
]

LOG2_E = tl.constexpr(1.4426950408889634)  # the hardware has exp2
SHORT = 256  # columns that stay in shared memory
TILE = 64  # rows of a tile, and columns of a streamed tile


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    if PRECISION == "interpreter":  # the interpreter multiplies bfloat16 as if it were integers
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def _column_tile(
    right, first, columns_end, row_stride, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr
):
    """A tile (BLOCK_D, BLOCK) of columns, zeros after the last."""
    columns = first + tl.arange(0, BLOCK)
    depth = tl.arange(0, BLOCK_D)
    inside = (columns[None, :] < columns_end) & (depth[:, None] < DEPTH)
    return tl.load(right + columns[None, :] * row_stride + depth[:, None], mask=inside, other=0.0)


@triton.jit
def _row_tile(left, rows, rows_end, row_stride, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr):
    depth = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < rows_end) & (depth[None, :] < DEPTH)
    return tl.load(left + rows[:, None] * row_stride + depth[None, :], mask=inside, other=0.0)


@triton.jit
def _add_tile(
    left, tile, given, sums, bias, best, total, result, rows, first, rows_end, columns_end, scale,
    bias_row, bias_column, BLOCK: tl.constexpr, MODE: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running maximum, sum and statistic of some rows after one more tile of columns."""
    columns = first + tl.arange(0, BLOCK)
    here = columns < columns_end
    scores = _product(left, tile, PRECISION)
    if BIASED:
        inside = (rows[:, None] < rows_end) & here[None, :]
        place = rows[:, None].to(tl.int64) * bias_row + columns[None, :].to(tl.int64) * bias_column
        scores = scores * scale + tl.load(bias + place, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        scale = 1.0
    if MODE == "pull":
        shift = tl.load(sums + columns, mask=here, other=float("inf"))
        part = tl.load(given + columns, mask=here, other=0.0)
        result += tl.sum(tl.exp2(scores * scale - shift[None, :]) * part[None, :], 1)
    else:
        scores = tl.where(here[None, :], scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1) * scale)
        # If a bias masks every column so far, the maximum is -inf, and -inf - -inf is NaN.
        shift = tl.where(new_best == -float("inf"), 0.0, new_best) if BIASED else new_best
        weight = tl.exp2(scores * scale - shift[:, None])
        old = tl.exp2(best - shift)
        best = new_best
        total = total * old + tl.sum(weight, 1)
        if MODE == "carry":
            part = tl.load(given + columns, mask=here, other=0.0)
            result = result * old + tl.sum(weight * part[None, :], 1)
    return best, total, result


@triton.jit
def _store(out, rows, rows_end, best, total, result, MODE: tl.constexpr):
    if MODE == "carry":
        result = result / total
    elif MODE == "sums":
        result = best + tl.log2(total)
    tl.store(out + rows, result, mask=rows < rows_end)


@triton.jit
def short_kernel(
    left, right, given, sums, bias, out, heads, rows_end, rows_each, groups, scale,
    left_batch, left_head, left_row, right_batch, right_head, right_row, given_batch,
    bias_group, bias_head, bias_row, bias_column,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    WIDTH_0: tl.constexpr, WIDTH_1: tl.constexpr, WIDTH_2: tl.constexpr, WIDTH_3: tl.constexpr,
    MODE: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` (B, H, rows) for at most 256 columns, in up to four tiles; a width of 0 means no tile."""
    pair = tl.program_id(0).to(tl.int64)
    batch, head = pair // heads, pair % heads
    left += batch * left_batch + head * left_head
    right += batch * right_batch + head * right_head
    given += batch * given_batch
    bias += (batch % groups) * bias_group + head * bias_head
    sums += pair * COLUMNS
    out += pair * rows_end
    tile_0 = _column_tile(right, 0, COLUMNS, right_row, DEPTH, BLOCK_D, WIDTH_0)
    if WIDTH_1 > 0:
        tile_1 = _column_tile(right, WIDTH_0, COLUMNS, right_row, DEPTH, BLOCK_D, WIDTH_1)
    if WIDTH_2 > 0:
        tile_2 = _column_tile(right, WIDTH_0 + WIDTH_1, COLUMNS, right_row, DEPTH, BLOCK_D, WIDTH_2)
    if WIDTH_3 > 0:
        tile_3 = _column_tile(right, WIDTH_0 + WIDTH_1 + WIDTH_2, COLUMNS, right_row, DEPTH, BLOCK_D, WIDTH_3)
    start = tl.program_id(1) * rows_each
    following = _row_tile(left, start + tl.arange(0, ROWS), rows_end, left_row, DEPTH, BLOCK_D)
    for first in range(start, min(start + rows_each, rows_end), ROWS):
        rows = first + tl.arange(0, ROWS)
        # Operands that were not just loaded are passed in registers, which avoids a fence around shared memory.
        tile = tl.where(rows[:, None] < rows_end, following, 0.0)
        following = _row_tile(left, rows + ROWS, rows_end, left_row, DEPTH, BLOCK_D)
        best = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        result = tl.zeros([ROWS], tl.float32)
        best, total, result = _add_tile(
            tile, tile_0, given, sums, bias, best, total, result, rows, 0, rows_end, COLUMNS, scale,
            bias_row, bias_column, WIDTH_0, MODE, BIASED, PRECISION,
        )  # fmt: skip
        if WIDTH_1 > 0:
            best, total, result = _add_tile(
                tile, tile_1, given, sums, bias, best, total, result, rows, WIDTH_0, rows_end, COLUMNS, scale,
                bias_row, bias_column, WIDTH_1, MODE, BIASED, PRECISION,
            )  # fmt: skip
        if WIDTH_2 > 0:
            best, total, result = _add_tile(
                tile, tile_2, given, sums, bias, best, total, result, rows, WIDTH_0 + WIDTH_1, rows_end, COLUMNS, scale,
                bias_row, bias_column, WIDTH_2, MODE, BIASED, PRECISION,
            )  # fmt: skip
        if WIDTH_3 > 0:
            best, total, result = _add_tile(
                tile, tile_3, given, sums, bias, best, total, result, rows, WIDTH_0 + WIDTH_1 + WIDTH_2, rows_end,
                COLUMNS, scale, bias_row, bias_column, WIDTH_3, MODE, BIASED, PRECISION,
            )  # fmt: skip
        _store(out, rows, rows_end, best, total, result, MODE)


@triton.jit
def long_kernel(
    left, right, given, sums, bias, out, heads, rows_end, columns_end, groups, scale,
    left_batch, left_head, left_row, right_batch, right_head, right_row, given_batch,
    bias_group, bias_head, bias_row, bias_column,
    DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    MODE: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`out` (B, H, rows) for any number of columns."""
    pair = tl.program_id(0).to(tl.int64)
    batch, head = pair // heads, pair % heads
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    left += batch * left_batch + head * left_head
    right += batch * right_batch + head * right_head
    given += batch * given_batch
    bias += (batch % groups) * bias_group + head * bias_head
    sums += pair * columns_end
    tile = _row_tile(left, rows, rows_end, left_row, DEPTH, BLOCK_D)
    best = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS], tl.float32)
    for first in tl.range(0, columns_end, COLUMNS, num_stages=STAGES):
        columns = _column_tile(right, first, columns_end, right_row, DEPTH, BLOCK_D, COLUMNS)
        best, total, result = _add_tile(
            tile, columns, given, sums, bias, best, total, result, rows, first, rows_end, columns_end, scale,
            bias_row, bias_column, COLUMNS, MODE, BIASED, PRECISION,
        )  # fmt: skip
    _store(out + pair * rows_end, rows, rows_end, best, total, result, MODE)


@triton.jit
def one_query_kernel(
    query, key, weight, bias, out, heads, groups, scale,
    query_batch, query_head, key_batch, key_head, key_row, weight_batch, bias_group, bias_head, bias_column,
    KEYS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """`out` (B, M): the attention row of a single query, averaged over heads, times its weight."""
    batch = tl.program_id(0).to(tl.int64)
    keys, depth = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    inside = (keys[:, None] < KEYS) & (depth[None, :] < DEPTH)
    query += batch * query_batch + depth
    key += batch * key_batch + keys[:, None] * key_row + depth[None, :]
    bias += (batch % groups) * bias_group + keys.to(tl.int64) * bias_column
    mean = tl.zeros([BLOCK_K], tl.float32)
    for head in range(heads):
        own = tl.load(query + head * query_head, mask=depth < DEPTH, other=0.0).to(tl.float32)
        tile = tl.load(key + head * key_head, mask=inside, other=0.0).to(tl.float32)
        scores = tl.sum(tile * own[None, :], 1) * scale
        if BIASED:
            scores += tl.load(bias + head * bias_head, mask=keys < KEYS, other=0.0).to(tl.float32) * LOG2_E
        scores = tl.where(keys < KEYS, scores, -float("inf"))
        attention = tl.exp2(scores - tl.max(scores, 0))
        mean += attention / tl.sum(attention, 0)
    mean = mean / heads * tl.load(weight + batch * weight_batch)
    tl.store(out + batch * KEYS + keys, mean, mask=keys < KEYS)


def carried_shares(query: Tensor, key: Tensor, share: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """See `vitmix.attention._kernels.carried_shares`."""
    return _rows("carry", query, key, share, None, bias, scale)


def pulled_weight(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """See `vitmix.attention._kernels.pulled_weight`."""
    block_k, block_d = triton.next_power_of_2(key.shape[2]), triton.next_power_of_2(key.shape[3])
    if query.shape[2] == 1 and block_k * block_d <= 32768:  # numbers that fit in the registers of 256 threads
        return _one_query(query, key, weight, bias, scale, block_k, block_d)
    sums = _rows("sums", query, key, None, None, bias, scale)
    turned = None if bias is None else bias.transpose(2, 3)
    return _rows("pull", key, query, weight, sums, turned, scale).mean(1)


def _rows(
    mode: str, left: Tensor, right: Tensor, given: Tensor | None, sums: Tensor | None, bias: Tensor | None, scale: float
) -> Tensor:
    """The statistic `(B, H, rows)` of the rows in `left` `(B, H, rows, d)` and the columns in `right`."""
    left, right = _unit_depth(left), _unit_depth(right)
    (batch, heads, rows, depth), columns = left.shape, right.shape[2]
    out = left.new_empty(batch, heads, rows, dtype=torch.float32)
    given = out if given is None else given.float().contiguous()
    half, short_depth = left.dtype != torch.float32, depth <= 64
    tile = TILE if half else TILE // 2  # exact float32 products are computed in registers
    height = _fit(rows, tile)
    tensors = (left, right, given, out if sums is None else sums, left if bias is None else bias, out)
    strides = (*left.stride()[:3], *right.stride()[:3], 0 if len(given) == 1 else columns, *_bias_strides(bias))
    groups, scale = 1 if bias is None else len(bias), scale * LOG2_E.value
    settings = {"DEPTH": depth, "BLOCK_D": _fit(depth, 128), "ROWS": height, "MODE": mode, "BIASED": bias is not None}
    settings |= {"PRECISION": _precision(left), "num_warps": 4}
    if half and columns <= SHORT:
        # A program processes all rows, unless that leaves most of the device idle.
        each = rows if batch * heads >= 512 else height
        widths = _widths(columns, 128 if short_depth else 64)
        settings |= {f"WIDTH_{number}": width for number, width in enumerate(widths)}
        if short_depth and bias is None and torch.version.cuda is not None:
            settings["maxnreg"] = 128  # per thread, which allows four programs per multiprocessor
        short_kernel[(batch * heads, triton.cdiv(rows, each))](
            *tensors, heads, rows, each, groups, scale, *strides, COLUMNS=columns, **settings
        )
    else:
        settings |= {"COLUMNS": tile, "STAGES": 3 if half and short_depth else 2}
        long_kernel[(batch * heads, triton.cdiv(rows, height))](
            *tensors, heads, rows, columns, groups, scale, *strides, **settings
        )
    return out


def _one_query(
    query: Tensor, key: Tensor, weight: Tensor, bias: Tensor | None, scale: float, block_k: int, block_d: int
) -> Tensor:
    query, key = _unit_depth(query), _unit_depth(key)
    (batch, heads, _, depth), keys = query.shape, key.shape[2]
    out = query.new_empty(batch, keys, dtype=torch.float32)
    group, head, _, column = _bias_strides(bias)
    one_query_kernel[(batch,)](
        query, key, weight.float().contiguous(), query if bias is None else bias, out,
        heads, 1 if bias is None else len(bias), scale * LOG2_E.value,
        *query.stride()[:2], *key.stride()[:3], 0 if len(weight) == 1 else 1, group, head, column,
        KEYS=keys, DEPTH=depth, BLOCK_D=block_d, BLOCK_K=block_k, BIASED=bias is not None, num_warps=8,
    )  # fmt: skip
    return out


def _fit(length: int, most: int) -> int:
    """The next power of two of a length, at least 16, which a matrix product needs, and at most `most`."""
    return min(most, max(16, triton.next_power_of_2(length)))


def _widths(columns: int, most: int) -> list[int]:
    """Four tile widths for at most 256 columns, with little padding; zero means no tile."""
    widths: list[int] = []
    while columns > 0:
        width = _fit(columns, most)
        if width - columns >= 16 and len(widths) < 3:
            width //= 2
        widths.append(width)
        columns -= width
    return widths + [0] * (4 - len(widths))


def _precision(query: Tensor) -> str:
    if not query.is_cuda:
        return "interpreter"
    return "ieee" if query.dtype == torch.float32 else "tf32"  # no effect in half precision


def _unit_depth(tokens: Tensor) -> Tensor:
    return tokens if tokens.stride(3) == 1 else tokens.contiguous()


def _bias_strides(bias: Tensor | None) -> tuple[int, int, int, int]:
    if bias is None:
        return 0, 0, 0, 0
    group, head, row, column = bias.stride()
    return group, 0 if bias.shape[1] == 1 else head, row, column
