"""Class names and numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitmix.lab.reading import read_json

MOST_UNSEEN_CLASSES = 100_000  # the largest label allowed even with fewer images; every smaller number gets a name


def count_classes(labels: np.ndarray, description: str) -> int:
    """The number of classes for labels from 0; refuses labels that would imply millions of unseen classes."""
    count = 1 + int(labels.max(initial=-1))
    most = max(MOST_UNSEEN_CLASSES, len(labels))
    if count > most:
        raise ValueError(
            f"{description} has label {count - 1} among {len(labels)} images, more than the {most:,} classes allowed; "
            "number the classes from 0 without gaps"
        )
    return count


def numbered(count: int) -> list[str]:
    """Names for classes that have none: their numbers."""
    return [str(label) for label in range(count)]


def class_names(folder: Path, count: int) -> list[str]:
    """Names from `classes.json` in a folder, or numbers if there is no such file."""
    path = folder / "classes.json"
    return names_in(lambda: read_json(path), str(path), count) if path.is_file() else numbered(count)


def names_in(read: Callable[[], Any], place: str, count: int | None) -> list[str]:
    """Names as JSON: a list of names, or of `{"label": 0, "name": "cat"}`, or `{"0": "cat"}`.

    Args:
        count: how many there must be; None takes all, and at least one.
    """
    try:
        stored = read()
        if not isinstance(stored, (dict, list)):
            raise TypeError(f"a {type(stored).__name__}")
        if isinstance(stored, dict):
            named = {int(label): str(name) for label, name in stored.items()}
        elif stored and isinstance(stored[0], dict):
            named = {int(row["label"]): str(row["name"]) for row in stored}
        else:
            named = dict(enumerate(map(str, stored)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise ValueError(
            f"{place!r} must be a JSON list of class names, got {problem!r}; write one name per label"
        ) from None
    count = max(1, len(named)) if count is None else count
    missing = [label for label in range(count) if label not in named]
    if missing:
        raise ValueError(f"{place!r} has no name for label {missing[0]}, but the data has {count} classes; add it")
    return [named[label] for label in range(count)]


def match_names(names: Sequence[str], known: Sequence[str], *, description: str, whose: str) -> list[int]:
    """The index of each class name among the known ones."""
    if list(names) == list(known[: len(names)]):
        return list(range(len(names)))  # names need not be unique then
    number = {name: place for place, name in enumerate(known)}
    unknown = [name for name in names if name not in number]
    if unknown:
        raise ValueError(
            f"{description} has a class {unknown[0]!r} that {whose} does not know; "
            f"its classes are {', '.join(known[:5])}{', ...' if len(known) > 5 else ''}"
        )
    return [number[name] for name in names]
