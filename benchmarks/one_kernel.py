"""One kernel for attention and its carried share, against fused attention followed by the share's own kernel, on a GPU.

    python benchmarks/one_kernel.py [--batch 1024] [--heads 6] [--tokens 197] [--depth 64]

The one-kernel form returns output, log-sum-exp and carried share; its backward is the fused one, which takes the output
and the log-sum-exp as they are. So what decides is the forward pass: this prints both, and the backward beside them.
"""

import argparse
import functools

import torch
import triton
import triton.language as tl

from vitmix.statistics import carried_share


@triton.jit
def one_kernel(
    query, key, value, share, out, sums, carried, heads, tokens, scale, batch_stride, head_stride, row_stride,
    BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    depth = tl.arange(0, BLOCK_D)
    start = batch * batch_stride + head * head_stride
    left = tl.load(query + start + rows[:, None] * row_stride + depth[None, :], mask=rows[:, None] < tokens, other=0.0)
    best = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    moved = tl.zeros([BLOCK_Q], tl.float32)
    result = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for first in range(0, tokens, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        place = start + columns[None, :] * row_stride + depth[:, None]
        scores = tl.dot(left, tl.load(key + place, mask=columns[None, :] < tokens, other=0.0))
        scores = tl.where(columns[None, :] < tokens, scores, -float("inf"))
        new = tl.maximum(best, tl.max(scores, 1) * scale)
        weight = tl.exp2(scores * scale - new[:, None])
        old = tl.exp2(best - new)
        part = tl.load(share + batch * tokens + columns, mask=columns < tokens, other=0.0)
        total = total * old + tl.sum(weight, 1)
        moved = moved * old + tl.sum(weight * part[None, :], 1)
        right = tl.load(
            value + start + columns[:, None] * row_stride + depth[None, :], mask=columns[:, None] < tokens, other=0.0
        )
        result = tl.dot(weight.to(right.dtype), right, result * old[:, None])
        best = new
    inside = rows < tokens
    place = (both * tokens + rows[:, None]) * BLOCK_D + depth[None, :]
    tl.store(out + place, (result / total[:, None]).to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(sums + both * tokens + rows, (best + tl.log2(total)) * 0.6931471805599453, mask=inside)
    tl.store(carried + both * tokens + rows, moved / total, mask=inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 1024), ("heads", 6), ("tokens", 197), ("depth", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    batch, heads, tokens, depth = given.batch, given.heads, given.tokens, given.depth
    qkv = torch.randn(batch, tokens, 3, heads, depth, device="cuda", dtype=torch.bfloat16)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    share = torch.rand(batch, tokens, device="cuda")
    out = torch.empty(batch, heads, tokens, depth, device="cuda", dtype=torch.bfloat16)
    sums, carried = torch.empty(2, batch, heads, tokens, device="cuda")

    def one(block_q: int, block_k: int, warps: int, stages: int) -> torch.Tensor:
        one_kernel[(triton.cdiv(tokens, block_q), batch * heads)](
            query, key, value, share, out, sums, carried, heads, tokens, depth**-0.5 * 1.4426950408889634,
            *query.stride()[:3], BLOCK_D=depth, BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return carried.mean(1)

    def time(function) -> float:
        return triton.testing.do_bench(function, warmup=20, rep=100, return_mode="median")

    attention = torch.nn.functional.scaled_dot_product_attention
    separate = functools.partial(carried_share, query, key, share)
    wanted, expected = attention(query, key, value), separate()
    times: dict[str, float] = {}
    for setting in [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 4, 2), (128, 128, 8, 2), (64, 32, 4, 3)]:
        try:
            moved = one(*setting)
        except triton.runtime.errors.OutOfResources:
            continue
        torch.testing.assert_close(out, wanted, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(moved, expected, atol=1e-4, rtol=1e-4)
        times[f"one kernel {setting}"] = time(lambda setting=setting: one(*setting))
    times["fused attention"] = time(lambda: attention(query, key, value))
    times["carried share alone"] = time(separate)
    times["fused attention, then carried share"] = time(lambda: (attention(query, key, value), separate()))
    query, key, value = (each.detach().requires_grad_() for each in (query, key, value))
    loss = attention(query, key, value)
    upstream = torch.randn_like(loss)
    times["fused backward"] = time(lambda: torch.autograd.grad(loss, (query, key, value), upstream, retain_graph=True))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16 {(batch, heads, tokens, depth)}, medians")
    for name, milliseconds in times.items():
        print(f"{name:44s}{milliseconds:8.3f} ms")


if __name__ == "__main__":
    main()
