"""Images with label maps in device memory, augmented there in batches: the counterpart of `vitmix.lab.data.resident`.

The random numbers of a batch are a function of (seed, epoch, batch number, rank).
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from vitmix._sampling import generator_for
from vitmix.lab.data.loader import Epochs
from vitmix.lab.data.plan import EpochPlan, rows_of_rank
from vitmix.lab.data.resident import filled, move
from vitmix.lab.data.workers import Fetcher
from vitmix.lab.dense.batch_augment import UNIFORM, augment_dense, draw_numbers
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.loader import normalized, whole_batch
from vitmix.lab.dense.task import IGNORED, DenseSet, Sides, TaskBatch

RESIDENT = 0x44454E53  # separates these random numbers from others made from the same seed
CHUNK = 1024  # samples augmented at once, because a call costs the host more than the GPU
READ = 64  # images read at once


class ResidentMasks(Epochs[TaskBatch]):
    """The batches of a `DenseLoader`, made on the device, with random choices of the same distribution.

    The label maps of a batch are `(B, H, W)` integers.
    """

    def __init__(
        self,
        images: DenseSet[Tensor],
        config: TransferConfig,
        sides: Sides,
        *,
        batch: int,
        device: torch.device,
        extra: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.images, self.config, self.sides, self.device = images, config, sides, device
        self.plan = EpochPlan(len(images), batch, config.seed, rank, world, extra=extra)
        pixels, maps = _stacked(images, config.workers)
        self._pixels, self._maps = pixels.to(device), maps.to(device)
        self._readable = torch.from_numpy(images.unbroken()).to(device)
        self.source = (pixels.shape[2], pixels.shape[3])
        self._augment = torch.compile(augment_dense, dynamic=False) if config.compile else augment_dense

    def _epoch(self, number: int, start: int) -> Iterator[TaskBatch]:
        size = self.plan.size
        order = move(torch.from_numpy(self.plan.order(number)[0]), self.device)
        per_chunk = max(1, CHUNK // size) if self.device.type != "cpu" else 1
        for first in range(start // per_chunk * per_chunk, self.plan.batches, per_chunk):
            batches = range(first, min(first + per_chunk, self.plan.batches))
            rows = self._readable[order[first * size : batches.stop * size]]
            images, maps = self._augmented(rows, self._numbers(number, batches), per_chunk * size)
            for batch in range(max(start, first), batches.stop):
                part = slice((batch - first) * size, (batch - first + 1) * size)
                yield TaskBatch(images[part], maps[part], rows[part])

    def _numbers(self, epoch: int, batches: range) -> Tensor:
        def uniform(batch: int) -> Tensor:
            own = generator_for(RESIDENT, self.plan.seed, epoch, batch, self.plan.rank)
            return torch.rand(self.plan.size, UNIFORM, dtype=torch.float64, generator=own)

        drawn = draw_numbers(torch.cat([uniform(batch) for batch in batches]), self.config, self.source, self.sides)
        return move(drawn, self.device)

    def _augmented(self, rows: Tensor, numbers: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Of one length, to compile once."""
        rows, numbers = filled(rows, length), filled(numbers, length)
        with torch.no_grad():
            images, maps = self._augment(self._pixels[rows], self._maps[rows], numbers, self.sides, IGNORED)
        return images, maps.long()


class ResidentEvalMasks:
    """The batches of a `DenseEvalLoader`, read once and kept in device memory."""

    def __init__(
        self,
        images: DenseSet[Tensor],
        sides: Sides,
        *,
        batch: int,
        workers: int,
        device: torch.device,
        rank: int,
        world: int,
    ) -> None:
        self.sides = sides
        found = _read(images, rows_of_rank(len(images), batch, rank, world), workers)
        self._batches = [each.to(device) for each in found if len(each)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[TaskBatch]:
        for batch in self._batches:
            yield TaskBatch([normalized(each, self.sides) for each in batch.images], batch.targets, batch.indices)


def _read(images: DenseSet[Tensor], rows: list[list[int]], workers: int) -> Iterator[TaskBatch]:
    fetcher = Fetcher(partial(whole_batch, images), workers)
    for batch in fetcher.fetched(rows.__iter__):
        images.note_broken(batch.broken)
        yield batch
    fetcher.close()


def _stacked(images: DenseSet[Tensor], workers: int) -> tuple[Tensor, Tensor]:
    """All images `(N, 3, h, w)` uint8 and label maps `(N, h, w)`; zeros where one could not be used."""
    pixels = maps = None
    first = ""
    for batch in _read(images, rows_of_rank(len(images), READ, 0, 1), workers):
        for image, target, index in zip(batch.images, batch.targets, batch.indices.tolist(), strict=True):
            if pixels is None or maps is None:
                kind = torch.uint8 if len(images.classes) <= IGNORED else torch.int16
                pixels = torch.zeros(len(images), *image.shape, dtype=torch.uint8)
                maps, first = torch.zeros(len(images), *image.shape[1:], dtype=kind), images.name(index)
            if image.shape != pixels.shape[1:]:
                sizes = [f"{each.shape[-1]} x {each.shape[-2]}" for each in (pixels, image)]
                raise ValueError(
                    f"images kept in memory must have one size, got {sizes[0]} ({first}) and {sizes[1]} "
                    f"({images.name(index)}); leave --resident out"
                )
            pixels[index], maps[index] = image.as_subclass(Tensor), target.as_subclass(Tensor)
    if pixels is None or maps is None:
        raise images.nothing_readable()
    return pixels, maps
