"""Fuzzing of everything that reads what others wrote: a value or one sentence, at once, and never a traceback.

    python tests/fuzz.py --seed 1 --count 100000 [--kinds texts,yaml] [--minutes 5] [--log FILE]
    python tests/fuzz.py --seed 1 --kinds yaml --case 17

Valid inputs are changed in their structure and given to their reader (`fuzz_kinds`). Right is a result, or a refusal as
documented: a ValueError or OSError, and of a command exit code 2 with one line 'vitmix: error: ...'. Everything else is
a finding: another exception, a process that dies, 5 seconds without an end, more than 1 GB of memory.

A case is a function of seed, kind and number, so it can be run again alone. Cases run in batches, each in a forked
process of its own, which holds what a crash or a leak would spoil. The process can write to a folder of its own alone
(`confine`): an output may be named '/dev/null' or '../../x', and a user may be root.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # forked processes may have no threads to lose
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
os.environ["HF_HUB_OFFLINE"] = "1"

import argparse
import gc
import json
import logging
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from confine import can_confine, confine
from vitmix.lab.writing import write_file

PATIENCE, STEPS = 5.0, 10  # seconds, and in how many parts they are counted
MOST_MEMORY = 10**9  # bytes
LIMIT = 4 * 10**9  # where the kernel refuses more
PACKAGE = f"{os.sep}vitmix{os.sep}"
say_at_once = partial(print, flush=True)  # findings are read while it runs
SHOWN_ALIKE = 3  # findings of one place that are shown whole


class Wrong(Exception):
    """A case whose result is not as documented; the text says what it was."""


class Hang(BaseException):
    """The case took too long."""


class Case:
    """What a case is made from: random choices, and a folder of its own, which is the current one once asked for.

    Attributes:
        shown: the input as a person would repeat it.
    """

    def __init__(self, seed: int, kind: str, number: int, box: Path) -> None:
        self.chance = random.Random(f"{seed}/{kind}/{number}")
        self.box = box
        self.shown = ""

    @cached_property
    def folder(self) -> Path:
        folder = self.box / "up" / "here"  # two levels down: paths that lead up stay in the box
        folder.mkdir(parents=True)
        os.chdir(folder)
        return folder

    def close(self) -> None:
        os.chdir(self.box)
        for entry in self.box.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    `run` returns whether the input was accepted; a ValueError or OSError is a refusal. `share` is its part of all
    cases, `batch` how many one process runs.
    """

    run: Callable[[Case], bool]
    share: float
    batch: int


class Result(NamedTuple):
    """How a case ended; `finding` is None where it ended as it should, and `place` tells findings from each other."""

    number: int
    accepted: bool = False
    finding: str | None = None
    place: str = ""
    shown: str = ""


@dataclass
class Tally:
    """What was found about one kind."""

    cases: int = 0
    accepted: int = 0
    findings: list[Result] = field(default_factory=list)


# In the forked process


def run_case(run: Callable[[Case], bool], case: Case, number: int, growth: Callable[[], int]) -> Result:
    """The result of one case; `growth` is that of the memory since the batch began."""
    finding, place, accepted = None, "", False
    try:
        with _limited():
            accepted = run(case)
    except (ValueError, OSError) as error:
        if not _is_ours():
            finding, place = f"not refused by vitmix: {error!r}\n{_where()}", "the fuzzer"
    except Wrong as wrong:
        finding, place = str(wrong), str(wrong)[:60]
    except Hang:
        finding, place = f"no end after {PATIENCE:g} s\n{_where()}", f"hang in {_innermost()}"
    except BaseException as error:
        finding, place = f"{type(error).__name__}: {error}\n{_where()}", f"{type(error).__name__} in {_innermost()}"
    grown = growth()
    if finding is None and grown > MOST_MEMORY:
        finding = place = f"{grown / 1e9:.1f} GB of memory"
    return Result(number, accepted and finding is None, finding, place, case.shown if finding else "")


class _limited:
    """Raises `Hang` after so many seconds of computing, or of waiting for something that does not come.

    Waiting for a processor does not count. It looks in steps, each of which counts no more than its length: a process
    that was stopped waited for nothing either.
    """

    def __enter__(self) -> None:
        self.began, self.waited, self.idle = time.process_time(), self._waited(), 0.0
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE / STEPS, PATIENCE / STEPS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    @staticmethod
    def _waited() -> float:
        """Seconds in which the process waited for something else than a processor."""
        return time.monotonic() - _scheduled()[1]

    def _look(self, *_: object) -> None:
        waited = self._waited()
        self.idle += min(waited - self.waited, PATIENCE / STEPS)
        self.waited = waited
        if time.process_time() - self.began >= PATIENCE or self.idle >= PATIENCE:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Hang


def _scheduled(process: int | str = "self") -> tuple[float, float]:
    """Seconds that a process computed, and with those that it could have, had there been a processor."""
    with open(f"/proc/{process}/schedstat") as file:
        computed, queued, _ = map(int, file.read().split())
    return computed / 1e9, (computed + queued) / 1e9


def _where() -> str:
    return "".join(traceback.format_exc().splitlines(keepends=True)[-24:]).rstrip()


def _is_ours() -> bool:
    """Whether the exception came out of the package, and not out of what made the input for it."""
    return any(PACKAGE in frame.filename for frame in traceback.extract_tb(sys.exc_info()[2]))


def _innermost() -> str:
    """The last line of our own that was running."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [each for each in frames if PACKAGE in each.filename] or list(frames)
    return f"{os.sep.join(Path(own[-1].filename).parts[-2:])}:{own[-1].lineno}"


def _memory(name: str) -> int:
    """Bytes of memory that the process has (VmRSS) or had at most (VmHWM)."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))


class _Peaks:
    """The most memory that the process had since it was asked last; opened before the process is confined."""

    def __init__(self) -> None:
        self.reset = os.open("/proc/self/clear_refs", os.O_WRONLY)

    def __call__(self) -> int:
        peak = _memory("VmHWM")
        os.write(self.reset, b"5")
        return peak


def _work(kind: Kind, name: str, seed: int, numbers: Iterable[int], tell: int, box: Path) -> None:
    """Runs cases and writes a line when one begins and when it ends."""
    os.setsid()  # so that whatever the cases start can be ended with this process
    peak = _Peaks()
    if can_confine():
        confine(box)
    tempfile.tempdir, sys.dont_write_bytecode = str(box), True
    for variable in ("TMPDIR", "HOME", "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR"):
        os.environ[variable] = str(box)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_memory("VmData") + LIMIT, most))
    logging.disable()  # what is logged is no result
    gc.freeze()
    memory = _memory("VmRSS")
    peak()
    for number in numbers:
        os.write(tell, f"{json.dumps([number])}\n".encode())
        case = Case(seed, name, number, box)
        result = run_case(kind.run, case, number, lambda: peak() - memory)
        case.close()
        os.write(tell, f"{json.dumps(result)}\n".encode())


# In the process that forks


def run_cases(kind: Kind, name: str, seed: int, numbers: Sequence[int]) -> Iterator[Result]:
    """The results of these cases, in a process of their own; in another one from where it died."""
    left = list(numbers)
    while left:
        begun = None
        for message in _messages(kind, name, seed, left):
            if len(message) == 1:
                (begun,) = message
                continue
            result = Result(*message)
            left.remove(result.number)
            yield result
            begun = None
        if begun is not None:
            left.remove(begun)
            yield Result(begun, finding="the process died, or had to be killed", place="death")


def _is_heard(read: int, child: int) -> bool:
    """Waits for a message. The alarm ends a case; False for a process in which it cannot ring, which is killed.

    It may have to wait for a processor as long as the machine is busy.
    """
    (began, seen), idle = _scheduled(child), 0
    while not select.select([read], [], [], PATIENCE)[0]:
        computed, now = _scheduled(child)
        idle += now - seen < 0.1 * PATIENCE and not _is_queued(child)
        if idle >= 12 or computed - began >= 12 * PATIENCE:
            return False
        seen = now
    return True


def _is_queued(process: int) -> bool:
    """Whether a process computes or waits for a processor."""
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "R"


def _messages(kind: Kind, name: str, seed: int, numbers: list[int]) -> Iterator[list[Any]]:
    read, write = os.pipe()
    box = Path(tempfile.mkdtemp(prefix="vitmix-fuzz-"))
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that threads do not come along
        child = os.fork()
    if not child:
        code = 1
        try:
            _work(kind, name, seed, numbers, write, box)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    rest = b""
    try:
        while _is_heard(read, child) and (content := os.read(read, 2**16)):
            *lines, rest = (rest + content).split(b"\n")
            yield from map(json.loads, lines)
    finally:
        os.close(read)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(box, ignore_errors=True)


def fuzz(
    kinds: Mapping[str, Kind],
    seed: int,
    counts: Mapping[str, int],
    *,
    until: float = float("inf"),
    say: Callable[[str], None] = say_at_once,
    log: Path | None = None,
) -> dict[str, Tally]:
    """Runs so many cases of each kind, batches of the kinds in turn, and says each finding.

    What was found is kept in `log`, after each batch; it goes on from there.
    """
    tallies = {name: Tally() for name in counts}
    if log is not None and log.exists():
        tallies |= {name: _tally(kept) for name, kept in json.loads(log.read_text()).items() if name in counts}
    alike: Counter[str] = Counter()
    while time.monotonic() < until:
        # The kind that is furthest behind: whenever it stops, all have had their part.
        behind = [name for name in counts if tallies[name].cases < counts[name]]
        if not behind:
            break
        name = min(behind, key=lambda name: tallies[name].cases / counts[name])
        tally, kind = tallies[name], kinds[name]
        numbers = range(tally.cases, min(tally.cases + kind.batch, counts[name]))
        for result in run_cases(kind, name, seed, numbers):
            tally.cases += 1
            tally.accepted += result.accepted
            if result.finding is not None:
                tally.findings.append(result)
                alike[result.place] += 1
                say(described(result, name, seed, whole=alike[result.place] <= SHOWN_ALIKE))
        if log is not None:
            write_file(log, json.dumps({name: asdict(tally) for name, tally in tallies.items()}).encode())
    return tallies


def _tally(kept: dict[str, Any]) -> Tally:
    return Tally(kept["cases"], kept["accepted"], [Result(*each) for each in kept["findings"]])


def described(result: Result, name: str, seed: int, *, whole: bool = True) -> str:
    head = f"FINDING in {name} {result.number}: {result.place}"
    if not whole:
        return head
    again = f"python tests/fuzz.py --seed {seed} --kinds {name} --case {result.number}"
    return f"{head}\n  {again}\n  {result.shown}\n  {result.finding}".replace("\n", "\n  ")


def counts_of(kinds: Mapping[str, Kind], count: int) -> dict[str, int]:
    """How many cases each of these kinds gets of all."""
    whole = sum(kind.share for kind in kinds.values())
    counts = {name: int(count * kind.share / whole) for name, kind in kinds.items()}
    counts[next(iter(counts))] += count - sum(counts.values())
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000, help="cases of all kinds together (default: 1000)")
    parser.add_argument("--kinds", help="some of those in fuzz_kinds (default: all)")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep results there and go on from those it has")
    parser.add_argument("--case", type=int, metavar="N", help="only this case of one kind")
    parser.add_argument("--unconfined", action="store_true", help="run where the kernel has no Landlock, at your risk")
    given = parser.parse_args(arguments)
    if not can_confine() and not given.unconfined:
        parser.error("this kernel has no Landlock to confine the cases to a folder; use Linux 6.7 or --unconfined")
    until = float("inf") if given.minutes is None else time.monotonic() + 60 * given.minutes

    from fuzz_kinds import KINDS

    sys.stdout.reconfigure(errors="backslashreplace")  # inputs are shown as they are  # pyright: ignore
    names = re.split(r"[,\s]+", given.kinds) if given.kinds else list(KINDS)
    if unknown := [name for name in names if name not in KINDS]:
        parser.error(f"unknown kind {unknown[0]!r}, known: {', '.join(KINDS)}")
    kinds = {name: KINDS[name] for name in names}
    if given.case is not None:
        if len(names) != 1:
            parser.error("--case is a number of one kind; give --kinds NAME")
        (result,) = run_cases(kinds[names[0]], names[0], given.seed, [given.case])
        print(
            described(result, names[0], given.seed) if result.finding else "accepted" if result.accepted else "refused"
        )
        return int(result.finding is not None)
    tallies = fuzz(kinds, given.seed, counts_of(kinds, given.count), until=until, log=given.log)
    for name, tally in tallies.items():
        print(f"{name:<9} {tally.cases:>7} cases, {tally.accepted:>7} accepted, {len(tally.findings)} findings")
    findings = sum(len(tally.findings) for tally in tallies.values())
    print(f"{sum(tally.cases for tally in tallies.values())} cases, {findings} findings")
    return int(findings > 0)


if __name__ == "__main__":
    import fuzz as itself  # one module, under the name by which the kinds know it

    sys.exit(itself.main())
