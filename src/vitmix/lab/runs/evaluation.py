"""What `vitmix eval` writes: evaluation.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from vitmix.lab.settings import ModelArgs

from .records import Record, absent


@dataclass(frozen=True)
class Bin(Record):
    """Images of similar confidence: their number, mean confidence and accuracy (both 0 without images)."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """A model on a set of images.

    Attributes:
        n: images that could be read.
        loss: mean cross-entropy.
        ece: the expected calibration error, of `bins`.
        confusion: (label, predicted, images) for every pair that occurs, correct ones included.
        flops: floating-point operations of one image's forward pass, two for each multiply-add.
        images_per_second: of the model alone, on batches of `batch`: the median of `passes_timed`.
        seconds: of the evaluation.
    """

    weights: str
    model: str = ""
    model_settings: ModelArgs | None = None
    data: str
    n: int
    accuracy: float
    accuracy5: float
    loss: float
    ece: float
    classes: tuple[str, ...]
    bins: tuple[Bin, ...]
    confusion: tuple[tuple[int, int, int], ...]
    parameters: int
    flops: int
    size: tuple[int, int] = (0, 0)
    images_per_second: float
    passes_timed: int = 0
    batch: int
    seconds: float = 0.0
    device: str
    precision: str
    broken_images: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    vitmix: str = ""
    weights_sha256: str | None = absent()

    def __post_init__(self) -> None:
        if not self.bins or any(label >= len(self.classes) for label, _, _ in self.confusion):
            raise ValueError("its classes, bins and confusions do not fit each other")

    @property
    def top5_informative(self) -> bool:
        """Whether top-5 is informative (more than five classes)."""
        return len(self.classes) > 5

    @cached_property
    def counts(self) -> dict[int, dict[int, int]]:
        """label → predicted → images"""
        found: dict[int, dict[int, int]] = {}
        for label, predicted, count in self.confusion:
            found.setdefault(label, {})[predicted] = count
        return found

    def images_of(self, label: int) -> int:
        return sum(self.counts.get(label, {}).values())

    def recall(self, label: int) -> float | None:
        """The recall of a class; None if it has no image."""
        total = self.images_of(label)
        return self.counts[label].get(label, 0) / total if total else None

    def mistakes(self, most: int | None = None) -> Sequence[tuple[int, int, int]]:
        """The most frequent mistakes first, as (label, predicted, images)."""
        wrong = [each for each in self.confusion if each[0] != each[1]]
        return sorted(wrong, key=lambda each: (-each[2], each))[:most]
