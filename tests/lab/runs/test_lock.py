"""Run folders: one training at a time in each, and nothing left of those that were killed."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from vitmix.lab.comparison.runner import take
from vitmix.lab.runs import FolderLock, Run, lock
from vitmix.lab.runs.analysis import LeftOut
from vitmix.lab.writing import write_file


def in_another_process(folder: Path) -> bool:
    """Whether a training in another process is refused."""
    child = os.fork()
    if child == 0:
        try:
            FolderLock(folder).acquire()
        except ValueError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_folder_is_opened_once(tmp_path: Path) -> None:
    """The kernel would give a process the lock twice, and take both away when one is closed."""
    first, second, other = FolderLock(tmp_path / "run"), FolderLock(tmp_path / "link"), FolderLock(tmp_path / "other")
    first.acquire()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(ValueError, match="this process is already training in"):
        second.acquire()
    second.release()
    other.acquire()
    other.release()
    assert first.held and in_another_process(tmp_path / "run")
    assert not other.held and not in_another_process(tmp_path / "other")
    first.release()
    assert not first.held and not in_another_process(tmp_path / "run")
    second.acquire()
    assert in_another_process(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    second.release()
    first.acquire()
    del first  # never trained
    assert not in_another_process(tmp_path / "run")


def test_a_lock_that_cannot_be_had_is_not_called_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "lockf", fail)
    with pytest.raises(ValueError, match="cannot lock the run folder .*: No locks available"):
        FolderLock(tmp_path / "run").acquire()


def test_the_lock_is_no_program(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = FolderLock(tmp_path / "run")
        folder.acquire()
        folder.release()
        os.close(take(tmp_path / "other" / ".lock"))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name / ".lock").stat().st_mode) for name in ("run", "other")]
    assert modes == [0o644, 0o644]


def test_unfinished_files_of_killed_runs_are_removed(tmp_path: Path) -> None:
    """Those of the training, once it holds the lock; other commands may be writing theirs."""
    place, folder = tmp_path / "run", FolderLock(tmp_path / "run")
    folder.acquire()
    ours = ["best.safetensors", "last.safetensors", "metrics.jsonl", "summary.json", "config.yaml"]
    others = [
        ".evaluation.json.12.partial",
        ".best.safetensors.partial",
        ".best.safetensors.x.partial",
        "best.12.partial",
    ]
    for name in (*(f".{each}.{number}.partial" for each in ours for number in (12, 4711)), *others):
        (place / name).touch()
    with pytest.raises(ValueError, match="already training"):
        FolderLock(place).acquire()
    assert len([*place.glob(".*.partial")]) == 2 * len(ours) + 3
    folder.release()
    folder.acquire()
    assert {each.name for each in place.iterdir()} == {".lock", *others}
    folder.release()


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "best.safetensors", b"new")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes in the file system")
def test_a_pipe_in_place_of_the_lock_does_not_hang(tmp_path: Path) -> None:
    """A comparison asks who trains in a folder that others may have made."""
    os.mkfifo(tmp_path / ".lock")
    assert not FolderLock(tmp_path).held


def test_unfinished_files_do_not_pile_up(tmp_path: Path) -> None:
    """Commands that write without the lock remove what was killed long ago, and leave alone what is being written."""
    for name in (
        ".evaluation.json.123.partial",
        ".maps-000000000.safetensors.9.partial",
        "own.partial",
        ".config.yaml",
    ):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".evaluation.json.124.partial").write_text("half")
    Run(tmp_path).write_left_out(LeftOut("x", ("labels",)))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"own.partial", ".config.yaml", ".evaluation.json.124.partial", ".left_out"}
