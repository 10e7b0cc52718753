"""The images of a study, in batches."""

from collections.abc import Callable, Iterable, Iterator

import torch

from vitmix._sampling import generator_for
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.loader import EvalLoader

from .objects import Finder
from .pairs import ImageBatch

ORDER = 7  # the random stream that chooses the images

KEPT = 2**30  # largest number of bytes of images kept in memory between methods
Progress = Callable[[int, int], None]  # called with the images done and their total


class Batches(Iterable[ImageBatch]):
    """Images in random order, because data may be sorted by class; can be iterated several times."""

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        count: int,
        batch: int = 64,
        seed: int = 0,
        finder: Finder | None = None,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        order = torch.randperm(len(images), generator=generator_for(seed, ORDER)).numpy()
        self.rows = order[: min(count, len(order))]
        self.images = images.subset(self.rows, f"{images.description}, {len(self.rows)} of them")
        self.loader = EvalLoader(self.images, augmentation, batch=batch, workers=workers)
        self.finder, self.device = finder, torch.device(device)
        self._keeps = 12 * augmentation.sides[0] * augmentation.sides[1] * len(self.rows) <= KEPT
        self._kept: list[ImageBatch] | None = None

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.rows)

    def __iter__(self) -> Iterator[ImageBatch]:
        for batch in self._read() if self._kept is None else self._kept:
            yield ImageBatch(*(None if each is None else each.to(self.device) for each in batch))  # pyright: ignore[reportArgumentType]

    def _read(self) -> Iterator[ImageBatch]:
        read = []
        for batch in self.loader:
            objects = None if self.finder is None else self.finder(self.rows[batch.indices.numpy()].tolist())
            read.append(ImageBatch(batch.images, batch.labels, objects))
            yield read[-1]
            if not self._keeps:
                read.clear()
        if self._keeps:
            self._kept = read


class Watched(Iterable[ImageBatch]):
    """Batches that report their progress over all planned iterations."""

    def __init__(self, batches: Batches, times: int, tell: Progress) -> None:
        self.batches, self.total, self.tell = batches, times * len(batches), tell
        self.done = 0

    def __iter__(self) -> Iterator[ImageBatch]:
        for batch in self.batches:
            yield batch
            self.done += len(batch.labels)
            self.tell(self.done, self.total)
