"""Mixers as text: `"mixup(alpha=0.8) | tl_align"`, parsed without `eval`, and back.

    spec := term ("|" term)*                  equal odds unless weighted
    term := [number "*"] part ("+" addition)*
    part := name ["(" key "=" value, ... ")"] | "(" spec ")"

A name is a method (`cutmix`), or `mix` with any parts: `mix(mask=block(share=0.3), share=aligned, extra=[region])`.
An addition is hidden mixing (`htm`, `vtm`) or an extra loss (`region`, `consistency`).
"""

import dataclasses
import inspect
import re
import warnings
from collections.abc import Mapping
from typing import Any

from vitmix._checks import unknown_name
from vitmix.methods import METHODS
from vitmix.mixer import AnyMixer, Mixer, Switch
from vitmix.parts import losses, masks, pairing, shares
from vitmix.parts.hidden import HTM, VTM

COMMON = ("pairing", "smoothing", "loss")  # settings that every method has
PARTS: dict[str, dict[str, type]] = {
    kind: {part.name: part for part in parts}
    for kind, parts in {
        "mask": (
            masks.NoMask,
            masks.ConstantMask,
            masks.BoxMask,
            masks.BlockMask,
            masks.ScatteredMask,
            masks.SalientBox,
        ),
        "share": (shares.AreaShare, shares.AttentionShare, shares.AlignedShare, shares.ActivationShare),
        "extra": (losses.Region, losses.Consistency),
        "inner": (HTM, VTM),
        "pairing": (pairing.Reversed, pairing.Rolled, pairing.Derangement),
    }.items()
}
ADDITIONS = {**PARTS["inner"], **PARTS["extra"]}


def list_methods() -> list[str]:
    """The names of the methods."""
    return sorted(METHODS)


def create(method: str, num_classes: int, *, defaults: Mapping[str, Any] | None = None, **settings: Any) -> AnyMixer:
    """The mixer that a name or a text describes.

    Args:
        defaults: settings that every mixer has (`pairing`, `smoothing`, `loss`), where the text does not give them.
        settings: of the method, when `method` is a bare name: `create("cutmix", num_classes=100, alpha=0.5)`; beside
            any other text, defaults.
    """
    tree = _Parser(method).parse()
    if isinstance(tree, _Call) and not tree.settings:
        return _build(_Call(tree.name, settings), num_classes, defaults or {})
    if own := sorted(set(settings) - set(COMMON)):
        raise ValueError(f"{own[0]} goes beside a bare method name only, got {method!r}; write it into the text")
    return _build(tree, num_classes, {**(defaults or {}), **settings})


def spelled(method: str) -> str:
    """The text with blanks as the documentation has them: `"mixup|smmix"` as `"mixup | smmix"`."""
    text = re.sub(r"\s*([()\[\],=*|])\s*", r"\1", method.strip()).replace("|", " | ").replace(",", ", ")
    # A '+' before a name adds something; one before a digit belongs to the number.
    return re.sub(r"\s*\+\s*(?=[A-Za-z_])", " + ", text)


def same_method(first: str, second: str, *, smoothing: float) -> bool:
    """Whether the texts make the same mixer, as `mixup` and `mixup(alpha=0.8)` do; `smoothing` where they give none."""
    try:
        with warnings.catch_warnings(action="ignore"):
            one, two = (create(text, 2, defaults={"smoothing": smoothing}) for text in (first, second))
    except ValueError:  # of a version that knew other methods
        return first == second
    return one == two


def to_text(mixer: AnyMixer) -> str:
    """The text that `create` turns into an equal mixer."""
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
    for kept in (mixer.extra, ()):  # smmix is a method with its losses; other losses are additions
        base = dataclasses.replace(bare, extra=kept)
        text = _method_text(base)
        if text is not None:
            additions = (*(() if kept else mixer.extra), *mixer.inner)
            return " + ".join([text, *map(_value_text, additions)])
    fields = {f.name: getattr(bare, f.name) for f in dataclasses.fields(bare) if f.name != "num_classes"}
    given = {name: value for name, value in fields.items() if value != _default(Mixer, name)}
    return " + ".join([_call_text("mix", given), *map(_value_text, (*mixer.extra, *mixer.inner))])


def _method_text(mixer: Mixer) -> str | None:
    """The text of the first method that makes this mixer: its settings are looked up by name among the parts."""
    places = (mixer.mask, mixer.share, *mixer.extra, *mixer.inner, mixer)
    for name, method in METHODS.items():
        defaults = {key: _default(Mixer, key) for key in COMMON} | {
            key: parameter.default
            for key, parameter in inspect.signature(method).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
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
    inside = ", ".join(f"{key}={_value_text(value)}" for key, value in settings.items())
    return f"{name}({inside})" if inside else name


def _value_text(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        given = {key: each for key, each in fields.items() if each != _default(type(value), key)}
        return _call_text(value.name, given)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    return value if isinstance(value, str) else repr(value)


# Parsing


@dataclasses.dataclass(frozen=True)
class _Call:
    name: str
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Plus:
    base: Any
    additions: list[_Call]


@dataclasses.dataclass(frozen=True)
class _Either:
    terms: list[tuple[float, Any]]


_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<mark>[()\[\],=*+|]))"
)
_WORDS = {"True": True, "False": False, "true": True, "false": False, "None": None, "none": None}


class _Parser:
    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"a method must be a non-empty text such as 'cutmix', got {text!r}")
        self.text, self.position, self.tokens = text, 0, []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"cannot read {text!r} from {text[at:].strip()!r} on{_underscore_hint(text)}")
            self.tokens.append((match.lastgroup, match[match.lastgroup or 0]))
            at = match.end()

    def parse(self) -> Any:
        tree = self.spec()
        if self.position < len(self.tokens):
            raise self.error("the end")
        return tree

    def spec(self) -> Any:
        terms = [self.term()]
        while self.take("|"):
            terms.append(self.term())
        if len(terms) == 1 and terms[0][0] is not None:
            raise ValueError(f"a weight is for one of several methods, and {self.text!r} has nothing to switch with")
        return terms[0][1] if len(terms) == 1 else _Either([(1.0 if w is None else w, term) for w, term in terms])

    def term(self) -> tuple[float | None, Any]:
        weight = None
        if self.peek()[0] == "number":
            weight = float(self.next()[1])
            if not self.take("*"):
                raise self.error("'*' after a weight")
        base = self.spec_in_brackets() if self.take("(") else self.call()
        additions = []
        while self.take("+"):
            additions.append(self.call())
        return weight, _Plus(base, additions) if additions else base

    def spec_in_brackets(self) -> Any:
        inner = self.spec()
        self.expect(")")
        return inner

    def call(self) -> _Call:
        kind, name = self.next()
        if kind != "name":
            self.position -= 1
            raise self.error("a name")
        settings: dict[str, Any] = {}
        if self.take("("):
            while not self.take(")"):
                if settings:
                    self.expect(",")
                key = self.next()[1]
                self.expect("=")
                if key in settings:
                    raise ValueError(f"setting {key!r} is given twice in {self.text!r}")
                settings[key] = self.value()
        return _Call(name, settings)

    def value(self) -> Any:
        if self.take("["):
            items = []
            while not self.take("]"):
                if items:
                    self.expect(",")
                items.append(self.value())
            return tuple(items)
        kind, token = self.peek()
        if kind == "number":
            self.next()
            return int(token) if re.fullmatch(r"[+-]?\d+", token) else float(token)
        if token in _WORDS:
            self.next()
            return _WORDS[token]
        if token in ("nan", "inf"):
            self.next()
            return float(token)
        return self.call()

    def peek(self) -> tuple[str | None, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else (None, "the end")

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
        return ValueError(f"expected {wanted} but found {self.peek()[1]!r} in {self.text!r}")


def _underscore_hint(text: str) -> str:
    """For those who write TL-Align as its paper does."""
    words = (each.replace("-", "_").lower() for each in re.findall(r"[A-Za-z]\w*(?:-\w+)+", text))
    meant = next((word for word in words if word in METHODS), None)
    return f"; did you mean {meant!r}?" if meant else ""


# Building


def _build(tree: Any, num_classes: int, defaults: Mapping[str, Any]) -> AnyMixer:
    if isinstance(tree, _Either):
        choices, weights = [], []
        for weight, term in tree.terms:
            mixer = _build(term, num_classes, defaults)
            inner = mixer.weights if isinstance(mixer, Switch) else (1.0,)
            total = sum(inner)
            for choice, odds in zip(mixer.mixers, inner, strict=True):
                choices.append(choice)
                weights.append(weight * odds / total)
        return Switch(tuple(choices), tuple(weights))
    if isinstance(tree, _Plus):
        base = _build(tree.base, num_classes, defaults)
        added = [_addition(call) for call in tree.additions]
        grown = tuple(_grow(mixer, added) for mixer in base.mixers)
        return Switch(grown, base.weights) if isinstance(base, Switch) else grown[0]
    assert isinstance(tree, _Call)
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


def _addition(call: _Call) -> Any:
    if call.name in METHODS and call.name not in ADDITIONS:
        raise ValueError(
            f"{call.name} is a whole method, which cannot be added to another; '|' switches between methods"
        )
    if call.name not in ADDITIONS:
        raise unknown_name("addition", call.name, ADDITIONS)
    return _part(ADDITIONS[call.name], call)


def _grow(mixer: Mixer, added: list[Any]) -> Mixer:
    inner = tuple(part for part in added if part.name in PARTS["inner"])
    extra = tuple(part for part in added if part.name in PARTS["extra"])
    return dataclasses.replace(mixer, inner=mixer.inner + inner, extra=mixer.extra + extra)


def _part(kind: type, call: _Call) -> Any:
    return kind(**_checked(call.name, call.settings, [f.name for f in dataclasses.fields(kind)]))


def _checked(name: str, settings: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    for key in settings:
        if key not in known:
            raise unknown_name(f"setting of {name}", key, known)
    return {key: _resolve(key, value) for key, value in settings.items()}


def _resolve(key: str, value: Any) -> Any:
    """A parsed value: a nested part for the settings that hold parts, else a plain word, number or tuple."""
    kinds = PARTS.get(key)
    if isinstance(value, tuple):
        return tuple(_resolve(key, each) for each in value)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and kinds is not None:
        value = _Call(value, {})
    if not isinstance(value, _Call):
        return value
    if kinds is None:
        if value.settings:
            raise ValueError(f"setting {key!r} takes a word or a number, got {value.name}(...)")
        return value.name
    if value.name not in kinds:
        raise unknown_name(key, value.name, kinds)
    return _part(kinds[value.name], value)
