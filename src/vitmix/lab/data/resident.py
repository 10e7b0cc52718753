"""Small images at full speed: the whole dataset in device memory, augmented there in batches.

The random numbers of a batch are a function of (seed, epoch, batch number, rank). They are drawn on the host for
several batches at once and copied asynchronously; the device does the rest.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vitmix._mix import Grid
from vitmix._sampling import generator_for

from .augment import cell_places, centered_map, centered_places, check_maps, eval_pixels, normalize, places_of
from .augmentation import Augmentation
from .batch_augment import augment_batch, augment_maps, augment_places
from .batch_draws import batch_settings, draw, uniforms_per_sample
from .images import ImageSet, in_memory
from .loader import Batch, Epochs, pooled, read_batch
from .plan import EpochPlan, rows_of_rank

RESIDENT, NOISE = 0x52455349, 0x4E4F4953  # separate these random numbers from others made from the same seed
CHUNK = 2048  # samples whose numbers are drawn at once


class ResidentLoader(Epochs[Batch]):
    """The batches of a `TrainLoader`, made on the device, with random choices of the same distribution.

    Args:
        batch: samples per batch and process.
        extra, repeats, balance, maps, map_grid, place_grid: as in `TrainLoader`.
        compile: runs the augmentation through `torch.compile`.
    """

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        batch: int,
        seed: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        extra: int = 0,
        repeats: int = 1,
        balance: bool = False,
        compile: bool = False,
        maps: Tensor | None = None,
        map_grid: Grid | None = None,
        place_grid: Grid | None = None,
    ) -> None:
        check_maps(maps, len(images), images.description, augmentation, places=place_grid is not None)
        self.images, self.map_grid, self.place_grid = images, map_grid, place_grid
        self.augmentation = augmentation
        self.device = torch.device(device)
        labels = images.labels if balance else None
        self.plan = EpochPlan(len(images), batch, seed, rank, world, repeats, labels, images.window, extra)
        arrays = in_memory(images)
        self._readable = arrays.unbroken()
        pixels = torch.from_numpy(arrays.pixels)
        size = (pixels.shape[1], pixels.shape[2])
        places = places_of(size)
        if augmentation.scale is None and size != augmentation.sides:  # the center of each image
            whole = replace(augmentation, crop_pct=1.0)
            centers = [eval_pixels(arrays.read(row), whole) for row in range(len(arrays))]
            pixels, places = torch.stack(centers).permute(0, 2, 3, 1), centered_places(size, augmentation)
            if maps is not None:
                maps = torch.stack([centered_map(each, size, augmentation).to(maps.dtype) for each in maps])
        # A compiler and a GPU need fixed shapes; a CPU is faster when each operation sees only its own samples.
        dense = compile or self.device.type != "cpu"
        self.settings = batch_settings(augmentation, (pixels.shape[1], pixels.shape[2]), dense=dense)
        self._pixels = pixels.to(self.device)  # (N, H, W, 3), shared with `images` if possible
        self._labels = torch.from_numpy(arrays.labels).to(self.device)
        self._maps = None if maps is None else maps.to(self.device)
        self._places = places.to(self.device)
        self._augment = torch.compile(augment_batch, dynamic=False) if compile else augment_batch
        self._augment_maps = torch.compile(augment_maps, dynamic=False) if compile else augment_maps

    def _epoch(self, number: int, start: int) -> Iterator[Batch]:
        size = self.plan.size
        order = torch.from_numpy(self._readable[self.plan.order(number)[0]])
        order = move(order[: self.plan.batches * size], self.device)
        per_chunk = max(1, CHUNK // size)
        # Always whole chunks, because vectorized functions may round differently by position.
        for first in range(start // per_chunk * per_chunk, self.plan.batches, per_chunk):
            batches = range(first, min(first + per_chunk, self.plan.batches))
            rows = order[first * size : (first + per_chunk) * size]
            numbers = self._draw(number, batches)
            whole = None
            if self.device.type != "cpu":
                whole = self._chunk(number, batches, rows, numbers, length=per_chunk * size)
            for batch in range(max(start, first), batches.stop):
                part = slice((batch - first) * size, (batch - first + 1) * size)
                if whole is not None:
                    yield whole.part(part)
                else:
                    yield self._batch(rows[part], numbers[part], self._noise(number, range(batch, batch + 1)))

    def _chunk(self, epoch: int, batches: range, rows: Tensor, numbers: Tensor, *, length: int) -> Batch:
        """Several batches at once, because a call costs the host more than the GPU; of one length, to compile once."""
        noise = self._noise(epoch, batches)
        noise = None if noise is None else filled(noise, length)
        return self._batch(filled(rows, length), filled(numbers, length), noise)

    def _draw(self, epoch: int, batches: range) -> Tensor:
        columns = uniforms_per_sample(self.settings)
        uniform = [
            torch.rand(self.plan.size, columns, dtype=torch.float64, generator=self._generator(RESIDENT, epoch, batch))
            for batch in batches
        ]
        return move(draw(torch.cat(uniform), self.settings), self.device)

    def _generator(self, stream: int, epoch: int, batch: int) -> torch.Generator:
        return generator_for(stream, self.plan.seed, epoch, batch, self.plan.rank)

    def _noise(self, epoch: int, batches: range) -> Tensor | None:
        """The content of erased boxes, unless the training step erases them."""
        if not self.augmentation.erasing or self.augmentation.erase_after_mixing:
            return None
        seeds = [self._generator(NOISE, epoch, batch).initial_seed() for batch in batches]
        generators = [torch.Generator(self.device).manual_seed(seed) for seed in seeds]
        shape = (self.plan.size, 3, *self.augmentation.sides)
        return torch.cat([torch.randn(shape, generator=each, device=self.device) for each in generators])

    def _batch(self, rows: Tensor, numbers: Tensor, noise: Tensor | None) -> Batch:
        images = self._pixels[rows].permute(0, 3, 1, 2)
        boxes = numbers[:, self.settings.boxes].long() if self.augmentation.erase_after_mixing else None
        with torch.autocast(self.device.type, enabled=False):
            images = self._augment(images, numbers, noise, self.settings)
            maps = None if self._maps is None else self._augment_maps(self._maps[rows], numbers, self.settings)
            places = None
            if self.place_grid is not None:
                places = cell_places(augment_places(self._places, numbers, self.settings), self.place_grid)
        maps = None if maps is None else pooled(maps, self.map_grid)
        return Batch(images, self._labels[rows], rows, boxes, maps, places)


class ResidentEvalLoader:
    """The batches of an `EvalLoader`, scaled and cropped once and kept in device memory."""

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        batch: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.augmentation = augmentation
        found = [read_batch(images, augmentation, rows) for rows in rows_of_rank(len(images), batch, rank, world)]
        for each in found:
            images.note_broken(each.broken)
        self._batches = [each.to(device) for each in found if len(each)]  # as uint8

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            yield replace(batch, images=normalize(batch.images, self.augmentation))


def filled(values: Tensor, length: int) -> Tensor:
    """This many rows; copies of the first one fill up."""
    return torch.cat([values, values[:1].expand(length - len(values), *values.shape[1:])])


def move(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
