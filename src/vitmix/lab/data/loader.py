"""Batches of images read and augmented one by one, here or in worker processes.

The order of an epoch is a function of (seed, epoch), a picture's augmentation one of (seed, epoch, index, repeat). So
the number of workers changes nothing, and an epoch entered at batch k goes on as if it had run from its start.
"""

import atexit
import multiprocessing.util  # noqa: F401  its own exit handler must be registered before the one below
import os
import signal
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vitmix._checks import check_count, check_workers
from vitmix._mix import Grid, resample_mask

from .augment import Augmentation, augment, erase, eval_pixels, global_generators_kept, normalize
from .images import BrokenImage, ImageSet, NothingReadable, log
from .map_augment import augment_map, check_maps
from .plan import EpochPlan, rows_of_rank


@dataclass
class Batch:
    """Images `(B, 3, H, W)` float32, normalized, with their labels and places in the data set.

    Args:
        erase: `(B, 4)` boxes (top, bottom, left, right) to be erased after mixing, empty where there is none; `None`
            when the images are erased already.
        maps: `(B, h, w)` activation map of each image's label, augmented with it.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    erase: Tensor | None = None
    maps: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device, without waiting where it comes from pinned memory."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        return self._each(lambda part: part.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        erase, maps = (None if part is None else change(part) for part in (self.erase, self.maps))
        return Batch(change(self.images), change(self.labels), change(self.indices), erase, maps)


Key = tuple[int, int, int]  # epoch, index, repeat: all that a worker must know, so that workers can outlive an epoch


class WorkerLost(RuntimeError):
    """A worker process ended, as when the kernel takes its memory back; the text says which one and how."""


def _raise(lost: WorkerLost) -> None:
    raise lost


class _EpochSampler(Sampler[list[Key]]):
    """Batches of keys from the place that `epoch` and `start` say when an iteration begins."""

    def __init__(self, plan: EpochPlan) -> None:
        self.plan, self.epoch, self.start = plan, 0, 0

    def __len__(self) -> int:
        return self.plan.batches - self.start

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, start = self.epoch, self.start
        indices, repeats = self.plan.order(epoch)
        for number in range(start, self.plan.batches):
            rows = slice(number * self.plan.batch, (number + 1) * self.plan.batch)
            pairs = zip(indices[rows].tolist(), repeats[rows].tolist(), strict=True)
            yield [(epoch, index, repeat) for index, repeat in pairs]


@dataclass
class _Fetched:
    """A batch, and the unreadable pictures met on the way: a worker's own list of them would stay in the worker."""

    batch: Batch | None  # nothing where no picture was readable
    broken: dict[int, str]

    def pin_memory(self) -> "_Fetched":
        return _Fetched(self.batch and self.batch.pin_memory(), self.broken)


class _TrainFetch(Dataset):
    def __init__(
        self, images: ImageSet, augmentation: Augmentation, seed: int, maps: Tensor | None, map_grid: Grid | None
    ) -> None:
        self.images, self.augmentation, self.seed = images, augmentation, seed
        self.maps, self.map_grid = maps, map_grid

    def __getitems__(self, keys: list[Key]) -> _Fetched:
        try:
            return self._fetch(keys)
        except NothingReadable:  # told by the main process: out of a worker an error comes with its whole traceback
            return _Fetched(None, dict(self.images.broken))

    def _fetch(self, keys: list[Key]) -> _Fetched:
        augmentation = self.augmentation
        pixels = torch.empty(len(keys), 3, *augmentation.sides, dtype=torch.uint8)
        boxes = torch.zeros(len(keys), augmentation.erasing_count, 4, dtype=torch.long)
        labels = torch.empty(len(keys), dtype=torch.long)
        indices = torch.empty(len(keys), dtype=torch.long)
        maps = None if self.maps is None else torch.empty(len(keys), *augmentation.sides)
        broken: dict[int, str] = {}
        with global_generators_kept():
            for row, (epoch, index, repeat) in enumerate(keys):
                image, label, found = self.images.readable(index)
                broken.update(_passed(self.images, index, found))
                numbers = (self.seed, epoch, index, repeat)
                pixels[row], boxes[row] = augment(image, augmentation, seed_numbers=numbers)
                labels[row], indices[row] = label, found
                if maps is not None and self.maps is not None:
                    size = (image.height, image.width)
                    maps[row] = augment_map(self.maps[found], size, augmentation, seed_numbers=numbers)
        if maps is not None and self.map_grid is not None:
            maps = resample_mask(maps, self.map_grid, rule="area")
        normalized = normalize(pixels, augmentation)
        if augmentation.erase_after_mixing:
            return _Fetched(Batch(normalized, labels, indices, boxes[:, 0], maps), broken)
        for row, (epoch, index, repeat) in enumerate(keys):
            erase(normalized[row], boxes[row], seed_numbers=(self.seed, epoch, index, repeat))
        return _Fetched(Batch(normalized, labels, indices, maps=maps), broken)


class _EvalFetch(Dataset):
    def __init__(self, images: ImageSet, augmentation: Augmentation) -> None:
        self.images, self.augmentation = images, augmentation

    def __getitems__(self, indices: list[int]) -> _Fetched:
        """The readable ones of these samples: a stand-in would count another sample twice."""
        pixels, labels, found = [], [], []
        broken: dict[int, str] = {}
        for index in indices:
            try:
                image, label = self.images[index]
            except BrokenImage as problem:
                broken[index] = str(problem)
                continue
            pixels.append(eval_pixels(image, self.augmentation))
            labels.append(label)
            found.append(index)
        if not pixels:
            return _Fetched(None, broken)
        images = normalize(torch.stack(pixels), self.augmentation)
        return _Fetched(Batch(images, torch.tensor(labels), torch.tensor(found)), broken)


class TrainLoader:
    """Augmented batches of an epoch, in an order of its own.

    Args:
        batch: samples per batch and process.
        workers: processes that read and augment; with 0 it is done here.
        repeats: repeated augmentation: this many differently augmented copies of a picture, shown by different ranks.
            An epoch is not longer for it; it shows a part of the pictures.
        drop_last: leaves an incomplete last batch out. Otherwise pictures are repeated until every rank has as many.
        pin_memory: for copies to a GPU that need not be waited for; where there is a GPU by default.
        maps: `(N, h, w)` activation map of each picture's label over the whole picture, to be augmented with it; see
            `vitmix.lab.data.label_maps`. They leave the picture's own random choices as they are.
        map_grid: pools the augmented maps by area; `None` leaves them at the images' size.

    Attributes:
        when_lost: called when a worker process is gone. It raises, as it does by default; if it returns, the rest of
            the epoch is read in this process.
    """

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        batch: int,
        seed: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        repeats: int = 1,
        drop_last: bool = True,
        pin_memory: bool | None = None,
        maps: Tensor | None = None,
        map_grid: Grid | None = None,
    ) -> None:
        check_workers(workers)
        check_maps(maps, images, augmentation)
        self.images = images
        self.plan = EpochPlan(len(images), batch, seed, rank, world, repeats, drop_last)
        self.when_lost: Callable[[WorkerLost], None] = _raise
        self._sampler = _EpochSampler(self.plan)
        self._fetch = _TrainFetch(images, augmentation, seed, maps, map_grid)
        self._loader: DataLoader | None = _torch_loader(
            self._fetch, self._sampler, workers, pin_memory, persistent=True
        )

    def __len__(self) -> int:
        return self.plan.batches

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on; those before it are not read. One iteration at a time."""
        self.plan.check_start(number, start)
        return self._batches(number, start)

    def _batches(self, number: int, start: int) -> Iterator[Batch]:
        if self._loader is None:
            raise RuntimeError("this loader was closed; make a new one")
        self._sampler.epoch, self._sampler.start = number, start
        for fetched in self._fetched(self._loader):
            self.images.note_broken(fetched.broken)
            if fetched.batch is None:
                raise self.images.nothing_readable()
            yield fetched.batch

    def _fetched(self, loader: DataLoader) -> Iterator[_Fetched]:
        try:
            for fetched in _watched(loader):
                self._sampler.start += 1
                yield fetched
        except WorkerLost as lost:
            _end_workers(loader._iterator)
            loader._iterator = None  # the next epoch has new workers
            self.when_lost(lost)
            yield from map(self._fetch.__getitems__, self._sampler)

    def close(self) -> None:
        """Ends the worker processes; they also end with the loader and with the program."""
        _end_workers(getattr(self._loader, "_iterator", None))
        self._loader = None

    def __del__(self) -> None:
        if getattr(self, "_loader", None) is not None:
            self.close()


class EvalLoader:
    """Batches that show every readable sample exactly once over all ranks, so ranks may differ in number and size.

    Args:
        start: how many of this rank's first samples are left out, for an evaluation that goes on.

    Attributes:
        when_lost: as in `TrainLoader`.
    """

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        batch: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        start: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        check_count("batch", batch)
        check_workers(workers)
        self.images = images
        rows = rows_of_rank(len(images), rank, world)[start:]
        self._rows = [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]
        self.when_lost: Callable[[WorkerLost], None] = _raise
        self._fetch = _EvalFetch(images, augmentation)
        self._loader = _torch_loader(self._fetch, self._rows, workers, pin_memory)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Batch]:
        for fetched in self._fetched():
            self.images.note_broken(fetched.broken)
            if fetched.batch is not None:
                yield fetched.batch

    def _fetched(self) -> Iterator[_Fetched]:
        done = 0
        try:
            with closing(_watched(self._loader)) as fetching:
                for fetched in fetching:
                    done += 1
                    yield fetched
        except WorkerLost as lost:
            self.when_lost(lost)
            yield from map(self._fetch.__getitems__, self._rows[done:])


def _passed(images: ImageSet, index: int, found: int) -> dict[int, str]:
    """The unreadable samples between the one asked for and the one that stands in."""
    passed: dict[int, str] = {}
    while index != found:
        passed[index] = images.broken[index]
        index = (index + 1) % len(images)
    return passed


def _torch_loader(
    fetch: Dataset,
    batches: Sampler[list[Key]] | list[list[int]],
    workers: int,
    pin_memory: bool | None,
    *,
    persistent: bool = False,
) -> DataLoader:
    return DataLoader(
        fetch,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        persistent_workers=persistent and workers > 0,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # torch draws a number per epoch; without this from the program's generator
    )


WORKERS_IGNORE = (signal.SIGINT, signal.SIGTERM)

_iterators: weakref.WeakSet[Any] = weakref.WeakSet()


def _watched(loader: DataLoader) -> Generator[_Fetched]:
    """What torch's loader fetches; the end of a worker is an error of its own."""
    iterator = loader._iterator  # of the epochs before
    try:
        iterator = _started(loader)
        yield from iterator
    except RuntimeError as error:
        ended = [worker for worker in getattr(iterator, "_workers", ()) if not worker.is_alive()]
        if not ended:
            raise
        raise WorkerLost(_how_it_ended(ended[0])) from error
    finally:
        if not loader.persistent_workers:
            _end_workers(iterator)


def _how_it_ended(worker: Any) -> str:
    code = worker.exitcode
    if code >= 0:
        return f"loader worker {worker.pid} ended with exit code {code}"
    hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"loader worker {worker.pid} was ended by {signal.Signals(-code).name}{hint}"


def _started(loader: DataLoader) -> Any:
    child_ended = getattr(signal, "SIGCHLD", None)  # Windows has none
    before = child_ended and signal.getsignal(child_ended)
    with _held_signals():
        iterator = iter(loader)
        _iterators.add(iterator)
    if child_ended and before is not None and signal.getsignal(child_ended) is not before:
        # Torch's handler would raise an error for a lost worker anywhere, as in the middle of an update; asked for a
        # batch, its iterator finds out by itself.
        signal.signal(child_ended, before)
    return iterator


@contextmanager
def _held_signals() -> Iterator[None]:
    """Holds back the signals that a worker will ignore; forked here, it holds them back until it does."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WORKERS_IGNORE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_workers(iterator: Any) -> None:
    """Ends the workers of torch's iterator at once.

    Torch does so when the iterator is deleted. After an error that is up to the garbage collector, which takes the
    queues first, and then torch waits five seconds for every worker.
    """
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        for worker in iterator._workers:
            if worker.is_alive():  # busy, and deaf to the signal with which torch would end it
                worker.kill()


@atexit.register
def _end_all_workers() -> None:
    # Else Python would wait for them, having sent the signal that they ignore.
    for iterator in list(_iterators):
        _end_workers(iterator)


def _as_it_is(fetched: Any) -> Any:
    return fetched


def _start_worker(number: int) -> None:
    """Moves a worker out of reach of Ctrl-C and of signals to the process group or to every process of a job.

    The main process answers those, and may need a last batch to end cleanly, at the same update as other ranks. It
    ends its workers itself, and a worker whose parent is gone ends within seconds.
    """
    log.disabled = True  # the main process hears of every unreadable image and reports it once
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    for sent in WORKERS_IGNORE:
        signal.signal(sent, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKERS_IGNORE)
