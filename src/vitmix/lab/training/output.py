"""Output errors do not stop a run: a closed pipe, a log on a full disk, a character that the terminal lacks."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Unfailing:
    """A text stream that drops what it cannot write; once the reader is gone, everything."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.gone = False

    def write(self, text: str) -> int:
        try:
            self._try(lambda: self._stream.write(text))
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            self._try(lambda: self._stream.write(plain))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        if self.gone:
            return
        try:
            action()
        except OSError as error:
            self.gone = error.errno not in (errno.ENOSPC, errno.EDQUOT)  # a disk may have room again

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unfailing_output() -> Iterator[None]:
    """Inside this context, errors of stdout and stderr do not end the program."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and Unfailing(stream) for stream in before)  # None if it was closed
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in before:
            flush_or_discard(stream)


def flush_or_discard(stream: Any) -> OSError | None:
    """Flushes a stream; after an error, which is returned, it goes to /dev/null, so that Python exits cleanly."""
    if stream is None:
        return None
    try:
        stream.flush()
        return None
    except OSError as error:
        with suppress(OSError):  # a stream without a descriptor stays as it is
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        return error
