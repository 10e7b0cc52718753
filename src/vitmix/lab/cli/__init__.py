"""The subcommands of `vitmix`: a module for each, with its settings and what it does with them."""

from importlib import import_module

from vitmix.lab.cli._parser import Command as Command
from vitmix.lab.cli._parser import CommandGroup as CommandGroup

MODULES = {"eval": "evaluate"}  # where a module's name is not the command's
RENAMED = {"draw": "figure"}  # old names, which work until version 0.3
NAMES = (
    "train",
    "transfer",
    "suggest",
    "eval",
    "score",
    "export",
    "analyze",
    "compare",
    "report",
    "show",
    "explore",
    "figure",
)
NAMES += ("maps", "recipes", "methods", "models", "bench")
COMMANDS: dict[str, Command | CommandGroup] = {
    name: import_module(f"vitmix.lab.cli.{MODULES.get(name, name)}").COMMAND for name in NAMES
}
