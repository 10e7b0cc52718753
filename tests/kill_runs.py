"""Kills small trainings with SIGKILL and lets them resume: `python tests/kill_runs.py --kills 100 --seed 0`.

Methods x EMA x accumulation x loader workers x processes make a matrix of trainings. The kills are dealt to them in
random order: two of three at a file operation in the run folder, drawn from all that the training makes, where a file
that is being written is left half written; one of three at a random moment. A training that is dealt several is killed
again while it resumes. Each must end with the files of an undisturbed run: weights, optimizer, EMA, random states and
metrics are equal, except for times, and nothing else is left behind.

The processes of a training are forked, so that the imports are paid once. With --folder, results are kept there and the
same command continues where it was stopped.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from training import tiny
from vitmix.lab.training import checkpoints
from vitmix.lab.training.engine import Trainer
from vitmix.lab.writing import write_file

METHODS = (
    "none",
    "cutmix",
    "tl_align",
    "smmix",
    "cutmix + htm(block=1) + vtm(block=1, tokens=2)",
    "mixup(alpha=0.8) | smmix",
)
TIMES = ("seconds", "wall", "training_seconds", "images/s", "text")  # the summary's text has times
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")
LONGEST = 900.0  # seconds that a training may take; it needs a few, on a machine that has nothing else to do
RECOVERY = 12  # a resumed run is killed again within so many file operations


@dataclass(frozen=True)
class Case:
    """A training of the matrix."""

    method: str
    ema: float | None
    accumulate: int
    workers: int
    processes: int

    def __str__(self) -> str:
        settings = f"accumulate {self.accumulate}, workers {self.workers}, processes {self.processes}"
        return f"{self.method}, {'EMA' if self.ema else 'no EMA'}, {settings}"


MATRIX = [Case(*each) for each in itertools.product(METHODS, (None, 0.9), (1, 2), (0, 2), (1, 2))]


# A training and its end


def start(case: Case, output: Path, kill_at: int | None = None) -> list[int]:
    """The processes of a training, first the one that writes: it kills itself at the file operation of this number."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(case.processes):
        child = os.fork()
        if child == 0:
            _train(case, output, rank, port, kill_at)
        pids.append(child)
    return pids


def _train(case: Case, output: Path, rank: int, port: int, kill_at: int | None) -> None:
    """Never returns: this is a forked process."""
    code = 1
    try:
        log = os.open(output.parent / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if case.processes > 1:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(case.processes)}
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if rank == 0:
            count_operations(output, kill_at)
        settings = {"ema": case.ema, "accumulate": case.accumulate, "workers": case.workers}
        code = Trainer(tiny(output, method=case.method, checkpoint_every="3 steps", **settings)).run()
    except BaseException as error:
        print(f"the training failed: {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def count_operations(output: Path, kill_at: int | None) -> None:
    """Counts what this process does to the files of a folder, and kills it before the operation of this number.

    Instead of a file's fsync, half of the file is cut off: as if the kill had come while it was written.
    """
    owner, inside, count = os.getpid(), str(output), 0
    notes = os.open(output.parent / "operations", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    sync = os.fsync

    def note(what: str, last_act: Callable[[], object] = lambda: None) -> None:
        nonlocal count
        os.write(notes, f"{what}\n".encode())
        if count == kill_at:
            last_act()
            os.kill(owner, signal.SIGKILL)
        count += 1

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if (event != "open" and event not in CHANGES) or os.getpid() != owner:
            return
        path = arguments[0]
        if isinstance(path, int) or (event == "open" and not arguments[2] & WRITING):
            return
        relative = event in ("os.remove", "os.rmdir") and arguments[-1] >= 0  # below a folder that is being removed
        if relative or os.fsdecode(path).startswith(inside):
            note(f"{event.removeprefix('os.')} of {os.path.basename(os.fsdecode(path))}")

    def synced(handle: int) -> None:
        about = os.fstat(handle)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
        half = (lambda: os.ftruncate(handle, about.st_size // 2)) if stat.S_ISREG(about.st_mode) else lambda: None
        note(f"sync of {name}", half)
        sync(handle)

    os.fsync = synced
    sys.addaudithook(heard)


class End(NamedTuple):
    codes: list[int]
    seconds: float


def finish(pids: list[int], moment: float = LONGEST, first: int = 0) -> End:
    """The exit codes of a training, whose process `first` is killed at a moment; when one dies, all are killed."""
    began, left, codes = time.monotonic(), dict(enumerate(pids)), {}
    while left:
        for rank, pid in [*left.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del left[rank]
        over = time.monotonic() - began >= moment
        if over or any(codes.values()):
            for rank in sorted(left, key=lambda rank: rank != first):
                os.kill(left[rank], signal.SIGKILL)
        time.sleep(0.002)
    return End([codes[rank] for rank in range(len(pids))], time.monotonic() - began)


# What a training left


def contents(output: Path) -> dict[str, Any]:
    """What the files of a run folder hold, without times."""
    files = [path for path in output.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(output)): _content(path) for path in files}


def _content(path: Path) -> Any:
    if path.name == "config.yaml":  # names its folder
        return None
    if path.name == checkpoints.MANIFEST:  # has the checksums of files with times
        return checkpoints.find_damage(path.parent)
    if path.name == "training.json":
        tensors, _ = checkpoints.pack(checkpoints.load_checkpoint(path.parent).training)
        return timeless(checkpoints.unpack({name: name for name in tensors}, json.loads(path.read_text())))  # type: ignore
    if path.suffix == ".jsonl":
        return timeless([json.loads(line) for line in path.read_text().splitlines()])
    return timeless(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if key not in TIMES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def different(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """The files that only one of two run folders has, or that differ."""
    missing = object()
    return sorted(name for name in one.keys() | two.keys() if one.get(name, missing) != two.get(name, missing))


# The matrix


class Undisturbed(NamedTuple):
    contents: dict[str, Any]
    operations: int
    seconds: float


def undisturbed(case: Case, folder: Path) -> Undisturbed:
    shutil.rmtree(folder, ignore_errors=True)
    end = finish(start(case, folder / "run"))
    assert not any(end.codes), (folder / "log0").read_text()
    return Undisturbed(contents(folder / "run"), len(said(folder)), end.seconds)


def said(folder: Path) -> list[str]:
    """The file operations of the last training in a folder."""
    return (folder / "operations").read_text().splitlines()


def kill(case: Case, folder: Path, whole: Undisturbed, chance: random.Random, again: bool) -> str | None:
    """Starts a training and kills it; says where, or None if it had finished before."""
    aimed, part = chance.random() < 2 / 3, chance.random()
    if aimed:
        number = int(part * (RECOVERY if again else whole.operations))
        end = finish(start(case, folder / "run", number))
        where = f"the {said(folder)[-1]}"
    else:
        first = chance.randrange(case.processes)
        end = finish(start(case, folder / "run"), part * whole.seconds, first)
        where = f"{part * whole.seconds:.2f} s, process {first} first"
    return where if -signal.SIGKILL in end.codes else None


def try_case(case: Case, kills: int, folder: Path, whole: Undisturbed, chance: random.Random) -> tuple[bool, str]:
    """Whether a training that is killed so often ends as it should, and what there is to say."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        places = []
        while len(places) < kills:
            where = kill(case, folder, whole, chance, again=bool(places))
            if where is None:
                break
            places.append(where)
        if len(places) == kills:
            break
    else:
        raise AssertionError(f"{case} always finishes before it is killed")
    newest, _ = checkpoints.newest_checkpoint(folder / "run" / "checkpoints")
    end = finish(start(case, folder / "run"))
    killed = f"killed at {', then at '.join(places)}; resumed from {newest.name if newest else 'the start'}"
    if any(end.codes):
        return False, f"{killed}, failed with {end.codes}:\n{(folder / 'log0').read_text()}"
    found = different(contents(folder / "run"), whole.contents)
    return not found, f"{killed}, {'not equal: ' + ', '.join(found) if found else 'equal'}"


def run_matrix(kills: int, seed: int, folder: Path) -> int:
    """Prints a line for each training that was killed; returns how many kills did no harm."""
    torch.set_num_threads(1)
    cases, wholes, equal = random.Random(seed).sample(MATRIX, len(MATRIX)), {}, 0
    for number, case in enumerate(cases[:kills]):
        dealt = kills // len(cases) + (number < kills % len(cases))
        place, result = folder / f"killed{number}", folder / f"killed{number}-{dealt}-{seed}.json"
        if not result.exists():
            plain = replace(case, workers=0)  # workers change nothing
            if plain not in wholes:
                wholes[plain] = undisturbed(plain, folder / f"whole{number}")
            chance = random.Random(f"{seed}/{number}")
            write_file(result, json.dumps(try_case(case, dealt, place, wholes[plain], chance)).encode())
        same, text = json.loads(result.read_text())
        print(f"{case}: {text}", flush=True)
        if same:
            equal += dealt
            shutil.rmtree(place, ignore_errors=True)
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills small trainings and compares what they end with.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where results are kept, and trainings that did not end equal")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        equal = run_matrix(options.kills, options.seed, folder)
    print(f"{options.kills} kills, {equal} equal")
    return int(equal != options.kills)


if __name__ == "__main__":
    sys.exit(main())
