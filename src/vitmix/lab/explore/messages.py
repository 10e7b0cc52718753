"""Texts for the page, without paths of this machine."""

import re
import sys
import traceback

_WINDOWS = r"[A-Za-z]:\\(?:[^\\\s'\";:,]+\\)*"
_POSIX = r"(?<![\w./<:])(?:~|\.{0,2})?/(?:[^/\s'\";:,<>]+/)+"
_PATH = re.compile(f"{_WINDOWS}|{_POSIX}")


def without_paths(text: str) -> str:
    """The text with each path reduced to its last name."""
    return _PATH.sub("", text)


def sentence_of(error: Exception) -> str:
    """What the page says about an error: its message if that is meant for users, otherwise only its type."""
    if isinstance(error, ValueError):
        return without_paths(" ".join(str(error).split()))[:600]
    traceback.print_exception(error, file=sys.stderr)
    return f"This did not work ({type(error).__name__}); the terminal of vitmix explore says more."
