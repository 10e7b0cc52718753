"""Converts strings such as `"mixup(alpha=0.8) | tl_align"` to mixers, without `eval`, and back.

A name is a method (`cutmix`), or `mix` with any parts: `mix(mask=block(share=0.3), share=aligned, extra=[region])`.
An addition is hidden mixing (`htm`, `vtm`) or an extra loss (`region`, `consistency`).
"""

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from vitmix._checks import unknown_name
from vitmix._grammar import Call, Either, Plus, parse
from vitmix._mixer import AnyMixer, Mixer, Switch
from vitmix._registry import KINDS, METHODS, additions, parts

__all__ = ["COMMON", "create", "list_methods", "same_method", "to_text"]

COMMON = ("pairing", "smoothing", "loss")  # settings of every method


def list_methods() -> list[str]:
    """The names of the methods."""
    return sorted(METHODS)


def create(method: str, num_classes: int, *, defaults: Mapping[str, Any] | None = None, **settings: Any) -> AnyMixer:
    """The mixer that a name or a method string describes.

    Args:
        defaults: common settings (`pairing`, `smoothing`, `loss`) for mixers whose text does not give them.
        settings: settings of the method, if `method` is only a name: `create("cutmix", num_classes=100, alpha=0.5)`.
            With any other text, only common settings are allowed, as defaults.
    """
    tree = parse(method)
    if isinstance(tree, Call) and not tree.settings:
        return _build(Call(tree.name, settings), num_classes, defaults or {})
    if own := sorted(set(settings) - set(COMMON)):
        raise ValueError(f"the setting {own[0]} needs a plain method name, got {method!r}; write it into the string")
    return _build(tree, num_classes, {**(defaults or {}), **settings})


def same_method(first: str, second: str, *, smoothing: float) -> bool:
    """Whether two strings describe the same mixer, as `mixup` and `mixup(alpha=0.8)` do; `smoothing` is the default."""
    try:
        with warnings.catch_warnings(action="ignore"):
            one, two = (create(text, 2, defaults={"smoothing": smoothing}) for text in (first, second))
    except ValueError:  # from a version with other methods
        return first == second
    return one == two


def to_text(mixer: AnyMixer) -> str:
    """A string from which `create` makes an equal mixer."""
    if isinstance(mixer, Switch):
        equal = len(set(mixer.weights)) == 1 and mixer.weights[0] == 1.0
        terms = [to_text(each) for each in mixer.choices]
        if not equal:
            terms = [f"{weight!r}*{term}" for weight, term in zip(mixer.weights, terms, strict=True)]
        return " | ".join(terms)
    whole = _method_text(mixer)
    if whole is not None:
        return whole
    bare = dataclasses.replace(mixer, inner=(), extra=())
    for kept in (mixer.extra, ()):  # smmix includes its losses; other losses are additions
        base = dataclasses.replace(bare, extra=kept)
        text = _method_text(base)
        if text is not None:
            additions = (*(() if kept else mixer.extra), *mixer.inner)
            return " + ".join([text, *map(value_text, additions)])
    fields = {f.name: getattr(bare, f.name) for f in dataclasses.fields(bare) if f.name != "num_classes"}
    given = {name: value for name, value in fields.items() if value != _default(Mixer, name)}
    return " + ".join([_call_text("mix", given), *map(value_text, (*mixer.extra, *mixer.inner))])


def _method_text(mixer: Mixer) -> str | None:
    """The string of the first method that makes this mixer. Its settings are found by name among the parts."""
    places = (mixer.mask, mixer.share, *mixer.extra, *mixer.inner, mixer)
    for name, method in METHODS.items():
        defaults = {
            key: parameter.default
            for key, parameter in inspect.signature(method).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        defaults |= {key: _default(Mixer, key) for key in COMMON if key not in defaults}
        found = {
            key: next((getattr(place, key) for place in places if hasattr(place, key)), default)
            for key, default in defaults.items()
        }
        if "label" in defaults:
            found["label"] = mixer.share.name
        given = {key: value for key, value in found.items() if value != defaults[key]}
        try:
            same = method(mixer.num_classes, **given) == mixer
        except (TypeError, ValueError):
            continue
        if same:
            return _call_text(name, given)
    return None


def _default(kind: type, name: str) -> Any:
    (found,) = (f for f in dataclasses.fields(kind) if f.name == name)
    return found.default_factory() if found.default_factory is not dataclasses.MISSING else found.default


def _call_text(name: str, settings: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{key}={value_text(value)}" for key, value in settings.items())
    return f"{name}({inside})" if inside else name


def value_text(value: Any) -> str:
    """A setting as method strings have it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        given = {key: each for key, each in fields.items() if each != _default(type(value), key)}
        return _call_text(value.name, given)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if value is None:
        return "none"
    return value if isinstance(value, str) else repr(value)


# Building


def _build(tree: Any, num_classes: int, defaults: Mapping[str, Any]) -> AnyMixer:
    if isinstance(tree, Either):
        choices, weights = [], []
        for weight, term in tree.terms:
            mixer = _build(term, num_classes, defaults)
            inner = mixer.weights if isinstance(mixer, Switch) else (1.0,)
            total = sum(inner)
            for choice, odds in zip(mixer.mixers, inner, strict=True):
                choices.append(choice)
                weights.append(weight * odds / total)
        return Switch(tuple(choices), tuple(weights))
    if isinstance(tree, Plus):
        base = _build(tree.base, num_classes, defaults)
        added = [_addition(call) for call in tree.additions]
        grown = tuple(_grow(mixer, added) for mixer in base.mixers)
        return Switch(grown, base.weights) if isinstance(base, Switch) else grown[0]
    assert isinstance(tree, Call)
    settings = {**defaults, **tree.settings}
    if tree.name == "mix":
        return Mixer(num_classes, **_checked("mix", settings, _mixer_fields()))
    if tree.name not in METHODS:
        raise unknown_name("method", tree.name, (*METHODS, "mix"))
    method = METHODS[tree.name]
    known = [key for key in inspect.signature(method).parameters if key not in ("num_classes", "common")]
    return method(num_classes, **_checked(tree.name, settings, [*known, *(key for key in COMMON if key not in known)]))


def _mixer_fields() -> list[str]:
    return [f.name for f in dataclasses.fields(Mixer) if f.name != "num_classes"]


def _addition(call: Call) -> Any:
    known = additions()
    if call.name in METHODS and call.name not in known:
        raise ValueError(
            f"{call.name} is a method and cannot be added to another; use '|' to alternate between methods"
        )
    if call.name not in known:
        raise unknown_name("addition", call.name, known)
    return _part(known[call.name], call)


def _grow(mixer: Mixer, added: list[Any]) -> Mixer:
    inner = tuple(part for part in added if part.kind == "inner")
    extra = tuple(part for part in added if part.kind == "extra")
    return dataclasses.replace(mixer, inner=mixer.inner + inner, extra=mixer.extra + extra)


def _part(kind: type, call: Call) -> Any:
    return kind(**_checked(call.name, call.settings, [f.name for f in dataclasses.fields(kind)]))


def _checked(name: str, settings: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    for key in settings:
        if key not in known:
            raise unknown_name(f"setting of {name}", key, known)
    return {key: _resolve(key, value) for key, value in settings.items()}


def _resolve(key: str, value: Any) -> Any:
    """A parsed value: a part if the setting holds parts, otherwise a word, number or tuple."""
    kinds = parts(key) if key in KINDS else None
    if isinstance(value, tuple):
        return tuple(_resolve(key, each) for each in value)
    if isinstance(value, list):
        return tuple(value)
    if kinds is not None and (isinstance(value, str) or (value is None and "none" in kinds)):
        value = Call(value or "none", {})
    if not isinstance(value, Call):
        return value
    if kinds is None:
        if value.settings:
            raise ValueError(f"setting {key!r} takes a word or a number, got {value.name}(...)")
        return value.name
    if key == "mask" and value.name == "nothing":  # its name in version 0.1
        value = Call("none", value.settings)
    if value.name not in kinds:
        raise unknown_name(key, value.name, kinds)
    return _part(kinds[value.name], value)
