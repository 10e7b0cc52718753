"""torch's DataLoader with workers that ignore signals. After a lost worker, the main process can read the rest."""

import atexit
import itertools
import multiprocessing.util  # noqa: F401  its own exit handler must be registered before the one below
import os
import signal
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from vitmix._checks import check_workers

from .images import DataLost, log

Fetched = TypeVar("Fetched")
WORKERS_IGNORE = (signal.SIGINT, signal.SIGTERM)
HANDOVER_SECONDS = 5  # in which a killed worker has ended once its connections are closed

_iterators: weakref.WeakSet[Any] = weakref.WeakSet()


class WorkerLost(RuntimeError):
    """A worker process ended, for example because memory ran out; the text says which one and how."""


class _Lost(str):
    """Why data is lost; an error of a worker would come with its whole traceback."""


class _Fetch(Dataset[Any]):
    """A function of the keys of a batch, as torch's loader calls it."""

    def __init__(self, fetch: Callable[[list[Any]], Any]) -> None:
        self.fetch = fetch

    def __getitems__(self, keys: list[Any]) -> Any:
        try:
            return self.fetch(keys)
        except DataLost as lost:
            return _Lost(lost)


class _Keys:
    """The keys of each batch of the next iteration, as torch's loader asks for them."""

    batches: Callable[[], Iterator[list[Any]]]

    def __iter__(self) -> Iterator[list[Any]]:
        return self.batches()


class Fetcher(Generic[Fetched]):
    """Batches fetched in order, here or in worker processes.

    Args:
        fetch: gives a batch from its keys.
        persistent: keeps the workers for the next iteration.

    Attributes:
        when_lost: called when a worker process is lost; without it, that is an error. If it returns, the remaining
            batches are fetched in this process.
    """

    def __init__(self, fetch: Callable[[list[Any]], Fetched], workers: int, *, persistent: bool = False) -> None:
        check_workers(workers)
        self.when_lost: Callable[[WorkerLost], None] | None = None
        self._fetch, self._keys = fetch, _Keys()
        self._loader: DataLoader | None = DataLoader(
            _Fetch(fetch),
            batch_sampler=self._keys,  # pyright: ignore[reportArgumentType]  an iterable is enough
            num_workers=workers,
            collate_fn=_unchanged,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=persistent and workers > 0,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # torch draws a number per epoch; without this from the global generator
        )

    def fetched(self, batches: Callable[[], Iterator[list[Any]]]) -> Iterator[Fetched]:
        """A batch for each list of keys."""
        if self._loader is None:
            raise RuntimeError("this loader was closed; make a new one")
        self._keys.batches = batches
        done = 0
        try:
            with closing(_watched(self._loader)) as found:
                for batch in found:
                    done += 1
                    if isinstance(batch, _Lost):
                        raise DataLost(batch)
                    yield batch
        except WorkerLost as lost:
            if self.when_lost is None:
                raise
            self.when_lost(lost)
            yield from map(self._fetch, itertools.islice(batches(), done, None))

    def close(self) -> None:
        """Ends the worker processes; they also end with the loader and with the program."""
        end_workers(getattr(self._loader, "_iterator", None))
        self._loader = None

    def __del__(self) -> None:
        if getattr(self, "_loader", None) is not None:
            self.close()


def _watched(loader: DataLoader) -> Generator[Any]:
    """What torch's loader fetches; the loss of a worker is a `WorkerLost`."""
    iterator = loader._iterator  # of the epochs before
    try:
        iterator = started(loader)
        yield from iterator
    except (RuntimeError, ConnectionError, EOFError) as error:
        ended = _ended(iterator, patience=0 if isinstance(error, RuntimeError) else HANDOVER_SECONDS)
        if not ended:
            raise
        end_workers(iterator)
        loader._iterator = None  # the next epoch has new workers
        raise WorkerLost(_how_it_ended(ended[0])) from error
    finally:
        if not loader.persistent_workers:
            end_workers(iterator)


def _ended(iterator: Any, patience: float) -> list[Any]:
    """The workers that have ended, or do so within some seconds: one that is killed while it hands over a batch closes
    its connections first."""
    found = getattr(iterator, "_workers", ())
    end = time.monotonic() + patience
    while all(worker.is_alive() for worker in found) and time.monotonic() < end:
        time.sleep(0.01)
    return [worker for worker in found if not worker.is_alive()]


def _how_it_ended(worker: Any) -> str:
    code = worker.exitcode
    if code >= 0:
        return f"loader worker {worker.pid} ended with exit code {code}"
    hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"loader worker {worker.pid} was ended by {signal.Signals(-code).name}{hint}"


def started(loader: DataLoader) -> Any:
    """torch's iterator, with its workers running."""
    child_ended = getattr(signal, "SIGCHLD", None)  # Windows has none
    before = child_ended and signal.getsignal(child_ended)
    with _held_signals():
        iterator = iter(loader)
        _iterators.add(iterator)
    if child_ended and before is not None and signal.getsignal(child_ended) is not before:
        # Torch's handler would raise an error for a lost worker anywhere, such as in the middle of an update. Its
        # iterator notices by itself when it is asked for a batch.
        signal.signal(child_ended, before)
    return iterator


@contextmanager
def _held_signals() -> Iterator[None]:
    """Blocks the signals that workers ignore: a worker forked here inherits the block until it ignores them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WORKERS_IGNORE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_workers(iterator: Any) -> None:
    """Ends the workers of torch's iterator at once.

    Torch does so when the iterator is deleted. After an error, the garbage collector decides when, and it collects the
    queues first, after which torch waits five seconds for every worker.
    """
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        for worker in iterator._workers:
            if worker.is_alive():  # busy, and ignores the signal that torch sends
                worker.kill()


@atexit.register
def _end_all_workers() -> None:
    # Otherwise Python would send a signal that they ignore, and wait.
    for iterator in list(_iterators):
        end_workers(iterator)


def _unchanged(fetched: Any) -> Any:
    return fetched


def _start_worker(number: int) -> None:
    """Protects a worker from Ctrl-C and from signals to the process group or to every process of a job.

    The main process handles those, and may need a last batch to stop at the same update as the other ranks. It
    ends its workers itself, and a worker whose parent is gone ends within seconds.
    """
    log.disabled = True  # the main process learns of every unreadable image and reports it once
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    for sent in WORKERS_IGNORE:
        signal.signal(sent, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKERS_IGNORE)
