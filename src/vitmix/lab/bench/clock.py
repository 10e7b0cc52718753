"""Time and memory of calls."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from vitmix.attention._kernels import HAS_TRITON

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(run: Callable[[], object], count: int, device: torch.device) -> float:
    """Milliseconds for each of `count` calls in a row, on the device's own clock where it has one."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - began) * 1e3 / count
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def median_time(run: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Median milliseconds of a call, after one that is not counted; on a GPU without the time of launching it."""
    run()
    if device.type == "cuda" and HAS_TRITON:
        from triton.testing import do_bench_cudagraph

        found: Any = do_bench_cudagraph(run, rep=2 * repeats, return_mode="median")
        return found
    return statistics.median(milliseconds(run, 1, device) for _ in range(repeats))


def peak_memory(run: Callable[[], object], device: torch.device, *, above: int | None = None) -> float | None:
    """GiB that calls need at most, above what is allocated now (or was); None where nobody counts."""
    if device.type != "cuda":
        return None
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    above = torch.cuda.memory_allocated(device) if above is None else above
    run()
    wait(device)
    return (torch.cuda.max_memory_allocated(device) - above) / 2**30
