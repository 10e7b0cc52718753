"""Settings as typed dataclasses: documented fields, and one set of rules for flags and YAML files.

A field's annotation says which values it takes, `option` what they mean. The command line (`cli/_parser.py`) and the
configuration of a training run read both from here.
"""

# Help texts come from such classes, so nothing here imports torch.
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import yaml

from vitmix._checks import (
    check_choice,
    check_count,
    check_fraction,
    check_not_negative,
    check_positive,
    check_workers,
)
from vitmix.lab.reading import parse_yaml

# Annotations of fields: a function checks the value, a text is what help calls it.
Count = Annotated[int, check_count]
Whole = Annotated[int, partial(check_count, least=0)]
Workers = Annotated[int, lambda _, value: check_workers(value)]
Positive = Annotated[float, check_positive]
NotNegative = Annotated[float, check_not_negative]
Fraction = Annotated[float, check_fraction]
Rate = Annotated[float, lambda name, value: check_rate(name, value)]
File = Annotated[str, "FILE"]
Folder = Annotated[str, "FOLDER"]
Name = Annotated[str, "NAME"]
Split = Literal["train", "val", "test"]

SettingValues = dict[str, Any]
"""Settings by name, as recipes, files and flags give them, before `fitted` checks and converts them."""
ModelArgs = dict[str, Any]
"""Keyword arguments of a model: every class of timm has its own."""

S = TypeVar("S", bound="Settings")
HIGHEST_RATE = 1e6  # beyond it, float32 overflows within an update


def check_rate(name: str, value: float) -> None:
    """Refuses learning rates that no optimizer can multiply with."""
    check_not_negative(name, value)
    if value > HIGHEST_RATE:
        raise ValueError(f"{name} must be at most {HIGHEST_RATE:g}, got {value!r}")


def option(
    default: Any, help: str, *, may_change: bool = False, positional: bool = False, now: str | None = None
) -> Any:
    """A documented field; with `...` as its default it must be given.

    Args:
        may_change: a resumed run may change it, because it does not affect results.
        positional: an argument of the command without a flag.
        now: for an earlier spelling, which works for one more version: what to write instead.
    """
    metadata = {"help": help, "may_change": may_change, "positional": positional, "now": now}
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: checks every value as its annotation says."""

    section: ClassVar[str] = ""  # heading of the fields that a class adds, in help and in stored configurations
    epilog: ClassVar[str] = ""  # last lines of a command's help

    def __post_init__(self) -> None:
        for name, kind in kinds_of(type(self)).items():
            kind.check(name, getattr(self, name))


class Kind(NamedTuple):
    """What an annotation allows; `length` is that of a tuple, 0 for any length, None if it is not a tuple."""

    base: type
    optional: bool = False
    length: int | None = None
    choices: tuple[str, ...] = ()
    checks: tuple[Callable[[str, Any], object], ...] = ()
    metavar: str | None = None

    def check(self, name: str, value: Any) -> None:
        if value is None:
            return
        if self.length and len(value) != self.length:
            words = "strings" if self.base is str else "numbers"
            raise ValueError(f"{name} takes {self.length} {words}, got {len(value)}: {list(value)}")
        for item in value if self.length is not None else (value,):
            if self.choices:
                check_choice(name, item, self.choices)
            for check in self.checks:
                check(name, item)

    def fit(self, value: Any) -> Any:
        """A value of this kind from YAML or the texts of a flag."""
        if self.optional and (value is None or value == "none" or value == ["none"]):
            return None
        if self.length is None:
            return self._fit_item(value)
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        return tuple(map(self._fit_item, items))

    def _fit_item(self, value: Any) -> Any:
        if self.base is dict:
            if not all(isinstance(key, str) for key in dict(value)):
                raise TypeError
            return dict(value)
        if self.base is bool and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if self.base in (bool, str):
            if isinstance(value, self.base):
                return value
            raise TypeError
        if isinstance(value, bool) or value is None:
            raise TypeError
        if self.base is float and isinstance(value, str) and "/" in value:  # as people write 8/255
            above, _, below = value.partition("/")
            return float(above) / float(below)
        number = self.base(value)
        if self.base is int and isinstance(value, float) and number != value:
            raise ValueError
        return number

    def __str__(self) -> str:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        word = words.get(self.base, "KEY=VALUE settings")
        if self.length is not None:
            word = "a list of strings" if self.base is str else "a list of numbers"
        word += " or none" if self.optional else ""
        return f"{word}, such as 0.03 or 8/255" if self.base is float and self.length == 0 else word


def _kind(annotation: Any) -> Kind:
    optional, length, choices = False, None, ()
    extras: list[Any] = []
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        optional = types.NoneType in typing.get_args(annotation)
        annotation = next(each for each in typing.get_args(annotation) if each is not types.NoneType)
    if typing.get_origin(annotation) is tuple:
        annotation, *more = typing.get_args(annotation)
        length = 0 if more == [...] else 1 + len(more)
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        annotation, choices = str, typing.get_args(annotation)
    checks = tuple(each for each in extras if callable(each))
    metavar = next((each for each in extras if isinstance(each, str)), None)
    return Kind(typing.get_origin(annotation) or annotation, optional, length, choices, checks, metavar)


@cache
def kinds_of(settings: type[Settings]) -> Mapping[str, Kind]:
    """The kind of each field."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {each.name: _kind(hints[each.name]) for each in fields(settings)}


def section_of(settings: type[Settings], name: str) -> str:
    """The heading of the class that first declared a field."""
    first = next(each for each in reversed(settings.__mro__) if name in vars(each).get("__annotations__", {}))
    return vars(first).get("section", "")


def usual(settings: type[Settings], name: str) -> Any:
    """A field's default; `dataclasses.MISSING` if it must be given."""
    declared = next(each for each in fields(settings) if each.name == name)
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def fitted(settings: type[Settings], name: str, value: Any, source: str) -> Any:
    """A value from a flag or a YAML file, converted for the field; `source` is its origin, for error messages."""
    kind = kinds_of(settings)[name]
    try:
        return kind.fit(value)
    except (TypeError, ValueError, ArithmeticError):
        raise ValueError(f"{name} in {source} must be {kind}, got {value!r}") from None


def unknown(what: str, name: str, known: Iterable[str], command: str) -> ValueError:
    """The error for an unknown name, if there are too many known ones to list."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {close[0] if close[0].startswith('--') else repr(close[0])}? " if close else ""
    return ValueError(f"unknown {what}; {hint}'{command}' lists them all")


def key_and_value(text: str, setting: str = "model_args") -> tuple[str, Any]:
    """`"depth=6"` as `("depth", 6)`."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        example = "epochs=10" if setting == "--set" else "depth=6"
        raise ValueError(f"{setting} takes KEY=VALUE, such as {example}, got {text!r}")
    try:
        return key, parse_yaml(value)
    except yaml.YAMLError:
        raise ValueError(f"{setting} takes values in YAML, got {text!r}; close brackets and quotes") from None
    except ValueError as problem:
        raise ValueError(f"{setting} cannot take {key}: {problem}") from None
