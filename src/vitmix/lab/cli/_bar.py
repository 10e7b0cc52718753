"""Progress of commands that go through many images."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 5.0  # between lines without a terminal


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress callback, called with a text, the images done and the total: a bar on a terminal, otherwise lines."""
    from rich import progress as rich

    if not sys.stdout.isatty():
        yield _Lines()
        return
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    with rich.Progress(*columns, rich.TimeElapsedColumn(), rich.TimeRemainingColumn(), transient=True) as progress:
        task = progress.add_task("")
        yield lambda words, done, total: progress.update(task, description=words, completed=done, total=total)


class _Lines:
    def __init__(self) -> None:
        self.last = float("-inf")

    def __call__(self, words: str, done: int, total: int) -> None:
        if done == total or time.monotonic() - self.last > SECONDS:
            self.last = time.monotonic()
            print(f"{done}/{total} images  {words}", flush=True)
