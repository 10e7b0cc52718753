"""What a training run writes: a row for each epoch (metrics.jsonl), and a summary at its end (summary.json)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from vitmix.lab.reading import JsonObject, is_count, is_number, parse_json
from vitmix.lab.settings import ModelArgs

from .records import Record

SCORES = ("accuracy", "accuracy5", "eval_loss")  # of the model; with the prefix `ema_`, of the EMA weights
EMA = "ema_"


@dataclass(frozen=True)
class Epoch(Record):
    """The numbers of an epoch: `lr`, `loss` and its parts, counts of the method, scores, `images/s`, `seconds`.

    Which columns there are depends on the method and on whether the epoch was evaluated, hence `values` by name.
    """

    number: int
    values: Mapping[str, float]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Entries that are not numbers are left out."""
        if not isinstance(value, dict) or not is_count(value.get("epoch")):
            raise ValueError("it has no epoch")
        numbers = {name: each for name, each in value.items() if is_number(each)}
        return cls(numbers.pop("epoch"), numbers)

    def to_json(self) -> JsonObject:
        """Non-finite values are left out, because JSON cannot hold them."""
        return {"epoch": self.number, **{name: each for name, each in self.values.items() if math.isfinite(each)}}

    def get(self, name: str) -> float | None:
        return self.values.get(name)


def parse_epochs(text: str) -> list[Epoch]:
    """The rows of metrics.jsonl up to the first damaged one, which may be the last row while it is being written."""
    found: list[Epoch] = []
    for line in text.splitlines():
        try:
            found.append(Epoch.from_json(parse_json(line)))
        except ValueError:
            break
    return found


def is_better(score: str, new: float, old: float) -> bool:
    return new < old if score.endswith("loss") else new > old


def best_epoch(epochs: Sequence[Epoch], score: str) -> Epoch | None:
    """The first epoch with the best score; its weights were kept."""
    best = None
    for epoch in epochs:
        value, least = epoch.get(score), None if best is None else best.get(score)
        if value is not None and (least is None or is_better(score, value, least)):
            best = epoch
    return best


@dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """A summary of a finished run; `text` is for people.

    Attributes:
        best: number and scores of the epoch whose weights were kept.
        seconds: total time; `training_seconds` excludes evaluation and checkpoints.
        peak_memory: peak bytes of tensors on the GPU.
    """

    text: str
    accuracy: float | None = None
    best: Epoch | None = None
    last: Epoch | None = None
    epochs: int | None = None
    updates: int | None = None
    seconds: float | None = None
    training_seconds: float | None = None
    skipped_updates: int = 0
    overflowed_updates: int = 0
    broken_images: tuple[str, ...]
    model: str | None = None
    model_settings: ModelArgs | None = None
    classes: tuple[str, ...] | None = None
    processes: int | None = None
    peak_memory: float | None = None
    environment: dict[str, str] | None = None
