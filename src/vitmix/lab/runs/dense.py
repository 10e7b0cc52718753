"""What the evaluation of a transfer run writes: dense.json."""

from dataclasses import dataclass

from vitmix.lab.settings import ModelArgs

from .estimates import Estimate
from .records import Record, absent


@dataclass(frozen=True)
class ClassScores(Record):
    """The scores of a class by column; one that does not exist, as of a class without pixels, is left out."""

    name: str
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class DenseScores(Record):
    """Scores of a model on images with masks or boxes, by the names of the columns in metrics.jsonl.

    Attributes:
        values: each with its 95 % interval where it was asked for.
        interval: how the intervals were found.
        by_class: a row for each class, whose columns are in the order of the first one.
        notes: what is left out of the scores, such as classes without pixels.
    """

    n: int
    values: dict[str, Estimate]
    by_class: tuple[ClassScores, ...]
    interval: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DenseEvaluation(Record):
    """The evaluation of a transfer run's best weights."""

    task: str
    head: str
    model: str
    model_settings: ModelArgs
    data: str
    scores: DenseScores
    classes: tuple[str, ...]
    parameters: int
    size: tuple[int, int]
    seconds: float
    device: str
    precision: str
    broken_images: tuple[str, ...] = ()
    vitmix: str = ""
    weights: str = ""
    weights_sha256: str | None = absent()
