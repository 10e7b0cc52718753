"""HTM's partners: the one-to-one assignment of easy samples to samples of the batch with the largest total gain.

On a GPU, one kernel does everything and determines the easy samples itself, so nothing waits for the host. It is exact
for any number of easy samples; its time grows with the square of that number if many want the same partner. On other
devices, in float64, and for batches above `LARGEST_BATCH`, SciPy solves it on the host.
"""

import torch
from torch import Tensor

from vitmix.attention._kernels import HAS_TRITON
from vitmix.parts.pairing import best_assignment

__all__ = ["LARGEST_BATCH", "assign_on_host", "assign_partners", "saliency_gain"]

LARGEST_BATCH = 4096  # the kernel keeps one number per sample in registers


def saliency_gain(easy: Tensor, candidates: Tensor, rho: float) -> Tensor:
    """Gain `(b, B)` of each candidate for each easy sample: `sum_t max(S_candidate - S_easy - rho, 0)`."""
    gains = [(candidates - rows.unsqueeze(1) - rho).clamp_min(0).sum(2) for rows in easy.split(32)]
    return torch.cat(gains) if gains else easy.new_zeros(0, len(candidates))


@torch.library.custom_op("vitmix::assign_partners", mutates_args=())
def assign_partners(saliency: Tensor, easy: Tensor, rho: float) -> Tensor:
    """Partner `(B,)` of every sample: by the assignment with the largest total gain if easy, otherwise itself.

    This is a custom operator, so `torch.compile` does not trace it: SciPy runs on the host.
    """
    if HAS_TRITON and saliency.is_cuda and saliency.dtype == torch.float32 and 0 < len(saliency) <= LARGEST_BATCH:
        from vitmix.attention._kernels import assignment

        with torch.cuda.device_of(saliency):
            return assignment.assign_partners(saliency, easy, rho)
    return assign_on_host(saliency, easy, rho)


@assign_partners.register_fake
def _(saliency: Tensor, easy: Tensor, rho: float) -> Tensor:
    return torch.empty(len(easy), dtype=torch.long, device=saliency.device)


def assign_on_host(saliency: Tensor, easy: Tensor, rho: float) -> Tensor:
    """`assign_partners` with SciPy: the reference, and the fallback without a kernel."""
    partner = torch.arange(len(easy), device=saliency.device)
    rows = easy.nonzero().squeeze(1)
    if len(rows):
        gain = saliency_gain(saliency[rows], saliency, rho)
        # As in the kernel: NaN and Inf must reach the loss, where they are reported.
        partner[rows] = best_assignment(torch.where(gain < 1e30, gain, 0))
    return partner
