"""`vitmix recipes`."""

import argparse

from vitmix.lab.cli._command import Command
from vitmix.lab.training.recipes import list_recipes, recipe_header, recipe_text


def list_all() -> int:
    """Prints one line for each recipe."""
    names = list_recipes()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {recipe_header(name)[0]}")
    print("\nvitmix recipes NAME prints one; vitmix train --recipe NAME trains with it.")
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this recipe instead of the list")


def _run(namespace: argparse.Namespace) -> int:
    if namespace.name is None:
        return list_all()
    print(recipe_text(namespace.name), end="")
    return 0


COMMAND = Command("List the recipes, or print one.", _add_arguments, _run)
