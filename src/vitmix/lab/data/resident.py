"""Small images at full speed: the whole data set in device memory, augmented there in batch.

What is random about a batch is a function of (seed, epoch, batch number, rank). It is drawn on the host for several
batches at once and copied over without waiting; the device does the rest.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitmix._checks import check_count
from vitmix._mix import Grid, resample_mask
from vitmix._sampling import generator_for

from .augment import Augmentation, eval_pixels, normalize
from .batch_augment import augment_batch, augment_maps
from .batch_draws import batch_settings, draw, uniforms_per_sample
from .images import ArrayImages, ImageSet, in_memory
from .loader import Batch
from .map_augment import centered_map, check_maps
from .plan import EpochPlan, rows_of_rank

RESIDENT, NOISE = 0x52455349, 0x4E4F4953  # keep these random numbers apart from others made from the same seed
CHUNK = 2048  # samples whose numbers are drawn at once


class ResidentLoader:
    """The batches of a `TrainLoader`, made on the device; the same random choices in distribution, not in number.

    Args:
        batch: samples per batch and process.
        repeats, maps, map_grid: as in `TrainLoader`.
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
        repeats: int = 1,
        drop_last: bool = True,
        compile: bool = False,
        maps: Tensor | None = None,
        map_grid: Grid | None = None,
    ) -> None:
        check_maps(maps, images, augmentation)
        self.images, self.map_grid = images, map_grid
        self.augmentation = augmentation
        self.device = torch.device(device)
        self.plan = EpochPlan(len(images), batch, seed, rank, world, repeats, drop_last)
        arrays = in_memory(images)
        self._stand_in = _stand_ins(arrays)
        if augmentation.scale is None:
            pixels = _resized(arrays, augmentation, crop_pct=1.0)
            maps = _resized_maps(maps, arrays, augmentation)
        else:
            pixels = torch.from_numpy(arrays.pixels)
        # Fixed shapes are what a compiler and a GPU need; a CPU is faster when each operation sees its samples only.
        dense = compile or self.device.type != "cpu"
        self.settings = batch_settings(augmentation, (pixels.shape[1], pixels.shape[2]), dense=dense)
        self._pixels = pixels.to(self.device)  # (N, H, W, 3), shared with `images` where that is possible
        self._labels = torch.from_numpy(arrays.labels).to(self.device)
        self._maps = None if maps is None else maps.to(self.device)
        self._augment = torch.compile(augment_batch, dynamic=False) if compile else augment_batch
        self._augment_maps = torch.compile(augment_maps, dynamic=False) if compile else augment_maps

    def __len__(self) -> int:
        return self.plan.batches

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on."""
        self.plan.check_start(number, start)
        return self._batches(number, start)

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        size = self.plan.batch
        order = torch.from_numpy(self._stand_in[self.plan.order(epoch)[0]])
        order = _move(order[: self.plan.batches * size], self.device)
        per_chunk = max(1, CHUNK // size)
        # Whole chunks wherever the epoch is entered: vectorized functions may round differently by place.
        for first in range(start // per_chunk * per_chunk, self.plan.batches, per_chunk):
            numbers_of = range(first, min(first + per_chunk, self.plan.batches))
            rows = order[first * size : (first + per_chunk) * size]
            numbers = self._draw(epoch, numbers_of)[: len(rows)]
            if self.device.type == "cpu":
                for number in range(max(start, first), numbers_of.stop):
                    part = slice((number - first) * size, (number - first + 1) * size)
                    yield self._batch(rows[part], numbers[part], self._noise(epoch, number, len(rows[part])))
                continue
            # A GPU's time is small beside the host's for each call: a whole chunk at once, always of the same length.
            noise = [self._noise(epoch, number, size) for number in numbers_of]
            noise = None if noise[0] is None else torch.cat([part for part in noise if part is not None])
            whole = self._batch(*(_filled(part, per_chunk * size) for part in (rows, numbers, noise)))
            for number in range(max(start, first), numbers_of.stop):
                part = slice((number - first) * size, min((number - first + 1) * size, len(rows)))
                boxes, maps = (None if each is None else each[part] for each in (whole.erase, whole.maps))
                yield Batch(whole.images[part], whole.labels[part], whole.indices[part], boxes, maps)

    def _draw(self, epoch: int, batches: range) -> Tensor:
        columns = uniforms_per_sample(self.settings)
        uniform = [
            torch.rand(self.plan.batch, columns, dtype=torch.float64, generator=self._generator(RESIDENT, epoch, batch))
            for batch in batches
        ]
        return _move(draw(torch.cat(uniform), self.settings), self.device)

    def _generator(self, stream: int, epoch: int, batch: int) -> torch.Generator:
        return generator_for(stream, self.plan.seed, epoch, batch, self.plan.rank)

    def _noise(self, epoch: int, number: int, count: int) -> Tensor | None:
        """What a batch's erased boxes are filled with, unless that is left to the training step."""
        if not self.augmentation.erasing or self.augmentation.erase_after_mixing:
            return None
        generator = torch.Generator(self.device)
        generator.manual_seed(self._generator(NOISE, epoch, number).initial_seed())
        return torch.randn(count, 3, *self.augmentation.sides, generator=generator, device=self.device)

    def _batch(self, rows: Tensor, numbers: Tensor, noise: Tensor | None) -> Batch:
        images = self._pixels[rows].permute(0, 3, 1, 2)
        boxes = numbers[:, self.settings.boxes].long() if self.augmentation.erase_after_mixing else None
        with torch.autocast(self.device.type, enabled=False):
            images = self._augment(images, numbers, noise, self.settings)
            maps = None if self._maps is None else self._augment_maps(self._maps[rows], numbers, self.settings)
        if maps is not None and self.map_grid is not None:
            maps = resample_mask(maps, self.map_grid, rule="area")
        return Batch(images, self._labels[rows], rows, boxes, maps)


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
        check_count("batch", batch)
        self.images, self.augmentation, self.batch = images, augmentation, batch
        device = torch.device(device)
        arrays = in_memory(images)
        own = rows_of_rank(len(arrays), rank, world)
        rows = np.array([row for row in own if row not in arrays.broken], dtype=np.int64)
        self._rows = torch.from_numpy(rows).to(device)
        self._labels = torch.from_numpy(arrays.labels[rows]).to(device)
        self._pixels = _resized(arrays, augmentation, crop_pct=augmentation.crop_pct)[rows].to(device)

    def __len__(self) -> int:
        return -(-len(self._rows) // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._rows), self.batch):
            part = slice(start, start + self.batch)
            images = normalize(self._pixels[part].permute(0, 3, 1, 2), self.augmentation)
            yield Batch(images, self._labels[part], self._rows[part])


def _stand_ins(images: ArrayImages) -> np.ndarray:
    """For each sample itself, or the next readable one."""
    rows = np.arange(len(images))
    for row in images.broken:
        rows[row] = images.readable(row)[2]
    return rows


def _resized(images: ArrayImages, augmentation: Augmentation, *, crop_pct: float) -> Tensor:
    """`(N, H, W, 3)` uint8: every picture as evaluation shows it."""
    if images.pixels.shape[1:3] == augmentation.sides and crop_pct == 1:
        return torch.from_numpy(images.pixels)
    augmentation = replace(augmentation, crop_pct=crop_pct)
    pixels = torch.empty(len(images), *augmentation.sides, 3, dtype=torch.uint8)
    for row in range(len(images)):
        pixels[row] = eval_pixels(images.read(row), augmentation).permute(1, 2, 0)
    return pixels


def _resized_maps(maps: Tensor | None, images: ArrayImages, augmentation: Augmentation) -> Tensor | None:
    """The maps of the pictures that `_resized` gives."""
    height, width = images.pixels.shape[1:3]
    if maps is None or (height, width) == augmentation.sides:
        return maps
    resized = torch.empty(len(maps), *augmentation.sides, dtype=maps.dtype)
    for row in range(len(maps)):
        resized[row] = centered_map(maps[row], (height, width), augmentation)
    return resized


def _filled(values: Any, length: int) -> Any:
    """Rows up to this length, the missing ones copies of the first: a compiled program is made for one length."""
    if values is None or len(values) == length:
        return values
    return torch.cat([values, values[:1].expand(length - len(values), *values.shape[1:])])


def _move(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
