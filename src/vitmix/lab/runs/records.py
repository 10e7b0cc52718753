"""Records: frozen dataclasses that are read from JSON by their type hints and written back under the same keys.

A record is read as a whole or refused with an error. Fields with a default may be missing; a value of another type
is an error, so a record needs no further checks. Unknown keys are ignored.
"""

import dataclasses
import json
import types
import typing
from dataclasses import field
from functools import cache
from typing import Any, Self

from vitmix.lab.reading import JsonObject, is_count, is_number

_SIMPLE = {
    str: ("a string", lambda value: isinstance(value, str)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", is_count),
    float: ("a number", is_number),
    Any: ("a value", lambda value: True),
}


def absent() -> Any:
    """A field that is None if the file lacks it; None is not written."""
    return field(default=None, metadata={"omit": True})


class Record:
    """A dataclass with a form in JSON."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The record that a JSON value stands for, or a ValueError that names the first field that does not fit."""
        if not isinstance(value, dict):
            raise ValueError("it is not a mapping")
        found = {}
        for each in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
            if each.name in value:
                found[each.name] = parse(_hints(cls)[each.name], value[each.name], each.name)
            elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
                raise ValueError(f"{each.name} is missing")
        return cls(**found)

    def to_json(self) -> JsonObject:
        """The record as JSON data."""
        values = {each: getattr(self, each.name) for each in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        return {
            each.name: _plain(value)
            for each, value in values.items()
            if value is not None or "omit" not in each.metadata
        }

    def encoded(self, indent: int | None = None) -> bytes:
        """The record as the content of a file."""
        text = json.dumps(self.to_json(), indent=indent, allow_nan=False)
        return (text if indent is None else f"{text}\n").encode()


def parse(kind: Any, value: Any, name: str) -> Any:
    """A JSON value as a value of the annotated type; `name` says which one it is, for the error."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # a union with None
        return None if value is None else parse(next(each for each in inner if each is not types.NoneType), value, name)
    if origin is tuple:
        several = inner[-1] is Ellipsis
        if not isinstance(value, list) or not (several or len(value) == len(inner)):
            raise ValueError(f"{name} must be a list{'' if several else f' of {len(inner)}'}")
        kinds = inner[:1] * len(value) if several else inner
        return tuple(parse(one, each, f"an entry of {name}") for one, each in zip(kinds, value, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{name} must be a mapping")
        return {key: parse(inner[1], each, f"{key!r} in {name}") for key, each in value.items()}
    if isinstance(kind, type) and issubclass(kind, Record):
        try:
            return kind.from_json(value)
        except ValueError as problem:
            raise ValueError(f"{name}: {problem}") from None
    described, right = _SIMPLE[kind]
    if not right(value):
        raise ValueError(f"{name} must be {described}")
    return value


@cache
def _hints(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value
