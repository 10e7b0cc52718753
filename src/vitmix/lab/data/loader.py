"""Batches of images read and augmented one by one, here or in worker processes.

The order of an epoch is a function of (seed, epoch), the augmentation of an image is a function of (seed, epoch, index,
repeat). So the number of workers changes nothing, and an epoch that is resumed at batch k continues as if it had run
from its start.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from vitmix._checks import check_count
from vitmix._mix import Grid, resample_mask

from .augment import (
    augment,
    augment_map,
    augment_places,
    cell_places,
    check_maps,
    erase,
    eval_pixels,
    global_generators_kept,
    normalize,
)
from .augmentation import Augmentation
from .images import ImageSet, NothingReadable
from .plan import EpochPlan, Key, rows_of_rank
from .workers import Fetcher

Ahead = Callable[[Tensor], dict[str, Tensor]]


@dataclass
class Batch:
    """Images `(B, 3, H, W)` float32, normalized, with their labels and indices in the dataset.

    Args:
        erase: `(B, 4)` boxes (top, bottom, left, right) to be erased after mixing, empty if there is none; `None`
            when the images are erased already.
        maps: `(B, h, w)` activation map of each image's label, augmented with it.
        places: `(B, 3, h, w)` where each cell of an image comes from: row and column as fractions of the image as it
            is stored, and the part of the cell that is inside it.
        ahead: what the method computes from the images alone, `(B, ...)` each; it stays on the host.
        broken: the unreadable images found while loading it, because a worker's own list would stay in the worker.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    erase: Tensor | None = None
    maps: Tensor | None = None
    places: Tensor | None = None
    ahead: dict[str, Tensor] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, rows: slice) -> "Batch":
        return self._each(lambda values: values[rows])

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device; a copy from pinned memory does not wait."""
        return self._each(lambda values: values.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        return self._each(lambda values: values.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        names = ("images", "labels", "indices", "erase", "maps", "places")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{name: change(values) for name, values in given.items() if values is not None})


def _empty(broken: dict[int, str]) -> Batch:
    return Batch(torch.empty(0), torch.empty(0), torch.empty(0), broken=dict(broken))


def _train_batch(
    images: ImageSet,
    augmentation: Augmentation,
    seed: int,
    maps: Tensor | None,
    map_grid: Grid | None,
    place_grid: Grid | None,
    ahead: Ahead | None,
    keys: list[Key],
) -> Batch:
    """The augmented samples of these keys; empty if not a single image is readable.

    The main process then raises the error, because a worker's error would come with its whole traceback.
    """
    samples, labels, indices, moved, places = [], [], [], [], []
    known = len(images.broken)
    with global_generators_kept():
        for epoch, index, repeat in keys:
            try:
                image, label, found = images.readable(index)
            except NothingReadable:
                return _empty(images.broken)
            numbers = (seed, epoch, index, repeat)
            samples.append(augment(image, augmentation, seed_numbers=numbers))
            labels.append(label)
            indices.append(found)
            if maps is not None:
                moved.append(augment_map(maps[found], (image.height, image.width), augmentation, seed_numbers=numbers))
            if place_grid is not None:
                places.append(augment_places((image.height, image.width), augmentation, seed_numbers=numbers))
    pixels, boxes = (torch.stack(each) for each in zip(*samples, strict=True))
    batch = Batch(normalize(pixels, augmentation), torch.tensor(labels), torch.tensor(indices))
    batch.broken = dict(itertools.islice(images.broken.items(), known, None))
    if moved:
        batch.maps = pooled(torch.stack(moved), map_grid)
    if place_grid is not None:
        batch.places = cell_places(torch.stack(places), place_grid)
    if augmentation.erase_after_mixing:
        batch.erase = boxes[:, 0]
    else:
        for row, key in enumerate(keys):
            erase(batch.images[row], boxes[row], seed_numbers=(seed, *key))
    if ahead is not None:
        batch.ahead = ahead(batch.images)
    return batch


def pooled(maps: Tensor, grid: Grid | None) -> Tensor:
    """Maps resampled to a grid by area."""
    return maps if grid is None else resample_mask(maps, grid, rule="area")


def read_batch(images: ImageSet, augmentation: Augmentation, rows: list[int]) -> Batch:
    """The readable samples among these, as pixels, for evaluation: a replacement would count another sample twice."""
    broken: dict[int, str] = {}
    readable = images.readable_ones(rows, broken)
    found = [(eval_pixels(image, augmentation), label, index) for index, image, label in readable]
    if not found:
        return _empty(broken)
    pixels, labels, indices = zip(*found, strict=True)
    return Batch(torch.stack(pixels), torch.tensor(labels), torch.tensor(indices), broken=broken)


def _eval_batch(images: ImageSet, augmentation: Augmentation, rows: list[int]) -> Batch:
    batch = read_batch(images, augmentation, rows)
    return replace(batch, images=normalize(batch.images, augmentation)) if len(batch) else batch


class Loaded(Protocol):
    """A batch: how many samples it has, and the images that could not be read for it."""

    broken: dict[int, str]

    def __len__(self) -> int: ...


Some = TypeVar("Some", bound=Loaded)


class Epochs(ABC, Generic[Some]):
    """A training loader with epochs that follow a plan."""

    plan: EpochPlan

    def __len__(self) -> int:
        return self.plan.batches

    def epoch(self, number: int, start: int = 0) -> Iterator[Some]:
        """The batches of an epoch from batch `start` on; those before it are not read."""
        check_count("epoch", number, least=0)
        check_count("start", start, least=0)
        if start > len(self):
            raise ValueError(f"start must be at most the {len(self)} batches of an epoch, got {start}")
        return self._epoch(number, start)

    @abstractmethod
    def _epoch(self, number: int, start: int) -> Iterator[Some]: ...


class FetchedEpochs(Fetcher[Some], Epochs[Some]):
    """Epochs whose batches are fetched one by one."""

    images: ImageSet

    def _epoch(self, number: int, start: int) -> Iterator[Some]:
        for batch in self.fetched(partial(self.plan.keys, number, start)):
            self.images.note_broken(batch.broken)
            if not len(batch):
                raise self.images.nothing_readable()
            yield batch


class FetchedOnce(Fetcher[Some]):
    """Batches with every readable sample once over all ranks; their number and size may differ between ranks."""

    images: ImageSet
    rows: list[list[int]]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Some]:
        for batch in self.fetched(self.rows.__iter__):
            self.images.note_broken(batch.broken)
            if len(batch):
                yield batch


class TrainLoader(FetchedEpochs[Batch]):
    """Augmented batches, in another random order each epoch. One epoch can be iterated at a time.

    Args:
        batch: samples per batch and process.
        extra: so many of the first processes have one sample more.
        workers: processes that read and augment; 0 does it in this process.
        balance: shows every class equally often.
        repeats: repeated augmentation: this many differently augmented copies of an image, on different ranks. The
            length of an epoch does not change; it shows part of the images.
        maps: `(N, h, w)` activation map of each image's label over the whole image, to be augmented with it; see
            `vitmix.lab.maps`. The images' random choices do not depend on them.
        map_grid: pools the augmented maps by area; `None` leaves them at the images' size.
        place_grid: gives each batch its `places` on this grid.
        ahead: a function of each batch's images, for its `ahead`, called in the workers.
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
        extra: int = 0,
        repeats: int = 1,
        balance: bool = False,
        maps: Tensor | None = None,
        map_grid: Grid | None = None,
        place_grid: Grid | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        check_maps(maps, len(images), images.description, augmentation, places=place_grid is not None)
        self.images = images
        labels = images.labels if balance else None
        self.plan = EpochPlan(len(images), batch, seed, rank, world, repeats, labels, images.window, extra)
        fetch = partial(_train_batch, images, augmentation, seed, maps, map_grid, place_grid, ahead)
        images.check_shuffled()
        super().__init__(fetch, workers, persistent=True)


class EvalLoader(FetchedOnce[Batch]):
    """The images as the model is evaluated on them.

    Args:
        start: how many of this rank's first samples to skip, for an evaluation that is resumed.
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
    ) -> None:
        self.images, self.rows = images, rows_of_rank(len(images), batch, rank, world, start)
        super().__init__(partial(_eval_batch, images, augmentation), workers)
