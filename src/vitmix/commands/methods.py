"""`vitmix methods`."""

import argparse
import inspect

from vitmix.commands._command import Command, no_arguments
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
    return 0


COMMAND = Command("List the mixing methods and their settings.", no_arguments, _run)
