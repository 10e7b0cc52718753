"""What every kind of data shares: the names of splits, and settings in parentheses."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

from vitmix._checks import unknown_name

from .images import ImageSet

Split = Literal["train", "val", "test"]
Openers = Mapping[str, Callable[[], ImageSet]]  # split → a function that opens it
Found = TypeVar("Found")

SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "validation", "valid"), "test": ("test", "testing")}


def by_split(parts: Mapping[str, Found]) -> dict[str, Found]:
    """The parts of a data set that have a split's usual name, by split."""
    found = {split: [parts[name] for name in names if name in parts] for split, names in SPLIT_NAMES.items()}
    return {split: each[0] for split, each in found.items() if each}


def parse_settings(text: str, kind: str, known: Iterable[str]) -> dict[str, str]:
    """`"size=32, seed=1"` as a dictionary."""
    settings: dict[str, str] = {}
    for term in filter(None, text.split(",")):
        key, _, value = (word.strip() for word in term.partition("="))
        if key not in known:
            raise unknown_name(f"setting of {kind}", key, known)
        settings[key] = value
    return settings
