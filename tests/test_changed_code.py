"""A module that is changed in place is as one that was imported so."""

import importlib
import sys
from pathlib import Path

import pytest

from changed_code import change_module, functions_of

OLD = """
from dataclasses import dataclass
from functools import cache

LIMIT = 3


def scaled(value, by=2, *, plus=0):
    return value * by + plus


@cache
def twice(value):
    return [each * 2 for each in (value,)]


def counter(start):
    def count(step=1):
        return start + step

    return count


from_four = counter(4)


@dataclass(frozen=True)
class Part:
    name = "part"
    share: float = 0.5

    @property
    def rest(self):
        return 1 - self.share

    @classmethod
    def default(cls):
        return cls()


def limited(value):
    return min(value, LIMIT)
"""


@pytest.mark.parametrize(
    "before, after, call, values",
    [
        ("value * by + plus", "value * by - plus", "scaled(3, plus=1)", (7, 5)),
        ("by=2", "by=3", "scaled(3)", (6, 9)),
        ("plus=0", "plus=1", "scaled(3)", (6, 7)),
        ("each * 2", "each * 3", "twice(5)", ([10], [15])),
        ("start + step", "start - step", "from_four()", (5, 3)),
        ("share: float = 0.5", "share: float = 0.25", "Part().rest", (0.5, 0.75)),
        ("share: float = 0.5", "share: float = 0.25", "Part.__dataclass_fields__['share'].default", (0.5, 0.25)),
        ("1 - self.share", "2 - self.share", "Part.default().rest", (0.5, 1.5)),
        ('name = "part"', 'name = "other"', "Part().name", ("part", "other")),
        ("LIMIT = 3", "LIMIT = 4", "limited(9)", (3, 4)),
    ],
)
def test_a_change(
    before: str, after: str, call: str, values: tuple[object, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changed_one.py").write_text(OLD)
    sys.modules.pop("changed_one", None)
    module = importlib.import_module("changed_one")
    names = dict(vars(module))  # as another module has imported them
    functions = functions_of(str(module.__file__))
    if "twice" not in call:  # which remembers its results
        assert eval(call, names) == values[0]
    assert OLD.count(before) == 1
    assert change_module(module, OLD.replace(before, after), functions)
    assert eval(call, names) == values[1]
    assert change_module(module, OLD, functions)
    names["twice"].cache_clear()
    assert eval(call, names) == values[0]


def test_what_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changed_two.py").write_text(OLD)
    module = importlib.import_module("changed_two")
    functions = functions_of(str(module.__file__))
    assert not change_module(module, OLD.replace("start + step", "step"), functions)  # no outer variable any more
    assert not change_module(module, OLD + "\nraise ValueError\n", functions)
