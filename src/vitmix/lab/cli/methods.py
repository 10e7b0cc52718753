"""`vitmix methods`."""

import argparse
import dataclasses
import inspect

from vitmix._registry import KINDS, parts
from vitmix.lab.cli._command import Command, no_arguments
from vitmix.methods import METHODS


def _run(namespace: argparse.Namespace) -> int:
    for name, method in METHODS.items():
        print(f"{name:<9} {inspect.getdoc(method)}")
        settings = [
            f"{key}={parameter.default}"
            for key, parameter in inspect.signature(method).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        if settings:
            print(f"{'':<9} {', '.join(settings)}")
    print("\nMethods combine: 'mixup | cutmix' takes either, '0.2*mixup | 0.8*transmix' with these odds,")
    print("'(mixup | cutmix) + htm(block=2) + vtm(block=2)' adds mixing inside the network.")
    print("\nParts, for 'mix(mask=block, share=aligned)':")
    for kind in KINDS:
        for number, (name, part) in enumerate(parts(kind).items()):
            print(f"{'' if number else kind:<9} {_call(name, part)}")
    return 0


def _call(name: str, part: type) -> str:
    settings = [f"{field.name}={field.default}" for field in dataclasses.fields(part)]
    return f"{name}({', '.join(settings)})" if settings else name


COMMAND = Command("List the mixing methods and their settings.", no_arguments, _run)
