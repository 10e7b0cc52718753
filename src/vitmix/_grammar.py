"""The grammar of method strings. It does not know what the names mean, and does not import torch.

spec := term ("|" term)*                  equal probabilities unless weighted
term := [number "*"] part ("+" addition)*
part := name ["(" key "=" value, ... ")"] | "(" spec ")"
"""

import dataclasses
import re
from typing import Any

from vitmix._registry import METHODS

MOST_CHARACTERS, MOST_BRACKETS, MOST_DIGITS = 4_000, 32, 18  # in a method string, nested, in an integer

__all__ = ["Call", "Either", "Plus", "parse", "spelled"]


def spelled(method: str) -> str:
    """The method string with the spacing of the documentation: `"mixup|smmix"` becomes `"mixup | smmix"`."""
    _check_length(method)
    text = re.sub(r"\s*([()\[\],=*|])\s*", r"\1", method.strip()).replace("|", " | ").replace(",", ", ")
    # A '+' before a name is an addition; a '+' before a digit belongs to the number.
    return re.sub(r"\s*\+\s*(?=[A-Za-z_])", " + ", text)


def parse(text: str) -> Any:
    """The syntax tree of a method string: a `Call`, a `Plus` or an `Either`."""
    return _Parser(text).parse()


@dataclasses.dataclass(frozen=True)
class Call:
    """A name with its settings."""

    name: str
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plus:
    """A method with additions."""

    base: Any
    additions: list[Call]


@dataclasses.dataclass(frozen=True)
class Either:
    """Alternative methods, each with its weight."""

    terms: list[tuple[float, Any]]


_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<mark>[()\[\],=*+|]))"
)
_WORDS = {"True": True, "False": False, "true": True, "false": False, "None": None, "none": None}


def _check_length(text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"a method may have {MOST_CHARACTERS:,} characters, got {len(text):,}, beginning with {text[:40]!r}; "
            "shorten it"
        )


class _Parser:
    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"a method must be a non-empty string such as 'cutmix', got {text!r}")
        _check_length(text)
        self.text, self.position, self.tokens = text, 0, []
        at, inside = 0, 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"cannot parse {text!r} at {text[at:].strip()!r}{_underscore_hint(text)}")
            self.tokens.append((match.lastgroup, match[match.lastgroup or 0]))
            at = match.end()
            inside += {"(": 1, "[": 1, ")": -1, "]": -1}.get(self.tokens[-1][1], 0)
            if inside > MOST_BRACKETS:  # the parser recurses once per bracket
                raise ValueError(
                    f"a method may have {MOST_BRACKETS} nested brackets, got more in {text[:40]!r}...; simplify it"
                )

    def parse(self) -> Any:
        tree = self.spec()
        if self.position < len(self.tokens):
            raise self.error("'|', '+' or the end of the string")
        return tree

    def spec(self) -> Any:
        terms = [self.term()]
        while self.take("|"):
            terms.append(self.term())
        if len(terms) == 1 and terms[0][0] is not None:
            raise ValueError(
                f"a weight needs several methods to choose from, got {self.text!r}; remove the weight, or add another "
                "method with '|'"
            )
        return terms[0][1] if len(terms) == 1 else Either([(1.0 if w is None else w, term) for w, term in terms])

    def term(self) -> tuple[float | None, Any]:
        weight = None
        if self.peek()[0] == "number":
            weight = float(self.next()[1])
            if not self.take("*"):
                raise self.error("'*'")
        base = self.spec_in_brackets() if self.take("(") else self.call("a method")
        additions = []
        while self.take("+"):
            additions.append(self.call("a part to add"))
        return weight, Plus(base, additions) if additions else base

    def spec_in_brackets(self) -> Any:
        inner = self.spec()
        self.expect(")")
        return inner

    def call(self, wanted: str) -> Call:
        if self.peek()[0] != "name":
            raise self.error(wanted)
        _, name = self.next()
        settings: dict[str, Any] = {}
        if self.take("("):
            while not self.take(")"):
                if settings and not self.take(","):
                    raise self.error("',' or ')'")
                if self.peek()[0] != "name":
                    raise self.error("a setting")
                key = self.next()[1]
                self.expect("=")
                if key in settings:
                    raise ValueError(f"setting {key!r} is given twice in {self.text!r}")
                settings[key] = self.value()
        return Call(name, settings)

    def value(self) -> Any:
        if self.take("["):
            items = []
            while not self.take("]"):
                if items and not self.take(","):
                    raise self.error("',' or ']'")
                items.append(self.value())
            return tuple(items)
        kind, token = self.peek()
        if kind == "number":
            self.next()
            whole = re.fullmatch(r"[+-]?(\d+)", token)
            if whole and len(whole[1]) > MOST_DIGITS:
                raise ValueError(f"an integer may have {MOST_DIGITS} digits, got {len(whole[1])}: {token[:24]}...")
            return int(token) if whole else float(token)
        if token in _WORDS:
            self.next()
            return _WORDS[token]
        if token in ("nan", "inf"):
            self.next()
            return float(token)
        return self.call("a value")

    def peek(self) -> tuple[str | None, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else (None, "")

    def next(self) -> tuple[str | None, str]:
        token = self.peek()
        self.position += 1
        return token

    def take(self, mark: str) -> bool:
        if self.peek() == ("mark", mark):
            self.position += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise self.error(repr(mark))

    def error(self, wanted: str) -> ValueError:
        after = f" after {self.tokens[self.position - 1][1]!r}" if self.position else ""
        kind, token = self.peek()
        found = "the end of the string" if kind is None else repr(token)
        return ValueError(f"expected {wanted}{after}, found {found} in {self.text!r}")


def _underscore_hint(text: str) -> str:
    """Suggests `tl_align` to those who write TL-Align as in its paper."""
    words = (each.replace("-", "_").lower() for each in re.findall(r"[A-Za-z]\w*(?:-\w+)+", text))
    meant = next((word for word in words if word in METHODS), None)
    return f"; did you mean {meant!r}?" if meant else ""
