"""Mutants: sources of the core with one small fault each, made from their syntax trees; see mutate.py."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "src"
# What is mutated: every part, how a method is put together and run, and how attention is followed.
CORE = [
    *sorted(str(path.relative_to(SOURCES)) for path in SOURCES.glob("vitmix/parts/[a-z]*.py")),
    *(f"vitmix/{name}.py" for name in "_mix _mixer _mixing _apply _guide _learner _sampling".split()),
    *(f"vitmix/attention/{name}.py" for name in "tap flow groups summaries".split()),
]

# Each operator or function with what may stand in its place.
OTHERS = {
    name: others
    for name, *others in map(
        str.split,
        """
        Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In
        And Or, Or And, Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Mult, Mod FloorDiv, Pow Mult, BitAnd BitOr
        BitOr BitAnd, min max, max min, minimum maximum, maximum minimum, clamp_min clamp_max, clamp_max clamp_min
        argmin argmax, argmax argmin, any all, all any, floor ceil, ceil floor, rint floor, sum mean, mean sum
        zeros ones, ones zeros, new_zeros new_ones, new_ones new_zeros, zeros_like ones_like, softmax log_softmax
        log_softmax softmax
        """.strip()
        .replace("\n", ",")
        .split(","),
    )
}


def other_operators(op: ast.AST) -> list[Any]:
    return [getattr(ast, name)() for name in OTHERS.get(type(op).__name__, ())]


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
    def runs(self) -> bool:
        """Whether it is in the body of a function, and not in a default, a field or a constant."""
        return len(self.spans) > 1 + (0 if self.scope == "module" else 1 + self.scope.count("."))

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
                for other in other_operators(op):
                    yield node, with_changes(node, ops=[*node.ops[:index], other, *node.ops[index + 1 :]])
        case ast.BinOp():
            for other in other_operators(node.op):
                yield node, with_changes(node, op=other)
        case ast.BoolOp():
            for other in other_operators(node.op):
                yield node, with_changes(node, op=other)
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
            if isinstance(node.func, ast.Attribute):
                for other in OTHERS.get(node.func.attr, ()):
                    yield node.func, with_changes(node.func, attr=other)
            if isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "any", "all"):
                yield node.func, OTHERS[node.func.id][0]
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
            for other in other_operators(node.op):
                yield node, with_changes(node, op=other)[1:-1]
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
