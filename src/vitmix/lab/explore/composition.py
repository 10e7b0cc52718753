"""A method as menu choices and control values, and the equivalent text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vitmix._checks import unknown_name
from vitmix._grammar import Call, Plus, parse
from vitmix._mixer import Mixer
from vitmix._registry import METHODS, additions, parts
from vitmix._text import value_text
from vitmix.lab.settings import SettingValues

from .controls import Control, changed, controls_of, unwrapped

COMPOSED = "mix"  # the base of a composition
USUAL = {"mask": "none", "share": "area", "pairing": "reversed"}  # what `mix()` is made of


@dataclass(frozen=True)
class Composition:
    """What is chosen: a base, its parts, additions, and settings by `group.name` that differ from the defaults."""

    base: str = "cutmix"
    mask: str = "none"
    share: str = "area"
    extra: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    pairing: str = "reversed"
    values: SettingValues = field(default_factory=dict)

    @property
    def slots(self) -> dict[str, str]:
        """The parts that menus choose, by the setting that holds them."""
        chosen = {"mask": self.mask, "share": self.share} if self.base == COMPOSED else {}
        return {**chosen, "pairing": self.pairing}

    @property
    def added(self) -> tuple[str, ...]:
        return (*self.extra, *self.inner)

    def groups(self) -> Iterator[tuple[str, str, Any]]:
        """Key, title, and class or function of everything that has settings, from top to bottom."""
        yield "base", self.base, Mixer if self.base == COMPOSED else METHODS[self.base]
        for slot, name in self.slots.items():
            yield slot, f"{slot}: {name}", parts(slot)[name]
        for name in self.added:
            yield name, f"+ {name}", additions()[name]

    def controls(self) -> Iterator[tuple[str, str, Control]]:
        """The key of the value, the title of its group, and the control of every setting."""
        for key, title, thing in self.groups():
            for control in controls_of(thing):
                yield f"{key}.{control.name}", title, control

    def text(self) -> str:
        """The method in its grammar; settings at their default are left out."""
        given = self._given()
        base = [*given.get("base", [])]
        for slot, name in self.slots.items():
            if name != USUAL[slot] or given.get(slot):
                base.append(f"{slot}={_call(name, given.get(slot, []))}")
        return " + ".join([_call(self.base, base), *(_call(name, given.get(name, [])) for name in self.added)])

    def _given(self) -> dict[str, list[str]]:
        """The settings that differ from their defaults, as texts, by group."""
        found: dict[str, list[str]] = {}
        for key, _, control in self.controls():
            if key in self.values and changed(control, self.values[key]):
                found.setdefault(key.partition(".")[0], []).append(f"{control.name}={value_text(self.values[key])}")
        return found


def composition_of(text: str) -> Composition | None:
    """The composition of a text; None if menus cannot show it, as with `mixup | cutmix`."""
    tree = parse(text)
    base, added = (tree.base, tree.additions) if isinstance(tree, Plus) else (tree, [])
    if not isinstance(base, Call):
        return None
    if base.name != COMPOSED and base.name not in METHODS:
        raise unknown_name("method", base.name, (*METHODS, COMPOSED))
    slots: dict[str, str] = {}
    values: SettingValues = {}
    for key, value in base.settings.items():
        if key in USUAL and (base.name == COMPOSED or key == "pairing"):
            slots[key] = _take(key, value, values)
        elif key in ("extra", "inner") and base.name == COMPOSED:
            added = [*_calls(value), *added]
        else:
            values[f"base.{key}"] = unwrapped(value)
    for call in added:
        if call.name not in additions():
            raise unknown_name("addition", call.name, additions())
        values |= {f"{call.name}.{key}": unwrapped(value) for key, value in call.settings.items()}
    names = [call.name for call in added]
    if len(set(names)) < len(names):  # `htm(block=1) + htm(block=3)`: one menu entry cannot stand for both
        return None
    extra, inner = (tuple(name for name in names if name in parts(kind)) for kind in ("extra", "inner"))
    return Composition(base.name, extra=extra, inner=inner, values=values, **slots)


def _take(slot: str, value: Any, values: SettingValues) -> str:
    """The name of the part that a setting holds; its settings go to `values`."""
    call = _calls(value)[0] if value is not None else Call("none", {})
    if call.name not in parts(slot):
        raise unknown_name(slot, call.name, parts(slot))
    values |= {f"{slot}.{key}": unwrapped(each) for key, each in call.settings.items()}
    return call.name


def _calls(value: Any) -> list[Call]:
    items = value if isinstance(value, tuple | list) else (value,)
    return [each if isinstance(each, Call) else Call(str(each), {}) for each in items]


def _call(name: str, settings: list[str]) -> str:
    return f"{name}({', '.join(settings)})" if settings else name
