"""What was measured, in short: `python docs/make_evidence.py` writes evidence.json from the stored comparisons."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from vitmix.lab.reading import parse_json
from vitmix.lab.runs import Estimate
from vitmix.lab.runs.records import Record

FILE = "evidence.json"
SCRATCH, WEIGHTS = "scratch", "weights"  # what a training starts from


@dataclass(frozen=True)
class Measured(Record):
    """A method in a comparison.

    Attributes:
        top1: of the last epoch, in %, mean over the seeds.
        gain: top-1 minus that without mixing, in points, paired by seed; None for the row without mixing.
        course: the same difference after some numbers of updates, in the middle of the schedule.
    """

    name: str
    method: str
    n: int
    top1: float
    gain: Estimate | None = None
    course: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Series(Record):
    """Trainings of equal length that differ in the method alone."""

    name: str
    start: str
    built_in: bool  # on computed images
    model: str
    size: int
    images: int
    updates: int
    methods: tuple[Measured, ...]


@dataclass(frozen=True)
class Cost(Record):
    """Time of a training step over that of the bare model, by method, without settings."""

    model: str
    batch: int
    device: str
    ratios: dict[str, float]

    def of(self, method: str) -> float | None:
        """For a switch, the mean over its methods; None if one was not measured."""
        parts = [{"none": 1.0, **self.ratios}.get(without_settings(part)) for part in method.split("|")]
        known = [each for each in parts if each is not None]
        return sum(known) / len(known) if len(known) == len(parts) else None


@dataclass(frozen=True)
class Findings(Record):
    series: tuple[Series, ...]
    cost: Cost

    def alike(self, *, start: str, built_in: bool) -> list[Series]:
        """The series with the same start and the same kind of images, shortest first."""
        found = [each for each in self.series if (each.start, each.built_in) == (start, built_in)]
        return sorted(found, key=lambda each: each.updates)


def without_settings(method: str) -> str:
    """A method's text without settings: `"cutmix + vtm"`."""
    return re.sub(r"\([^()]*\)", "", method).strip(" ()")


@cache
def stored() -> Findings:
    """What this version of the package knows."""
    text = (files("vitmix.lab.advice") / FILE).read_text(encoding="utf-8")
    return Findings.from_json(parse_json(text))
