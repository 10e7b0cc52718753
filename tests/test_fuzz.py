"""The fuzzer sees what it should, writes nowhere else, and finds nothing in a small sample."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fuzz
import vitmix
from confine import can_confine
from fuzz import Case, Kind, Wrong, counts_of, run_cases

pytestmark = pytest.mark.skipif(not can_confine(), reason="needs Landlock, to confine what is fuzzed")
COUNT = 700


def refused(case: Case) -> bool:
    vitmix.create("no_such_method", 2)
    return True


def miscounted(case: Case) -> bool:
    raise Wrong("seven lines")


def mistyped(case: Case) -> bool:
    raise KeyError("x")


def invalid_seed(case: Case) -> bool:
    raise ValueError("the fuzzer made no valid input")


def waiting(case: Case) -> bool:
    time.sleep(60)
    return True


def computing(case: Case) -> bool:
    while True:
        pass


def stopped(case: Case) -> bool:
    """Is no hang: whoever stopped it has kept it from its work."""
    stops, itself = 3, os.getpid()
    helper = os.fork()
    if helper == 0:
        for _ in range(stops):
            time.sleep(0.8)
            os.kill(itself, signal.SIGCONT)
        os._exit(0)
    for _ in range(stops):
        os.kill(itself, signal.SIGSTOP)
    os.waitpid(helper, 0)
    return refused(case)


def growing(case: Case) -> bool:
    # Far above the limit: the kernel may meanwhile take other pages away from a large process.
    return len(bytearray(os.urandom(1)) * 1_500_000_000) > 0


def dying(case: Case) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


FAULTS: list[tuple[Callable[[Case], bool], str | None]] = [
    (refused, None),
    (miscounted, "seven lines"),
    (mistyped, "KeyError in "),
    (invalid_seed, "the fuzzer"),
    (waiting, "hang in "),
    (computing, "hang in "),
    (stopped, None),
    (growing, "GB of memory"),
    (dying, "death"),
]


@pytest.mark.parametrize(("fault", "place"), FAULTS)
def test_every_fault_is_found_and_the_next_case_runs(
    fault: Callable[[Case], bool], place: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    vitmix.create("none", 2)  # imports what each process would have to import
    monkeypatch.setattr(fuzz, "PATIENCE", 5.0 if fault is growing else 0.5)  # seconds, of which growing needs one
    monkeypatch.setattr(fuzz, "MOST_MEMORY", 150_000_000)
    monkeypatch.setattr(fuzz, "LIMIT", 10**10)
    made = Kind(lambda case: fault(case) if case.chance.random() < 0.5 else True, share=1, batch=4)
    found = {result.number: result for result in run_cases(made, "made", 0, range(4))}
    faulty = {number for number in range(4) if Case(0, "made", number, Path()).chance.random() < 0.5}
    assert sorted(found) == [0, 1, 2, 3] and 0 < len(faulty) < 4
    for number, result in found.items():
        assert result.accepted == (number not in faulty)
        if place is None or number not in faulty:
            assert result.finding is None
        else:
            assert result.finding is not None and place in result.place


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("before")
    acts: list[Callable[[Case], object]] = [
        lambda case: kept.write_text("after"),
        lambda case: kept.unlink(),
        lambda case: os.truncate(kept, 0),
        lambda case: (case.folder / "new").touch() or (case.folder / "new").replace(kept),
        lambda case: (tmp_path / "new").mkdir(),
        lambda case: (tmp_path / "new").symlink_to("x"),
        lambda case: subprocess.run(["rm", str(kept)], check=True),
        lambda case: socket.create_connection(("127.0.0.1", 9), timeout=1),
    ]

    def act(case: Case) -> bool:
        (case.folder / "own").write_text("allowed")
        number = case.chance.randrange(len(acts))
        try:
            acts[number](case)
        except (PermissionError, subprocess.CalledProcessError):
            return True
        raise Wrong(f"act {number} was allowed")

    found = list(run_cases(Kind(act, share=1, batch=40), "acts", 1, range(40)))
    assert [result.finding for result in found] == [None] * 40 and all(result.accepted for result in found)
    assert [*tmp_path.iterdir()] == [kept] and kept.read_text() == "before"


def test_counts_add_up() -> None:
    kinds = {name: Kind(mistyped, share, 1) for name, share in (("a", 45), ("b", 25), ("c", 3))}
    counts = counts_of(kinds, 1000)
    assert sum(counts.values()) == 1000 and counts["a"] > counts["b"] > counts["c"] > 0


def test_a_seeded_sample_finds_nothing() -> None:
    command = [sys.executable, str(Path(fuzz.__file__)), "--seed", "1", "--count", str(COUNT)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert said.stdout.splitlines()[-1] == f"{COUNT} cases, 0 findings", said.stdout[-5000:] + said.stderr[-3000:]
    accepted = {line.split()[0]: int(line.split()[3]) for line in said.stdout.splitlines()[-10:-1]}
    assert len(accepted) == 9 and min(accepted.values()) > 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("computes", [True, False])
def test_a_process_that_cannot_be_interrupted_is_given_up(monkeypatch: pytest.MonkeyPatch, computes: bool) -> None:
    """After computing or waiting for long, and not because it has to share the machine."""
    monkeypatch.setattr(fuzz, "PATIENCE", 0.02)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        while computes:
            pass
        time.sleep(60)
    try:
        assert not fuzz._is_heard(read, child)
        os.write(write, b"message")
        assert fuzz._is_heard(read, child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
