"""Writing files that are complete or absent, whatever happens meanwhile: the counterpart of `vitmix.lab.reading`."""

import errno
import os
import re
import time
import warnings
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"  # ends the name of a file or folder that is being written
ABANDONED_SECONDS = 24 * 3600  # after which nobody is still writing a file
_UNFINISHED = re.compile(rf"\..+\.[0-9]+{re.escape(PARTIAL)}")


def write_file(path: Path, content: bytes) -> None:
    """Writes a file so that it is complete, or stays as it was."""
    if path.exists() and not path.is_file():  # renaming would put a file in the place of /dev/null
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")  # another process may write the same file
    try:
        write_synced(partial, content)
        partial.replace(path)
    except BaseException:  # Ctrl-C included
        partial.unlink(missing_ok=True)
        raise
    sync_name(path)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and waits until the disk has it."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Makes a folder that outlives a power cut."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync_folder(each.parent)


def remove_abandoned(folder: Path) -> None:
    """Removes what processes that were killed long ago left unfinished in a folder."""
    for path in folder.glob(f".*{PARTIAL}"):
        with suppress(OSError):  # another process removes it too
            if _UNFINISHED.fullmatch(path.name) and time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()


def sync_files(folder: Path) -> None:
    """Waits until the disk has a folder and the files in it."""
    for path in (*folder.iterdir(), folder):
        try:
            sync_folder(path)  # a file is synced alike
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def sync_name(path: Path) -> None:
    """Makes a new name outlive a power loss. The content is safe already, so a failure is only a warning."""
    try:
        sync_folder(path.parent)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as on file systems that cannot sync folders
            warnings.warn(f"{path} is written, but a power loss may undo that: {error.strerror}", stacklevel=3)


def sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
