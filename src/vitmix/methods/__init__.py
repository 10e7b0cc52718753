"""One file per paper: citation, deviations from the paper, and a factory that returns a `Mixer`.

`vitmix._registry.METHODS` has one line for each method.
"""

from collections.abc import Callable
from typing import Any

from vitmix._registry import METHODS as METHODS

__all__ = ["METHODS"]


def __getattr__(name: str) -> Callable[..., Any]:
    if name in METHODS:
        return METHODS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
