"""Batches of images read and augmented one by one, here or in worker processes.

The order of an epoch is a function of (seed, epoch), an image's augmentation one of (seed, epoch, index, repeat). So
the number of workers changes nothing, and an epoch entered at batch k continues as if it had run from its start.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Sampler

from vitmix._checks import check_count
from vitmix._mix import Grid, resample_mask

from .augment import augment, augment_map, check_maps, erase, eval_pixels, global_generators_kept, normalize
from .augmentation import Augmentation
from .images import BrokenImage, ImageSet, NothingReadable
from .plan import EpochPlan, rows_of_rank
from .workers import Fetch, Fetcher
from .workers import WorkerLost as WorkerLost


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

    def part(self, rows: slice) -> "Batch":
        return self._each(lambda values: values[rows])

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device, without waiting where it comes from pinned memory."""
        return self._each(lambda values: values.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        return self._each(lambda values: values.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        erase, maps = (None if values is None else change(values) for values in (self.erase, self.maps))
        return Batch(change(self.images), change(self.labels), change(self.indices), erase, maps)


Key = tuple[int, int, int]  # epoch, index, repeat: all that a worker must know, so that workers can outlive an epoch


class _EpochSampler(Sampler[list[Key]]):
    """Batches of keys, from the place that `epoch` and `start` name when an iteration begins."""

    def __init__(self, plan: EpochPlan) -> None:
        self.plan, self.epoch, self.start = plan, 0, 0

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        indices, repeats = self.plan.order(epoch)
        for number in range(self.start, self.plan.batches):
            rows = slice(number * self.plan.batch, (number + 1) * self.plan.batch)
            pairs = zip(indices[rows].tolist(), repeats[rows].tolist(), strict=True)
            yield [(epoch, index, repeat) for index, repeat in pairs]


@dataclass
class _Fetched:
    """A batch, and the unreadable images met on the way: a worker's own list of them would stay in the worker."""

    batch: Batch | None  # None where no image was readable
    broken: dict[int, str]

    def pin_memory(self) -> "_Fetched":
        return _Fetched(self.batch and self.batch.pin_memory(), self.broken)


class _TrainFetch(Fetch[Key, _Fetched]):
    def __init__(
        self, images: ImageSet, augmentation: Augmentation, seed: int, maps: Tensor | None, map_grid: Grid | None
    ) -> None:
        self.images, self.augmentation, self.seed = images, augmentation, seed
        self.maps, self.map_grid = maps, map_grid

    def __getitems__(self, keys: list[Key]) -> _Fetched:
        try:
            return self._fetch(keys)
        except NothingReadable:  # raised in the main process: from a worker, an error comes with its whole traceback
            return _Fetched(None, dict(self.images.broken))

    def _fetch(self, keys: list[Key]) -> _Fetched:
        augmentation = self.augmentation
        pixels = torch.empty(len(keys), 3, *augmentation.sides, dtype=torch.uint8)
        boxes = torch.zeros(len(keys), augmentation.erasing_count, 4, dtype=torch.long)
        labels = torch.empty(len(keys), dtype=torch.long)
        indices = torch.empty(len(keys), dtype=torch.long)
        maps: list[Tensor] = []
        known = len(self.images.broken)
        with global_generators_kept():
            for row, (epoch, index, repeat) in enumerate(keys):
                image, label, found = self.images.readable(index)
                numbers = (self.seed, epoch, index, repeat)
                pixels[row], boxes[row] = augment(image, augmentation, seed_numbers=numbers)
                labels[row], indices[row] = label, found
                if self.maps is not None:
                    size = (image.height, image.width)
                    maps.append(augment_map(self.maps[found], size, augmentation, seed_numbers=numbers))
        batch = Batch(normalize(pixels, augmentation), labels, indices)
        if maps:
            batch.maps = pooled(torch.stack(maps), self.map_grid)
        fetched = _Fetched(batch, dict(itertools.islice(self.images.broken.items(), known, None)))
        if augmentation.erase_after_mixing:
            batch.erase = boxes[:, 0]
            return fetched
        for row, (epoch, index, repeat) in enumerate(keys):
            erase(batch.images[row], boxes[row], seed_numbers=(self.seed, epoch, index, repeat))
        return fetched


def pooled(maps: Tensor, grid: Grid | None) -> Tensor:
    """Maps on a grid, by area."""
    return maps if grid is None else resample_mask(maps, grid, rule="area")


class _EvalFetch(Fetch[int, _Fetched]):
    def __init__(self, images: ImageSet, augmentation: Augmentation) -> None:
        self.images, self.augmentation = images, augmentation

    def __getitems__(self, keys: list[int]) -> _Fetched:
        """The readable ones of these samples: a replacement would count another sample twice."""
        pixels, labels, found = [], [], []
        broken: dict[int, str] = {}
        for index in keys:
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


class TrainLoader(Fetcher[Key, _Fetched]):
    """Augmented batches, in another random order each epoch.

    Args:
        batch: samples per batch and process.
        workers: processes that read and augment; 0 does it in this process.
        repeats: repeated augmentation: this many differently augmented copies of an image, on different ranks. An epoch
            is not longer for it; it shows a part of the images.
        maps: `(N, h, w)` activation map of each image's label over the whole image, to be augmented with it; see
            `vitmix.lab.maps`. The images' random choices do not depend on them.
        map_grid: pools the augmented maps by area; `None` leaves them at the images' size.
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
        maps: Tensor | None = None,
        map_grid: Grid | None = None,
    ) -> None:
        check_maps(maps, len(images), images.description, augmentation)
        self.images = images
        self.plan = EpochPlan(len(images), batch, seed, rank, world, repeats)
        self._sampler = _EpochSampler(self.plan)
        fetch = _TrainFetch(images, augmentation, seed, maps, map_grid)
        super().__init__(fetch, self._sampler, workers, persistent=True)

    def __len__(self) -> int:
        return self.plan.batches

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on; those before it are not read. One iteration at a time."""
        self.plan.check_start(number, start)
        return self._epoch(number, start)

    def _epoch(self, number: int, start: int) -> Iterator[Batch]:
        self._sampler.epoch, self._sampler.start = number, start
        for fetched in self.fetched():
            self.images.note_broken(fetched.broken)
            if fetched.batch is None:
                raise self.images.nothing_readable()
            yield fetched.batch


class EvalLoader(Fetcher[int, _Fetched]):
    """Batches that show every readable sample exactly once over all ranks, so ranks may differ in number and size.

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
        check_count("batch", batch)
        self.images = images
        rows = rows_of_rank(len(images), rank, world)[start:]
        self._rows = [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]
        super().__init__(_EvalFetch(images, augmentation), self._rows, workers)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Batch]:
        for fetched in self.fetched():
            self.images.note_broken(fetched.broken)
            if fetched.batch is not None:
                yield fetched.batch
