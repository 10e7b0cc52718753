"""The command `vitmix`. A subcommand is one entry of `COMMANDS`; the flags of `train` are the fields of `TrainConfig`."""

import argparse
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import yaml

from vitmix import config
from vitmix.methods import METHODS
from vitmix.recipes import list_recipes, recipe_header, recipe_text

BAD_INPUT = 2


class Command(NamedTuple):
    """A subcommand: its line in the overview, its arguments, and what it does; `run` returns the exit code."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; wrong input ends it with one sentence and exit code 2."""
    parser = _Parser(prog="vitmix", description="Mixing augmentation for vision transformers.")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    try:
        return parser.parse_args(arguments).run
    except InputError as error:
        return fail(error)


class InputError(Exception):
    """Wrong input, told in one sentence."""


def fail(error: object) -> int:
    print(f"vitmix: error: {error}", file=sys.stderr)
    return BAD_INPUT
