"""The machine: device, versions of the libraries, threads and cores."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vitmix import __version__

if TYPE_CHECKING:
    import torch

# Help texts need the number of cores and must not wait for torch, so torch is imported where it is used.


def try_convolutions() -> None:
    """Lets cuDNN benchmark convolutions, unless the program asked for deterministic algorithms.

    Its default for a patch embedding of 16 x 16 pixels is the slowest kernel of a training step.
    """
    import torch

    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one CPU thread: for small tensors, waking more takes longer than the work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def available_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_environment(device: "torch.device") -> dict[str, str]:
    """The device's name, and the versions of this library and its dependencies."""
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
