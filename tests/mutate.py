"""Mutation testing of the core: small faults, one at a time, each of which some test should see.

    python tests/mutate.py --sample 600 --seed 1 [--modules masks,shares] [--jobs 2] [--minutes 5] [--list]
    python tests/mutate.py --again FILE  # those that an earlier run printed

A fault is put into a copy of the sources, and the tests that run its line are run against it, quick ones first, until
one fails. Faults that no test could see are listed with a reason in `mutants_equivalent.txt` and left out; survivors
are printed as they would be written there. Which test runs which line is found once and kept in `build/mutants`; so
are the verdicts until a source or a test changes, so the same command continues what was stopped.

A fault is first put into a forked process that has all tests in memory, which costs no more than running them; what is
found there counts if the same tests pass without the fault. What survives, because an import has done its work, is
tried again in a process that has torch and timm but not vitmix.

In little time: `python tests/mutate.py --modules masks --tests masks,parts --sample 10`, where only mutants count that
tests of these files run.
"""

import argparse
import ast
import compileall
import gc
import hashlib
import importlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from changed_code import change_module, functions_of
from mutants import CORE, SOURCES, Mutant, mutants_of, read

TESTS = Path(__file__).resolve().parent
ROOT, KEPT = TESTS.parent, TESTS.parent / "build" / "mutants"
# Test files that are about the core: those of the parts, and these.
ABOUT_CORE = sorted(file.stem.removeprefix("test_") for file in TESTS.glob("parts/test_*.py"))
ABOUT_CORE += """
    flow mixing mixers tap methods golden_tokens golden_images readers misuse golden_baselines behaviour spatial
    geometry changed_models wrappers learner families pvt many_labels sampling registry surface groups oblong
    teacher_labels dense_masks every_draw absvit
""".split()
# Tests of every default, which run no line of what they look at.
PINS = tuple(
    f"test_surface.py::test_{each}"
    for each in ("methods_and_their_defaults", "parts_and_their_defaults", "public_names[vitmix.functional]")
)
WARM = ("timm", "torchvision", "transformers", "scipy.optimize", "hypothesis", "safetensors.torch", "torch._dynamo")
HEAVY = 3 * 2**30  # bytes of memory that a mutant may ask for
PATIENCE = 12  # seconds of computing after which a test is too slow to be run against mutants
NOTE = "test"  # a file in the sources of a mutant that names the test that is being run
SURVIVED, UNSURE = "survived", "unsure"
AT_LEAST = 10  # mutants for which it pays to read all tests
AT_ONCE = 50  # mutants tried in memory between two writes of the results
STUCK = 600  # seconds, of any kind, after which a test waits for something that does not come

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
        began = computed()
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
                self.tests[item.nodeid] = {"seconds": computed() - began, "lines": lines}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.passed = report.passed


def computed() -> float:
    """Seconds of computing, by the processes that have been waited for too; others may keep the machine busy."""
    return sum(os.times()[:4])


def digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(files))).hexdigest()[:16]


def stamp(test_file: Path, place: Path) -> str:
    """A checksum of a test file, the helpers it imports and the sources."""
    files, waiting = set(), [test_file, place / "tests" / "conftest.py"]
    while waiting:
        files.add(file := waiting.pop())
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            near = {folder / f"{name}.py" for name in names for folder in (place / "tests", file.parent)}
            waiting += [each for each in near - files if each.exists()]
    return digest([*files, *place.glob("src/**/*.py")])


def line_map(place: Path, names: list[str]) -> dict[str, Any]:
    """The kept notes of every test in the files of these names, made anew where something changed."""
    KEPT.mkdir(parents=True, exist_ok=True)
    tests: dict[str, Any] = {}
    files = {file.stem.removeprefix("test_"): file for file in place.glob("tests/**/test_*.py")}
    if unknown := set(names) - set(files):
        raise SystemExit(f"there is no test file named {', '.join(sorted(unknown))}")
    for file in (files[name] for name in names):
        kept = KEPT / f"{file.stem}-{stamp(file, place)}.json"
        if not kept.exists():
            for old in KEPT.glob(f"{file.stem}-*.json"):
                old.unlink()
            print(f"finding the lines that {file.name} runs", file=sys.stderr, flush=True)
            if finish(fork(lambda file=file, kept=kept: trace(place, file, kept))):
                raise SystemExit(f"{file.name} cannot be run")
        tests |= json.loads(kept.read_text())
    return tests


def trace(place: Path, file: Path, kept: Path) -> int:
    tracer = Tracer(place / "src")
    run_pytest([str(file.relative_to(place))], place, place / "src", tracer)
    written = kept.with_suffix(".partial")
    written.write_text(json.dumps(tracer.tests))
    written.rename(kept)
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
    chosen = [] if mutant.runs else [name for name in tests if name.endswith(PINS)]
    total = sum(tests[name]["seconds"] for name in chosen)
    for _, cost, name in sorted(ordered):
        if not chosen or total + cost <= seconds:
            chosen.append(name)
            total += cost
    return chosen


# Running


class Chosen:
    """A plugin that runs the chosen tests in their order, notes which one fails, and ends the process where a test
    computes many times as long as it did."""

    def __init__(self, chosen: list[str], tests: dict[str, Any], note: Path) -> None:
        self.turns, self.tests, self.note = {name: turn for turn, name in enumerate(chosen)}, tests, note

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """By id: a mutant may change the parameters of tests, which is not yet a failure."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.turns), key=lambda item: self.turns[item.nodeid]
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.note.write_text(item.nodeid)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, 10 + 10 * self.tests[item.nodeid]["seconds"])
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(STUCK)
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


def near_and_far(chosen: list[str], tests: dict[str, Any]) -> tuple[list[str], list[str]]:
    """These tests, first those in the files that are most about the same lines, where most faults are seen."""
    whole, asked = (Counter(name.partition("::")[0] for name in names) for names in (tests, chosen))
    near = sorted(asked, key=lambda file: asked[file] / whole[file], reverse=True)[:2]
    first = [name for name in chosen if name.partition("::")[0] in near]
    return first, [name for name in chosen if name not in first]


def try_tests(chosen: list[str], tests: dict[str, Any], place: Path, sources: Path) -> int:
    """What pytest returns of these tests. Reading a file of tests takes longer than running one of its tests."""
    for names in filter(None, near_and_far(chosen, tests)):
        functions = dict.fromkeys(name.partition("[")[0] for name in names)
        code = run_pytest(["-x", *functions], place, sources, Chosen(names, tests, sources / NOTE))
        if verdict(code) != SURVIVED:
            return code
    return 0


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (HEAVY, HEAVY))


def try_mutant(mutant: Mutant, chosen: list[str], tests: dict[str, Any], place: Path, sources: Path) -> int:
    """What pytest returns with a mutant in the sources."""
    sys.dont_write_bytecode = True  # within a second, one mutant's bytecode could be taken for the next one's
    limit_memory()
    shutil.copytree(place / "src", sources, copy_function=os.link)
    (sources / mutant.path).unlink()
    (sources / mutant.path).write_text(mutant.source())
    for compiled in (sources / mutant.path).parent.glob(f"__pycache__/{mutant.module}.*"):
        compiled.unlink()
    return try_tests(chosen, tests, place, sources)


def try_all(
    mutants: list[Mutant],
    attempt: Callable[[Mutant, Path], int],
    done: Callable[[Mutant, str, str], None],
    *,
    place: Path,
    jobs: int,
    end: float,
) -> None:
    """Tries mutants in forked processes, each with the path of a folder of its own, as long as there is time.

    `done` is told a mutant, what became of it and the test that was run last.
    """
    waiting, running = mutants[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs and computed() < end:
            mutant, folder = waiting.pop(), place / f"mutant{len(waiting)}"
            running[fork(lambda mutant=mutant, folder=folder: attempt(mutant, folder))] = mutant, folder
        if not running:
            break
        child, status = os.waitpid(-1, 0)
        mutant, folder = running.pop(child)
        note = folder / NOTE
        done(mutant, verdict(os.waitstatus_to_exitcode(status)), note.read_text() if note.exists() else "")
        shutil.rmtree(folder, ignore_errors=True)


class InMemory(Chosen):
    """A plugin that reads all tests, and instead of running them tries mutants by `sequences`, the tests for each."""

    def __init__(
        self, sequences: dict[Mutant, list[str]], tests: dict[str, Any], place: Path, jobs: int, end: float
    ) -> None:
        super().__init__(list(tests), tests, place / NOTE)
        self.sequences, self.place = sequences, place
        self.verdicts, self.messages = Verdicts(place), os.dup(2)
        self.limits: dict[str, Any] = {"place": place, "jobs": jobs, "end": end}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        self.functions = {path: functions_of(str(self.place / "src" / path)) for path in CORE}
        gc.freeze()  # so that forks do not copy what their collector looks at
        mutants = list(self.sequences)
        for first in range(0, len(mutants), AT_ONCE):
            self._judge(mutants[first : first + AT_ONCE])
            os.write(self.messages, f"{len(mutants[first + AT_ONCE :])} left to try in memory\n".encode())
        return True

    def _judge(self, mutants: list[Mutant]) -> None:
        found: dict[Mutant, tuple[str, str]] = {}
        try_all(mutants, self._try, lambda mutant, *how: found.update({mutant: how}), **self.limits)
        # One mutant of each module that a test finds; the others with it are found as fairly.
        ends = {(mutant.path, by): mutant for mutant, (verdict, by) in found.items() if verdict != SURVIVED}
        last, fair = {mutant: by for (_, by), mutant in ends.items()}, set()

        def compare(mutant: Mutant, verdict: str, by: str) -> None:
            if verdict == SURVIVED:
                fair.add((mutant.path, by))

        try_all(list(last), lambda mutant, folder: self._pass(last[mutant], mutant, folder), compare, **self.limits)
        for mutant, (verdict, by) in found.items():
            self.verdicts.add(mutant, verdict if verdict != SURVIVED and (mutant.path, by) in fair else UNSURE, by)

    def _try(self, mutant: Mutant, folder: Path) -> int:
        """1 where a test finds the mutant."""
        return self._run(self.sequences[mutant], folder) if self._change(mutant.path, mutant.source()) else 0

    def _pass(self, last: str, mutant: Mutant, folder: Path) -> int:
        """0 where the tests that led to a finding pass when the module is changed to what it is."""
        names = self.sequences[mutant]
        return self._run(names[: names.index(last) + 1], folder) if self._change(mutant.path, read(mutant.path)) else 1

    def _change(self, path: str, text: str) -> bool:
        from vitmix._registry import KINDS, METHODS, parts

        limit_memory()
        tables = [METHODS.entries, *(parts(kind) for kind in KINDS)]
        kept = [dict(table) for table in tables]
        module = sys.modules[path.removesuffix(".py").replace("/", ".")]
        changed = change_module(module, text, self.functions[path])
        for table, entries in zip(tables, kept, strict=True):
            table.clear()
            table.update(entries)
        return changed

    def _run(self, names: list[str], folder: Path) -> int:
        folder.mkdir()
        self.note = folder / NOTE
        items = [self.items[name] for name in names if name in self.items]
        for item, following in itertools.zip_longest(items, items[1:]):
            self.session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.session.testsfailed:
                return 1
        return 0


def verdict(code: int) -> str:
    if code in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return SURVIVED
    return "timed out" if code in (-signal.SIGPROF, -signal.SIGALRM) else "killed"


class Verdicts:
    """What became of mutants, kept until a source or a test changes."""

    def __init__(self, place: Path) -> None:
        texts = [file for kind in ("py", "json") for file in place.glob(f"*/**/*.{kind}")]
        self.file = KEPT / f"verdicts-{digest(texts)}.jsonl"
        for old in set(KEPT.glob("verdicts-*")) - {self.file}:
            old.unlink()
        rows = map(json.loads, self.file.read_text().splitlines()) if self.file.exists() else ()
        self.known = {row["mutant"]: row["verdict"] for row in rows}

    @staticmethod
    def _name(mutant: Mutant) -> str:
        return f"{mutant.path}:{mutant.start}-{mutant.end}:{mutant.new}"

    def get(self, mutant: Mutant) -> str | None:
        return self.known.get(self._name(mutant))

    def add(self, mutant: Mutant, verdict: str, by: str) -> None:
        self.known[self._name(mutant)] = verdict
        with self.file.open("a") as file:
            file.write(json.dumps({"mutant": self._name(mutant), "verdict": verdict, "by": by}) + "\n")


def copy_to(place: Path) -> None:
    """Sources and tests as they are now, so that they can be worked on meanwhile."""
    shutil.copytree(SOURCES, place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(place / "src", quiet=1)
    shutil.copytree(TESTS, place / "tests", ignore=shutil.ignore_patterns("__pycache__", "golden"))
    (place / "tests" / "golden").symlink_to(TESTS / "golden")
    shutil.copy(ROOT / "pyproject.toml", place)


def judge(mutants: list[Mutant], tests: dict[str, Any], args: argparse.Namespace, place: Path, end: float) -> float:
    """Tries the mutants as long as there is time; prints survivors and the percentage that was found."""
    verdicts = Verdicts(place)
    print("\n\n".join([*(str(each) for each in mutants if verdicts.get(each) == SURVIVED), ""]), end="", flush=True)
    chosen = {each: covering(each, tests, args.seconds) for each in mutants if verdicts.get(each) in (None, UNSURE)}
    inside = [each for each, names in chosen.items() if names and verdicts.get(each) is None]
    if len(inside) >= AT_LEAST:
        sequences = {each: [*itertools.chain(*near_and_far(chosen[each], tests))] for each in inside}
        files = sorted({name.partition("::")[0] for names in sequences.values() for name in names})
        time = 0.6 * (end - computed())  # the rest is for what survives
        if finish(
            fork(lambda: run_pytest(files, place, place / "src", InMemory(sequences, tests, place, args.jobs, time)))
        ):
            raise SystemExit("the tests cannot be read")
        verdicts = Verdicts(place)
    left = [each for each, names in chosen.items() if names and verdicts.get(each) in (None, UNSURE)]

    def attempt(mutant: Mutant, folder: Path) -> int:
        return try_mutant(mutant, chosen[mutant], tests, place, folder)

    def done(mutant: Mutant, verdict: str, by: str) -> None:
        verdicts.add(mutant, verdict, by)
        if verdict == SURVIVED:
            print(f"{mutant}\n", flush=True)
        if len(verdicts.known) % 50 == 0:
            print(f"{len(verdicts.known)} known", file=sys.stderr, flush=True)

    print(f"{len(left)} left to try alone", file=sys.stderr, flush=True)
    try_all(left, attempt, done, place=place, jobs=args.jobs, end=end)
    return summarize([verdicts.get(mutant) for mutant in mutants], args)


def summarize(verdicts: list[str | None], args: argparse.Namespace) -> float:
    """Prints what became of the mutants, and returns the percentage found of those that were tried to the end."""
    counts = Counter(each for each in verdicts if each)
    open_ones = len(verdicts) - (tried := counts["killed"] + counts["timed out"] + counts[SURVIVED])
    found = 100 * (1 - counts[SURVIVED] / max(tried, 1))
    print(
        f"{tried} mutants of seed {args.seed}: {counts['killed']} killed, {counts['timed out']} timed out, "
        f"{counts[SURVIVED]} survived; {found:.1f} % found; {open_ones} others not decided"
    )
    return found


def equivalents() -> set[str]:
    """The mutants that nobody could tell from the original, or not here; without the new line, all of a line."""
    return blocks_of(TESTS / "mutants_equivalent.txt")


def blocks_of(file: Path) -> set[str]:
    blocks = (
        (line for line in block.split("\n") if not line.startswith("#")) for block in file.read_text().split("\n\n")
    )
    return {"\n".join(block).strip() for block in blocks} - {""}


def names_of(mutant: Mutant) -> set[str]:
    """By which a mutant may be listed."""
    text = str(mutant)
    return {text, text.partition("\n+")[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=100, help="how many mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--modules", default="", help="only these modules, with commas between them")
    parser.add_argument("--tests", default="", help="only tests of these files, and mutants of lines that they run")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--seconds", type=float, default=20, help="how long tests are let try to find one mutant")
    parser.add_argument("--minutes", type=float, default=600, help="starts nothing after computing so long")
    parser.add_argument("--least", type=float, default=0, help="fails where fewer percent are found")
    parser.add_argument("--again", type=Path, metavar="FILE", help="instead of a sample those that a run printed there")
    parser.add_argument("--list", action="store_true", help="prints the mutants instead of trying them")
    args = parser.parse_args()
    began = computed()
    asked = set(filter(None, args.modules.split(",")))
    every = [each for path in CORE if not asked or Path(path).stem in asked for each in mutants_of(path)]
    known = equivalents()
    mutants = [each for each in every if not known & names_of(each)]
    print(f"{len(every)} mutants, {len(every) - len(mutants)} of them equivalent or out of reach here", flush=True)
    if asked and not every:
        raise SystemExit(f"no module of {', '.join(sorted(asked))} is in the core")
    if stale := known.difference(*map(names_of, every)) if not asked else set():
        print("\n\n".join(["no longer there, take them out of mutants_equivalent.txt:", *sorted(stale)]) + "\n")
    if args.again is not None:
        printed = blocks_of(args.again)
        mutants = [each for each in mutants if str(each) in printed]
    else:
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
        tests = line_map(place, args.tests.split(",") if args.tests else ABOUT_CORE)
        if args.tests:  # what none of these tests runs may well be run by the others
            mutants = [replace(each, spans=each.spans[:1]) for each in mutants]
        elif unseen := [path for path in CORE if not any(path in test["lines"] for test in tests.values())]:
            raise SystemExit(f"no test of ABOUT_CORE runs {', '.join(unseen)}")
        some = covering(Mutant(mutants[0].path, "", 0, 0, "", ((1, 10**9),)), tests, 1)
        if not some or finish(fork(lambda: try_tests(some, tests, place, place / "src"))):
            raise SystemExit("tests fail without a mutant; make them pass first")
        found = judge(mutants, tests, args, place, began + 60 * args.minutes)
    raise SystemExit(found < args.least)


if __name__ == "__main__":
    main()
