"""Input checks. Errors say what was expected, what was given and what to do."""

import difflib
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "MOST_WORKERS",
    "TOO_MANY",
    "as_blocks",
    "check_choice",
    "check_count",
    "check_finite",
    "check_fraction",
    "check_grid",
    "check_integer",
    "check_not_negative",
    "check_output_file",
    "check_positive",
    "check_switch",
    "check_workers",
    "unknown_name",
]

MOST_WORKERS = 1024
TOO_MANY = 2**63  # int64, the integers of torch and numpy, ends here


def check_finite(name: str, value: float) -> None:
    if not _is_number(value) or not _is_finite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def check_positive(name: str, value: float) -> None:
    if not _is_number(value) or not _is_finite(value) or value <= 0:
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")


def check_not_negative(name: str, value: float) -> None:
    if not _is_number(value) or not _is_finite(value) or value < 0:
        raise ValueError(f"{name} must be zero or a positive finite number, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    if not _is_number(value) or not 0 <= value <= 1:  # NaN fails the comparison
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r}")


def check_count(name: str, value: int, *, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < TOO_MANY:
        most = " and below 2**63" if isinstance(value, int) and value >= TOO_MANY else ""
        raise ValueError(f"{name} must be an integer of at least {least}{most}, got {value!r}")


def check_workers(value: int) -> None:
    check_count("workers", value, least=0)
    if value > MOST_WORKERS:  # each is a process: too many of them stall the machine
        raise ValueError(f"workers may be at most {MOST_WORKERS:,}, got {value}; about one for each core is enough")


def check_integer(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")


def check_switch(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def as_blocks(name: str, blocks: Sequence[int] | Literal["all"]) -> tuple[int, ...] | Literal["all"]:
    """Returns block numbers as a tuple; a list is accepted too."""
    if blocks == "all":
        return "all"
    if not isinstance(blocks, list | tuple) or any(
        not isinstance(each, int) or isinstance(each, bool) for each in blocks
    ):
        raise ValueError(f"{name} must be 'all' or block numbers such as [-1], got {blocks!r}")
    return tuple(blocks)


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    known = tuple(known)
    if value not in known:
        raise unknown_name(name, value, known)


def check_grid(name: str, grid: tuple[int, int] | None) -> None:
    if grid is None:
        return
    if not isinstance(grid, tuple) or len(grid) != 2 or any(not isinstance(side, int) or side < 1 for side in grid):
        raise ValueError(f"{name} must be (rows, columns) of tokens, for example (14, 14), got {grid!r}")


def check_output_name(path: str | Path) -> None:
    """Raises an error for a name that is not valid UTF-8, with which safetensors can neither write nor read."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the output name must be valid UTF-8, got {str(path)!a}; safetensors needs it, so choose another output"
        ) from None


def check_output_file(path: str | Path) -> None:
    """Raises an error if the file cannot be written, before long work is done in vain."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"the output {str(path)!r} is a folder; give a file name")
    if path.exists() and not path.is_file():
        raise ValueError(f"the output {str(path)!r} is not a regular file; give another file name")
    if not path.parent.is_dir():
        raise ValueError(f"the output folder {str(path.parent)!r} does not exist; create it first")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()  # permissions alone say little about network and virtual disks
    except OSError as problem:
        raise ValueError(f"cannot write to {str(path.parent)!r}: {problem.strerror}; choose another output") from None


def unknown_name(kind: str, value: object, known: Iterable[str]) -> ValueError:
    """The error for a name outside `known`: lists the known ones and suggests the nearest."""
    known = tuple(known)
    by_letters = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(value).lower(), by_letters, n=1)
    hint = f"; did you mean {by_letters[close[0]]!r}?" if close else ""
    listed = ", ".join(repr(each) if " " in each else each for each in known)
    return ValueError(f"unknown {kind} {value!r}, known: {listed}{hint}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
