"""Measurements that are not always possible, and the packages that only some of them need."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

PACKAGES = {"pyautoattack": "pyautoattack", "imagecorruptions": "imagecorruptions-imaug"}


class NotPossible(ValueError):
    """What the model, its images or the installed packages do not allow: no mistake in what was asked for."""


def version_of(module: str) -> str:
    """With the package's name, for cells whose answers it decides."""
    return f"{PACKAGES[module]} {version(PACKAGES[module])}"


def need(module: str) -> Any:
    """A module of the `eval` extra, or an error message that says how to install it."""
    try:
        return import_module(module)
    except ImportError as problem:
        raise NotPossible(
            f'this needs the package {PACKAGES[module]} ({problem}); get it with: pip install "vitmix[eval]"'
        ) from None
