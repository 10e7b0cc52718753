"""Old names of `vitmix.lab.evaluation.classification` and `vitmix.lab.runs`, for callers with dictionaries."""

from pathlib import Path
from typing import Any

from vitmix.lab.data.images import ImageSet
from vitmix.lab.runs import Evaluation, Run

from . import classification
from .subject import Running, Subject

__all__ = [
    "evaluate",
    "evaluate_run",
    "keep_evaluation",
    "own_images",
    "read_evaluation",
    "running_of",
]
own_images, running_of = Subject.evaluation_images, Subject.running


def evaluate(subject: Subject, images: ImageSet, running: Running) -> dict[str, Any]:
    return classification.evaluate(subject, images, running).to_json()


def evaluate_run(folder: Path, images: ImageSet | None = None) -> dict[str, Any]:
    return classification.evaluate_run(folder, images).to_json()


def keep_evaluation(subject: Subject, found: dict[str, Any]) -> None:
    assert subject.run is not None
    found["weights_sha256"] = subject.sha256
    classification.store(subject, Evaluation.from_json(found))


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    found = Run(folder).evaluation
    return None if found is None else found.to_json()
