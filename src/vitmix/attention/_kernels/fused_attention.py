"""Triton kernel: attention together with the share it carries, for half precision.

A program holds a tile of queries while tiles of keys and values stream, and keeps the running maximum, sum, share and
output of each row. Weights are rounded to the dtype of the values before the product, as in fused attention; sums and
shares use the unrounded weights. Tiles of keys are complete and need no mask, except for a narrower last one, which is
loaded first and waits in registers while the others stream.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitmix.attention._kernels.attention import LOG2_E, _fit, _precision, _product, _row_tile, _unit_depth

__all__ = ["BLOCK_K", "BLOCK_Q", "LAST_TILE", "LOG_2", "STAGES", "WARPS", "attend", "attend_kernel"]

LOG_2 = tl.constexpr(0.6931471805599453)
BLOCK_Q = 64  # queries of a program
BLOCK_K = 64  # keys of a tile
LAST_TILE = 16  # least keys of the last tile, which is a power of two
WARPS = 4
STAGES = 2  # tiles in flight


@triton.jit
def _add_tile(
    query, key, value, share, best, total, moved, result, first, scale,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running maximum, sum, share and output of some rows after one more tile of keys and values."""
    columns = first + tl.arange(0, BLOCK)
    scores = _product(query, tl.trans(key), PRECISION)
    if WHOLE:
        part = tl.load(share + columns)
    else:
        part = tl.load(share + columns, mask=columns < TOKENS, other=0.0)
        scores = tl.where(columns[None, :] < TOKENS, scores, -float("inf"))
    new_best = tl.maximum(best, tl.max(scores, 1) * scale)
    weight = tl.exp2(scores * scale - new_best[:, None])
    old = tl.exp2(best - new_best)
    total = total * old + tl.sum(weight, 1)
    moved = moved * old + tl.sum(weight * part[None, :], 1)
    result = result * old[:, None] + _product(weight.to(value.dtype), value, PRECISION)
    return new_best, total, moved, result


@triton.jit
def attend_kernel(
    query, key, value, share, out, sums, carried, heads, scale,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row, share_batch,
    TOKENS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    LAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` (B, N, H, d), `sums` and `carried` (B, H, N); `LAST` is the width of the last tile of keys, 0 if none."""
    tiles: tl.constexpr = (TOKENS + BLOCK_Q - 1) // BLOCK_Q
    whole: tl.constexpr = TOKENS // BLOCK_K * BLOCK_K
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = pair // heads, pair % heads
    rows = tl.program_id(0) % tiles * BLOCK_Q + tl.arange(0, BLOCK_Q)
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head * key_head
    value += batch * value_batch + head * value_head
    share += batch * share_batch
    tile = _row_tile(query, rows, TOKENS, query_row, DEPTH, BLOCK_D)
    if LAST > 0:
        last = whole + tl.arange(0, LAST)
        last_key = _row_tile(key, last, TOKENS, key_row, DEPTH, BLOCK_D)
        last_value = _row_tile(value, last, TOKENS, value_row, DEPTH, BLOCK_D)
    best = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    moved = tl.zeros([BLOCK_Q], tl.float32)
    result = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for first in range(0, whole, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        next_key = _whole_tile(key, columns, key_row, DEPTH, BLOCK_D)
        next_value = _whole_tile(value, columns, value_row, DEPTH, BLOCK_D)
        best, total, moved, result = _add_tile(
            tile, next_key, next_value, share, best, total, moved, result, first, scale,
            TOKENS, BLOCK_K, True, PRECISION,
        )  # fmt: skip
    if LAST > 0:
        best, total, moved, result = _add_tile(
            tile, last_key, last_value, share, best, total, moved, result, whole, scale,
            TOKENS, LAST, False, PRECISION,
        )  # fmt: skip
    depth = tl.arange(0, BLOCK_D)
    place = out + ((batch * TOKENS + rows[:, None]) * heads + head) * DEPTH + depth[None, :]
    inside = rows < TOKENS
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(place, result, mask=inside[:, None] & (depth[None, :] < DEPTH))
    tl.store(sums + pair * TOKENS + rows, (best + tl.log2(total)) * LOG_2, mask=inside)
    tl.store(carried + pair * TOKENS + rows, moved / total, mask=inside)


@triton.jit
def _whole_tile(tokens, rows, row_stride, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr):
    depth = tl.arange(0, BLOCK_D)
    place = tokens + rows[:, None] * row_stride + depth[None, :]
    if DEPTH == BLOCK_D:
        return tl.load(place)
    return tl.load(place, mask=depth[None, :] < DEPTH, other=0.0)


def attend(query: Tensor, key: Tensor, value: Tensor, share: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """See `vitmix.attention._kernels.attend`."""
    query, key, value = _unit_depth(query), _unit_depth(key), _unit_depth(value)
    batch, heads, tokens, depth = query.shape
    out = query.new_empty(batch, tokens, heads, depth).transpose(1, 2)
    sums = query.new_empty(batch, heads, tokens, dtype=torch.float32)
    carried = sums.new_empty(sums.shape)
    share = share.float().contiguous()
    rest = tokens % BLOCK_K
    attend_kernel[(triton.cdiv(tokens, BLOCK_Q) * batch * heads,)](
        query, key, value, share, out, sums, carried, heads, scale * LOG2_E.value,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], 0 if len(share) == 1 else tokens,
        TOKENS=tokens, DEPTH=depth, BLOCK_D=_fit(depth, 64), BLOCK_Q=BLOCK_Q, BLOCK_K=BLOCK_K,
        LAST=rest and min(BLOCK_K, max(LAST_TILE, triton.next_power_of_2(rest))), PRECISION=_precision(query),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out, sums, carried
