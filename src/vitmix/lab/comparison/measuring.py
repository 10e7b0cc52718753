"""What a comparison measures of its trainings besides accuracy, by the commands that measure any run."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitmix.lab.evaluation.results import FILE
from vitmix.lab.evaluation.settings import Robustness
from vitmix.lab.evaluation.subject import checksum
from vitmix.lab.reading import read_known
from vitmix.lab.studies.studies import STUDIES
from vitmix.lab.training.checkpoints import write_file
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.runs import RunFolder

LEFT_OUT = ".left_out"  # in a run's folder: what was asked for and does not apply to its weights


@dataclass(frozen=True)
class Measuring:
    """The parts of `vitmix eval --suite`, and whether the studies of `vitmix analyze` are made."""

    suite: tuple[str, ...] = ()
    studies: bool = False

    def __post_init__(self) -> None:
        if "shifts" in self.suite:
            raise ValueError("the suite 'shifts' takes folders, and a comparison none; use vitmix eval for it")
        Robustness(parts=self.suite)  # refuses unknown ones

    @classmethod
    def of(cls, suite: str | None, studies: bool) -> "Measuring":
        """As the flags have it, the parts separated by commas."""
        parts = [] if suite is None else [name.strip() for name in suite.split(",")]
        return cls(tuple(dict.fromkeys(parts)), studies)

    @property
    def flags(self) -> list[str]:
        suite = ["--suite", ",".join(self.suite)] if self.suite else []
        return [*suite, *(["--analyze"] if self.studies else [])]

    def missing(self, folder: RunFolder) -> set[str]:
        """The parts and studies that the run's folder does not have yet, of its best weights."""
        asked = self._asked()
        if not asked:
            return set()
        weights = _checksum_of(folder)
        return asked - _suite_of(folder, weights) - _studies_of(folder, weights) - _left_out_of(folder, weights)

    def command(self, folder: RunFolder, config: TrainConfig) -> list[str]:
        """What to run next for what is missing."""
        place = ["--cpu"] if config.cpu else []
        if self.missing(folder) <= STUDIES.keys():
            return ["analyze", str(folder.path), *place]
        return ["eval", str(folder.path), "--suite", ",".join(self.suite), "--workers", str(config.workers), *place]

    def settle(self, folder: RunFolder, command: str) -> None:
        """After a command that ended well: what is still missing of it does not apply to this run."""
        weights, missing = _checksum_of(folder), self.missing(folder)
        absent = {name for name in missing if (name in STUDIES) == (command == "analyze")}
        if absent:
            every = sorted(_left_out_of(folder, weights) | absent)
            write_file(folder.path / LEFT_OUT, json.dumps({"weights_sha256": weights, "names": every}).encode())

    def _asked(self) -> set[str]:
        return {*(Robustness(parts=self.suite).measured), *(STUDIES if self.studies else ())}


def usual_parts(results: Mapping[str, Any]) -> set[str]:
    """The parts of a suite that were measured with its usual settings."""
    usual = json.loads(json.dumps(asdict(Robustness())))
    return {part for part, facts in results["parts"].items() if {**facts["settings"], "parts": usual["parts"]} == usual}


def _suite_of(folder: RunFolder, weights: str | None) -> set[str]:
    found = _read(folder.path / FILE, weights)
    return set() if found is None else usual_parts(found)


def _studies_of(folder: RunFolder, weights: str | None) -> set[str]:
    """`vitmix analyze` writes into a run's folder only what it measured in the usual way."""
    return {path.stem for path in (folder.path / "analysis").glob("*.json") if _read(path, weights) is not None}


def _left_out_of(folder: RunFolder, weights: str | None) -> set[str]:
    found = _read(folder.path / LEFT_OUT, weights)
    return set() if found is None else set(found["names"])


def _read(path: Path, weights: str | None) -> dict[str, Any] | None:
    """What a file says of these weights; None where there is none, or one of others."""
    found = read_known(path)
    fitting = isinstance(found, dict) and weights is not None and found.get("weights_sha256") == weights
    return found if fitting else None


def _checksum_of(folder: RunFolder) -> str | None:
    try:
        state = folder.best.stat()
    except OSError:
        return None
    return _checksum(folder.best, state.st_mtime_ns, state.st_size)


@cache
def _checksum(path: Path, changed: int, size: int) -> str:
    """Once for each file as it is: a comparison that waits for another looks several times a second."""
    return checksum(path)
