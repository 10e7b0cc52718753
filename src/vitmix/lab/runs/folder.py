"""A run folder: where its files are, what they say, and whether results belong to its weights."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from vitmix.lab.reading import MOST_JSON, is_fault, read_bytes, read_json
from vitmix.lab.training.config import CONFIG, AnyConfig, TrainConfig, resolve_any, to_yaml
from vitmix.lab.writing import remove_abandoned, write_file

from .analysis import Analysis, LeftOut
from .dense import DenseEvaluation
from .evaluation import Evaluation
from .examples import Examples
from .records import Record
from .robustness import RobustnessResults
from .training import EMA, Epoch, Summary, best_epoch, parse_epochs

METRICS = "metrics.jsonl"
SUMMARY, EVALUATION, ROBUSTNESS = "summary.json", "evaluation.json", "robustness.json"
EXAMPLES, DENSE = "examples.json", "dense.json"
ANALYSIS, LEFT_OUT = "analysis", ".left_out"
LOG = "train.log"
Found = TypeVar("Found", bound=Record)


class Run:
    """The files of one training run; each is read once, when it is first used.

    config.yaml         the resolved configuration
    metrics.jsonl       one row per epoch
    checkpoints/        the newest complete ones, see `vitmix.lab.training.checkpoints`
    best.safetensors    the best weights; last.safetensors the final ones
    summary.json        written at the end: a summary of the results
    train.log           what the run printed, where a comparison ran it
    evaluation.json, robustness.json, analysis/  measurements of the best weights
    examples.json       mixed training images, and where the best weights look; predictions of a transfer
    dense.json          of a transfer: the scores of the best weights

    A file that is missing, unreadable or about other weights is None; `problems` says why, by file name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.best, self.last = self.path / "best.safetensors", self.path / "last.safetensors"
        self.checkpoints, self.log = self.path / "checkpoints", self.path / LOG
        self.problems: dict[str, str] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """The run in a folder, which must be one."""
        run = cls(path)
        if not run.exists:
            raise ValueError(f"{run.path} is not a run folder: it has no {CONFIG}; name one of vitmix train")
        return run

    @property
    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    # What the run wrote

    @cached_property
    def config(self) -> AnyConfig:
        return resolve_any(file=self.path / CONFIG)

    @property
    def classifier_config(self) -> TrainConfig:
        """The configuration of a run of `vitmix train`; refuses a transfer."""
        if not isinstance(self.config, TrainConfig):
            raise ValueError(
                f"{self.path} is a run of vitmix transfer, whose model is not a classifier; name one of vitmix train"
            )
        return self.config

    @cached_property
    def epochs(self) -> list[Epoch]:
        """The finished epochs, up to the first damaged row."""
        try:
            return parse_epochs(read_bytes(self.path / METRICS, MOST_JSON).decode(errors="replace"))
        except FileNotFoundError:
            return []

    @cached_property
    def best_epoch(self) -> Epoch | None:
        """The epoch whose weights are the best so far."""
        return best_epoch(self.epochs, self.config.best)

    def score(self, epoch: Epoch | None, name: str) -> float | None:
        """A score of an epoch; for the best epoch, the score of the kept weights, which may be the EMA weights."""
        if epoch is None:
            return None
        kept = epoch is self.best_epoch and self.config.best.startswith(EMA) and f"{EMA}{name}" in epoch.values
        return epoch.get(f"{EMA}{name}" if kept else name)

    @cached_property
    def summary(self) -> Summary | None:
        """The summary of a finished run; None while it is running."""
        return self._read(SUMMARY, Summary)

    @property
    def is_trained(self) -> bool:
        """Whether it is finished and its best weights are evaluated."""
        return self.summary is not None and (self.evaluation is not None or self.dense is not None)

    # What was measured of its weights

    @cached_property
    def evaluation(self) -> Evaluation | None:
        return self._measured(EVALUATION, Evaluation)

    @cached_property
    def dense(self) -> DenseEvaluation | None:
        return self._measured(DENSE, DenseEvaluation)

    @cached_property
    def robustness(self) -> RobustnessResults | None:
        return self._measured(ROBUSTNESS, RobustnessResults)

    @cached_property
    def examples(self) -> Examples | None:
        return self._measured(EXAMPLES, Examples)

    @cached_property
    def analyses(self) -> dict[str, Analysis]:
        """The studies by name, of the best or the last weights."""
        found = {}
        for stem in self._studies():
            name = f"{ANALYSIS}/{stem}.json"
            study = self._measured(name, Analysis, "best", "last")
            if study is not None and study.study == stem:
                found[stem] = study
            elif study is not None:
                self.problems[name] = f"{self.path / name} is a study of another name"
        return found

    def _studies(self) -> list[str]:
        return sorted(path.stem for path in (self.path / ANALYSIS).glob("*.json"))

    @cached_property
    def left_out(self) -> frozenset[str]:
        """Parts of the suite and studies that do not apply to the best weights."""
        found = self._measured(LEFT_OUT, LeftOut)
        return frozenset(() if found is None else found.names)

    def weights(self, which: str) -> Path:
        """The file of the best or last weights; a ValueError if it is not written yet."""
        path = self.best if which == "best" else self.last
        if not path.is_file():
            raise ValueError(f"{self.path} has no {path.name} yet; it is written later in the run")
        return path

    def belongs(self, sha256: str | None, *which: str) -> bool:
        """Whether a result with this checksum is about the run's weights.

        A published folder has no weights, so every result belongs to it.

        Args:
            which: `"best"`, `"last"`, or both (default: best).
        """
        known = {own for each in which or ("best",) if (own := self.checksum(each)) is not None}
        return not known or sha256 in known

    def checksum(self, which: str = "best") -> str | None:
        """The checksum of the best or last weights; None if there are none."""
        path = self.best if which == "best" else self.last
        return checksum(path) if path.is_file() else None

    def _measured(self, name: str, kind: type[Found], *which: str) -> Found | None:
        found: Any = self._read(name, kind)
        if found is None or self.belongs(found.weights_sha256, *which):
            return found
        self.problems[name] = f"{self.path / name} is about other weights"
        return None

    def _read(self, name: str, kind: type[Found]) -> Found | None:
        try:
            return kind.from_json(self._content(name))
        except FileNotFoundError:
            self.problems[name] = f"there is no {self.path / name}"
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and is_fault(error):
                raise
            reason = error.strerror if isinstance(error, OSError) else error
            self.problems[name] = f"{self.path / name} cannot be read: {reason}"
        return None

    def _content(self, name: str) -> Any:
        """The JSON value in a file; FileNotFoundError if there is none."""
        return read_json(self.path / name)

    # Writing

    def write_config(self, config: AnyConfig) -> None:
        write_file(self.path / CONFIG, to_yaml(replace(config, resume=None)).encode())

    def write_epochs(self, epochs: Sequence[Epoch]) -> None:
        """Stores all epochs, including those that a full disk refused before."""
        rows = (json.dumps(each.to_json(), allow_nan=False) + "\n" for each in epochs)
        write_file(self.path / METRICS, "".join(rows).encode())

    def write_summary(self, summary: Summary) -> None:
        self._write(SUMMARY, summary, indent=1)

    def write_evaluation(self, evaluation: Evaluation, sha256: str | None) -> Evaluation:
        """Stores the evaluation of the best weights, which have this checksum."""
        evaluation = replace(evaluation, weights_sha256=sha256)
        self._write(EVALUATION, evaluation)
        return evaluation

    def write_dense(self, evaluation: DenseEvaluation, sha256: str | None) -> None:
        self._write(DENSE, replace(evaluation, weights_sha256=sha256))

    def write_robustness(self, results: RobustnessResults) -> Path:
        """Stores the results of a suite, and keeps stored parts that belong to the same weights."""
        before = Run(self.path).robustness  # as it is now
        return self._write(ROBUSTNESS, results.added_to(before))

    def write_examples(self, examples: Examples, sha256: str | None) -> None:
        self._write(EXAMPLES, replace(examples, weights_sha256=sha256))

    def write_left_out(self, left_out: LeftOut) -> None:
        self._write(LEFT_OUT, left_out)

    def _write(self, name: str, record: Record, indent: int | None = None) -> Path:
        remove_abandoned(self.path)
        write_file(self.path / name, record.encoded(indent))
        return self.path / name


def checksum(path: Path) -> str:
    """The checksum of a weights file."""
    state = path.stat()
    return _checksum(path, state.st_ino, state.st_mtime_ns, state.st_size)


@cache
def _checksum(path: Path, *state: int) -> str:
    """Cached until the file changes: a waiting comparison asks several times a second."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
