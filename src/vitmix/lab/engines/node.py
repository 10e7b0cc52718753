"""What a node of a cluster does: one run of a comparison, in the shared folder or in one of its own.

`python -m vitmix.lab.engines.node` reads the job spec from standard input, as a Slurm job does; a Ray task calls `run`.
Where the node does not see the comparison's folder, it works in a temporary one, fetches the run's files from a store
before, and sends what is new to it every few seconds.
"""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmix import __version__
from vitmix.lab.reading import parse_json
from vitmix.lab.runs.folder import LOG
from vitmix.lab.training.config import CONFIG, resolve_any, to_yaml
from vitmix.lab.writing import make_folder, write_file

from .files import bring, copy
from .local import SETTINGS, begin_process, reason_of, training_command
from .stores import FolderStore, Store, StoreError, open_store

SEND_SECONDS = 3.0
ATTEMPTS = 4  # to send what a run has left, with growing pauses between them
REPORT = ".report.json"
MARK = ".cluster"  # beside the run folders, or in a run of the store: by its content a node knows that it sees them
REFUSED, UNSEEN, UNSENT = 2, 73, 74  # exit codes; 73 and 74 as in sysexits.h


@dataclass(frozen=True)
class JobSpec:
    """A run as a node is told of it.

    Attributes:
        settings: YAML of `vitmix train`; `output` is the run folder that it names.
        runs: the folder of all runs, as the command sees it; `mark` is the content of its file MARK.
        folder: the current folder of the command, to which paths of data are relative.
        store: URL through which files travel, if they do.
        attempt: names this job, so that what an earlier one reported is not taken for its word.
    """

    name: str
    settings: str
    output: str
    flags: list[str]
    runs: str
    mark: str
    folder: str
    environment: dict[str, str]
    store: str | None
    attempt: str
    version: str = __version__


@dataclass(frozen=True)
class NodeReport:
    """How a run ended on a node."""

    attempt: str
    node: str
    code: int
    reason: str

    @classmethod
    def from_json(cls, content: bytes) -> "NodeReport | None":
        """The report in a file, if that is one."""
        try:
            return cls(**parse_json(content))
        except (ValueError, TypeError):
            return None


def run(spec: JobSpec, *, carried: Store | None = None, signals: tuple[int, ...] = (signal.SIGINT,)) -> NodeReport:
    """Trains and evaluates what the job spec says.

    Args:
        carried: where files travel if the spec names no store and the node does not see the folder.
        signals: those that stop the run at a checkpoint.
    """
    node = socket.gethostname()
    if spec.version != __version__:
        why = f"node {node} has vitmix {__version__}, the command {spec.version}; install the same version there"
        return NodeReport(spec.attempt, node, REFUSED, why)
    seen = sees(spec)
    if not seen and (spec.store or carried is None):
        return NodeReport(spec.attempt, node, UNSEEN, f"node {node} {unseen(spec.runs, spec.store)}")
    store = open_store(spec.store) if spec.store else None if seen else carried
    if store is None:
        return _execute(spec, Path(spec.runs) / spec.name, lambda: None, signals)
    with tempfile.TemporaryDirectory(prefix="vitmix-") as scratch:
        folder = Path(scratch) / spec.name
        make_folder(folder)
        bring(store, spec.name, folder)
        sender = _Sender(spec, Path(scratch), store)
        report = _execute(spec, folder, sender.try_once, signals)
        failed = sender.send_rest()
        return dataclasses.replace(report, code=UNSENT, reason=failed) if failed else report


def sees(spec: JobSpec) -> bool:
    """Whether this machine has the folder of the command, or the store to which it wrote."""
    try:
        if spec.store:
            return open_store(spec.store).read(spec.name, MARK) == spec.mark.encode()
        return (Path(spec.runs) / MARK).read_text() == spec.mark
    except StoreError:
        raise
    except OSError:
        return False


def unseen(runs: Path | str, store: str | None) -> str:
    """What is wrong with a node that does not see it, and what to do."""
    if store:
        return f"does not see what the command wrote to {store}; give --store a place that all nodes share"
    return f"does not see the folder {runs}; put --output on a file system that all nodes share, or give --store URL"


def _execute(spec: JobSpec, folder: Path, each_time: Callable[[], object], signals: tuple[int, ...]) -> NodeReport:
    settings = _written(folder / SETTINGS, spec.settings)
    if folder != Path(spec.runs) / spec.name:
        _written(settings, with_output(settings, str(folder)))
    here = Path(spec.folder) if Path(spec.folder).is_dir() else None
    command = [*training_command(settings), *spec.flags]
    with closing(_Stoppable(signals)) as stoppable:
        environment = {**os.environ, **spec.environment}
        process = stoppable.begin(lambda: begin_process(command, folder / LOG, environment=environment, folder=here))
        while True:
            try:
                code = process.wait(SEND_SECONDS)
                break
            except subprocess.TimeoutExpired:
                each_time()
    return NodeReport(spec.attempt, socket.gethostname(), code, reason_of(code, folder / LOG))


def with_output(settings: Path, output: str) -> str:
    """The settings in a file, for another run folder."""
    return to_yaml(dataclasses.replace(resolve_any(file=settings), output=output))


def _written(file: Path, text: str) -> Path:
    write_file(file, text.encode())
    return file


class _Stoppable:
    """While it is open, signals stop the process that was begun in it."""

    def __init__(self, signals: tuple[int, ...]) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.asked = False
        self._before = {number: signal.signal(number, self._stop) for number in signals}

    def begin(self, start: "Callable[[], subprocess.Popen[bytes]]") -> "subprocess.Popen[bytes]":
        self.process = start()
        if self.asked:  # before it was there
            self.process.terminate()
        return self.process

    def _stop(self, number: int, frame: Any) -> None:
        self.asked = True
        if self.process is not None:
            self.process.terminate()

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Sender:
    """Sends what is new in a run's folder to the store."""

    def __init__(self, spec: JobSpec, scratch: Path, store: Store) -> None:
        self.spec, self.scratch, self.store = spec, scratch, store
        self.source = _HomeNamed(scratch, spec.output)
        self._seen = dict(FolderStore(scratch).files(spec.name))  # it came from there

    def try_once(self) -> str:
        """Sends; returns why that failed, which the log tells too."""
        try:
            copy(self.source, self.store, self.spec.name, self._seen)
            return ""
        except (OSError, ValueError) as error:
            why = f"node {socket.gethostname()} could not send its files: {error}"
            with open(self.scratch / self.spec.name / LOG, "a") as log:
                print(f"vitmix: note: {why}", file=log)
            return why

    def send_rest(self) -> str:
        """Sends what the run has left, with some patience; returns why that failed."""
        failed = self.try_once()
        for attempt in range(ATTEMPTS - 1):
            if not failed:
                break
            time.sleep(2.0**attempt)
            failed = self.try_once()
        return failed


class _HomeNamed(FolderStore):
    """A node's own folder, whose configurations name the run folder of the command."""

    def __init__(self, root: Path, output: str) -> None:
        super().__init__(root)
        self.output = output

    def read(self, run: str, path: str) -> bytes:
        return with_output(self.root / run / path, self.output).encode() if path == CONFIG else super().read(run, path)


def main() -> int:
    """A Slurm job: the spec comes with the job's script, the report goes to the run's files."""
    spec = JobSpec(**json.load(sys.stdin))
    try:
        report = run(spec, signals=(signal.SIGTERM, signal.SIGINT))
        if report.code not in (UNSEEN, UNSENT):
            target = open_store(spec.store) if spec.store else FolderStore(Path(spec.runs))
            target.write(spec.name, REPORT, json.dumps(dataclasses.asdict(report)).encode())
    except (OSError, ValueError) as error:  # of the store
        print(f"vitmix: error: {error}", file=sys.stderr)
        return UNSENT
    return 128 - report.code if report.code < 0 else report.code


if __name__ == "__main__":
    raise SystemExit(main())
