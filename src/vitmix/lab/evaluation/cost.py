"""What a model costs: parameters, floating-point operations, images per second."""

import time

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitmix.lab.runs import Estimate

SECONDS = 0.5  # for which passes are timed


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def count_flops(model: nn.Module, size: tuple[int, int]) -> int:
    """Floating-point operations of one image's forward pass: two for each multiply-add.

    Papers often report multiply-adds as FLOPs, which is half of this number.
    """
    like = next(model.parameters())
    image = torch.zeros(1, 3, *size, device=like.device, dtype=like.dtype)
    model.eval()
    # The counter does not know every fused attention; unfused attention is plain matrix products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops()


@torch.no_grad()
def throughput(model: nn.Module, size: tuple[int, int], *, batch: int, autocast: torch.dtype | None = None) -> Estimate:
    """Images per second of forward passes alone, on one batch on the device: the median, after two to warm up."""
    like = next(model.parameters(), torch.empty(0))
    images = torch.zeros(batch, 3, *size, device=like.device)
    model.eval()
    times: list[float] = []
    with torch.autocast(like.device.type, dtype=autocast, enabled=autocast is not None):
        for number in range(102):
            start = time.perf_counter()
            model(images)
            if like.device.type == "cuda":
                torch.cuda.synchronize(like.device)
            if number >= 2:
                times.append(time.perf_counter() - start)
            if len(times) >= 3 and sum(times) > SECONDS:
                break
    return Estimate(batch / sorted(times)[len(times) // 2], None, len(times))
