"""What the runner of a comparison knows of the place where runs are executed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import Training

Say = Callable[[str], None]


class NoRoom(Exception):
    """The engine takes no further job at present; the text says why, and the runner asks again later."""


@dataclass(frozen=True)
class Ending:
    """Why a job has ended; of a run that is finished it is not read.

    Attributes:
        reason: a clause without a full stop.
        lost: the node or its time was lost, so the run may start again from its checkpoint.
        update: of the newest checkpoint, by which the runner knows whether a lost run makes progress.
        remedy: what to do if the run is lost again and again for this reason.
    """

    reason: str
    lost: bool = False
    update: int = 0
    remedy: str = "write checkpoints more often (--set checkpoint_every='300 seconds')"


class Job(Protocol):
    """One run that was handed to an engine."""

    def ending(self) -> Ending | None:
        """Why it has ended; None while it waits or runs. The run's files are here when it is not None."""
        ...

    def waiting(self) -> str:
        """What it waits for, as the end of "it waits for ..."; empty while it runs."""
        ...

    def stop(self) -> None:
        """Lets the run end at a checkpoint; does not wait for it."""
        ...

    def kill(self) -> None:
        """Ends the run at once."""
        ...


class Engine(ABC):
    """Where runs are executed, from `__enter__` to `__exit__`.

    Attributes:
        jobs: how many at the same time; None is as many as find room.
    """

    jobs: int | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def prepare(self, trainings: "Sequence[Training]", say: Say) -> None:
        """Brings what an earlier command left elsewhere into the run folders."""
        return

    def has_room(self, working: int) -> bool:
        """Whether to hand it a further run, beside those at work."""
        return self.jobs is None or working < self.jobs

    def knows(self, training: "Training") -> bool:
        """Whether a job of an earlier command still has the run, which `start` then takes over."""
        return False

    @abstractmethod
    def start(self, training: "Training", flags: Sequence[str], say: Say) -> Job:
        """Hands over a run. `flags` ask for evaluations. NoRoom if it must wait, ValueError if it cannot run at all."""


def beginning(training: "Training") -> str:
    """What happens to a run that begins now."""
    run = training.run
    if run.is_trained:
        return "is trained; evaluating it"
    return "resumes" if run.exists else "begins"
