"""Shards from elsewhere on this machine's disk: the most recently used ones, up to a size.

    VITMIX_SHARD_CACHE          the folder (default: vitmix/shards in the user's cache); a local disk
    VITMIX_SHARD_CACHE_SIZE     such as '500 GB' (default: 100 GB)

Any number of processes of a machine share the folder. A shard is fetched once, under a name that begins with a dot,
and gets its own name when it is complete. Locks are the kernel's: those of a killed process are gone, and what it had
not finished is removed. A file that is removed while another process reads it stays readable there.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitmix.lab.reading import open_regular

from .images import DataLost
from .remote import RemoteShard, fetch

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

FOLDER, SIZE = "VITMIX_SHARD_CACHE", "VITMIX_SHARD_CACHE_SIZE"
DEFAULT_SIZE = "100 GB"
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
WAIT = 0.05  # seconds between looks whether others have finished
UNFINISHED = re.compile(r"\.([0-9a-f]{32})-([0-9]+)\.partial")  # of a shard that is being fetched, and its size


@dataclass(frozen=True)
class ShardCache:
    """A folder that holds at most `limit` bytes of shards, those on their way included."""

    folder: Path
    limit: int

    def open(self, shard: RemoteShard) -> BinaryIO:
        """The shard as a file; fetched if it is not here."""
        path = self.folder / f"{_key(shard)}.tar"
        try:
            while True:
                with suppress(FileNotFoundError):
                    file = open_regular(path)
                    if os.fstat(file.fileno()).st_size == shard.size:
                        with suppress(OSError):
                            now = time.time_ns()  # the kernel's own clock is coarse
                            os.utime(path, ns=(now, now))
                        return file
                    file.close()
                    path.unlink(missing_ok=True)  # what a power loss left
                self._fetch(shard, path)
        except OSError as problem:
            why = problem.strerror or problem
            raise DataLost(f"the shard cache {self.folder} failed: {why}; set {FOLDER} to another folder") from None

    def _fetch(self, shard: RemoteShard, path: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self._lock_of(_key(shard))):
            if path.exists():  # another process was first
                return
            partial = self._admitted(shard)
            try:
                fetch(shard, partial)
                _sync(partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def _admitted(self, shard: RemoteShard) -> Path:
        """An empty file whose name reserves room for the shard; waits while other downloads need all there is."""
        partial = self.folder / f".{_key(shard)}-{shard.size}.partial"
        while True:
            with _locked(self.folder / ".lock"):
                partial.unlink(missing_ok=True)  # of a killed process: this one has the shard's lock
                if self._make_room(shard.size):
                    partial.touch()
                    return partial
            time.sleep(WAIT)

    def _make_room(self, size: int) -> bool:
        """Removes the least recently used shards until this many bytes fit; False if they still do not."""
        reserved = sum(int(found[2]) for each in self.folder.iterdir() if (found := self._still_fetched(each)))
        shards = [(each.stat().st_mtime_ns, each.stat().st_size, each) for each in self.folder.glob("*.tar")]
        used = reserved + sum(size for _, size, _ in shards)
        for _, freed, path in sorted(shards):
            if used + size <= self.limit:
                break
            path.unlink(missing_ok=True)
            used -= freed
        return used + size <= self.limit

    def _still_fetched(self, path: Path) -> re.Match[str] | None:
        """The key and size of an unfinished shard whose process lives; removes those of killed ones."""
        found = UNFINISHED.fullmatch(path.name)
        if found is None:
            return None
        with _locked(self._lock_of(found[1]), wait=False) as free:
            if free:
                path.unlink(missing_ok=True)
        return None if free else found

    def _lock_of(self, key: str) -> Path:
        return self.folder / f".{key}.lock"


def shard_cache() -> ShardCache:
    """The cache that the environment asks for."""
    if fcntl is None:
        raise ValueError("shards can be read by URL only where the system has file locks (fcntl); copy them to a disk")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    text = os.environ.get(SIZE) or DEFAULT_SIZE
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    size = int(float(found[1]) * UNITS.get(found[2].upper(), 0)) if found else 0
    if size <= 0:
        raise ValueError(f"{SIZE} must be a size above 0, such as '500 GB', got {text!r}")
    return ShardCache(Path(os.environ.get(FOLDER) or os.path.join(home, "vitmix", "shards")), size)


def in_units(size: float) -> str:
    """Bytes as a text that the environment may hold."""
    unit, factor = next(((unit, UNITS[unit]) for unit in ("TB", "GB", "MB", "KB") if size >= UNITS[unit]), ("", 1))
    return f"{-(-size * 10 // factor) / 10:g} {unit}".strip()  # rounded up


def _key(shard: RemoteShard) -> str:
    return hashlib.sha256("\n".join(map(str, shard)).encode()).hexdigest()[:32]


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds a lock file; yields whether it got the lock. The file is removed with the lock."""
    assert fcntl is not None
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            yield False
            return
        if _is_at(path, handle):
            break
        os.close(handle)  # the one that held it has removed this file meanwhile
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    try:
        found, held = os.stat(path), os.fstat(handle)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)
