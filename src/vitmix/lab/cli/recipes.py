"""`vitmix recipes`."""

from dataclasses import dataclass

from vitmix.lab.cli._parser import Command
from vitmix.lab.columns import aligned
from vitmix.lab.settings import Name, Settings, option
from vitmix.lab.training.recipes import list_recipes, recipe_header, recipe_text


@dataclass(frozen=True, kw_only=True)
class Recipes(Settings):
    """List the recipes, or print one."""

    name: Name = option("", "print this recipe instead of the list", positional=True)


def run(settings: Recipes) -> int:
    if not settings.name:
        return list_all()
    print(recipe_text(settings.name), end="")
    return 0


def list_all() -> int:
    """Prints one line for each recipe."""
    print(aligned((name, recipe_header(name)[0]) for name in list_recipes()))
    print("\nFor vitmix transfer:\n")
    print(aligned((name, recipe_header(name)[0]) for name in list_recipes("transfer")))
    print("\nvitmix recipes NAME prints one; vitmix train --recipe NAME trains with it.")
    return 0


COMMAND = Command(Recipes, run)
