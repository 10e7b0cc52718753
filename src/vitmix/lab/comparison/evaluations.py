"""What a comparison evaluates besides accuracy, by the commands that evaluate any run."""

from dataclasses import dataclass

from vitmix.lab.runs import LeftOut, RobustnessResults, Run
from vitmix.lab.studies.studies import STUDIES
from vitmix.lab.suite import Robustness
from vitmix.lab.training.config import AnyConfig


@dataclass(frozen=True)
class Evaluations:
    """Parts of `vitmix eval --suite`, and whether the studies of `vitmix analyze` are run."""

    suite: tuple[str, ...] = ()
    studies: bool = False

    def __post_init__(self) -> None:
        if "shifts" in self.suite:
            raise ValueError("the suite 'shifts' needs folders, which a comparison does not take; use vitmix eval")
        Robustness(parts=self.suite)  # refuses unknown ones

    @classmethod
    def of(cls, suite: str | None, studies: bool) -> "Evaluations":
        """From the flags; the parts are separated by commas."""
        parts = [] if suite is None else [name.strip() for name in suite.split(",")]
        return cls(tuple(dict.fromkeys(parts)), studies)

    @property
    def flags(self) -> list[str]:
        suite = ["--suite", ",".join(self.suite)] if self.suite else []
        return [*suite, *(["--analyze"] if self.studies else [])]

    def missing(self, run: Run) -> set[str]:
        """The parts and studies that the run's folder does not have yet for its best weights."""
        asked = {*(Robustness(parts=self.suite).measured), *(STUDIES if self.studies else ())}
        weights = run.checksum() if asked else None
        if weights is None:
            return asked
        parts = set() if run.robustness is None else usual_parts(run.robustness)
        # `vitmix analyze` writes into a run's folder only what it measured with the usual settings.
        studies = {name for name, study in run.analyses.items() if study.weights_sha256 == weights}
        return asked - parts - studies - run.left_out

    def command(self, run: Run, config: AnyConfig) -> list[str]:
        """The next command for what is missing."""
        place = ["--cpu"] if config.cpu else []
        if self.missing(run) <= STUDIES.keys():
            return ["analyze", str(run.path), *place]
        return ["eval", str(run.path), "--suite", ",".join(self.suite), "--workers", str(config.workers), *place]

    def settle(self, run: Run, command: str) -> None:
        """After a successful command: what is still missing of it does not apply to this run."""
        weights = run.checksum()
        absent = {name for name in self.missing(run) if (name in STUDIES) == (command == "analyze")}
        if absent and weights is not None:
            run.write_left_out(LeftOut(weights, tuple(sorted(run.left_out | absent))))


NOTHING = Evaluations()


def usual_parts(results: RobustnessResults) -> set[str]:
    """The parts of a suite that were measured with its usual settings."""
    return {part for part, protocol in results.parts.items() if protocol.is_usual}
