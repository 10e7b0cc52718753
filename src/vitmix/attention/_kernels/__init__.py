"""The statistics of `vitmix.attention.summaries` as operators that run Triton kernels.

`torch.compile` keeps an operator in its graph and does not trace it. Triton launches kernels on the current device, so
each operator makes the device of its tensors current. Triton is imported at the first call, so a machine without a GPU
does not need it.
"""

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "DTYPES",
    "HAS_TRITON",
    "LARGEST_DEPTH",
    "attend",
    "carried_shares",
    "compile_settings",
    "fit",
    "pulled_weight",
    "takes_attention",
]

# VITMIX_KERNELS=0 uses torch only: for comparisons, and for GPUs too old for Triton's bfloat16.
HAS_TRITON = importlib.util.find_spec("triton") is not None and os.environ.get("VITMIX_KERNELS", "1") != "0"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_DEPTH = 128  # of a head


def fit(query: Tensor, key: Tensor, scale: float | None) -> bool:
    """Whether the kernels support these queries and keys."""
    return (
        HAS_TRITON
        and query.is_cuda
        and query.dtype == key.dtype
        and query.dtype in DTYPES
        and query.shape[-1] <= LARGEST_DEPTH
        and (scale is None or scale > 0)
        and 0 not in query.shape
        and 0 not in key.shape
    )


def compile_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of `torch.compile` for steps that carry shares: on a GPU, one kernel then does both."""
    if not HAS_TRITON or torch.version.cuda is None or not torch.cuda.is_available():
        return settings
    try:
        from vitmix.attention._kernels.fusion import with_fusion

        return with_fusion(settings)
    except (ImportError, AttributeError):  # Inductor's interface for passes may change
        return settings


@torch.library.custom_op("vitmix::carried_shares", mutates_args=())
def carried_shares(query: Tensor, key: Tensor, share: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`A_h @ share` of every head, `(B, H, N)`. The caller averages over heads, so that a compiler can fuse it."""
    from vitmix.attention._kernels import attention

    with torch.cuda.device_of(query):
        return attention.carried_shares(query, key, share, bias, scale)


@carried_shares.register_fake
def _(query: Tensor, key: Tensor, share: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=torch.float32)


def takes_attention(dtype: torch.dtype, depth: int) -> bool:
    """Whether `attend` supports this dtype and head dimension."""
    return dtype in (torch.float16, torch.bfloat16) and depth <= 64


@torch.library.custom_op("vitmix::attend", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor, share: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Attention's output `(B, H, N, d)`, its log-sum-exp and `A_h @ share` of every head, `(B, H, N)` in float32.

    For half precision and head dimensions up to 64. The memory layout of the output is `(B, N, H, d)`.
    """
    from vitmix.attention._kernels import fused_attention

    with torch.cuda.device_of(query):
        return fused_attention.attend(query, key, value, share, scale)


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, share: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, tokens, depth = query.shape
    sums = query.new_empty(batch, heads, tokens, dtype=torch.float32)
    return query.new_empty(batch, tokens, heads, depth).transpose(1, 2), sums, torch.empty_like(sums)


@torch.library.custom_op("vitmix::pulled_weight", mutates_args=())
def pulled_weight(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`weight @ mean_h A_h` `(B, M)`."""
    from vitmix.attention._kernels import attention

    with torch.cuda.device_of(query):
        return attention.pulled_weight(query, key, weight, bias, scale)


@pulled_weight.register_fake
def _(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return query.new_empty(query.shape[0], key.shape[2], dtype=torch.float32)
