"""The file operations of this process: counted, one of them fails, and what a power loss would leave is known.

`Files.install` replaces what opens, writes, syncs, renames, removes, lists and reads files in `os`, `io`, `builtins`
and `safetensors` (whose native code counts as one read). There is no way back: install it in a forked process.
"""

import builtins
import errno
import io
import json
import os
import pickle
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

WRITING = ("open", "write", "fsync", "rename", "mkdir", "truncate", "close")
CHANGING = (*WRITING, "unlink", "rmdir")
READING = ("open to read", "read", "list", "stat")
KINDS = {  # the operations that a kind of fault can happen to
    "EIO": (*CHANGING, *READING),
    "ENOSPC": WRITING,
    "full": WRITING,
    "short": ("write",),
    "death": CHANGING,
    "power": CHANGING,
    "power, names kept": CHANGING,
}
# Functions of `os` that count as the operation of another name.
SAME = {"replace": "rename", "remove": "unlink", "lstat": "stat", "listdir": "list", "scandir": "list"}
SAME |= {"ftruncate": "truncate"}
DEAD, CUT = 86, 87  # exit codes: the process died, or the power went off

_real = {
    name: getattr(os, name) for name in ("open", "close", "stat", "fstat", "scandir", "mkdir", "write", "readlink")
}


@dataclass(frozen=True)
class Fault:
    """What happens at the operation of this number; the one after the last is the end of the process."""

    number: int
    kind: str


@dataclass
class Node:
    """A file or a folder as the disk has it: what was synced."""

    content: bytes = b""
    entries: "dict[str, Node] | None" = None
    shortened: bool = False  # since the last sync

    def write(self, place: Path) -> None:
        if self.entries is None:
            place.write_bytes(self.content)
            return
        place.mkdir()
        for name, node in self.entries.items():
            node.write(place / name)


class Disk:
    """What a power loss leaves of a folder.

    A file's content is what it was at its last fsync, an entry of a folder what it was at the folder's last fsync.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._live: dict[int, Node] = {}
        self.top = self._scan(root)

    def _scan(self, path: str) -> Node:
        if not os.path.isdir(path):
            node = Node(Path(path).read_bytes())
        else:
            node = Node(entries={name: self._scan(f"{path}/{name}") for name in os.listdir(path)})
        self._live[os.stat(path).st_ino] = node
        return node

    def created(self, path: str, *, folder: bool = False) -> None:
        self._live[_real["stat"](path).st_ino] = Node(entries={} if folder else None)

    def shortened(self, path: str) -> None:
        self._live[_real["stat"](path).st_ino].shortened = True

    def synced(self, handle: int) -> None:
        found = _real["fstat"](handle)
        node = self._live[found.st_ino]
        if stat.S_ISDIR(found.st_mode):
            with _real["scandir"](handle) as entries:
                node.entries = {each.name: self._live[each.inode()] for each in entries}
            return
        node.content, node.shortened = _read(f"/proc/self/fd/{handle}"), False

    def left(self, *, names: bool) -> Node:
        """The folder after the power went off; with `names`, unsynced creations, renames and removals are on it."""
        return self._named(self.root) if names else self.top

    def _named(self, path: str) -> Node:
        found = _real["stat"](path)
        node = self._live[found.st_ino]
        if stat.S_ISDIR(found.st_mode):
            with _real["scandir"](path) as entries:
                return Node(entries={each.name: self._named(each.path) for each in entries})
        return Node(b"" if node.shortened else node.content)


def _read(path: str) -> bytes:
    handle, parts = _real["open"](path, os.O_RDONLY), []
    while part := os.pread(handle, 2**24, sum(map(len, parts))):
        parts.append(part)
    _real["close"](handle)
    return b"".join(parts)


@dataclass
class Files:
    """The file operations below `root`.

    Attributes:
        fault: what is to happen; None once it has.
        notes: a file that outlives everything, for `note`.
        operations: those so far, as (name, path).
        main: this is not a process that the program started.
    """

    root: str
    fault: Fault | None
    notes: str
    operations: list[tuple[str, str]] = field(default_factory=list)
    main: bool = True
    full: bool = False
    handles: dict[int, tuple[str, bool]] = field(default_factory=dict)  # path, and whether it is written to

    def __post_init__(self) -> None:
        self.root = os.path.abspath(self.root)
        self.disk = Disk(self.root)

    def note(self, **facts: Any) -> None:
        """Writes down something that holds even if the process dies now."""
        handle = _real["open"](self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        _real["write"](handle, json.dumps(facts).encode() + b"\n")
        _real["close"](handle)

    def leave(self, code: int) -> None:
        """Ends the process."""
        if self.fault is not None and self.fault.number == len(self.operations) and self.main:
            self._cut(names=self.fault.kind != "power")
        _dump(f"{self.notes}.state", (self.operations, self.full, self.fault, self.disk))
        os._exit(code)

    def rejoin(self) -> None:
        """Goes on where a forked process that has ended was; if it died, the fault has happened."""
        place = f"{self.notes}.state"
        if not os.path.lexists(place):
            self.fault = None
            return
        self.operations, self.full, self.fault, self.disk = pickle.loads(_read(place))

    def act(self, name: str, path: str, do: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        """An operation, unless its turn has come; `half` is as much of it as happens then."""
        number = len(self.operations)
        self.operations.append((name, os.path.relpath(path, self.root)))
        if self.full and name in WRITING and name != "close":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.fault is None or self.fault.number != number:
            return do()
        kind, self.fault = self.fault.kind, None
        self.note(happened=name)
        if kind.startswith("power"):
            self._cut(names=kind != "power")
        if kind == "short":
            return half()
        if kind != "EIO":
            half()
        if kind == "death":
            os._exit(DEAD)
        self.full = kind == "full"
        if name == "close":
            do()  # whatever close says, the handle is gone
        code = errno.EIO if kind == "EIO" else errno.ENOSPC
        raise OSError(code, os.strerror(code), path)

    def _cut(self, *, names: bool = False) -> None:
        _dump(f"{self.notes}.left", self.disk.left(names=names))
        os._exit(CUT)

    # What is replaced

    def path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The whole path of something below the root; None elsewhere."""
        if isinstance(path, int):
            return self.handles[path][0] if path in self.handles else None
        path = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(path):
            path = os.path.join(_real["readlink"](f"/proc/self/fd/{dir_fd}"), path)
        path = os.path.abspath(path)
        return path if path == self.root or path.startswith(f"{self.root}/") else None

    def install(self) -> None:
        for name in (*SAME, "rename", "unlink", "mkdir", "rmdir", "stat", "truncate"):
            setattr(os, name, self._by_path(name, getattr(os, name)))
        os.open, os.close, os.fsync, os.fdatasync = self._open_handle, self._close, self._sync, self._sync
        os.write = self._write
        builtins.open = io.open = self._open_file
        load, header = safetensors.torch.load_file, safetensors.safe_open
        safetensors.torch.load_file = self._native(load)
        safetensors.safe_open = self._native(header)

    def _by_path(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **settings: Any) -> Any:
            place = self.path(path, settings.get("dir_fd", settings.get("src_dir_fd")))
            if place is None:
                return do(path, *arguments, **settings)
            made = lambda: do(path, *arguments, **settings)  # noqa: E731
            found = self.act(SAME.get(name, name), place, made)
            if name == "mkdir":
                self.disk.created(place, folder=True)
            elif name.endswith("truncate"):
                self.disk.shortened(place)
            return found

        return call

    def _open_handle(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self.path(path, dir_fd)
        if place is None:
            return _real["open"](path, flags, mode, dir_fd=dir_fd)
        writing = flags & (os.O_WRONLY | os.O_RDWR) != 0
        with self._opening(place, creates=bool(flags & os.O_CREAT), shortens=bool(flags & os.O_TRUNC)):
            do = lambda: _real["open"](path, flags, mode, dir_fd=dir_fd)  # noqa: E731
            handle = self.act("open" if writing else "open to read", place, do)
        self.handles[handle] = place, writing
        return handle

    def _opening(self, path: str, *, creates: bool, shortens: bool) -> "_Opening":
        return _Opening(self.disk, path, creates, shortens)

    def _close(self, handle: int) -> None:
        place, writing = self.handles.pop(handle, ("", False))
        if writing:
            self.act("close", place, lambda: _real["close"](handle))
        else:
            _real["close"](handle)

    def _sync(self, handle: Any) -> None:
        handle = handle if isinstance(handle, int) else handle.fileno()
        if handle in self.handles:
            self.act("fsync", self.handles[handle][0], lambda: self.disk.synced(handle))  # no disk is waited for

    def _write(self, handle: int, data: Any) -> int:
        if handle not in self.handles:
            return _real["write"](handle, data)
        first = memoryview(data).cast("B")[: len(data) // 2]
        place = self.handles[handle][0]
        return self.act("write", place, lambda: _real["write"](handle, data), lambda: _real["write"](handle, first))

    def _native(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **settings: Any) -> Any:
            place, made = self.path(path), lambda: do(path, *arguments, **settings)
            return made() if place is None else self.act("read", place, made)

        return call

    def _open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        place = self.path(file)
        if place is None:
            return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _File(self, file, mode.replace("b", "").replace("t", ""), place, opener)
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        binary = kind(raw)
        if "b" in mode:
            return binary
        return io.TextIOWrapper(binary, io.text_encoding(encoding), errors, newline, buffering == 1)


_open = io.open


class _Opening:
    """Tells the disk what the opening of a file did to it."""

    def __init__(self, disk: Disk, path: str, creates: bool, shortens: bool) -> None:
        self.disk, self.path, self.shortens = disk, path, shortens
        self.new = creates and not _exists(path)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and self.new:
            self.disk.created(self.path)
        elif kind is None and self.shortens:
            self.disk.shortened(self.path)


class _File(io.FileIO):
    """A file whose operations are counted."""

    def __init__(self, files: Files, file: Any, mode: str, path: str, opener: Any) -> None:
        self.files, self.path, self.writing = files, path, mode != "r"
        if isinstance(file, int) or opener is not None:  # its opening is counted by its handle
            super().__init__(file, mode, opener=opener)
            self.writing = files.handles[self.fileno()][1]
            return
        with files._opening(path, creates=self.writing, shortens="w" in mode):
            name, do = "open" if self.writing else "open to read", super().__init__
            files.act(name, path, lambda: do(file, mode))
        files.handles[self.fileno()] = path, self.writing

    def write(self, data: Any) -> int:
        first = memoryview(data).cast("B")[: len(data) // 2]
        write = super().write
        return self.files.act("write", self.path, lambda: write(data), lambda: write(first))

    def readall(self) -> bytes:
        return self.files.act("read", self.path, super().readall)

    def read(self, size: int | None = -1) -> bytes:
        read = super().read
        return self.files.act("read", self.path, lambda: read(-1 if size is None else size))

    def readinto(self, buffer: Any) -> int:
        readinto = super().readinto
        return self.files.act("read", self.path, lambda: readinto(buffer))

    def truncate(self, size: int | None = None) -> int:
        truncate = super().truncate
        found = self.files.act("truncate", self.path, lambda: truncate(size))
        self.files.disk.shortened(self.path)
        return found

    def close(self) -> None:
        if self.closed or not hasattr(self, "writing"):
            return super().close()
        self.files.handles.pop(self.fileno(), None)
        close = super().close
        if self.writing:
            self.files.act("close", self.path, close)
        else:
            close()


def _exists(path: str) -> bool:
    try:
        _real["stat"](path)
    except OSError:
        return False
    return True


def _dump(place: str, value: Any) -> None:
    handle = _real["open"](place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    content = memoryview(pickle.dumps(value))
    while content:
        content = content[_real["write"](handle, content) :]
    _real["close"](handle)
