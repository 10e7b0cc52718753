"""The subcommands of `vitmix`, one module each."""

from vitmix.commands import evaluate, export, methods, recipes, report, train
from vitmix.commands._command import Command as Command

COMMANDS: dict[str, Command] = {
    "train": train.COMMAND,
    "eval": evaluate.COMMAND,
    "export": export.COMMAND,
    "report": report.COMMAND,
    "recipes": recipes.COMMAND,
    "methods": methods.COMMAND,
}
