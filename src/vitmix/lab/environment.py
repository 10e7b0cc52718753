"""The device: what it is, with the versions of what runs on it, and how its libraries choose; the host's threads."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vitmix import __version__

if TYPE_CHECKING:
    import torch

# Help texts ask for the number of cores, and must not wait for torch: it is imported where it is used.


def try_convolutions() -> None:
    """Lets cuDNN choose convolutions by trying them, unless a program asked for deterministic ones.

    What it takes unasked for a patch embedding of 16 x 16 pixels is the slowest kernel of a training step.
    """
    import torch

    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()


@contextmanager
def one_thread() -> Iterator[None]:
    """Has torch compute on the host with one thread. To wake the others takes longer than what small tensors need."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_environment(device: "torch.device") -> dict[str, str]:
    """The device's name, and the versions of this library and of those it stands on."""
    import timm
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    found = {"device": name, "vitmix": __version__, "torch": torch.__version__, "timm": timm.__version__}
    found["python"] = platform.python_version()
    try:
        import triton
    except ImportError:
        return found
    return found | {"triton": triton.__version__}
