"""Changes to values, texts and bytes that keep most of their structure; every choice comes from the `chance` given."""

import copy
import json
import random
import re
from collections.abc import Sequence
from typing import Any

SCRIPT = '"><script>alert(1)</script>'
WHOLE = (0, 1, -1, 2, 3, 7, 100, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 10**19, 10**30, -(10**30))
NUMBERS = (*WHOLE, 10**400, 0.5, -0.5, 1e-320, 5e-324, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), -0.0)
TEXTS = (
    *(
        "",
        " ",
        "x",
        "0",
        "12",
        "-1",
        "1e9",
        "nan",
        "inf",
        "none",
        "null",
        "true",
        "~",
        "²",
        "١٢",
        "é",
        "日本",
        "\u202e",
    ),
    *("\ud800", "\udcff", "\0", "\n", "\t", "\x1b[2J", "\r\n", "\ufeff", "\u2028", "a" * 5000, "9" * 400, SCRIPT),
    *("../../x", "/dev/zero", "/dev/null", "/", ".", "..", "~", "-", "--", "=", "%s", "%n", "{0}", "{}", "[]", "&a *a"),
    *("cutmix", "shapes", "best", "help", "all", "auto", "linf", "train", "http://127.0.0.1:9/x", "local-dir:."),
)
VALUES = (
    *(None, True, False, *NUMBERS, *TEXTS),
    *(
        [],
        {},
        [[]],
        [None],
        [0],
        [1, 2, 3],
        [{}],
        {"": None},
        {"a": {"b": []}},
        [[0, 10**9, 1]],
        ["x"] * 300,
        [[[[[]]]]],
    ),
)
LETTERS = "()[]{},=*+|:;#&!?%@<>'\"\\/ \t\n\r\0-_.~^$`aZ09éß٣²日\u200b\u202e\ufeff\ud800\U0001f600"


def hostile(chance: random.Random) -> Any:
    """A value that a program may not expect."""
    return copy.deepcopy(chance.choice(VALUES))


def hostile_text(chance: random.Random) -> str:
    """A number or a word as a command line has it."""
    return str(chance.choice(NUMBERS)) if chance.random() < 0.5 else chance.choice(TEXTS)


def places(value: Any) -> list[list[Any]]:
    """The ways to every value within a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [[], *([key, *rest] for key, each in inside for rest in places(each))]


def _at(value: Any, way: Sequence[Any]) -> Any:
    for key in way:
        value = value[key]
    return value


def change_value(value: Any, chance: random.Random) -> Any:
    """The value with one of its parts replaced, removed, moved, renamed, doubled or put into another."""
    value = copy.deepcopy(value)
    ways = places(value)[1:]
    if not ways or chance.random() < 0.02:
        return hostile(chance)
    way = chance.choice(ways)
    holder, last = _at(value, way[:-1]), way[-1]
    kind = chance.randrange(10)
    if kind < 4:
        holder[last] = hostile(chance)
    elif kind == 4:
        holder[last] = change_scalar(holder[last], chance)
    elif kind == 5:
        del holder[last]
    elif kind == 6:
        holder[last] = copy.deepcopy(_at(value, chance.choice(ways)))
    elif kind == 7:
        holder[last] = chance.choice([[holder[last]], {"x": holder[last]}, [holder[last]] * 3, str(holder[last])])
    elif isinstance(holder, list):
        holder.insert(chance.randrange(len(holder) + 1), copy.deepcopy(holder[last]))
    else:
        holder[chance.choice(TEXTS)] = holder.pop(last) if kind == 8 else copy.deepcopy(holder[last])
    return value


def change_scalar(value: Any, chance: random.Random) -> Any:
    """A number or text near this one, or of another type."""
    if isinstance(value, str):
        return change_text(value, chance)
    if isinstance(value, bool):
        return chance.choice([not value, int(value), str(value)])
    if isinstance(value, int | float):
        return chance.choice([-value, value + 1, value - 1, f"{value}.5", str(value), [value], bool(value), None])
    return hostile(chance)


def change_text(text: str, chance: random.Random, words: Sequence[str] = TEXTS) -> str:
    """The text with a piece removed, doubled, moved, repeated or replaced."""
    start = chance.randrange(len(text) + 1)
    end = min(len(text), start + chance.choice([1, 1, 2, 4, 9, 30]))
    before, piece, after = text[:start], text[start:end], text[end:]
    kind = chance.randrange(9)
    if kind == 0:
        return before + after
    if kind == 1:
        return before + piece * chance.choice([2, 3, 40, 900]) + after
    if kind == 2:
        return before + chance.choice(LETTERS) + after
    if kind == 3:
        return before + chance.choice(words) + piece + after
    if kind == 4:
        return before + chance.choice(words) + after
    if kind == 5:
        return after + piece + before
    if kind == 6:
        return before
    numbers = list(re.finditer(r"[+-]?\d+(?:\.\d+)?", text))
    if numbers and kind == 7:
        found = chance.choice(numbers)
        return text[: found.start()] + str(chance.choice(NUMBERS)) + text[found.end() :]
    names = list(re.finditer(r"[A-Za-z_]\w*", text))
    if not names:
        return text + chance.choice(words)
    found = chance.choice(names)
    return text[: found.start()] + chance.choice(words) + text[found.end() :]


def change_bytes(content: bytes, chance: random.Random) -> bytes:
    """The bytes with bits flipped, a field set to an extreme, or a piece cut out, doubled or added."""
    at = chance.randrange(len(content) + 1)
    if chance.random() < 0.5:
        at = min(at, chance.randrange(200))  # headers come first
    size = chance.choice([1, 2, 4, 8, 64])
    kind = chance.randrange(9)
    if kind < 3 and content:
        changed = bytearray(content)
        for _ in range(chance.choice([1, 1, 2, 8, 64])):
            changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind < 5:
        width = chance.choice([2, 4, 8])
        number = chance.choice([0, 1, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1]) % 2 ** (8 * width)
        return content[:at] + number.to_bytes(width, chance.choice(["little", "big"])) + content[at + width :]
    if kind == 5:
        return content[: chance.choice([0, at, max(0, len(content) - size)])]
    if kind == 6:
        return content[:at] + content[at + size :]
    if kind == 7:
        return content[:at] + content[at : at + size] * 3 + content[at + size :]
    return content[:at] + chance.randbytes(size) + content[at:]


def as_json(value: Any) -> str:
    """JSON, with NaN as Python writes it; numbers of too many digits are left as they are."""
    return json.dumps(value, default=str)
