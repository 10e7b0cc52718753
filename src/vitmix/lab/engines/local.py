"""Runs as processes of this machine, some at a time."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.lab.environment import available_cores
from vitmix.lab.training.config import to_yaml
from vitmix.lab.writing import write_file

from .base import Ending, Engine, Say, beginning

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import Training

THREADS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")  # of which each run has its part
SETTINGS = ".training.yaml"  # hidden: a run folder must look empty before the run begins


class LocalProcesses(Engine):
    """The usual engine: `jobs` processes at a time."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def start(self, training: "Training", flags: Sequence[str], say: Say) -> "LocalJob":
        say(f"{training.name} {beginning(training)}")
        settings = training.run.path / SETTINGS
        write_file(settings, to_yaml(training.config).encode())
        environment = dict(os.environ)
        if (jobs := self.jobs or 1) > 1:
            for name in THREADS:
                environment.setdefault(name, str(max(1, available_cores() // jobs)))
        log = training.run.log
        return LocalJob(begin_process([*training_command(settings), *flags], log, environment=environment), log)


class LocalJob:
    """A run in a process."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self.log = process, log

    def ending(self) -> Ending | None:
        code = self.process.poll()
        return None if code is None else Ending(reason_of(code, self.log))

    def waiting(self) -> str:
        return ""

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


def begin_process(
    command: list[str], log: Path, *, environment: dict[str, str], folder: Path | None = None
) -> "subprocess.Popen[bytes]":
    """A run's process, whose output is added to the log."""
    with open(log, "ab") as file:
        # A separate session: Ctrl-C reaches only the comparison, which then stops each run once.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )


def training_command(settings: Path) -> list[str]:
    return [sys.executable, "-m", "vitmix.lab.comparison.process", str(os.getpid()), str(settings)]


def reason_of(code: int, log: Path) -> str:
    """Why a process ended with this code: the signal, or the last line that it wrote."""
    if code < 0:
        hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
        return f"signal {-code} ended it ({signal.strsignal(-code)}{hint})"
    if code == 0:
        return "it ended without an error, but its results are not here"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line]
    return lines[-1].removeprefix("vitmix: error: ") if lines else f"it ended with code {code}"
