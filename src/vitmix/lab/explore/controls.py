"""The settings of a method or a part as controls of a page, derived from its signature, hints and docstring."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from vitmix._grammar import Call, parse
from vitmix._mixer import Mixer
from vitmix._registry import KINDS
from vitmix._text import COMMON, value_text
from vitmix.lab.settings import SettingValues

ControlKind = Literal["fraction", "number", "whole", "switch", "choice", "text"]


@dataclass(frozen=True)
class Control:
    """One setting.

    Attributes:
        kind: what it takes: a number in 0..1, any number, an integer, on or off, one of `choices`, or any other value
            as text in the grammar of methods (`none`, `all`, `[2, 3]`).
        help: its lines in the docstring, or those that name it.
    """

    name: str
    kind: ControlKind
    default: Any
    choices: tuple[str, ...] = ()
    help: str = ""

    def to_widget(self, value: Any) -> Any:
        """A setting as the value of a widget: numbers and switches as they are, the rest as text."""
        return value if self.kind in ("fraction", "number", "whole", "switch") else value_text(value)

    def read(self, value: Any) -> Any:
        """The value of a widget as a setting. Raises ValueError for values that the setting cannot have."""
        if self.kind == "switch":
            return bool(value)
        if self.kind in ("choice", "text"):
            return _parsed(self.name, str(value))
        if value is None or isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name} must be a number, got {value!r}; enter one")
        return int(value) if self.kind == "whole" else float(value)


@cache
def controls_of(thing: Callable[..., Any]) -> tuple[Control, ...]:
    """A control for every setting of a part's class, of a method's function, or of `Mixer` for `mix(...)`.

    Parts (mask, share, pairing, ...) have their own menus and are left out.
    """
    hints = {**_common_hints(), **typing.get_type_hints(thing)} if not isinstance(thing, type) else _hints(thing)
    doc = inspect.getdoc(thing) or ""
    said = _arguments(doc)
    return tuple(
        _control(name, default, hints.get(name, str), said.get(name) or _mention(name, doc, said), thing)
        for name, default in _defaults(thing).items()
        if name not in KINDS
        or typing.get_origin(hints.get(name)) is typing.Literal
        or _is_number(hints.get(name))  # a mask's own `share`
    )


def changed(control: Control, value: Any) -> bool:
    """Whether a setting differs from its default."""
    return _plain(value) != _plain(control.default) or isinstance(value, bool) != isinstance(control.default, bool)


_COMMON_HELP = {
    "smoothing": "label smoothing, applied before mixing.",
    "loss": 'the main loss, "ce" or "bce".',
}


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else value


def _common_hints() -> dict[str, object]:
    hints = _hints(Mixer)
    return {name: hints[name] for name in COMMON}


def _hints(part: type) -> dict[str, object]:
    return typing.get_type_hints(part)


def _defaults(thing: Any) -> SettingValues:
    """The settings and their defaults, in the order of the signature."""
    if thing is Mixer:
        fields = {each.name: each for each in dataclasses.fields(Mixer)}
        return {name: fields[name].default for name in ("smoothing", "loss")}
    if isinstance(thing, type):
        return {each.name: _field_default(each) for each in dataclasses.fields(thing) if each.init}
    parameters = inspect.signature(thing).parameters
    own = {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    common = {name: default for name, default in _defaults(Mixer).items() if name not in own}
    return {**own, **common}


def _field_default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _control(name: str, default: Any, hint: Any, said: str, thing: Any) -> Control:
    options = _options(hint)
    if options:
        return Control(name, "choice", default, options, said)
    if hint is bool:
        return Control(name, "switch", default, (), said)
    if hint is int:
        return Control(name, "whole", default, (), said)
    if hint is float:
        return Control(name, "fraction" if _refuses(thing, name, 1.5) else "number", default, (), said)
    return Control(name, "text", default, (), said)


def _options(hint: Any) -> tuple[str, ...]:
    """The words of a `Literal`, and `none` if it is optional."""
    if typing.get_origin(hint) is typing.Literal:
        return tuple(map(value_text, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inside = [each for each in typing.get_args(hint) if each is not types.NoneType]
        if len(inside) == 1 and typing.get_origin(inside[0]) is typing.Literal:
            return ("none", *_options(inside[0]))
    return ()


def _is_number(hint: Any) -> bool:
    return hint in (int, float)


def _refuses(thing: Any, name: str, value: float) -> bool:
    """Whether the part refuses this number for a setting."""
    given: SettingValues = {name: value}
    try:
        thing(**given) if isinstance(thing, type) and thing is not Mixer else thing(2, **given)
    except ValueError:
        return True
    except TypeError:  # other settings must be given as well
        return False
    return False


def _arguments(doc: str) -> dict[str, str]:
    """What a docstring says about each argument; `low, high: ...` counts for both."""
    _, _, block = doc.partition("Args:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in block.splitlines():
        if not line.strip():
            break
        if match := re.match(r"    (\w+(?:, \w+)*): (.*)", line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _mention(name: str, doc: str, said: dict[str, str]) -> str:
    """Where the docstring names a setting that has no entry: in that of another one, or in the first line."""
    if name in _COMMON_HELP:
        return _COMMON_HELP[name]
    return next((words for words in (*said.values(), doc.partition("\n")[0]) if f"`{name}`" in words), "")


def _parsed(name: str, text: str) -> Any:
    """A text in the grammar of methods as the value of a setting."""
    tree = parse(f"mix({name}={text.strip() or 'none'})")
    if not isinstance(tree, Call) or set(tree.settings) != {name}:
        raise ValueError(f"{name} takes one value, such as none, 0.5 or [2, 3], got {text!r}")
    return unwrapped(tree.settings[name])


def unwrapped(value: Any) -> Any:
    """A value of the syntax tree as a setting: words are texts, lists are tuples."""
    if isinstance(value, Call):
        if value.settings:
            raise ValueError(f"a setting takes a word, a number or a list, got {value.name}(...)")
        return value.name
    return tuple(map(unwrapped, value)) if isinstance(value, tuple | list) else value
