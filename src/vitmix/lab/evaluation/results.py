"""What a suite found as plain values, and the results that belong to a run: RUN/robustness.json.

A run's file grows: a further command replaces the parts that it measured, and the rest stays as long as the weights do.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitmix import __version__
from vitmix.lab.reading import fits, fits_where_given, is_count, is_number, read_known
from vitmix.lab.training.checkpoints import write_file

from .measure import Measurement
from .robustness import Suite
from .stored import checksums

FILE = "robustness.json"
MEASURED = {"name": str, "value": is_number, "n": is_count, "of": {"part": str}}
MEASURED |= {"low": (None, is_number), "high": (None, is_number)}
OF = {  # what may be told of a measurement
    **{name: is_number for name in ("sigma", "share", "severity", "epsilon", "alpha", "steps")},
    **{name: str for name in ("corruption", "order", "attack", "metric")},
    "norm": lambda norm: norm in ("linf", "l2"),
    "grid": [is_count],
}
TOGETHER = {"share": {"order"}, "severity": {"corruption"}, "attack": {"norm"}, "alpha": {"steps"}}
PART = {"data": str, "settings": dict}
Results = dict[str, Any]


def results_of(suite: Suite, measurements: Iterable[Measurement], *, seconds: float) -> Results:
    """Everything that `vitmix eval --suite` says, as JSON holds it."""
    settings, subject = suite.settings, suite.subject
    rows = [{**each._asdict(), "of": dict(each.of)} for each in measurements]
    plain = {**dataclasses.asdict(settings), "folders": {key: str(at) for key, at in settings.folders.items()}}
    facts = {"data": suite.data, "settings": plain, "precision": suite.measurer.running.precision, "seconds": seconds}
    facts |= {"remarks": suite.remarks, "broken_images": suite.broken, "vitmix": __version__}
    return {
        "weights": subject.weights,
        "weights_sha256": subject.sha256,
        "model": subject.config.model,
        "measurements": rows,
        "corruption_errors": suite.errors,
        "parts": {part: facts for part in dict.fromkeys(map(part_of, rows))},
    }


def part_of(row: Mapping[str, Any]) -> str:
    """What a command replaces as a whole: a part of the suite, in attacks for each norm."""
    norm = row["of"].get("norm", "linf")
    return row["of"]["part"] + ("" if norm == "linf" else f" {norm}")


def keep_in_run(folder: Path, found: Results) -> Path:
    """Writes what was found to the run's file, with the parts that it holds of the same weights besides."""
    before = read_results(folder)
    if before is not None and before["weights_sha256"] == found["weights_sha256"]:
        rest = [row for row in before["measurements"] if part_of(row) not in found["parts"]]
        found = {
            **found,
            "measurements": [*rest, *found["measurements"]],
            "corruption_errors": found["corruption_errors"] or before["corruption_errors"],
            "parts": {**before["parts"], **found["parts"]},
        }
    write_file(folder / FILE, json.dumps(found, allow_nan=False).encode())
    return folder / FILE


def read_results(folder: Path) -> Results | None:
    """The stored results of a run's best weights, unless there are none, or those of other weights or another form."""
    found = read_known(folder / FILE)
    if not fits(found, {"measurements": [MEASURED], "parts": dict, "corruption_errors": dict}):
        return None
    if not all(_fits_part(row, found["parts"]) for row in found["measurements"]):
        return None
    known = checksums(folder, "best")
    return found if not known or found.get("weights_sha256") in known else None


def _fits_part(row: Mapping[str, Any], parts: Mapping[str, Any]) -> bool:
    """Whether a measurement says of what it is, and its part how it was measured."""
    of = row["of"]
    if not fits_where_given(of, OF) or not all(of.keys() >= others for one, others in TOGETHER.items() if one in of):
        return False
    if of.get("attack", "none") != "none" and "epsilon" not in of:
        return False
    facts: Any = parts.get(part_of(row))
    needed = {"attack_limit", "epsilons"} if "attack" in of else {"reference"} if row["name"] == "mCE" else set()
    return fits(facts, PART) and facts["settings"].keys() >= needed
