"""File operations that fail: nothing finished is lost, and what is said is true. `faults.py` does it to all of them."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import faults
from test_checkpoints import names, some
from training import one_thread, rows, tiny, train, train_until  # noqa: F401
from vitmix.lab import reading, writing
from vitmix.lab.cli import main as cli
from vitmix.lab.comparison.runner import take
from vitmix.lab.runs import FolderLock, Run, lock
from vitmix.lab.training import checkpoints
from vitmix.lab.training.checkpoints import Foreign, list_checkpoints
from vitmix.lab.training.engine import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def failing(do: Callable[..., Any], when: Callable[..., bool] = lambda *_, **__: True) -> Callable[..., Any]:
    """The function, with a disk that fails where `when` says."""

    def call(*arguments: Any, **settings: Any) -> Any:
        if when(*arguments, **settings):
            raise OSError(errno.EIO, os.strerror(errno.EIO), "FILE")
        return do(*arguments, **settings)

    return call


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks up the names of open files in /proc")
def test_a_sample_of_faults() -> None:
    """Of every command; in a process of its own, as it forks."""
    command = [sys.executable, faults.__file__, "--sample", "24", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "24 faults injected, 24 recovered"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("started", "code"), [(0, 3), (0, -9), (1, -9)])
def test_a_start_that_hangs_is_ended_with_what_it_started(
    started: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "SECONDS", 0.5)
    alive, write = os.pipe()  # ends when nobody has it open for writing any more
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        for _ in range(started):
            os.fork()
        time.sleep(0 if code == 3 else 60)
        os._exit(3)
    os.close(write)
    assert faults._wait(child) == code
    assert os.read(alive, 1) == b""
    os.close(alive)


def test_what_a_power_loss_leaves(tmp_path: Path) -> None:
    """Of files with and without fsync, under names with and without fsync of their folder."""
    script = """
import os, pickle, sys
from faulty_files import Files, Fault
files = Files("case", None, "notes")
files.install()
def write(name, content, sync):
    with open(f"case/{name}", "wb") as file:
        file.write(content)
        file.flush()
        sync and os.fsync(file.fileno())
def sync_folder():
    handle = os.open("case", os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
write("old", b"new", sync=False)
write("synced", b"1", sync=True)
write("unsynced", b"2", sync=False)
sync_folder()
write("late", b"3", sync=True)
os.rename("case/synced", "case/renamed")
os.unlink("case/unsynced")
for names in (False, True):
    found = files.disk.left(names=names).entries
    print({name: node.content for name, node in sorted(found.items())})
"""
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "old").write_bytes(b"old")
    environment = {**os.environ, "PYTHONPATH": str(Path(faults.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    everything, content = map(eval, done.stdout.splitlines())
    assert everything == {"old": b"old", "synced": b"1", "unsynced": b""}
    assert content == {"old": b"", "renamed": b"1", "late": b"3"}


def test_a_checkpoint_that_cannot_be_read_now_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    train_until(output, 2, checkpoint_every="1 step")
    before = names(output / "checkpoints")
    monkeypatch.setattr(Path, "read_bytes", failing(Path.read_bytes, lambda path: path.name == "training.safetensors"))
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.move_damaged(output / "checkpoints", keep=1)
    assert cli.main(["train", "--config", str(output / "config.yaml")]) == 2
    said = capsys.readouterr().err
    assert "Input/output error" in said and said.count("\n") == 1
    assert names(output / "checkpoints") == before


def test_a_file_that_fails_in_a_training_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Trainer, "_train_epoch", failing(Trainer._train_epoch))
    (tmp_path / "tiny.yaml").write_text(json.dumps(faults.SETTINGS))
    assert cli.main(["train", "--config", str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert (
        said.startswith("vitmix: error: Input/output error: FILE; rerun the command to resume")
        and "\n" not in said[:-1]
    )


def test_checkpoints_that_cannot_be_listed_are_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one is written, so saving has not failed."""
    checkpoints.save_checkpoint(tmp_path, 1, some(1), keep=1)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "list_checkpoints", failing(checkpoints.list_checkpoints))
        checkpoints.save_checkpoint(tmp_path, 2, some(2), keep=1)
    assert names(tmp_path) == ["update-000000001", "update-000000002"]
    checkpoints.save_checkpoint(tmp_path, 3, some(3), keep=1)
    assert names(tmp_path) == ["update-000000003"]


def test_a_name_that_is_not_synced_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in place is not called unwritten: the best weights would be those of another epoch than the summary's."""
    monkeypatch.setattr(writing, "sync_folder", failing(writing.sync_folder))
    with pytest.warns(UserWarning, match="summary.json is written, but a power loss may undo that: Input/output error"):
        writing.write_file(tmp_path / "summary.json", b"new")
    assert (tmp_path / "summary.json").read_bytes() == b"new"


def test_a_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(writing, "sync_folder", refuse)
    writing.write_file(tmp_path / "summary.json", b"new")
    assert (tmp_path / "summary.json").read_bytes() == b"new" and os.listdir(tmp_path) == ["summary.json"]


def test_folders_outlive_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a comparison's trainings and of a suite's answers too: whatever is in them would be gone."""
    synced, sync = [], writing.sync_folder
    monkeypatch.setattr(writing, "sync_folder", lambda folder: (synced.append(folder), sync(folder)))
    os.close(take(tmp_path / "runs" / "run" / ".claim"))
    assert set(synced) == {tmp_path, tmp_path / "runs"}
    train(tmp_path / "run", epochs=1)
    synced.clear()
    assert cli.main(["eval", str(tmp_path / "run"), "--suite", "clean", "--workers", "0"]) == 0
    assert synced[0] == tmp_path / "run"


def test_results_that_cannot_be_read_now_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further part of the suite would take the place of all that was measured before."""
    train(tmp_path, epochs=1)
    assert cli.main(["eval", str(tmp_path), "--suite", "clean", "--workers", "0"]) == 0
    before = (tmp_path / "robustness.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(reading, "open_regular", failing(reading.open_regular, lambda path: "robustness" in str(path)))
        assert cli.main(["eval", str(tmp_path), "--suite", "noise", "--workers", "0"]) == 2
    assert (tmp_path / "robustness.json").read_bytes() == before


def test_a_finished_training_that_cannot_be_read_now_is_not_called_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, epochs=1)
    monkeypatch.setattr(reading, "open_regular", failing(reading.open_regular))
    with pytest.raises(OSError, match="Input/output error"):
        _ = Run(tmp_path).is_trained
    with pytest.raises(OSError, match="Input/output error"):
        Run(tmp_path).evaluation  # noqa: B018


@pytest.mark.parametrize("native", ["safetensors.safe_open", "safetensors.torch.load_file"])
def test_weights_that_cannot_be_read_now_are_not_called_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], native: str
) -> None:
    train(tmp_path, epochs=1)
    monkeypatch.setattr(native, failing(lambda: None))
    assert cli.main(["eval", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "vitmix: error: [Errno 5] Input/output error: 'FILE'\n"


def test_the_reason_is_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which is what a comparison shows."""
    trainer = Trainer(tiny(tmp_path / "run", epochs=1))
    trainer.folder.write_summary = failing(trainer.folder.write_summary)
    assert trainer.run() == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert "could not be written: Input/output error. The newest complete checkpoint is update-000000006" in said


def test_best_weights_for_which_there_was_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run without any could not be evaluated, and a comparison with it never ended."""
    trainer, failures = Trainer(tiny(tmp_path / "run", epochs=1)), [True, True]

    def first(path: Path, content: bytes) -> bool:
        return "best" in path.name and bool(failures and failures.pop())

    monkeypatch.setattr(writing, "write_synced", failing(writing.write_synced, first))
    assert trainer.run() == 1
    assert "newest complete checkpoint is update-000000006" in capsys.readouterr().out.splitlines()[-1]
    failures.append(True)
    assert Trainer(tiny(tmp_path / "run", epochs=1)).run() == 1
    assert Trainer(tiny(tmp_path / "run", epochs=1)).run() == 0
    assert (tmp_path / "run" / "best.safetensors").exists()


def test_the_last_epochs_metrics_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(tiny(tmp_path / "run"))
    once = [True]

    def last(path: Path, content: bytes) -> bool:
        return "metrics.jsonl" in path.name and trainer.update == 12 and bool(once and once.pop())

    monkeypatch.setattr(writing, "write_synced", failing(writing.write_synced, last))
    assert trainer.run() == 0
    assert "metrics could not be written" in capsys.readouterr().out
    assert len(rows(tmp_path / "run")) == 2


@pytest.mark.parametrize("where", ["init_trackers", "log"])
def test_a_tracker_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    trainer = Trainer(tiny(tmp_path / "run", epochs=1))
    monkeypatch.setattr(trainer.accelerator, where, failing(getattr(trainer.accelerator, where)))
    assert trainer.run() == 0
    assert "Tracking stopped: Input/output error. The run continues without it." in capsys.readouterr().out


@pytest.mark.parametrize(("error", "said"), [(RuntimeError("no\nanswer"), "no answer"), (KeyError(), "KeyError")])
def test_nor_are_the_errors_of_its_own_kinds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    said: str,
) -> None:
    trainer = Trainer(tiny(tmp_path / "run", epochs=1))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(trainer.accelerator, "log", fail)
    assert trainer.run() == 0
    assert f"Tracking stopped: {said}. The run continues without it." in capsys.readouterr().out


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
        torch.distributed.DistError("timeout"),
        torch.OutOfMemoryError("no memory"),
    ],
)
def test_a_machine_that_fails_does_not_make_a_checkpoint_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The user would be told to remove a good one."""
    trainer = Trainer(tiny(tmp_path / "run", epochs=1))
    assert trainer.run() == 0
    (path,) = list_checkpoints(tmp_path / "run" / "checkpoints")

    def fail(checkpoint: object) -> None:
        raise error

    monkeypatch.setattr(trainer.state, "restore", fail)
    with pytest.raises(type(error)) as caught:
        trainer.state.load(path)
    assert caught.value is error
    monkeypatch.setattr(trainer.state, "restore", lambda _: torch.zeros(2) + torch.zeros(3))
    with pytest.raises(Foreign, match="is not a checkpoint of this run"):
        trainer.state.load(path)


def test_a_lock_that_fails_to_close_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = FolderLock(tmp_path)
    held.acquire()
    handle, close = held._handle, os.close

    def close_and_fail(number: int) -> None:
        close(number)
        if number == handle:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lock.os, "close", close_and_fail)
    held.release()
    assert not held.held_here
