"""Output that nobody reads, or for which there is no room: trainings of a comparison go on."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from comparing import finish, write
from training import one_thread  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.comparison import read_matrix
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.engines import Ending, Job, LocalProcesses

pytestmark = pytest.mark.usefixtures("one_thread")


class Finished(Job):
    """A training that is over at once."""

    def ending(self) -> Ending:
        return Ending("")


@pytest.fixture(params=["closed pipe", "full disk"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[IO[str]]:
    if request.param == "full disk":
        handle = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, handle = os.pipe()
        os.close(reading)
    with open(handle, "w") as stream:
        yield stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), handle)  # else closing it fails


def test_a_comparison_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritable: IO[str]) -> None:
    """As in `vitmix compare ... | head -1`."""
    path, output = write(tmp_path), tmp_path / "out"

    def start(self: LocalProcesses, training: Training, flags: object, say: Callable[[str], None]) -> Job:
        say(f"{training.name} starts")
        finish(training)
        return Finished()

    monkeypatch.setattr(LocalProcesses, "start", start)
    monkeypatch.setattr(sys, "stdout", unwritable)
    assert cli.main(["compare", str(path), "--output", str(output)]) == 0
    assert all(training.run.is_trained for training in read_matrix(str(path)).trainings(output))
    assert "CutMix" in (output / "compare.csv").read_text()
