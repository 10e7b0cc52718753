"""Texts for the page that name no path of this machine."""

import re
import sys
import traceback

_WINDOWS = r"[A-Za-z]:\\(?:[^\\\s'\";:,]+\\)*"
_POSIX = r"(?<![\w./<:])(?:~|\.{0,2})?/(?:[^/\s'\";:,<>]+/)+"
_PATH = re.compile(f"{_WINDOWS}|{_POSIX}")


def without_paths(text: str) -> str:
    """The text with the last name of each path alone."""
    return _PATH.sub("", text)


def sentence_of(error: Exception) -> str:
    """What the page says of an error: its sentence if it was made for readers, else nothing of its inside."""
    if isinstance(error, ValueError):
        return without_paths(" ".join(str(error).split()))[:600]
    traceback.print_exception(error, file=sys.stderr)
    return f"This did not work ({type(error).__name__}); the terminal of vitmix explore says more."
