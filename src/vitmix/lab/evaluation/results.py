"""Old names of `vitmix.lab.runs`, for callers that still use dictionaries."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitmix.lab.runs import ROBUSTNESS as FILE
from vitmix.lab.runs import Facts, Measurement, RobustnessResults, Run

from .robustness import Suite

__all__ = ["FILE", "keep_in_run", "part_of", "read_results", "results_of"]


def results_of(suite: Suite, measurements: Iterable[Measurement], *, seconds: float) -> dict[str, Any]:
    return suite.results(measurements, seconds=seconds).to_json()


def part_of(row: Mapping[str, Any]) -> str:
    return Facts.from_json(row["of"]).protocol


def keep_in_run(folder: Path, found: dict[str, Any]) -> Path:
    return Run(folder).write_robustness(RobustnessResults.from_json(found))


def read_results(folder: Path) -> dict[str, Any] | None:
    found = Run(folder).robustness
    return None if found is None else found.to_json()
