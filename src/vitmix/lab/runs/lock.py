"""Locks on run folders. Whether a run may start in a folder is decided before anything is written."""

import errno
import itertools
import os
import re
from contextlib import suppress
from pathlib import Path

from vitmix.lab.reading import is_fault, open_regular
from vitmix.lab.training.config import CONFIG, AnyConfig, differences
from vitmix.lab.writing import PARTIAL, make_folder

from .folder import LOG, METRICS, SUMMARY, Run

try:
    import fcntl
except ImportError:  # Windows has none; two runs in one folder are then not noticed
    fcntl = None

MOST_NAME = 120  # characters of a run folder's default name
# The kernel grants a process a lock it already has, and drops it when any handle of that file is closed.
_held: dict[tuple[int, int], int] = {}  # identity of the lock file → the process; a fork has no lock


def run_for(config: AnyConfig) -> Run:
    """The run that the configuration names, or one in runs/ with a readable name.

    If a run with other settings has the name, a number is added, so the same command finds its run again.
    """
    if config.output is not None:
        return Run(config.output)
    name = default_name(config)
    numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(run for each in numbered if _is_free(run := Run(Path("runs") / each), config))


def default_name(config: AnyConfig) -> str:
    """Such as `deit_tiny-pets-mixup-smmix-seed0`."""
    model = re.sub(r"_(patch|window)\d.*", "", config.model.rpartition("/")[2].split(".")[0])
    kind, _, place = config.data.partition("?")[0].partition(":")
    place = place.partition(":")[0] if kind == "torchvision" else place
    data = place.rstrip("/").rpartition("/")[2].partition("{")[0] if place else kind.partition("(")[0]
    methods = re.findall(r"[a-z_]\w*(?=\s*(?:\(|\||\+|\)|$))", re.sub(r"\b\w+=[^,()]*", "", config.method))
    words = [model, getattr(config, "task", ""), data, *methods[:4], f"seed{config.seed}"]
    return "-".join(re.sub(r"[^\w.]+", "_", word).strip("._") for word in words if word)[:MOST_NAME]


def _is_free(run: Run, config: AnyConfig) -> bool:
    """Whether the folder is new, or holds a run that this configuration continues."""
    if not run.exists:
        return not run.path.exists() or (run.path.is_dir() and not any(map(_visible, run.path.iterdir())))
    try:
        return not differences(run.config, config)
    except ValueError:  # a configuration of another version, or a damaged one
        return False


def check_folder(run: Run, config: AnyConfig) -> None:
    """Refuses a folder with other content, without changing it."""
    path = run.path
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the name of the run folder must be valid UTF-8, got {str(path)!a}: safetensors could not read "
            "its weights; give another --output, or rename the folder"
        ) from None
    if not run.exists:
        if config.resume:
            raise ValueError(f"there is no run to resume in {path}; leave --resume out to start one")
        if path.exists() and (not path.is_dir() or any(map(_visible, path.iterdir()))):
            raise ValueError(f"{path} exists and is not a run folder; give another --output")
        return
    if config.resume is False:
        raise ValueError(f"{path} already holds a run; give another --output, or leave --no-resume out")
    different = differences(run.config, config)
    if different:
        longer = any(each.startswith("epochs: ") for each in different) and run.summary is not None
        longer = longer and config.command == "train"
        begin = f'vitmix train --checkpoint {path} --data "{config.data}" --output OTHER'
        further = f"; '{begin}' trains its weights further"
        raise ValueError(
            f"{path} holds a run with another configuration ({', '.join(different)}); "
            f"give another --output, or the run's own settings{further if longer else ''}"
        )


class FolderLock:
    """A run folder that this process trains in, from `acquire` until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / ".lock"
        self._handle: int | None = None

    def acquire(self) -> None:
        """Locks the folder for this process, and removes unfinished files of a killed training."""
        if self.held_here:
            raise ValueError(f"this process is already training in {self.folder}; give another --output")
        try:
            make_folder(self.folder)
            handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(f"cannot write to the run folder {self.folder}: {error.strerror}") from None
        try:
            if fcntl is not None:
                # Not flock: a worker process would inherit it and hold it for seconds after its parent was killed.
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise ValueError(f"another process is training in {self.folder}; give another --output") from None
            why = f"{error.strerror}; give another --output"
            raise ValueError(f"cannot lock the run folder {self.folder}: {why}") from None
        self._handle = handle
        _held[_identity(handle)] = os.getpid()
        self._remove_unfinished()

    @property
    def held_here(self) -> bool:
        """Whether this process has the folder; asking the kernel would end its own lock."""
        return self.file.exists() and _held.get(_identity(self.file)) == os.getpid()

    @property
    def held(self) -> bool:
        """Whether any process trains in the folder."""
        if self.held_here:
            return True
        if fcntl is None or not self.file.exists():
            return False
        try:
            file = open_regular(self.file)
        except OSError as error:
            if is_fault(error):
                raise
            return False  # it is gone, or never was a lock
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def release(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            _held.pop(_identity(handle), None)
            with suppress(OSError):  # nothing was written to it, and the lock is released even if closing fails
                os.close(handle)

    def __del__(self) -> None:
        self.release()  # of a run that never started

    def _remove_unfinished(self) -> None:
        """Only the run's own files: other commands write without the lock."""
        own = (CONFIG, SUMMARY, METRICS, "best.safetensors", "last.safetensors")
        unfinished = re.compile(rf"\.({'|'.join(map(re.escape, own))})\.[0-9]+{re.escape(PARTIAL)}")
        for path in self.folder.iterdir():
            if unfinished.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _identity(file: Path | int) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_dev, found.st_ino


def _visible(entry: Path) -> bool:
    return not entry.name.startswith(".") and entry.name != LOG
