"""Time and memory of calls."""

import statistics
import time
from collections.abc import Callable

import torch

from vitmix.attention._kernels import HAS_TRITON

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Call = Callable[[], object]


def milliseconds(run: Call, count: int, device: torch.device) -> float:
    """Milliseconds per call of `count` calls in a row, by the device's clock on a GPU."""
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


def median_time(run: Call, device: torch.device, *, repeats: int) -> float:
    """Median milliseconds of a call after a warm-up call; on a GPU without the launch time."""
    run()
    if device.type == "cuda" and HAS_TRITON:
        from triton.testing import do_bench_cudagraph

        return float(do_bench_cudagraph(run, rep=2 * repeats, return_mode="median"))  # pyright: ignore
    return statistics.median(milliseconds(run, 1, device) for _ in range(repeats))


def peak_memory(run: Call, device: torch.device, *, above: int | None = None) -> float | None:
    """Peak GiB of a call on a GPU, above `above` bytes or what is allocated now; None on other devices."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    above = torch.cuda.memory_allocated(device) if above is None else above
    run()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - above) / 2**30
