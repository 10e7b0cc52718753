"""What a comparison measures of its trainings besides accuracy, by the commands that measure any run."""

import json
from dataclasses import dataclass
from pathlib import Path

from vitmix.evaluate.settings import Robustness
from vitmix.evaluate.stored import checksums
from vitmix.train.checkpoints import write_file

DONE = ".measured"  # in a run's folder: for each command that has ended well, the checksum of the weights it measured


@dataclass(frozen=True)
class Further:
    """The parts of `vitmix eval --suite`, comma-separated, and whether `vitmix analyze` makes its studies."""

    suite: str | None = None
    studies: bool = False

    def __post_init__(self) -> None:
        if self.suite is not None:
            parts = tuple(name.strip() for name in self.suite.split(","))
            Robustness(parts=parts)  # refuses unknown ones
            object.__setattr__(self, "suite", ",".join(parts))

    @property
    def flags(self) -> list[str]:
        """As `vitmix compare` takes them."""
        return [*([] if self.suite is None else ["--suite", self.suite]), *(["--analyze"] if self.studies else [])]

    @property
    def commands(self) -> list[str]:
        """What measures a run, each without the run."""
        return [*([] if self.suite is None else [f"eval --suite {self.suite}"]), *(["analyze"] if self.studies else [])]

    def missing(self, run: Path) -> list[str]:
        """The commands that have not ended well with the run's best weights yet."""
        weights, done = checksums(run, "best"), _read(run)
        return [command for command in self.commands if done.get(command) not in weights]


def note(run: Path, command: str) -> None:
    """Remembers that a command has ended well."""
    (weights,) = checksums(run, "best")
    write_file(run / DONE, json.dumps({**_read(run), command: weights}).encode())


def _read(run: Path) -> dict[str, str]:
    try:
        return json.loads((run / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
