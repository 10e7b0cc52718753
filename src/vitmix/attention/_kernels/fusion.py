"""One kernel for attention and the share it carries, in compiled steps: a pass over Inductor's graphs.

Models call torch's fused attention, and a hook calls `vitmix::carried_shares` with the same queries and keys, so the
graph of a step contains both. This pass replaces both by `vitmix::attend`. The backward pass is still torch's: it uses
output and log-sum-exp as if they came from the replaced attention. If anything differs from the expected pattern, the
graph is not changed.
"""

import logging
import math
import operator
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import config, list_mode_options
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from vitmix.attention import _kernels as kernels

__all__ = ["FuseCarriedShares", "with_fusion"]

CUDNN, FLASH = "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention"
_UNDERSTOOD = {"query", "key", "value", "scale", "compute_log_sumexp"}  # other arguments must have their defaults
_aten = torch.ops.aten
_ALIASES = (_aten.detach.default, _aten.alias.default, _aten.view.default, _aten.reshape.default, _aten.expand.default)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FuseCarriedShares(CustomGraphPass):
    """Replaces fused attention and the carried share of the same queries and keys by `vitmix::attend`.

    `attention` names the operators of `torch.ops.aten` that may be replaced. Their first two results must be the output
    and the log-sum-exp; the others must be unused without dropout.
    """

    attention: tuple[str, ...] = (CUDNN, FLASH)

    def __call__(self, graph: fx.Graph) -> None:
        for carry in _calls(graph, torch.ops.vitmix.carried_shares.default):
            try:
                self._fuse(graph, carry)
            except Exception:  # from a changed interface of torch; two kernels are correct too
                _log.warning("attention and its carried share remain two kernels", exc_info=True)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, kernels.__file__), repr(self.attention))

    def _fuse(self, graph: fx.Graph, carry: fx.Node) -> None:
        wanted = _arguments(carry)
        for name in self.attention:
            for attention in _calls(graph, getattr(_aten, name).default):
                given = _arguments(attention)
                same = all(_origin(given[each]) is _origin(wanted[each]) for each in ("query", "key"))
                if same and wanted["bias"] is None and _is_plain(attention, wanted["scale"]):
                    inputs = given["query"], given["key"], given["value"], wanted["share"], wanted["scale"]
                    if _replace(graph, carry, attention, inputs):
                        return
        _log.debug("%s remains a separate kernel", carry)


def with_fusion(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of `torch.compile` with this pass added, unless they name another backend or pass."""
    mode, options = settings.get("mode"), settings.get("options")
    if settings.get("backend", "inductor") != "inductor" or (mode is not None and options is not None):
        return settings  # torch accepts only one of mode and options, and raises an error
    if config.post_grad_custom_pre_pass is not None:
        return settings
    if mode is not None:
        try:
            options = list_mode_options(mode, settings.get("dynamic"))
        except (KeyError, RuntimeError):
            return settings  # an unknown mode, for which torch raises an error
    # With this setting, cuDNN writes the log-sum-exp in another layout, which its backward pass then expects.
    ragged = os.environ.get("TORCH_CUDNN_SDPA_AVOID_RECOMPILE", "0") != "0"
    fuse = FuseCarriedShares((FLASH,) if ragged else (CUDNN, FLASH))
    return settings | {"mode": None, "options": {"post_grad_custom_pre_pass": fuse} | (options or {})}


def _calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target is target]


def _arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of an operator call, by name."""
    target: Any = node.target
    given = {each.name: each.default_value for each in target._schema.arguments}
    return given | dict(zip(given, node.args, strict=False)) | node.kwargs


def _origin(node: fx.Node) -> fx.Node:
    """The node that produced a tensor, ignoring aliases."""
    while node.target in _ALIASES:
        before = node.args[0]
        if not isinstance(before, fx.Node) or _layout(before.meta["val"]) != _layout(node.meta["val"]):
            break
        node = before
    return node


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _is_plain(attention: fx.Node, scale: float) -> bool:
    """Whether `vitmix::attend` computes the same attention."""
    given, target = _arguments(attention), attention.target
    assert isinstance(target, torch._ops.OpOverload)
    others = (each for each in target._schema.arguments if each.name not in _UNDERSTOOD)
    query, key, value = (given[name].meta["val"] for name in ("query", "key", "value"))
    depth = query.shape[-1]
    return (
        all(given[each.name] == each.default_value for each in others)  # None if there is no default
        and query.shape == key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
        and kernels.takes_attention(query.dtype, depth)
        and all(each.stride(-1) == 1 for each in (query, key, value))
        and math.isclose(scale, depth**-0.5 if given["scale"] is None else given["scale"])  # rounding may differ
    )


def _replace(graph: fx.Graph, carry: fx.Node, attention: fx.Node, inputs: tuple[Any, ...]) -> bool:
    """Replaces two calls by one, unless an input is computed too late or a result has another layout."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    first = min(carry, attention, key=order.__getitem__)
    out, sums, _ = torch.ops.vitmix.attend.default(*_values(inputs))
    if any(order[each] > order[first] for each in inputs if isinstance(each, fx.Node)):
        return False
    if not all(_can_replace(result, out, sums) for result in attention.users if result.users):
        return False
    with graph.inserting_before(first):
        attend = _call(graph, torch.ops.vitmix.attend.default, *inputs)
        out, sums, carried = (_call(graph, operator.getitem, attend, number) for number in range(3))
        carry.replace_all_uses_with(carried)
        for result in attention.users:
            if result.users:
                result.replace_all_uses_with(_instead_of(graph, result, out, sums))
    for old in (carry, *attention.users, attention):
        graph.erase_node(old)
    return True


def _can_replace(result: fx.Node, out: Tensor, sums: Tensor) -> bool:
    wanted = result.meta.get("val")
    if result.target is not operator.getitem or not isinstance(wanted, Tensor):
        return False
    if result.args[1] == 0:
        return _layout(wanted) == _layout(out)
    if result.args[1] == 1:  # cuDNN's has one more axis
        return wanted.dtype == sums.dtype and wanted.shape in (sums.shape, (*sums.shape, 1))
    return wanted.device.type != "meta"


def _instead_of(graph: fx.Graph, result: fx.Node, out: fx.Node, sums: fx.Node) -> fx.Node:
    number, wanted = result.args[1], result.meta["val"]
    if number == 0:
        return out
    if number == 1:
        return sums if wanted.ndim == 3 else _call(graph, _aten.unsqueeze.default, sums, -1)
    # The state of the random generator: an argument of the backward pass, which ignores it without dropout.
    kind = {"dtype": wanted.dtype, "layout": torch.strided, "device": wanted.device, "pin_memory": False}
    node = graph.call_function(_aten.full.default, (list(wanted.shape), 0), kind)
    node.meta["val"] = wanted
    return node


def _call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    """A new call, with the fake value that Inductor needs."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*_values(args))
    if target is not operator.getitem:
        node.meta["eager_input_vals"] = _values(args), {}  # Inductor keeps their strides
    return node


def _values(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.meta["val"] if isinstance(each, fx.Node) else each for each in args)
