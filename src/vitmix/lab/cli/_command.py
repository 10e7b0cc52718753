"""What a subcommand of `vitmix` is."""

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand: its line in the overview, its arguments, and what it does; `run` returns the exit code.

    A ValueError or OSError that leaves `run` is wrong input: the user sees its sentence alone.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """For commands that take none."""
