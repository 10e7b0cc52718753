"""The statistics alone: their time and memory for one shape, and as tokens and batch grow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from vitmix.attention import _kernels as kernels
from vitmix.attention import summaries
from vitmix.lab.bench.clock import Call, median_time, peak_memory

Shape = tuple[int, int, int, int]  # batch, heads, tokens, depth of a head


@dataclass(frozen=True)
class StatisticRow:
    """Median milliseconds, None if memory ran out; peak GiB above the inputs, None on a CPU."""

    name: str
    shape: Shape
    time: float | None
    memory: float | None

    @property
    def mebibytes(self) -> float | None:
        return None if self.memory is None else self.memory * 1024


def attention_shape(model: nn.Module, image: Tensor) -> tuple[int, int, int]:
    """Heads, tokens and depth of a head in a model's first attention, for one image."""
    first = next((module for module in model.modules() if type(module) is Attention), None)
    if first is None:
        raise ValueError("kernels and growth need a model with timm's Attention; this one has none")
    seen: list[torch.Size] = []
    handle = first.q_norm.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    with torch.no_grad():
        model.eval()(image)
    handle.remove()
    _, heads, tokens, depth = seen[0]
    return heads, tokens, depth


def statistic_calls(shape: Shape, device: torch.device, dtype: torch.dtype) -> dict[str, Call]:
    """Each statistic as in training, attention itself, and the statistics from the materialized matrix."""
    batch, heads, tokens, depth = shape
    qkv = torch.randn(batch, tokens, 3, heads, depth, device=device).to(dtype)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # the layout of a fused projection
    share = torch.rand(batch, tokens, device=device)

    def materialized() -> Tensor:
        return ((query * depth**-0.5) @ key.transpose(-2, -1)).softmax(-1)

    calls: dict[str, Call] = {
        "class row": lambda: summaries.class_row(query, key, prefix=1),
        "column mean": lambda: summaries.column_mean(query, key, prefix=1),
        "carried share": lambda: summaries.carried_share(query, key, share),
        "fused attention": lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value),
        "materialized: the matrix": materialized,
        "materialized: carried share": lambda: materialized().float().mean(1) @ share.unsqueeze(-1),
    }
    if kernels.HAS_TRITON and device.type == "cuda" and kernels.takes_attention(dtype, depth):
        calls["attention with carried share"] = lambda: kernels.attend(query, key, value, share, depth**-0.5)
    return calls


def measure_statistics(
    shapes: Sequence[Shape], device: torch.device, dtype: torch.dtype, *, repeats: int, tell: Callable[[str], None]
) -> list[StatisticRow]:
    """A row for each statistic and shape."""
    rows = []
    for shape in shapes:
        tell(f"statistics at {' x '.join(map(str, shape))}")
        with torch.no_grad():
            for name, call in statistic_calls(shape, device, dtype).items():
                try:
                    memory, time = peak_memory(call, device), median_time(call, device, repeats=repeats)
                except torch.OutOfMemoryError:
                    time = memory = None
                rows.append(StatisticRow(name, shape, time, memory))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows
