"""The subcommands of `vitmix`, one module each."""

from vitmix.lab.cli import (
    analyze,
    bench,
    compare,
    evaluate,
    export,
    figure,
    maps,
    methods,
    models,
    recipes,
    report,
    show,
    train,
)
from vitmix.lab.cli._command import Command as Command

RENAMED = {"draw": "figure"}  # old names, which work until version 0.3
COMMANDS: dict[str, Command] = {
    "train": train.COMMAND,
    "eval": evaluate.COMMAND,
    "export": export.COMMAND,
    "analyze": analyze.COMMAND,
    "compare": compare.COMMAND,
    "report": report.COMMAND,
    "show": show.COMMAND,
    "figure": figure.COMMAND,
    "maps": maps.COMMAND,
    "recipes": recipes.COMMAND,
    "methods": methods.COMMAND,
    "models": models.COMMAND,
    "bench": bench.COMMAND,
}
