"""The reference for fused attention: every block computes its attention matrix, and statistics read it."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from vitmix.attention import summaries

_running: list[Tensor] = []  # the attention `(B, H, N, M)` of the block that runs now


def materialize(model: nn.Module) -> None:
    """Gives every attention of a model the forward pass of the released programs."""
    found = [module for module in model.modules() if type(module) is Attention]
    if not found:
        raise ValueError("--against needs a model with timm's Attention, such as deit_small_patch16_224")
    for module in found:
        module.forward = MethodType(_forward, module)


def _forward(self: Any, x: Tensor, **unused: Any) -> Tensor:  # masks, which these models do not have
    batch, count, _ = x.shape
    query, key, value = self.qkv(x).reshape(batch, count, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
    normed = self.q_norm.forward(query), self.k_norm.forward(key)
    attention = ((normed[0] * self.scale) @ normed[1].transpose(-2, -1)).softmax(-1)
    _running.append(attention.detach())
    for norm, tokens in ((self.q_norm, query), (self.k_norm, key)):
        norm(tokens)  # hooks listen here
    _running.clear()
    out = (self.attn_drop(attention) @ value).transpose(1, 2).reshape(batch, count, -1)
    return self.proj_drop(self.proj(self.norm(out)))


@contextmanager
def statistics_from_matrix() -> Iterator[None]:
    """Inside, statistics come from the attention of the running block, or are materialized if none runs."""
    before = summaries.class_row, summaries.column_mean, summaries.carried_share
    summaries.class_row, summaries.column_mean, summaries.carried_share = _class_row, _column_mean, _carried_share
    try:
        yield
    finally:
        summaries.class_row, summaries.column_mean, summaries.carried_share = before


def _head_mean(query: Tensor, key: Tensor) -> Tensor:
    """The mean attention `(B, N, M)` of the heads; extra keys at the end may be VTM's, which are not queries."""
    maps = _running[0][:, :, : query.shape[2]] if _running else summaries.attention_maps(query, key)
    return maps.float().mean(1)


@torch.no_grad()
def _class_row(query: Tensor, key: Tensor, *, prefix: int, **unused: Any) -> Tensor:
    return _head_mean(query, key)[:, 0, prefix : query.shape[2]]


@torch.no_grad()
def _column_mean(query: Tensor, key: Tensor, *, prefix: int, **unused: Any) -> Tensor:
    return _head_mean(query, key)[:, prefix:, prefix : query.shape[2]].mean(1)


@torch.no_grad()
def _carried_share(query: Tensor, key: Tensor, share: Tensor, **unused: Any) -> Tensor:
    return (_head_mean(query, key) @ share.unsqueeze(-1)).squeeze(-1)
