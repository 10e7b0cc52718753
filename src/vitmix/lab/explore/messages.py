"""Texts for the page, without paths of this machine."""

import re
import sys
import traceback

# Folders may have spaces. In quotes, a path ends at the quote; otherwise at a comma or the like: a sentence with a
# later slash may lose words, which is better than a folder that stays.
_WINDOWS = r"[A-Za-z]:\\(?:[^\\\n'\";:,]+\\)*"
_START = r"(?<![\w./<])(?:file:(?=/))?(?:~\w*|\.{1,2})?(?:/(?!/)|(?<!:)/+|(?<=file:)/+)"
_POSIX = r"(?:[^/\n'\";:,<>]*[^/\s'\";:,<>]/+)*(?=[^\s/])"  # no folder ends in a space: a path begins there
_QUOTED = "|".join(rf"(?<={quote}){_START}(?:[^/\n{quote}]+/+)*(?=[^/{quote}])" for quote in "'\"")
_PATH = re.compile(f"{_WINDOWS}|{_QUOTED}|{_START}{_POSIX}")


def without_paths(text: str) -> str:
    """The text with each path reduced to its last name."""
    return _PATH.sub("", text)


def sentence_of(error: Exception) -> str:
    """What the page says about an error: its message if that is meant for users, otherwise only its type."""
    if isinstance(error, ValueError):
        return without_paths(" ".join(str(error).split()))[:600]
    traceback.print_exception(error, file=sys.stderr)
    return f"This did not work ({type(error).__name__}); the terminal of vitmix explore says more."
