"""The statistics of `vitmix.statistics` as operators that run Triton kernels.

`torch.compile` keeps an operator in its graph and does not look inside. Triton itself is imported at the first call:
a machine without a GPU needs none.
"""

import importlib.util

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_DEPTH = 128  # of a head


def fit(query: Tensor, key: Tensor, scale: float | None) -> bool:
    """Whether the kernels take these queries and keys."""
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


@torch.library.custom_op("vitmix::carried_share", mutates_args=())
def carried_share(query: Tensor, key: Tensor, share: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`vitmix.statistics.carried_share` in float32."""
    from vitmix.kernels import attention

    return attention.carried_share(query, key, share, bias, scale)


@carried_share.register_fake
def _(query: Tensor, key: Tensor, share: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], dtype=torch.float32)


@torch.library.custom_op("vitmix::pulled_weight", mutates_args=())
def pulled_weight(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`vitmix.statistics.pulled_weight` in float32."""
    from vitmix.kernels import attention

    return attention.pulled_weight(query, key, weight, bias, scale)


@pulled_weight.register_fake
def _(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return query.new_empty(query.shape[0], key.shape[2], dtype=torch.float32)
