"""`vitmix methods`."""

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

from vitmix._checks import unknown_name
from vitmix._registry import KINDS, METHODS, parts
from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import Name, Settings, option

COMMON = ", as of every method: label smoothing, which image is the partner, and the main loss (ce or bce)."


@dataclass(frozen=True, kw_only=True)
class Methods(Settings):
    """List the mixing methods and parts, or explain one."""

    name: Name = option("", "explain this method or part and its settings", positional=True)


def run(settings: Methods) -> int:
    return _explain(settings.name) if settings.name else _list()


def _list() -> int:
    width = max(map(len, METHODS))
    for name, method in METHODS.items():
        print(f"{name:<{width}} {(inspect.getdoc(method) or '').partition(chr(10))[0]}")
        if _settings(method):
            print(f"{'':<{width}} {_settings(method)}")
    print(
        "\nMethods combine: 'mixup | cutmix' picks one at random, '0.2*mixup | 0.8*transmix' with these probabilities,"
    )
    print("'(mixup | cutmix) + htm(block=2) + vtm(block=2)' adds mixing inside the network.")
    print("\nParts, for 'mix(mask=block, share=aligned)':")
    for kind in KINDS:
        for number, (name, part) in enumerate(parts(kind).items()):
            settings = _settings(part)
            print(f"{'' if number else kind:<9} {name}{settings and f'({settings})'}")
    print("\n'vitmix methods NAME' explains the settings of a method or a part.")
    return 0


def _explain(name: str) -> int:
    found: dict[str, object] = {name: METHODS[name]} if name in METHODS else {}
    found |= {f"{name}, {kind}": parts(kind)[name] for kind in KINDS if name in parts(kind)}
    if not found:
        raise unknown_name("method or part", name, [*METHODS, *(each for kind in KINDS for each in parts(kind))])
    for number, (title, thing) in enumerate(found.items()):
        said = (inspect.getdoc(thing) or "").replace("Args:\n", "Settings:\n").replace(" of `Mixer`.", COMMON)
        print(f"{'' if not number else chr(10)}{title}: {said}")
        if _settings(thing):
            print(f"Defaults: {_settings(thing)}")
    return 0


def _settings(thing: Any) -> str:
    """The settings of a method or a part, with their defaults as method strings have them."""
    from vitmix._text import value_text  # not at the top: it imports torch

    if isinstance(thing, type):
        defaults = {field.name: field.default for field in dataclasses.fields(thing)}
    else:
        parameters = inspect.signature(thing).parameters.items()
        defaults = {key: each.default for key, each in parameters if each.kind is each.KEYWORD_ONLY}
    return ", ".join(f"{key}={value_text(default)}" for key, default in defaults.items())


COMMAND = Command(Methods, run)
