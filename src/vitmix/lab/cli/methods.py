"""`vitmix methods`."""

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

from vitmix._checks import unknown_name
from vitmix._registry import KINDS, METHODS, parts
from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import Name, Settings, option


@dataclass(frozen=True, kw_only=True)
class Methods(Settings):
    """List the mixing methods and parts, or explain one."""

    name: Name = option("", "explain this method or part and its settings", positional=True)


def run(settings: Methods) -> int:
    return _explain(settings.name) if settings.name else _list()


def _list() -> int:
    for name, method in METHODS.items():
        print(f"{name:<9} {_first_line(method)}")
        settings = [f"{key}={default}" for key, default in _settings(method).items()]
        if settings:
            print(f"{'':<9} {', '.join(settings)}")
    print("\nMethods combine: 'mixup | cutmix' takes either, '0.2*mixup | 0.8*transmix' with these odds,")
    print("'(mixup | cutmix) + htm(block=2) + vtm(block=2)' adds mixing inside the network.")
    print("\nParts, for 'mix(mask=block, share=aligned)':")
    for kind in KINDS:
        for number, (name, part) in enumerate(parts(kind).items()):
            print(f"{'' if number else kind:<9} {_call(name, part)}")
    print("\n'vitmix methods NAME' explains the settings of a method or a part.")
    return 0


def _explain(name: str) -> int:
    found: dict[str, Any] = {name: METHODS[name]} if name in METHODS else {}
    found |= {f"{name}, {kind}": parts(kind)[name] for kind in KINDS if name in parts(kind)}
    if not found:
        raise unknown_name("method or part", name, [*METHODS, *(each for kind in KINDS for each in parts(kind))])
    for number, (title, thing) in enumerate(found.items()):
        print(f"{'' if not number else chr(10)}{title}: {inspect.getdoc(thing)}")
        settings = [f"{key}={default}" for key, default in _settings(thing).items()]
        if settings:
            print(f"Defaults: {', '.join(settings)}")
    return 0


def _settings(thing: Any) -> dict[str, Any]:
    if isinstance(thing, type):
        return {field.name: field.default for field in dataclasses.fields(thing)}
    parameters = inspect.signature(thing).parameters.items()
    return {key: each.default for key, each in parameters if each.kind is each.KEYWORD_ONLY}


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _call(name: str, part: type) -> str:
    settings = [f"{key}={default}" for key, default in _settings(part).items()]
    return f"{name}({', '.join(settings)})" if settings else name


COMMAND = Command(Methods, run)
