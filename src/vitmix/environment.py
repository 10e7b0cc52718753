"""Where a number was measured: the device, and the versions of what ran on it."""

import platform

import torch

from vitmix import __version__


def describe_environment(device: torch.device) -> dict[str, str]:
    """The device's name, and the versions of this library and of those it stands on."""
    import timm

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    found = {"device": name, "vitmix": __version__, "torch": torch.__version__, "timm": timm.__version__}
    found["python"] = platform.python_version()
    try:
        import triton
    except ImportError:
        return found
    return found | {"triton": triton.__version__}
