"""Old names of `vitmix.lab.runs`, for callers that still use dictionaries."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitmix.lab.runs import Measurement, RobustnessResults, Run

from .robustness import Suite


def results_of(suite: Suite, measurements: Iterable[Measurement], *, seconds: float) -> dict[str, Any]:
    return suite.results(measurements, seconds=seconds).to_json()


def keep_in_run(folder: Path, found: dict[str, Any]) -> Path:
    return Run(folder).write_robustness(RobustnessResults.from_json(found))
