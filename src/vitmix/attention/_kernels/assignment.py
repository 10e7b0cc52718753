"""Triton kernels: HTM's best partners, without the host.

A single program solves the assignment exactly by shortest augmenting paths, one easy sample after the other, with all
columns in registers. It computes in float64, like SciPy, so the total gain equals SciPy's up to the rounding of the
gains. Among several best assignments, it always chooses the same one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["assign_partners", "gain_kernel", "solve_kernel"]


@triton.jit
def gain_kernel(
    saliency, easy, gain, batch, tokens, rho, row_stride, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr
):  # fmt: skip
    """Writes the rows of easy samples of `gain` (B, B): the sum over tokens of max(S_candidate - S_easy - rho, 0)."""
    row = tl.program_id(0)
    if tl.load(easy + row) != 0:
        candidates = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
        total = tl.zeros([BLOCK_B], tl.float32)
        for first in range(0, tokens, BLOCK_T):
            columns = first + tl.arange(0, BLOCK_T)
            own = tl.load(saliency + row * row_stride + columns, mask=columns < tokens, other=0.0)
            inside = (candidates[:, None] < batch) & (columns[None, :] < tokens)
            place = saliency + candidates[:, None] * row_stride + columns[None, :]
            theirs = tl.load(place, mask=inside, other=-float("inf"))
            total += tl.sum(tl.maximum(theirs - own[None, :] - rho, 0.0), 1)
        # NaN must not keep the solver searching.
        total = tl.where(total < 1e30, total, 0.0)
        tl.store(gain + row.to(tl.int64) * batch + candidates, total, mask=candidates < batch)


@triton.jit
def _nearer(length, column, owner, price, other_length, other_column, other_owner, other_price):
    other = (other_length < length) | ((other_length == length) & (other_column < column))
    return (
        tl.where(other, other_length, length),
        tl.where(other, other_column, column),
        tl.where(other, other_owner, owner),
        tl.where(other, other_price, price),
    )


@triton.jit
def solve_kernel(gain, easy, partner, batch, BLOCK: tl.constexpr):
    """Writes `partner` (B,): easy rows of `gain` get different columns with the largest total, other rows themselves.

    Shortest augmenting paths (Crouse 2016, as in SciPy) on the costs -gain. Only the dual prices of the columns are
    stored: that of an assigned row follows from its column, because the reduced cost of an assigned pair is zero.
    """
    columns = tl.arange(0, BLOCK)
    exists = columns < batch
    waiting = tl.load(easy + columns, mask=exists, other=0) != 0
    chosen = waiting
    price = tl.zeros([BLOCK], tl.float64)
    owner = tl.full([BLOCK], -1, tl.int32)
    row = tl.min(tl.where(waiting, columns, BLOCK), 0)
    while row < BLOCK:
        waiting = waiting & (columns != row)
        length = tl.full([BLOCK], float("inf"), tl.float64)  # of the shortest path to each column
        before = tl.full([BLOCK], -1, tl.int32)  # the column whose owner precedes on that path; -1 is this row
        open = exists
        reached = tl.full([], 0.0, tl.float64)
        offset = tl.full([], 0.0, tl.float64)
        at = tl.full([], -1, tl.int32)
        current = row
        while current >= 0:
            cost = -tl.load(gain + current.to(tl.int64) * batch + columns, mask=exists, other=0.0).to(tl.float64)
            step = reached + (cost - price - offset)
            shorter = open & (step < length)
            length = tl.where(shorter, step, length)
            before = tl.where(shorter, at, before)
            candidate = tl.where(open, length, float("inf"))
            reached, at, next_owner, its_price = tl.reduce((candidate, columns, owner, price), 0, _nearer)
            open = open & (columns != at)
            # Without an owner, this row of gains may not have been written.
            place = gain + tl.maximum(next_owner, 0).to(tl.int64) * batch + at
            offset = -tl.load(place, mask=next_owner >= 0, other=0.0).to(tl.float64) - its_price
            current = next_owner
        closed = exists & (open == 0)
        price = tl.where(closed, price - (reached - length), price)
        # Every row on the path moves to the next column, back to the column that this row takes.
        while at >= 0:
            previous = tl.max(tl.where(columns == at, before, -1), 0)
            mover = tl.max(tl.where(columns == previous, owner, -1), 0)
            mover = tl.where(previous < 0, row, mover)
            owner = tl.where(columns == at, mover, owner)
            at = previous
        row = tl.min(tl.where(waiting, columns, BLOCK), 0)
    tl.store(partner + columns, columns.to(tl.int64), mask=exists & (chosen == 0))
    tl.store(partner + tl.maximum(owner, 0), columns.to(tl.int64), mask=owner >= 0)


def assign_partners(saliency: Tensor, easy: Tensor, rho: float) -> Tensor:
    """See `vitmix.parts.assignment.assign_partners`."""
    batch, tokens = saliency.shape
    saliency = saliency if saliency.stride(1) == 1 else saliency.contiguous()
    easy = easy.contiguous().view(torch.int8)
    gain = saliency.new_empty(batch, batch)  # only the rows of easy samples are written and read
    partner = torch.empty(batch, dtype=torch.long, device=saliency.device)
    block_t = min(256, max(16, triton.next_power_of_2(tokens)))
    block_b = max(4, 4096 // block_t)
    gain_kernel[(batch, triton.cdiv(batch, block_b))](
        saliency, easy, gain, batch, tokens, rho, saliency.stride(0), BLOCK_B=block_b, BLOCK_T=block_t, num_warps=4
    )
    block = max(32, triton.next_power_of_2(batch))
    solve_kernel[(1,)](gain, easy, partner, batch, BLOCK=block, num_warps=max(1, min(8, block // 256)))
    return partner
