"""Reading untrusted files: regular files of bounded size, JSON and YAML of bounded depth.

The result is plain values that can be printed, compared and traversed; anything else is a ValueError or an OSError.
"""

import errno
import itertools
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import yaml

JsonObject = dict[str, Any]
"""A mapping of a JSON file before it is checked, or as it is written; between modules, it is a record."""

MOST_JSON, MOST_YAML = 2**25, 2**17  # bytes
MOST_DEPTH = 64  # of nested lists and mappings; our own files have at most six
MOST_VALUES = 200_000  # of a YAML file; repeated references count each time
# Errors about what is there. All others are of a disk, a network, this machine or its permissions.
_CONTENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
_TOO_DEEP = f"lists and mappings are nested more than {MOST_DEPTH} deep"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file to read: a pipe would block forever, and a device has no end."""
    # Opening a pipe blocks, unless it is opened without blocking.
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISSOCK(os.stat(path).st_mode):
            raise _not_regular(path) from None
        raise
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise _not_regular(path)


def _not_regular(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most this many bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size or most, most) + 1)  # Python allocates as much as is asked for
    if len(content) > most:
        raise ValueError(f"{os.fspath(path)} has more than the {most:,} bytes allowed")
    return content


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return parse_json(read_bytes(path, MOST_JSON))


def is_fault(error: OSError) -> bool:
    """Whether reading failed although the file may be intact, so that it must not be reported as damaged."""
    return error.errno is not None and error.errno not in _CONTENT  # a decoder's own errors have no number


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_nesting(value)
    return value


def parse_yaml(text: str) -> Any:
    """The value of a YAML text: lists, mappings, texts, numbers; dates stay texts."""
    if len(text) > MOST_YAML:
        raise ValueError(f"it is longer than the {MOST_YAML:,} characters allowed")
    open_brackets = itertools.accumulate((character in "[{") - (character in "]}") for character in text)
    if max(open_brackets, default=0) > 8 * MOST_DEPTH:  # including those in quotes; the parser would take long
        raise ValueError(_TOO_DEEP)
    try:
        value = yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (LookupError, AttributeError):  # PyYAML expects a matching value after '!!int' and the like
        raise ValueError("a tag such as !!int precedes a value of another kind; leave it out") from None
    _check_nesting(value, MOST_VALUES)
    return value


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _check_nesting(value: Any, most: int | None = None) -> None:
    """Refuses a value that contains itself, as YAML's references allow, or is too deep to be printed or written."""
    level, depth, count = [[value]], 0, 0
    while level:
        depth += 1
        if depth > MOST_DEPTH + 1:
            raise ValueError(_TOO_DEEP)
        inside = []
        for each in level:
            count += len(each)
            if most is not None and count > most:
                raise ValueError(f"it holds more than the {most:,} values allowed")
            for child in (*each, *each.values()) if isinstance(each, dict) else each:
                if isinstance(child, (list, dict)):
                    inside.append(child)
                elif child is not None and not isinstance(child, (str, int, float, bool)):
                    raise ValueError(f"a {type(child).__name__} is neither a string, a number, a list nor a mapping")
        level = inside


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number that does not overflow in arithmetic."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e100  # NaN fails


def is_count(value: Any) -> bool:
    """Whether a value from a file is an integer of at least 0."""
    return isinstance(value, int) and is_number(value) and value >= 0
