"""Which samples an epoch shows, and in which order."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from vitmix._checks import check_count, check_integer
from vitmix._sampling import generator_for

Key = tuple[int, int, int]  # epoch, index, repeat: all that a worker must know, so that workers can outlive an epoch
ORDER = 0x4F524452  # separates the order's random numbers from others made from the same seed
ROUND = 256  # an epoch of repeated augmentation is cut to a multiple of this, as in DeiT and timm


class Window(NamedTuple):
    """Data of which only some shards are at hand at a time: the shard of each sample, and how many shards are mixed."""

    shards: np.ndarray
    size: int


@dataclass(frozen=True)
class EpochPlan:
    """Which samples an epoch shows, in which order, on each rank; every rank has the same number of batches.

    Args:
        batch: samples per batch and rank.
        extra: so many of the first ranks have one more, where the samples of all ranks do not divide evenly.
        labels: of all samples, to show classes equally often.
        window: shuffles neighboring shards instead of everything.
    """

    length: int
    batch: int
    seed: int
    rank: int = 0
    world: int = 1
    repeats: int = 1
    labels: np.ndarray | None = field(default=None, compare=False)
    window: Window | None = field(default=None, compare=False)
    extra: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch", "world", "repeats"):
            check_count(name, getattr(self, name))
        check_integer("seed", self.seed)
        check_rank(self.rank, self.world)
        check_count("extra", self.extra, least=0)
        if self.labels is not None and self.window is not None:
            raise ValueError(
                "balance repeats images of rare classes from all shards, and window reads some of them at a time; "
                "leave one of them out"
            )
        if self.batches == 0:
            raise ValueError(
                f"a batch of {self.batch} is more than the {self.samples} training images of each process "
                f"({self.length} images, {self.world} processes); lower the batch size"
            )

    @property
    def shown(self) -> int:
        """Samples of an epoch, before the last incomplete batch is dropped.

        With repeats, an epoch shows only part of the images, so its length does not change.
        """
        rounded = self.length // ROUND * ROUND if self.repeats > 1 else self.length
        return rounded or self.length

    @property
    def samples(self) -> int:
        """Samples of each rank, before the last incomplete batch is dropped, where ranks have equally many."""
        return self.shown // self.world

    @property
    def size(self) -> int:
        """Samples of a batch on this rank."""
        return self.batch + (self.rank < self.extra)

    @property
    def total(self) -> int:
        """Samples of a batch on all ranks: the same for any number of ranks that share it."""
        return self.batch * self.world + self.extra

    @property
    def batches(self) -> int:
        return self.shown // self.total

    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Index and repeat number of each sample on this rank.

        The copies of an image follow each other, so that they go to different ranks, each augmented differently. A
        global batch holds the same samples for any number of ranks.
        """
        generator = generator_for(ORDER, self.seed, epoch)
        positions = self._positions()
        if self.labels is None:
            indices = shuffled_order(self.length, generator, self.window)
            return indices[positions // self.repeats], positions % self.repeats
        indices, times = balanced_order(self.labels, generator)
        places = positions // self.repeats
        return indices[places], positions % self.repeats + self.repeats * times[places]

    def _positions(self) -> np.ndarray:
        """The places of this rank's samples in the order of all: in each batch, every `world`-th from its own on."""
        if not self.extra:
            return np.arange(self.rank, self.samples * self.world, self.world)
        starts = np.arange(self.batches)[:, None] * self.total
        return (starts + np.arange(self.rank, self.total, self.world)).ravel()

    def keys(self, epoch: int, start: int) -> Iterator[list[Key]]:
        """The samples of each batch from batch `start` on."""
        indices, repeats = self.order(epoch)
        for first in range(start * self.size, self.batches * self.size, self.size):
            rows = slice(first, first + self.size)
            pairs = zip(indices[rows].tolist(), repeats[rows].tolist(), strict=True)
            yield [(epoch, index, repeat) for index, repeat in pairs]


def shuffled_order(length: int, generator: torch.Generator, window: Window | None = None) -> np.ndarray:
    """All samples once, in random order; with a window, any stretch of them comes from neighboring shards.

    The shards are shuffled, and a sample of the p-th is placed at p + size * u with uniform u. So at any place,
    `size` shards are mixed, and one of them is exhausted and replaced at a time.
    """
    if window is None:
        return torch.randperm(length, generator=generator).numpy()
    place = torch.randperm(1 + int(window.shards.max()), generator=generator).numpy()[window.shards]
    uniform = torch.rand(length, dtype=torch.float64, generator=generator).numpy()
    return np.argsort(place + window.size * uniform, kind="stable")


def balanced_order(labels: np.ndarray, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
    """As many samples as there are labels, each class equally often, and how often each came before in this order.

    Within a class, images come equally often too. Counts differ by at most one.
    """
    classes = np.unique(labels)
    share, rest = divmod(len(labels), len(classes))
    more = set(_shuffled(classes, generator)[:rest].tolist())  # which classes come once more
    chosen = []
    for label in classes.tolist():
        rows = np.flatnonzero(labels == label)
        wanted = share + (label in more)
        rounds = [_shuffled(rows, generator) for _ in range(-(-wanted // len(rows)))]
        chosen.append(np.concatenate(rounds)[:wanted])
    order = _shuffled(np.concatenate(chosen), generator)
    return order, _earlier(order)


def _shuffled(values: np.ndarray, generator: torch.Generator) -> np.ndarray:
    return values[torch.randperm(len(values), generator=generator).numpy()]


def _earlier(values: np.ndarray) -> np.ndarray:
    """For each value, how often it occurred before."""
    places = np.argsort(values, kind="stable")
    ranked = values[places]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    lengths = np.diff(np.r_[starts, len(values)])
    found = np.empty(len(values), dtype=np.int64)
    found[places] = np.arange(len(values)) - np.repeat(starts, lengths)
    return found


def rows_of_rank(length: int, batch: int, rank: int, world: int, start: int = 0) -> list[list[int]]:
    """The batches that a rank evaluates, after `start` samples; all ranks together have each sample once."""
    check_count("batch", batch)
    check_rank(rank, world)
    rows = range(rank, length, world)[start:]
    return [list(rows[first : first + batch]) for first in range(0, len(rows), batch)]


def check_rank(rank: int, world: int) -> None:
    check_count("world", world)
    check_count("rank", rank, least=0)
    if rank >= world:
        raise ValueError(f"rank must be below the number of processes, {world}, got {rank}")
