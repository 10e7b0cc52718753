"""Mutation testing of the core: small faults, one at a time, each of which some test should see.

    python tests/mutate.py --sample 600 --seed 1 [--modules masks,shares] [--jobs 2] [--minutes 5] [--list]

A fault is put into a copy of the sources, and the tests that run its line are run against it, quick ones first, until
one fails. Faults that no test could see are listed with a reason in `mutants_equivalent.txt` and left out; survivors
are printed as they would be written there. Which test runs which line is found once and kept in `build/mutants`.

Each fault has a forked process of its own that has torch and timm but not vitmix, so it costs no more than its tests.
"""

import argparse
import ast
import compileall
import copy
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
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
ROOT, SOURCES, KEPT = TESTS.parent, TESTS.parent / "src", TESTS.parent / "build" / "mutants"
# What is mutated, under src/; nothing else here names these files.
CORE = tuple(
    f"vitmix/{name}.py"
    for name in (
        *("parts/masks", "parts/shares", "attention/flow", "attention/summaries", "parts/hidden", "parts/losses"),
        *("_mixing", "_mixer", "attention/tap", "_learner", "parts/assignment", "parts/pairing", "_mix"),
    )
)
# Test files that are about the core; with little time only the first of them are looked at.
ABOUT_CORE = (
    *("parts", "masks", "shares", "flow", "mixing", "inner", "mixers", "tap", "methods"),
    *("golden_tokens", "golden_images", "readers", "misuse", "spatial", "geometry", "changed_models", "learner"),
    *("families", "pvt"),
)
WARM = ("timm", "torchvision", "transformers", "scipy.optimize", "hypothesis", "safetensors.torch", "torch._dynamo")
HEAVY = 6 * 2**30  # bytes of memory that a fault may ask for

PATIENCE = 12  # seconds after which a test is too slow to be run against mutants

# Faults

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SWAPS = [
    *(("min", "max"), ("minimum", "maximum"), ("clamp_min", "clamp_max"), ("argmin", "argmax"), ("any", "all")),
    *(("floor", "ceil"), ("rint", "floor"), ("sum", "mean"), ("zeros", "ones"), ("new_zeros", "new_ones")),
    *(("zeros_like", "ones_like"), ("log_softmax", "softmax")),
]
SWAP = {b: a for a, b in SWAPS} | {a: b for a, b in SWAPS}


@dataclass(frozen=True)
class Mutant:
    """A fault: `new` in place of the bytes `start` to `end` of a file.

    `spans` are lines, first and last; the tests of the first span that any test runs may see it.
    """

    path: str
    scope: str
    start: int
    end: int
    new: str
    spans: tuple[tuple[int, int], ...]

    @property
    def module(self) -> str:
        return Path(self.path).stem

    def source(self) -> str:
        old = read(self.path).encode()
        return (old[: self.start] + self.new.encode() + old[self.end :]).decode()

    def __str__(self) -> str:
        """The lines that differ, without their numbers, so that it stays the same when other lines change."""
        old, text = read(self.path).encode(), self.source().encode()
        begin = old.rfind(b"\n", 0, self.start) + 1
        tail = old.find(b"\n", self.end) % (len(old) + 1) - self.end
        sides = (old[begin : self.end + tail], text[begin : self.start + len(self.new.encode()) + tail])
        lines = [
            f"{sign} {line.strip()}"
            for sign, side in zip("-+", sides, strict=True)
            for line in str(side, "utf8").split("\n")
        ]
        return "\n".join([f"{self.module}.{self.scope}", *lines])


@cache
def read(path: str) -> str:
    return (SOURCES / path).read_text()


def with_changes(node: Any, **changes: Any) -> str:
    """The text of a node some fields of which are others."""
    twin = copy.copy(node)
    for name, value in changes.items():
        setattr(twin, name, value)
    return f"({ast.unparse(twin)})"


def without(items: list[Any], index: int) -> list[Any]:
    return items[:index] + items[index + 1 :]


def other_numbers(value: float | int) -> list[float | int]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    return [0.0] if 0 < abs(value) < 1e-6 else [2 * value, 0.0] if value else [1.0]


def faults(node: ast.AST, parents: list[ast.AST], choices: dict[str, str]) -> Iterator[tuple[Any, str]]:
    """What may be wrong about a node: which part of it, and the text in its place."""
    parent = parents[-1]
    match node:
        case ast.Compare():
            for index, op in enumerate(node.ops):
                for other in COMPARISONS[type(op)]:
                    yield node, with_changes(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            yield node, with_changes(node, op=ARITHMETIC[type(node.op)]())
        case ast.BoolOp():
            yield node, with_changes(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for index in range(len(node.values)):
                rest = without(node.values, index)
                yield node, with_changes(node, values=rest) if len(rest) > 1 else f"({ast.unparse(rest[0])})"
        case ast.UnaryOp():
            yield node, f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool() | int() | float() as value):
            for other in other_numbers(value):
                yield node, repr(other)
        case ast.Constant(value=str() as value) if is_choice(node, parents):
            yield node, repr(choices.get(value, "mutant"))
        case ast.If() | ast.IfExp():
            yield node.test, "True"
            yield node.test, "False"
        case ast.While():
            yield node.test, "False"
        case ast.comprehension():
            for test in node.ifs:
                yield test, "True"
                yield test, "False"
        case ast.Call():
            for index, keyword in enumerate(node.keywords):
                if keyword.arg not in (None, "device"):  # which only another device would tell
                    yield node, with_changes(node, keywords=without(node.keywords, index))
            if isinstance(node.func, ast.Attribute) and node.func.attr in SWAP:
                yield node.func, with_changes(node.func, attr=SWAP[node.func.attr])
            if isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "any", "all"):
                yield node.func, SWAP[node.func.id]
        case ast.Slice():
            for name in ("lower", "upper", "step"):
                if getattr(node, name) is not None:
                    yield node, with_changes(node, **{name: None})[1:-1]
        case ast.Return(value=ast.expr() as value):
            function = next(each for each in reversed(parents) if isinstance(each, ast.FunctionDef))
            names = [each.arg for each in function.args.args if each.arg not in ("self", "ctx")]
            if names and ast.unparse(value) != names[0]:
                yield value, names[0]
        case ast.AugAssign():
            yield node, "pass"
            if type(node.op) in ARITHMETIC:
                yield node, with_changes(node, op=ARITHMETIC[type(node.op)]())[1:-1]
        case ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Assign() if not isinstance(parent, ast.Module | ast.ClassDef):
            targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
            if all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets):
                yield node, "pass"


def is_choice(node: ast.AST, parents: list[ast.AST]) -> bool:
    """Whether a text decides something, rather than being read by a person."""
    parent = parents[-1]
    if isinstance(parent, ast.Tuple):
        return "check_choice" in ast.unparse(parents[-2])
    return isinstance(
        parent, ast.Compare | ast.Subscript | ast.Dict | ast.Set | ast.keyword | ast.arguments | ast.AnnAssign
    )


def literal_choices(tree: ast.AST) -> dict[str, str]:
    """For each choice of a `Literal` the next one."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            values = [each.value for each in getattr(node.slice, "elts", []) if isinstance(each, ast.Constant)]
            found |= dict(zip(values, values[1:] + values[:1], strict=True))
    return found


def is_skipped(node: ast.AST, parents: list[ast.AST]) -> bool:
    """Types, words for people, and what only narrows types: not behavior, or seen by other tools."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.arg | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    parent = parents[-1] if parents else None
    if isinstance(parent, ast.Module) and isinstance(node, ast.Assign):
        return not isinstance(node.value, ast.Constant)  # an alias of types
    if isinstance(parent, ast.FunctionDef | ast.ClassDef) and node in parent.decorator_list:
        return True
    return node is getattr(parent, "annotation", None) or node is getattr(parent, "returns", None)


def mutants_of(path: str) -> list[Mutant]:
    text = read(path)
    tree = ast.parse(text)
    choices, starts = literal_choices(tree), [0]
    found: dict[str, Mutant] = {}
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)

    def visit(node: ast.AST, parents: list[ast.AST]) -> None:
        if is_skipped(node, parents):
            return
        if parents:
            scope = ".".join(each.name for each in parents if isinstance(each, ast.FunctionDef | ast.ClassDef))
            spans = tuple(seen_at(node, parents))
            for target, new in faults(node, parents, choices):
                start = starts[target.lineno - 1] + target.col_offset
                end = starts[target.end_lineno - 1] + target.end_col_offset
                mutant = Mutant(path, scope or "module", start, end, new, spans)
                found.setdefault(mutant.source(), mutant)
        for child in ast.iter_child_nodes(node):
            visit(child, [*parents, node])

    visit(tree, [])
    return list(found.values())


def seen_at(node: Any, parents: list[ast.AST]) -> Iterator[tuple[int, int]]:
    """The lines that run when a node does: its statement, else what it is a part, a default or a field of.

    Code that is compiled runs unseen, and so do the fields of a class when it is made.
    """
    around = [each for each in [*parents, node] if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    statement = next((each for each in [node, *reversed(parents)] if isinstance(each, ast.stmt)), None)
    if around and statement is not None and isinstance(around[-1], ast.FunctionDef) and statement is not around[-1]:
        body = getattr(statement, "body", None)
        yield statement.lineno, body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    for scope in reversed(around):
        yield scope.lineno, scope.end_lineno or scope.lineno
    yield 1, 10**9


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
        signal.signal(signal.SIGALRM, give_up)  # compilers run for minutes where their lines are watched
        signal.alarm(PATIENCE)
        sys.settrace(self._enter)
        threading.settrace(self._enter)
        try:
            return (yield)
        finally:
            signal.alarm(0)
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
    files, waiting = set(), [test_file, test_file.with_name("conftest.py")]
    while waiting:
        files.add(file := waiting.pop())
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            near = {file.with_name(f"{name}.py") for name in names}
            waiting += [each for each in near - files if each.exists()]
    texts = [file.read_bytes() for file in [*sorted(files), *sorted(SOURCES.rglob("*.py"))]]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def line_map(place: Path, deadline: float) -> dict[str, Any]:
    """The kept notes of every test, made anew where something changed, as far as there is time."""
    KEPT.mkdir(parents=True, exist_ok=True)
    tests: dict[str, Any] = {}
    for name in ABOUT_CORE:
        file = place / "tests" / f"test_{name}.py"
        kept = KEPT / f"{file.stem}-{stamp(file)}.json"
        if not kept.exists():
            if time.monotonic() > deadline:
                break
            for old in KEPT.glob(f"{file.stem}-*.json"):
                old.unlink()
            print(f"finding the lines that {file.name} runs", file=sys.stderr, flush=True)
            if finish(fork(lambda file=file, kept=kept: trace(place, file, kept))):
                raise SystemExit(f"{file.name} cannot be run")
        tests |= json.loads(kept.read_text())
    return tests


def trace(place: Path, file: Path, kept: Path) -> int:
    tracer = Tracer(place / "src")
    run_pytest([f"tests/{file.name}"], place, place / "src", tracer)
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


def judge(mutants: list[Mutant], tests: dict[str, Any], args: Any, place: Path, end: float) -> None:
    counts, survivors, running = defaultdict(int), [], {}
    waiting = list(reversed(mutants))
    while waiting or running:
        while waiting and len(running) < args.jobs and time.monotonic() < end:
            mutant = waiting.pop()
            chosen = covering(mutant, tests, args.seconds)
            if not chosen:  # there was no time to look at the tests of its module
                continue
            sources = place / f"mutant{len(waiting)}"
            shutil.copytree(place / "src", sources)
            running[fork(lambda m=mutant, c=chosen, s=sources: try_mutant(m, c, tests, place, s))] = mutant, sources
        if not running:
            break
        child, status = os.waitpid(-1, 0)
        mutant, sources = running.pop(child)
        shutil.rmtree(sources, ignore_errors=True)
        code = os.waitstatus_to_exitcode(status)
        result = "survived" if code == 0 else "timed out" if code == -signal.SIGALRM else "killed"
        counts[result] += 1
        if result == "survived":
            survivors.append(mutant)
            print(f"{mutant}\n", flush=True)
    tried = counts["survived"] + counts["timed out"] + counts["killed"]
    rate = 100 * (1 - counts["survived"] / max(tried, 1))
    by_module = defaultdict(int)
    for mutant in survivors:
        by_module[mutant.module] += 1
    for module, count in sorted(by_module.items()):
        print(f"{module}: {count} survived")
    print(
        f"{tried} mutants of seed {args.seed}: {counts['killed']} killed, {counts['timed out']} timed out, "
        f"{counts['survived']} survived; {rate:.1f} % found"
    )
    if rate < args.least:
        raise SystemExit(1)


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
        tests = line_map(place, began + 30 * args.minutes)
        some = covering(Mutant(CORE[0], "", 0, 0, "", ((1, 10**9),)), tests, 5)
        if not some or finish(fork(lambda: run_pytest(some, place, place / "src", Limits(tests)))):
            raise SystemExit("tests fail without a mutant; make them pass first")
        judge(mutants, tests, args, place, began + 60 * args.minutes)


if __name__ == "__main__":
    main()
