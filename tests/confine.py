"""Confines a process to a folder by Landlock (Linux 6.7): commands that are fuzzed may be told to write anywhere."""

import ctypes
import os
import struct
from collections.abc import Mapping
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on every architecture
ASK_VERSION, PATH_BENEATH, NO_NEW_PRIVILEGES = 1, 1, 38
WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_REGULAR, REFER, TRUNCATE = 1 << 1, 1 << 4, 1 << 5, 1 << 8, 1 << 13, 1 << 14
MAKE_ANYTHING = sum(1 << bit for bit in range(6, 13))
CHANGE = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_ANYTHING | REFER | TRUNCATE
TCP = 0b11  # bind and connect
LEAST_VERSION = 4  # before, files could be cut short and connections made


def can_confine() -> bool:
    """Whether the kernel can confine a process."""
    try:
        return _call(CREATE_RULESET, None, 0, ASK_VERSION) >= LEAST_VERSION
    except (OSError, AttributeError):  # another system
        return False


def confine(folder: Path) -> None:
    """Lets this process, and those that it starts, change nothing outside the folder and connect to nobody, for good.

    What it had open before stays open. The kernel refuses the rest with 'Permission denied'.
    """
    if not can_confine():
        raise OSError("this kernel cannot confine a process to a folder")
    shared_memory = WRITE_FILE | MAKE_REGULAR | REMOVE_FILE | TRUNCATE
    allowed = {str(folder): CHANGE, os.devnull: WRITE_FILE | TRUNCATE, "/dev/shm": shared_memory}
    _restrict({place: access for place, access in allowed.items() if os.path.exists(place)})


def _restrict(allowed: Mapping[str, int]) -> None:
    attributes = struct.pack("QQ", CHANGE, TCP)
    rules = _call(CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for place, access in allowed.items():
            opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
            try:
                _call(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", access, opened), 0)
            finally:
                os.close(opened)
        _checked(ctypes.CDLL(None, use_errno=True).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _call(RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _call(*arguments: int | bytes | None) -> int:
    return _checked(ctypes.CDLL(None, use_errno=True).syscall(*arguments))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
