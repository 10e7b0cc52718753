"""Batches of images with dense targets, here or in worker processes: the counterpart of `vitmix.lab.data.loader`.

The order of an epoch is a function of (seed, epoch), an image's augmentation one of (seed, epoch, index). So the number
of workers changes nothing, and a resumed epoch continues as if it had run from its start.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as tvf

from vitmix.lab.data.augment import global_generators_kept, per_channel, seed_global_generators
from vitmix.lab.data.images import BrokenImage, NothingReadable
from vitmix.lab.data.loader import FetchedEpochs, FetchedOnce
from vitmix.lab.data.plan import EpochPlan, Key, rows_of_rank
from vitmix.lab.dense.task import DenseSet, Sides, TaskBatch

Transform = Callable[..., Any]
Collate = Callable[[list[Any]], Any]


def as_tensor(image: Image.Image) -> tv_tensors.Image:
    """`(3, H, W)` uint8."""
    return tv_tensors.Image(tvf.pil_to_tensor(image))


def normalized(pixels: Tensor, sides: Sides) -> Tensor:
    """Float32, from 0..255."""
    mean, std = (per_channel(each, pixels.device) for each in (sides.mean, sides.std))
    return (pixels.as_subclass(Tensor).float() / 255 - mean) / std


def shown(image: Tensor, sides: Sides) -> np.ndarray:
    """A normalized image `(3, H, W)` as pixels `(H, W, 3)` uint8."""
    mean, std = (per_channel(each, torch.device("cpu")) for each in (sides.mean, sides.std))
    return ((image.cpu() * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def _train_batch(
    images: DenseSet, transform: Transform, collate: Collate, sides: Sides, seed: int, keys: list[Key]
) -> TaskBatch:
    known, found = len(images.broken), []
    with global_generators_kept():
        for epoch, index, repeat in keys:
            try:
                image, target, place = images.usable(index)
            except NothingReadable:  # raised in the main process: from a worker it would come with its traceback
                return TaskBatch([], [], torch.zeros(0), dict(images.broken))
            seed_global_generators(seed, epoch, index, repeat)
            found.append((*transform(as_tensor(image), target), place))
    pixels, targets, indices = zip(*found, strict=True)
    broken = dict(itertools.islice(images.broken.items(), known, None))
    stacked = padded([normalized(each, sides) for each in pixels])
    return TaskBatch(stacked, collate(list(targets)), torch.tensor(indices), broken)


def padded(images: Sequence[Tensor]) -> Tensor:
    """Images `(B, 3, H, W)` of the largest height and width; smaller ones have zeros, the mean color, on the right and
    below."""
    height, width = (max(each.shape[side] for each in images) for side in (1, 2))
    return torch.stack([pad(each, (0, width - each.shape[2], 0, height - each.shape[1])) for each in images])


def whole_batch(images: DenseSet, rows: list[int]) -> TaskBatch:
    """The usable ones of these samples, whole and of their own sizes, as uint8."""
    broken: dict[int, str] = {}
    found = []
    for index in rows:
        try:
            image, target = images.sample(index)
        except BrokenImage as problem:
            broken[index] = str(problem)
            continue
        found.append((as_tensor(image), target, index))
    pixels, targets, indices = zip(*found, strict=True) if found else ((), (), ())
    return TaskBatch(list(pixels), list(targets), torch.tensor(indices), broken)


def _eval_batch(images: DenseSet, sides: Sides, rows: list[int]) -> TaskBatch:
    """The same, normalized."""
    batch = whole_batch(images, rows)
    batch.images = [normalized(each, sides) for each in batch.images]
    return batch


class DenseLoader(FetchedEpochs[TaskBatch]):
    """Augmented batches, in another random order each epoch. One epoch can be iterated at a time."""

    def __init__(
        self,
        images: DenseSet,
        transform: Transform,
        collate: Collate,
        sides: Sides,
        *,
        batch: int,
        seed: int,
        extra: int = 0,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.images = images
        self.plan = EpochPlan(len(images), batch, seed, rank, world, extra=extra)
        super().__init__(partial(_train_batch, images, transform, collate, sides, seed), workers, persistent=True)


class DenseEvalLoader(FetchedOnce[TaskBatch]):
    """Batches of whole images."""

    def __init__(
        self, images: DenseSet, sides: Sides, *, batch: int, workers: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        self.images, self.rows = images, rows_of_rank(len(images), batch, rank, world)
        super().__init__(partial(_eval_batch, images, sides), workers)
