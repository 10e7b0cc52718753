"""Attention and carried share in one kernel, compared with fused attention followed by the share's kernel, on a GPU.

    python benchmarks/one_kernel.py [--batch 1024] [--heads 6] [--tokens 197] [--depth 64]
    python benchmarks/one_kernel.py --settings 64,64,16,4,2 128,64,16,8,2

Compiled steps use the one kernel. `--settings` are other values of its constants: queries per program, keys per tile,
least keys of the last tile, warps, stages. The backward pass, which is the same for both, is timed too.
"""

import argparse
import functools

import torch
import triton
from torch.nn.functional import scaled_dot_product_attention

from vitmix.attention._kernels import attend, fused_attention
from vitmix.attention.summaries import carried_share

CONSTANTS = ("BLOCK_Q", "BLOCK_K", "LAST_TILE", "WARPS", "STAGES")
TILES, REST = ("64,64", "128,64", "64,32"), ("16,4,2", "16,4,3", "64,4,2", "16,8,2")
OTHERS = [f"{tile},{rest}" for tile in TILES for rest in REST]


def time(function) -> float:
    return triton.testing.do_bench(function, warmup=20, rep=100, return_mode="median")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 1024), ("heads", 6), ("tokens", 197), ("depth", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--settings", nargs="*", default=OTHERS, metavar=",".join(CONSTANTS))
    given = parser.parse_args()
    batch, heads, tokens, depth = given.batch, given.heads, given.tokens, given.depth
    qkv = torch.randn(batch, tokens, 3, heads, depth, device="cuda", dtype=torch.bfloat16)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    share = torch.rand(batch, tokens, device="cuda")

    one = functools.partial(attend, query, key, value, share, depth**-0.5)
    attention = functools.partial(scaled_dot_product_attention, query, key, value)
    separate = functools.partial(carried_share, query, key, share)
    wanted, expected = attention(), separate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16 {(batch, heads, tokens, depth)}, medians")
    own = ",".join(str(getattr(fused_attention, name)) for name in CONSTANTS)
    for setting in (own, *given.settings):
        for name, number in zip(CONSTANTS, setting.split(","), strict=True):
            setattr(fused_attention, name, int(number))
        try:
            out, _, carried = one()
        except triton.runtime.errors.OutOfResources as error:
            print(f"one kernel, {setting:28s}   {error}")
            continue
        torch.testing.assert_close(out, wanted, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(carried.mean(1), expected, atol=1e-4, rtol=1e-4)
        print(f"one kernel, {setting + ' (in use)' * (setting is own):28s}{time(one):8.3f} ms")
    both = time(lambda: (attention(), separate()))
    query, key, value = (each.detach().requires_grad_() for each in (query, key, value))
    loss = scaled_dot_product_attention(query, key, value)
    upstream = torch.randn_like(loss)
    backward = time(lambda: torch.autograd.grad(loss, (query, key, value), upstream, retain_graph=True))
    for name, milliseconds in {
        "fused attention": time(attention),
        "carried share alone": time(separate),
        "fused attention, then carried share": both,
        "fused backward": backward,
    }.items():
        print(f"{name:40s}{milliseconds:8.3f} ms")


if __name__ == "__main__":
    main()
