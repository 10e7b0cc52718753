"""Packages that only some measurements need."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

PACKAGES = {"pyautoattack": "pyautoattack", "imagecorruptions": "imagecorruptions-imaug"}


def version_of(module: str) -> str:
    """With the package's name, for cells whose answers it decides."""
    return f"{PACKAGES[module]} {version(PACKAGES[module])}"


def need(module: str) -> Any:
    """A module of the `eval` extra, or a sentence that says how to get it."""
    try:
        return import_module(module)
    except ImportError as problem:
        raise ValueError(
            f'this needs the package {PACKAGES[module]} ({problem}); get it with: pip install "vitmix[eval]"'
        ) from None
