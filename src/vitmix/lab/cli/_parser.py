"""From a command's settings to its arguments: argparse reads the words, `vitmix.lab.settings` what they mean."""

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, NoReturn

from vitmix.lab.settings import (
    Kind,
    Settings,
    SettingValues,
    fitted,
    key_and_value,
    kinds_of,
    section_of,
    unknown,
    usual,
)

EARLIER = "Earlier spellings, for one more version"
VALUES = {dict: "KEY=VALUE", int: "N", float: "NUMBER"}
SHORT = 24  # choices up to this length stand for the value: `best|last`


@dataclass(frozen=True)
class Command:
    """A subcommand: its settings, and what it does with them.

    A ValueError or OSError that leaves `run`, which returns the exit code, is wrong input: the user sees its message
    alone.

    Attributes:
        line: its line in the overview, if not the docstring of the settings.
        read: builds the settings from the given flags, if other sources count too.
        layered: flags override files and recipes, so every switch also has an off form: `--no-compile`.
        without, defaults: for a kind in a group: settings that it does not take, and other defaults.
    """

    settings: type[Settings]
    run: Callable[[Any], int]
    line: str = ""
    read: Callable[[SettingValues], Any] | None = None
    layered: bool = False
    without: Collection[str] = ()
    defaults: SettingValues = field(default_factory=dict)

    @property
    def about(self) -> str:
        return self.line or (self.settings.__doc__ or "").partition("\n")[0]


@dataclass(frozen=True)
class CommandGroup:
    """A subcommand with kinds, each a command."""

    about: str
    kinds: Mapping[str, Command]
    epilog: str = ""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; '{self.prog} --help' shows how it is used")


def add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Command | CommandGroup], kind: str) -> None:
    """Adds commands or, within a group, their kinds."""
    choices = parser.add_subparsers(title=f"{kind.lower()}s", metavar=kind, required=True, parser_class=Parser)
    for name, command in commands.items():
        below = choices.add_parser(name, help=command.about, description=command.about, allow_abbrev=False)
        if isinstance(command, CommandGroup):
            below.epilog = command.epilog
            add_commands(below, command.kinds, "KIND")
        else:
            add_arguments(below, command)


def add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    """An argument for each field of the command's settings, in groups by section."""
    settings = command.settings
    parser.set_defaults(command=command, parser=parser)
    parser.epilog = settings.epilog
    if command.layered:
        parser.usage = f"{parser.prog} [--config FILE] [--SETTING VALUE ...]"
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    taken = [each for each in fields(settings) if each.name not in command.without]
    for each in sorted(taken, key=lambda each: each.metadata["now"] is not None):
        title = EARLIER if each.metadata["now"] else section_of(settings, each.name)
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        kind, default = kinds_of(settings)[each.name], command.defaults.get(each.name, usual(settings, each.name))
        name = each.name if each.metadata["positional"] else flag(each.name)
        group.add_argument(name, **_argument(each, kind, default, command.layered))


def _argument(each: "Field[Any]", kind: Kind, default: Any, layered: bool) -> dict[str, Any]:
    """What argparse needs to know. Values stay texts: the settings convert them, as they do for YAML."""
    found = {"default": argparse.SUPPRESS, "help": _help(each, kind, default).replace("%", "%%")}
    if kind.base is bool:
        return found | {"action": argparse.BooleanOptionalAction if layered else "store_true"}
    choices, needed, several = "|".join(kind.choices), default is MISSING, kind.length is not None or kind.base is dict
    found["metavar"] = kind.metavar or (
        choices if 0 < len(choices) < SHORT else VALUES.get(kind.base, "NAME" if choices else "STRING")
    )
    if not each.metadata["positional"]:
        return found | {"dest": each.name, "required": needed, "nargs": "+" if several else None}
    return found | {"nargs": ("+" if needed else "*") if several else (None if needed else "?")}


def _help(each: "Field[Any]", kind: Kind, default: Any) -> str:
    text, *usually = each.metadata["help"].split(" (default")
    if each.metadata["now"]:
        return f"{text}; now {each.metadata['now']}"
    if len("|".join(kind.choices)) >= SHORT:
        text += f": {', '.join(kind.choices)}"
    if usually or default in (None, MISSING, "", (), {}) or default is False:
        return " (default".join([text, *usually])
    items = default if isinstance(default, tuple) else (default,)
    return f"{text} (default: {' '.join(f'{item:.4g}' if isinstance(item, float) else str(item) for item in items)})"


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """What was given, as texts, and the command."""
    found, unrecognized = parser.parse_known_args([_with_dashes(each) for each in arguments])
    if unrecognized:
        name = unrecognized[0].partition("=")[0]
        known = [text for text in found.parser._option_string_actions if text.startswith("--")]
        raise unknown(f"argument {name!r}", name, known, f"{found.parser.prog} --help")
    return found


def settings_from(found: argparse.Namespace) -> Any:
    """The settings of the command, from what was given."""
    settings: type[Settings] = found.command.settings
    given: SettingValues = {name: value for name, value in vars(found).items() if name in kinds_of(settings)}
    for each in fields(settings):
        if each.name in given and each.metadata["now"]:
            note(f"{flag(each.name)} is now {each.metadata['now']}")
        if each.name in given and kinds_of(settings)[each.name].base is dict:
            given[each.name] = dict(key_and_value(text, each.name) for text in given[each.name])
    if found.command.read is not None:
        return found.command.read(given)
    values = {name: fitted(settings, name, value, "the flags") for name, value in given.items()}
    return settings(**{**found.command.defaults, **values})


def flag(name: str) -> str:
    """`"--weight-decay"` of the field `weight_decay`."""
    return "--" + name.replace("_", "-")


def note(text: str) -> None:
    """Prints a note about an earlier spelling to stderr."""
    print(f"vitmix: note: {text}", file=sys.stderr)


def _with_dashes(argument: str) -> str:
    """`--weight_decay=1` as `--weight-decay=1`: settings may be spelled as in YAML files."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if argument.startswith("--") else argument
