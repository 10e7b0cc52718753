"""Run folders: one training each. Whether one may be started or continued is decided before anything is written."""

import errno
import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitmix.lab.reading import (
    MOST_JSON,
    fits,
    fits_where_given,
    is_count,
    is_number,
    parse_json,
    read_bytes,
    read_known,
)
from vitmix.lab.training.checkpoints import PARTIAL, make_folder, write_file
from vitmix.lab.training.config import CONFIG, FIELDS, TrainConfig, differences, resolve, to_yaml

try:
    import fcntl
except ImportError:  # Windows has none; two trainings in one folder are then not noticed
    fcntl = None

LOG = "train.log"  # begins before the run itself
SUMMARY = {"text": str, "broken_images": [str]}
SUMMARY_NUMBERS = {name: (None, is_number) for name in ("seconds", "training_seconds", "peak_memory")}
METRICS = ("metrics.csv", "metrics.jsonl")
# The kernel gives a process any lock that it has, and takes it away when any file of that name is closed.
_open_here: dict[tuple[int, int], int] = {}  # identity of the lock file → the process; a fork has no lock


class RunFolder:
    """The files of one training.

    config.yaml         the resolved configuration
    metrics.csv, .jsonl one row per epoch
    checkpoints/        the newest complete ones, see `vitmix.lab.training.checkpoints`
    best.safetensors    the best weights; last.safetensors the final ones
    summary.json        written at the end: the results in short
    train.log           what the training said, where a comparison ran it
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.summary = path / CONFIG, path / "summary.json"
        self.log, self.metrics = path / LOG, path / "metrics.jsonl"
        self.best, self.last = path / "best.safetensors", path / "last.safetensors"
        self.checkpoints = path / "checkpoints"
        self.lock = path / ".lock"
        self._handle: int | None = None

    @property
    def exists(self) -> bool:
        return self.config.exists()

    def read_summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None where there is none, or one that no training wrote."""
        found = read_known(self.summary)
        return found if fits(found, SUMMARY) and fits_where_given(found, SUMMARY_NUMBERS) else None

    def read_metrics(self) -> list[dict[str, float]]:
        """The numbers of each finished epoch, as far as they are numbers; what follows a damaged row is left out."""
        try:
            lines = read_bytes(self.metrics, MOST_JSON).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for line in lines:
            try:
                row = parse_json(line)
            except ValueError:
                break  # the end of a file that is being written
            if not fits(row, {"epoch": is_count}):
                break
            rows.append({name: value for name, value in row.items() if is_number(value)})
        return rows

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_file(self.summary, (json.dumps(summary, indent=1) + "\n").encode())

    def check(self, config: TrainConfig) -> None:
        """Refuses a folder that holds something else, without touching it."""
        try:
            str(self.path).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"the name of the run folder must be valid UTF-8, got {str(self.path)!a}: safetensors could not read "
                "its weights; give another --output, or rename the folder"
            ) from None
        if not self.exists:
            if config.resume:
                raise ValueError(f"there is no run to resume in {self.path}; leave --resume out to start one")
            if self.path.exists() and (not self.path.is_dir() or any(map(_visible, self.path.iterdir()))):
                raise ValueError(f"{self.path} exists and is not a run folder; give another --output")
            return
        if config.resume is False:
            raise ValueError(f"{self.path} already holds a run; give another --output, or leave --no-resume out")
        different = differences(resolve(file=self.config), config)
        if different:
            longer = any(each.startswith("epochs: ") for each in different) and self.read_summary() is not None
            begin = f'vitmix train --checkpoint {self.path} --data "{config.data}" --output OTHER'
            further = f"; '{begin}' trains its weights further"
            raise ValueError(
                f"{self.path} holds a run with another configuration ({', '.join(different)}); "
                f"give another --output, or these settings as they were{further if longer else ''}"
            )

    def open(self, config: TrainConfig) -> None:
        """Makes the folder this process's, and stores the configuration if there is none yet."""
        if self.is_open_here:
            raise ValueError(f"this process is already training in {self.path}; give another --output")
        try:
            make_folder(self.path)
            handle = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o666)  # held until the process ends
        except OSError as error:
            raise ValueError(f"cannot write to the run folder {self.path}: {error.strerror}") from None
        try:
            if fcntl is not None:
                # Not flock: a worker process would inherit it and hold it for seconds after its parent was killed.
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise ValueError(f"another process is training in {self.path}; give another --output") from None
            why = f"{error.strerror}; give another --output"
            raise ValueError(f"cannot lock the run folder {self.path}: {why}") from None
        self._handle = handle
        _open_here[_identity(handle)] = os.getpid()
        self._remove_unfinished()
        if not self.exists:
            write_file(self.config, to_yaml(replace(config, resume=None)).encode())

    @property
    def is_open_here(self) -> bool:
        """Whether this process has the folder open; asking the kernel would end its own lock."""
        return self.lock.exists() and _open_here.get(_identity(self.lock)) == os.getpid()

    def __del__(self) -> None:
        self.close()  # of a training that was never run

    def _remove_unfinished(self) -> None:
        """Removes what a killed training had not finished writing. Other commands write without the lock."""
        own = [each.name for each in (self.config, self.summary, self.best, self.last)] + [*METRICS]
        unfinished = re.compile(rf"\.({'|'.join(map(re.escape, own))})\.[0-9]+{re.escape(PARTIAL)}")
        for path in self.path.iterdir():
            if unfinished.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            _open_here.pop(_identity(handle), None)
            with suppress(OSError):  # nothing was written to it, and the lock is gone whatever closing says
                os.close(handle)


def folder_for(config: TrainConfig) -> RunFolder:
    """The folder that the configuration names, or one of its own in runs/: the same for the same configuration."""
    if config.output is not None:
        return RunFolder(Path(config.output))
    deciding = {name: getattr(config, name) for name, each in FIELDS.items() if not each.metadata["may_change"]}
    number = hashlib.sha256(json.dumps(deciding, sort_keys=True, default=list).encode()).hexdigest()[:8]
    words = [
        config.recipe or re.split(r"[:(?]", config.data)[0],
        *re.findall(r"[a-z_]\w*(?=\s*(?:\(|\||\+|$))", config.method),
    ]
    return RunFolder(Path("runs") / "-".join([*words[:4], number]))


def _identity(file: Path | int) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_dev, found.st_ino


def _visible(entry: os.PathLike[str]) -> bool:
    name = Path(entry).name
    return not name.startswith(".") and name != LOG
