"""Measurements that are not always possible, and the packages that only some of them need."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

PACKAGES = {"pyautoattack": "pyautoattack", "imagecorruptions": "imagecorruptions-imaug"}


class NotPossible(ValueError):
    """Raised if the model, its images or the installed packages do not allow a measurement."""


def version_of(module: str) -> str:
    """The package with its version, for stored predictions that depend on it."""
    return f"{PACKAGES[module]} {version(PACKAGES[module])}"


def need(module: str) -> Any:
    """A module of the `eval` extra, or an error message that says how to install it."""
    try:
        return import_module(module)
    except ImportError as problem:
        raise NotPossible(
            f'this needs the package {PACKAGES[module]} ({problem}); get it with: pip install "vitmix[eval]"'
        ) from None
