"""Robustness: accuracy on changed images, as `vitmix eval --suite` measures it."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitmix import __version__
from vitmix.lab.data.images import ImageSet
from vitmix.lab.extras import NotInstalled
from vitmix.lab.runs import Measurement, Protocol, RobustnessResults
from vitmix.lab.suite import Robustness
from vitmix.lab.writing import make_folder

from .conditions import Condition, Examiner, Progress
from .parts import Builder, chosen
from .subject import NotPossible, Running, Subject


class Suite:
    """A whole evaluation. Wrong input is refused when it is created, before anything is measured.

    `remarks` are notes on the numbers.
    """

    def __init__(
        self,
        subject: Subject,
        images: ImageSet | None,
        running: Running,
        settings: Robustness,
        *,
        folder: Path | None = None,
        progress: Progress = lambda name, done, images: None,
    ) -> None:
        self.subject, self.settings, self.images = subject, settings, images
        self.remarks: list[str] = []
        if settings.needs_images:
            if images is None:
                raise ValueError(f"{', '.join(settings.measured)} need images of the model's classes; give --data")
            images, self.remarks = subject.fit_labels(images)
            if len(np.unique(images.labels)) < 2:
                raise ValueError(f"{images.description} contains a single class; give images of at least two")
            self.images = chosen(images, settings.limit, settings.seed)
        self.examiner = Examiner(subject, running, folder, self._progress)
        self._report, self._before = progress, 0
        builder = Builder(settings, self.examiner, images, self.remarks)
        self.series = []
        for name in settings.measured:
            try:
                self.series += getattr(builder, name)()
            except (NotPossible, NotInstalled) as problem:
                if name in settings.parts:
                    raise
                self.remarks.append(f"Note: the suite {name} is left out: {problem}.")

    def __iter__(self) -> Iterator[Measurement]:
        if self.examiner.folder is not None:
            make_folder(self.examiner.folder)
        self._before = 0
        for series in self.series:
            found = []
            for condition in series.conditions:
                found.append((condition, self.examiner.answers(condition)))
                self._before += len(condition.images)
            yield from series.summary(found)

    def results(self, measurements: Iterable[Measurement], *, seconds: float) -> RobustnessResults:
        """Everything that `vitmix eval --suite` reports."""
        rows, settings = tuple(measurements), dataclasses.asdict(self.settings)
        settings["folders"] = {key: str(folder) for key, folder in self.settings.folders.items()}
        errors: dict[str, tuple[float, ...]] = {}
        for each in rows:
            if each.of.corruption is not None and each.of.severity is not None:
                errors[each.of.corruption] = (*errors.get(each.of.corruption, ()), 1 - each.estimate.mean)
        own = [self.images.description] if self.settings.needs_images and self.images is not None else []
        protocol = Protocol(
            data="; ".join([*own, *(f"{key}={place}" for key, place in self.settings.folders.items())]),
            settings=settings,
            precision=self.examiner.running.precision,
            seconds=seconds,
            remarks=tuple(self.remarks),
            broken_images=tuple(self.broken),
            vitmix=__version__,
        )
        return RobustnessResults(
            weights=self.subject.weights,
            weights_sha256=self.subject.sha256,
            model=self.subject.config.model,
            measurements=rows,
            corruption_errors=errors,
            parts={each.of.protocol: protocol for each in rows},
        )

    @property
    def broken(self) -> list[str]:
        """Names of the images that could not be read, and why."""
        return sorted({reason for each in self._conditions for reason in each.images.broken.values()})

    @property
    def _conditions(self) -> list[Condition]:
        return [condition for series in self.series for condition in series.conditions]

    def _progress(self, name: str, done: int, images: int) -> None:
        self._report(name, self._before + done, sum(len(each.images) for each in self._conditions))


def robustness(
    subject: Subject, images: ImageSet | None, running: Running, settings: Robustness | None = None, **options: Any
) -> Iterator[Measurement]:
    """The suite's measurements, one by one; `options` are those of `Suite`."""
    return iter(Suite(subject, images, running, settings or Robustness(), **options))
