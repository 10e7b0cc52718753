"""Attention statistics from queries and keys: class row, column mean, carried share.

All use attention after softmax and before dropout, averaged over heads, without gradient. Queries are `(B, H, N, d)`,
keys `(B, H, M, d)`. Keys after the first N are tokens of a bank (vertical TokenMixup). The first `prefix` tokens are
class, distillation and register tokens.

Every function takes the terms that attention can add to the products: `bias` `(G, H or 1, N, M)`, where sample b of the
batch uses `bias[b % G]` (relative positions, or the masks of the shifted windows of an image), and `scale`, by default
`d ** -0.5`.

Everything after the queries and keys is computed in at least float32, so half-precision training sees the same
statistics as float32 up to the rounding of queries and keys. On a GPU, kernels compute them and never hold more than a
tile of attention. On other devices and in float64, the reference path holds the attention of one head at a time.
"""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from vitmix.attention import _kernels as kernels

__all__ = [
    "P",
    "attention_maps",
    "carried_share",
    "class_row",
    "column_mean",
    "exact",
    "forget_casts",
    "pulled_weight",
]

P = ParamSpec("P")


def exact(function: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[Tensor, P], Tensor]:
    """Runs `function` without gradient and without autocast, which would round products to half precision."""

    @functools.wraps(function)
    def wrapped(query: Tensor, *args: P.args, **settings: P.kwargs) -> Tensor:
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            return function(query, *args, **settings)

    return wrapped


def forget_casts() -> None:
    """Drops autocast's copies of parameters. Call it after a pass without gradient.

    Older versions of torch reuse the half-precision copies that autocast made without gradient in the training pass,
    whose parameters then get no gradient.
    """
    if not torch.compiler.is_compiling():
        torch.clear_autocast_cache()


@exact
def attention_maps(query: Tensor, key: Tensor, *, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Attention `(B, H, N, M)` after softmax, materialized, for analysis and tests."""
    return _softmaxed(query, key, bias, scale)


@exact
def class_row(
    query: Tensor, key: Tensor, *, prefix: int, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Attention `(B, n)` of the class token to each of the n patches, not renormalized."""
    weight = query.new_ones(1, 1, dtype=_compute_dtype(query))
    row = pulled_weight(query[:, :, :1], key, weight, bias=None if bias is None else bias[:, :, :1], scale=scale)
    return row[:, prefix : query.shape[2]]


@exact
def column_mean(
    query: Tensor, key: Tensor, *, prefix: int, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Mean attention `(B, n)` that each patch receives from the patches, without prefix tokens."""
    patches = query.shape[2] - prefix
    weight = query.new_full((1, patches), 1 / patches, dtype=_compute_dtype(query))
    bias = None if bias is None else bias[:, :, prefix:]
    pulled = pulled_weight(query[:, :, prefix:], key, weight, bias=bias, scale=scale)
    return pulled[:, prefix : query.shape[2]]


@exact
def carried_share(
    query: Tensor, key: Tensor, share: Tensor, *, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Attention applied to one number per key token: `mean_h A_h @ share`, `(B, M) -> (B, N)`."""
    if kernels.fit(query, key, scale):
        return kernels.carried_shares(query.detach(), key.detach(), share, bias, _scale(query, scale)).mean(1)
    share = share.to(_compute_dtype(query)).unsqueeze(-1)
    return _head_mean(query, key, bias, scale, lambda attention: (attention @ share).squeeze(-1))


@exact
def pulled_weight(
    query: Tensor, key: Tensor, weight: Tensor, *, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Moves weights on the queries back to the keys: `weight @ mean_h A_h`, `(B or 1, N) -> (B, M)`."""
    if kernels.fit(query, key, scale):
        return kernels.pulled_weight(query.detach(), key.detach(), weight, bias, _scale(query, scale))
    weight = weight.to(_compute_dtype(query)).unsqueeze(1)
    return _head_mean(query, key, bias, scale, lambda attention: (weight @ attention).squeeze(1))


def _head_mean(
    query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None, statistic: Callable[[Tensor], Tensor]
) -> Tensor:
    # One head at a time: peak memory is B*N*M numbers instead of B*H*N*M.
    heads = query.shape[1]
    total: Tensor | None = None
    for head in range(heads):
        one = slice(head, head + 1)
        head_bias = bias if bias is None or bias.shape[1] == 1 else bias[:, one]
        value = statistic(_softmaxed(query[:, one], key[:, one], head_bias, scale).squeeze(1))
        total = value if total is None else total + value
    assert total is not None
    return total / heads


def _softmaxed(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    dtype = _compute_dtype(query)
    query, key = query.detach().to(dtype), key.detach().to(dtype)
    scores = (query * _scale(query, scale)) @ key.transpose(-2, -1)
    if bias is not None:
        scores = (scores.unflatten(0, (-1, len(bias))) + bias.detach().to(dtype)).flatten(0, 1)
    return scores.softmax(-1)


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _compute_dtype(query: Tensor) -> torch.dtype:
    return torch.promote_types(query.dtype, torch.float32)
