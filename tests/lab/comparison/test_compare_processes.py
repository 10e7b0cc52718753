"""Trainings side by side: processes that begin, share what there is, are told to stop, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from command import vitmix
from comparing import SETTINGS, finish, wait_for, write
from vitmix.lab.comparison import read_matrix, runner
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.comparison.runner import is_busy
from vitmix.lab.engines import LocalProcesses, local

LONG = SETTINGS | {"epochs": 400, "checkpoint_every": "100 epochs", "log_every": 1, "eval_every": 400}


def begin(path: Path, output: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "vitmix", "compare", str(path), "--output", str(output), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def children_of(process: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found.append(int(each.parent.name))
    return found


def trains(training: Training) -> bool:
    return training.run.log.exists() and "update" in training.run.log.read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_ctrl_c_ends_all_trainings_at_a_checkpoint(tmp_path: Path) -> None:
    path, output = write(tmp_path, seeds=[0, 1], settings=LONG), tmp_path / "out"
    trainings = read_matrix(str(path)).trainings(output)
    process = begin(path, output, "--jobs", "2")
    wait_for(lambda: trains(trainings[0]) and trains(trainings[1]))
    children = children_of(process.pid)
    assert len(children) == 2 and not trainings[2].run.path.exists()  # the two seeds of the first row
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Stopped by SIGINT" in said and "failed" not in said
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    for training in trainings[:2]:
        assert list((training.run.checkpoints).iterdir()) and "Checkpoint of update" in training.run.log.read_text()
        assert not is_busy(training)


def test_ctrl_c_writes_the_table_of_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = write(tmp_path), tmp_path / "out"

    def stopped(trainings: list[Training], **_: object) -> None:
        finish(trainings[0])
        raise runner.Interrupted(signal.SIGINT)

    monkeypatch.setattr(runner, "run_trainings", stopped)
    said = vitmix("compare", str(path), "--output", str(output))
    assert said.code == 130 and "Stopped by SIGINT" in said.out
    assert "CutMix" in (output / "compare.csv").read_text() and str(output) in said.out


# The rest with processes that only say when they begin and end: what starts and stops them is at stake.

STAND_IN = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1]).parent
def stop(number, frame):
    (folder / ".stopped").write_text("at a checkpoint")
    sys.exit(143)
if sys.argv[2] != "deaf":
    signal.signal(signal.SIGTERM, stop)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / ".begun").touch()
time.sleep(60 if sys.argv[2] != "short" else 0)
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(
        local, "training_command", lambda settings: [sys.executable, "-c", STAND_IN, str(settings), kind]
    )
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.02)


@pytest.fixture
def trainings(tmp_path: Path) -> list[Training]:
    return read_matrix(str(write(tmp_path, seeds=[0, 1]))).trainings(tmp_path / "out")


def there(training: Training, name: str) -> bool:
    return (training.run.path / name).exists()


def test_time_that_is_over_stops_what_runs(trainings: list[Training], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "patient")
    assert runner.run_trainings(trainings, jobs=2, minutes=1.5 / 60) == []
    assert [there(training, ".stopped") for training in trainings] == [True, True, False, False]
    assert not children_of(os.getpid())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_every_process(trainings: list[Training], monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    stand_in(monkeypatch, "patient")
    when(lambda: there(trainings[0], ".begun") and there(trainings[1], ".begun"), lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    with pytest.raises(runner.Interrupted) as caught:
        runner.run_trainings(trainings, jobs=2)
    assert caught.value.exit_code == 128 + number and signal.getsignal(number) is before
    assert [there(training, ".stopped") for training in trainings] == [True, True, False, False]
    assert not children_of(os.getpid())


def test_a_second_ctrl_c_does_not_wait(trainings: list[Training], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "deaf")

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    when(lambda: there(trainings[0], ".begun"), press)
    with pytest.raises(runner.Interrupted):
        runner.run_trainings(trainings)
    assert not children_of(os.getpid())


def when(condition: Any, action: Any) -> None:
    def wait() -> None:
        wait_for(condition)
        action()

    threading.Thread(target=wait, daemon=True).start()


def test_processes_share_the_cores_and_keep_to_what_was_set(
    trainings: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(local, "available_cores", lambda: 8)
    say = f"import os; raise SystemExit(' '.join(str(os.environ.get(name)) for name in {local.THREADS!r}))"
    monkeypatch.setattr(local, "training_command", lambda settings: [sys.executable, "-c", say])
    for jobs, given, expected in ((1, None, "None None"), (4, None, "2 2"), (16, None, "1 1"), (4, "3", "3 2")):
        for name in local.THREADS:
            monkeypatch.delenv(name, raising=False)
        if given is not None:
            monkeypatch.setenv(local.THREADS[0], given)
        (failure,) = runner.run_trainings(trainings[:1], jobs=jobs)  # with what it said
        assert failure.reason == expected


def test_a_training_that_another_process_trains_is_left_to_it(
    trainings: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "short")
    busy = iter([False, True, True])  # free when looked at, then taken before our process came to it
    monkeypatch.setattr(runner, "is_busy", lambda folder: next(busy, False))
    said: list[str] = []
    (failure,) = runner.run_trainings(trainings[:1], say=said.append)
    assert next(busy, None) is None and failure.reason == "it ended without an error, but its results are not here"


def test_a_killed_training_and_a_failing_one_are_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("epoch 1/3  update 7\nvitmix: error: no such data\n\n")
    assert local.reason_of(2, log) == "no such data"
    assert local.reason_of(-9, log) == "signal 9 ended it (Killed, as when memory runs out)"
    log.write_text("")
    assert local.reason_of(3, log) == "it ended with code 3"


def test_a_failure_stops_everything_if_asked(trainings: list[Training], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "short")
    assert len(runner.run_trainings(trainings, stop_at_failure=True)) == 1 and not there(trainings[1], ".begun")
    assert len(runner.run_trainings(trainings)) == 4


def test_two_comparisons_start_a_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "training_command", lambda settings: [sys.executable, "-c", "input()"])
    trainings = read_matrix(str(write(tmp_path))).trainings(tmp_path / "out")
    one, other = (runner._Crew(LocalProcesses(jobs), runner.NOTHING, lambda text: None) for jobs in (1, 2))
    try:
        assert one.start(trainings) == trainings[1:]
        assert other.start(trainings) == trainings[:1]
    finally:
        for crew in (one, other):
            crew._stop()
    assert one.start(trainings) == trainings[1:]
    one._stop()
