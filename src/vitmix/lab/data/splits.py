"""Common to all kinds of data: the names of splits, and settings in parentheses."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from vitmix._checks import unknown_name
from vitmix.lab.settings import Split as Split

from .images import ImageSet

Openers = Mapping[str, Callable[[], ImageSet]]  # split → a function that opens it
Found = TypeVar("Found")

SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "validation", "valid"), "test": ("test", "testing")}


def by_split(parts: Mapping[str, Found]) -> dict[str, Found]:
    """The parts of a dataset that have a split's usual name, by split."""
    found = {split: [parts[name] for name in names if name in parts] for split, names in SPLIT_NAMES.items()}
    return {split: each[0] for split, each in found.items() if each}


def parse_settings(argument: str, kind: str, known: Iterable[str]) -> tuple[str, dict[str, str]]:
    """`"place(size=32, seed=1)"` as `"place"` and a dictionary."""
    match = re.fullmatch(r"(.*?)(?:\(([^()]*)\))?", argument.strip())
    assert match is not None
    settings: dict[str, str] = {}
    for term in filter(None, (match[2] or "").split(",")):
        key, _, value = (word.strip() for word in term.partition("="))
        if key not in known:
            raise unknown_name(f"setting of {kind}", key, known)
        settings[key] = value
    return match[1], settings
