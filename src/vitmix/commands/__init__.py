"""The subcommands of `vitmix`, one module each."""

from vitmix.commands import bench, methods, models, recipes, train
from vitmix.commands._command import Command as Command

COMMANDS: dict[str, Command] = {
    "train": train.COMMAND,
    "recipes": recipes.COMMAND,
    "methods": methods.COMMAND,
    "models": models.COMMAND,
    "bench": bench.COMMAND,
}
