"""Mutation testing of the core: small faults, one at a time, each of which some test should see.

    python tests/mutate.py --sample 600 --seed 1 [--modules masks,shares] [--jobs 2] [--minutes 5] [--list]

A fault is put into a copy of the sources, and the tests that run its line are run against it, quick ones first, until
one fails. Faults that no test could see are listed with a reason in `mutants_equivalent.txt` and left out; survivors
are printed as they would be written there. Which test runs which line is found once and kept in `build/mutants`.

In little time: `python tests/mutate.py --modules masks,pairing,shares,losses,mix,flow --sample 12 --minutes 1`, whose
tests are looked at first.

Each fault has a forked process of its own that has torch and timm but not vitmix, so it costs no more than its tests.
"""

import argparse
import ast
import compileall
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mutants import CORE, SOURCES, Mutant, mutants_of

TESTS = Path(__file__).resolve().parent
ROOT, KEPT = TESTS.parent, TESTS.parent / "build" / "mutants"
# Test files that are about the core; with little time only the first of them are looked at.
ABOUT_CORE = """
    parts masks pairing shares prior flow mixing hidden mixers tap methods golden_tokens golden_images readers misuse
    spatial geometry changed_models learner families pvt many_labels registry shown show figures
""".split()
WARM = ("timm", "torchvision", "transformers", "scipy.optimize", "hypothesis", "safetensors.torch", "torch._dynamo")
HEAVY = 6 * 2**30  # bytes of memory that a mutant may ask for
PATIENCE = 12  # seconds of computing after which a test is too slow to be run against mutants

# Which test runs which line


class TooSlow(BaseException):
    """Not an `Exception`, which compilers would catch to try something else."""


def give_up(*_: object) -> None:
    raise TooSlow


class Tracer:
    """A plugin that notes the lines of the core that each passing test runs, and how long the test takes."""

    def __init__(self, folder: Path) -> None:
        self.paths = {str(folder / path): path for path in CORE}
        self.tests: dict[str, Any] = {}
        self.lines: dict[str, set[int]] = defaultdict(set)
        self.passed, self.seconds = True, 0.0

    def _enter(self, frame: Any, event: str, arg: Any) -> Callable[..., Any] | None:
        path = self.paths.get(frame.f_code.co_filename)
        if path is None:
            return None
        add = self.lines[path].add
        add(frame.f_lineno)

        def note(frame: Any, event: str, arg: Any) -> Callable[..., Any]:
            add(frame.f_lineno)
            return note

        return note

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.lines, self.passed = defaultdict(set), False
        began = time.monotonic()
        signal.signal(signal.SIGPROF, give_up)  # compilers run for minutes where their lines are watched
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)  # of computing: a busy machine is no reason to leave a test out
        sys.settrace(self._enter)
        threading.settrace(self._enter)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.settrace(None)
            threading.settrace(None)  # pyright: ignore[reportArgumentType]
            if self.passed:
                lines = {path: sorted(numbers) for path, numbers in self.lines.items()}
                self.tests[item.nodeid] = {"seconds": time.monotonic() - began, "lines": lines}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.passed = report.passed


def stamp(test_file: Path) -> str:
    """A checksum of a test file, the helpers it imports and the sources."""
    files, waiting = set(), [test_file, TESTS / "conftest.py"]
    while waiting:
        files.add(file := waiting.pop())
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            near = {folder / f"{name}.py" for name in names for folder in (TESTS, file.parent)}
            waiting += [each for each in near - files if each.exists()]
    texts = [file.read_bytes() for file in [*sorted(files), *sorted(SOURCES.rglob("*.py"))]]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def line_map(place: Path, deadline: float) -> tuple[dict[str, Any], bool]:
    """The kept notes of every test, made anew where something changed; whether there was time for all."""
    KEPT.mkdir(parents=True, exist_ok=True)
    tests: dict[str, Any] = {}
    for name in ABOUT_CORE:
        file = next((place / "tests").rglob(f"test_{name}.py"))
        kept = KEPT / f"{file.stem}-{stamp(file)}.json"
        if not kept.exists():
            if time.monotonic() > deadline:
                return tests, False
            for old in KEPT.glob(f"{file.stem}-*.json"):
                old.unlink()
            print(f"finding the lines that {file.name} runs", file=sys.stderr, flush=True)
            if finish(fork(lambda file=file, kept=kept: trace(place, file, kept))):
                raise SystemExit(f"{file.name} cannot be run")
        tests |= json.loads(kept.read_text())
    return tests, True


def trace(place: Path, file: Path, kept: Path) -> int:
    tracer = Tracer(place / "src")
    run_pytest([str(file.relative_to(place))], place, place / "src", tracer)
    kept.write_text(json.dumps(tracer.tests))
    return 0


def covering(mutant: Mutant, tests: dict[str, Any], seconds: float) -> list[str]:
    """The tests that may see a mutant: one of each function first, quick ones first, for so many seconds."""

    def runs(test: dict[str, Any], first: int, last: int) -> bool:
        return any(first <= line <= last for line in test["lines"].get(mutant.path, ()))

    names = next(filter(None, ([name for name in tests if runs(tests[name], *span)] for span in mutant.spans)), [])
    turns: dict[str, int] = defaultdict(int)
    ordered = []
    for name in sorted(names, key=lambda name: tests[name]["seconds"]):
        function = name.partition("[")[0]
        ordered.append((turns[function], tests[name]["seconds"], name))
        turns[function] += 1
    chosen, total = [], 0.0
    for _, cost, name in sorted(ordered):
        if not chosen or total + cost <= seconds:
            chosen.append(name)
            total += cost
    return chosen


# Running


class Limits:
    """A plugin that ends the process where a test takes many times as long as it did."""

    def __init__(self, tests: dict[str, Any]) -> None:
        self.tests = tests

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10 + int(10 * self.tests[item.nodeid]["seconds"]))
        return (yield)


class Unshrunk:
    """A plugin by which Hypothesis stops at the first example that fails."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        name = "mutants"
        settings.register_profile(name, settings.get_profile("tests"), phases=[Phase.explicit, Phase.generate])
        settings.load_profile(name)


def run_pytest(arguments: list[str], place: Path, sources: Path, plugin: object) -> int:
    sys.path.insert(0, str(sources))
    os.environ["PYTHONPATH"] = str(sources)
    os.chdir(place)
    return int(pytest.main(["-p", "no:cacheprovider", *arguments], plugins=[plugin, Unshrunk()]))


def fork(work: Callable[[], int]) -> int:
    """The id of a silent process, in a session of its own, that does some work and exits with its result."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_mutant(mutant: Mutant, chosen: list[str], tests: dict[str, Any], place: Path, sources: Path) -> int:
    """What pytest returns with a mutant in the sources."""
    sys.dont_write_bytecode = True  # within a second, one mutant's bytecode could be taken for the next one's
    resource.setrlimit(resource.RLIMIT_DATA, (HEAVY, HEAVY))
    (sources / mutant.path).write_text(mutant.source())
    for compiled in (sources / mutant.path).parent.glob(f"__pycache__/{mutant.module}.*"):
        compiled.unlink()
    return run_pytest(["-x", *chosen], place, sources, Limits(tests))


def copy_to(place: Path) -> None:
    """Sources and tests as they are now, so that they can be worked on meanwhile."""
    shutil.copytree(SOURCES, place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(place / "src", quiet=1)
    shutil.copytree(TESTS, place / "tests", ignore=shutil.ignore_patterns("__pycache__", "golden"))
    (place / "tests" / "golden").symlink_to(TESTS / "golden")
    shutil.copy(ROOT / "pyproject.toml", place)


def judge(mutants: list[Mutant], tests: dict[str, Any], args: argparse.Namespace, place: Path, end: float) -> float:
    """Tries the mutants as long as there is time; prints survivors and the percentage that was found."""
    counts: Counter[str] = Counter()
    running: dict[int, tuple[Mutant, Path]] = {}
    waiting = list(reversed(mutants))
    while waiting or running:
        while waiting and len(running) < args.jobs and time.monotonic() < end:
            mutant = waiting.pop()
            chosen = covering(mutant, tests, args.seconds)
            if not chosen:  # there was no time to look at its tests
                continue
            sources = place / f"mutant{len(waiting)}"
            shutil.copytree(place / "src", sources)
            running[fork(lambda m=mutant, c=chosen, s=sources: try_mutant(m, c, tests, place, s))] = mutant, sources
        if not running:
            break
        child, status = os.waitpid(-1, 0)
        mutant, sources = running.pop(child)
        shutil.rmtree(sources)
        code = os.waitstatus_to_exitcode(status)
        counts["survived" if code == 0 else "timed out" if code == -signal.SIGALRM else "killed"] += 1
        if code == 0:
            print(f"{mutant}\n", flush=True)
    found = 100 * (1 - counts["survived"] / max(counts.total(), 1))
    print(
        f"{counts.total()} mutants of seed {args.seed}: {counts['killed']} killed, {counts['timed out']} timed out, "
        f"{counts['survived']} survived; {found:.1f} % found"
    )
    return found


def equivalents() -> set[str]:
    """The mutants that nobody could tell from the original, or not here; without the new line, all of a line."""
    text = (TESTS / "mutants_equivalent.txt").read_text()
    blocks = ("\n".join(line for line in block.split("\n") if not line.startswith("#")) for block in text.split("\n\n"))
    return {block.strip() for block in blocks} - {""}


def names_of(mutant: Mutant) -> set[str]:
    """By which a mutant may be listed."""
    text = str(mutant)
    return {text, text.partition("\n+")[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=100, help="how many mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--modules", default="", help="only these modules, with commas between them")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--seconds", type=float, default=20, help="how long tests are let try to find one mutant")
    parser.add_argument("--minutes", type=float, default=600, help="starts nothing after so long")
    parser.add_argument("--least", type=float, default=0, help="fails where fewer percent are found")
    parser.add_argument("--list", action="store_true", help="prints the mutants instead of trying them")
    args = parser.parse_args()
    began = time.monotonic()
    asked = set(filter(None, args.modules.split(",")))
    every = [each for path in CORE if not asked or Path(path).stem in asked for each in mutants_of(path)]
    known = equivalents()
    mutants = [each for each in every if not known & names_of(each)]
    print(f"{len(every)} mutants, {len(every) - len(mutants)} of them equivalent or out of reach here", flush=True)
    if asked and not every:
        raise SystemExit(f"no module of {', '.join(sorted(asked))} is in the core")
    if stale := known.difference(*map(names_of, every)) if not asked else set():
        print("\n\n".join(["no longer there, take them out of mutants_equivalent.txt:", *sorted(stale)]) + "\n")
    mutants = random.Random(args.seed).sample(mutants, min(args.sample, len(mutants)))
    for each in mutants:
        ast.parse(each.source())
    if args.list:
        print("\n" + "\n\n".join(map(str, mutants)))
        return
    os.environ |= {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX2", "TRITON_INTERPRET": "1"}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as temporary:
        copy_to(place := Path(temporary))
        tests, whole = line_map(place, began + 30 * args.minutes)
        if not whole:  # what no test is known to run may well be run by the others
            mutants = [replace(each, spans=each.spans[:1]) for each in mutants]
        some = covering(Mutant(CORE[0], "", 0, 0, "", ((1, 10**9),)), tests, 5)
        if not some or finish(fork(lambda: run_pytest(some, place, place / "src", Limits(tests)))):
            raise SystemExit("tests fail without a mutant; make them pass first")
        found = judge(mutants, tests, args, place, began + 60 * args.minutes)
    raise SystemExit(found < args.least)


if __name__ == "__main__":
    main()
