"""Which samples an epoch shows, and in which order."""

from dataclasses import dataclass

import numpy as np
import torch

from vitmix._checks import check_count, check_integer
from vitmix._sampling import generator_for

ORDER = 0x4F524452  # separates the order's random numbers from others made from the same seed
ROUND = 256  # an epoch of repeated augmentation is cut to a multiple of this, as in DeiT and timm


@dataclass(frozen=True)
class EpochPlan:
    """Which samples an epoch shows, in which order, on each rank; every rank has the same number of batches."""

    length: int
    batch: int
    seed: int
    rank: int = 0
    world: int = 1
    repeats: int = 1

    def __post_init__(self) -> None:
        for name in ("length", "batch", "world", "repeats"):
            check_count(name, getattr(self, name))
        check_integer("seed", self.seed)
        check_rank(self.rank, self.world)
        if self.batches == 0:
            raise ValueError(
                f"a batch of {self.batch} is more than the {self.samples} training images of each process "
                f"({self.length} images, {self.world} processes); lower the batch size"
            )

    @property
    def samples(self) -> int:
        """Samples of each rank, before the last incomplete batch is dropped.

        With repeats an epoch shows a part of the images, so that it is no longer than a plain one.
        """
        rounded = self.length // ROUND * ROUND if self.repeats > 1 else self.length
        return (rounded or self.length) // self.world

    @property
    def batches(self) -> int:
        return self.samples // self.batch

    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Index and repeat number of each sample of this rank.

        The copies of an image follow each other, so that they go to different ranks, each augmented differently. A
        global batch holds the same samples for any number of ranks.
        """
        indices = torch.randperm(self.length, generator=generator_for(ORDER, self.seed, epoch)).numpy()
        positions = np.arange(self.rank, self.samples * self.world, self.world)
        return indices[positions // self.repeats], positions % self.repeats

    def check_start(self, epoch: int, start: int) -> None:
        check_count("epoch", epoch, least=0)
        check_count("start", start, least=0)
        if start > self.batches:
            raise ValueError(f"start must be at most the {self.batches} batches of an epoch, got {start}")


def rows_of_rank(length: int, rank: int, world: int) -> range:
    """The samples that a rank evaluates: all ranks together show each one once."""
    check_rank(rank, world)
    return range(rank, length, world)


def check_rank(rank: int, world: int) -> None:
    check_count("world", world)
    check_count("rank", rank, least=0)
    if rank >= world:
        raise ValueError(f"rank must be below the number of processes, {world}, got {rank}")
