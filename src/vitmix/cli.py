"""The command `vitmix`: each subcommand is an entry of `COMMANDS`; the flags of `train` are `TrainConfig`'s fields."""

import argparse
import difflib
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import yaml

from vitmix import config
from vitmix.methods import METHODS
from vitmix.recipes import list_recipes, recipe_header, recipe_text

BAD_INPUT = 2


class Command(NamedTuple):
    """A subcommand: its line in the overview, its arguments, and what it does; `run` returns the exit code.

    A ValueError or OSError that leaves `run` is wrong input: the user sees its sentence alone.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _Parser(prog="vitmix", description="Mixing augmentation for vision transformers.")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run, parser=subparser)
    try:
        given = [_with_dashes(each) for each in (sys.argv[1:] if arguments is None else arguments)]
        namespace, unknown = parser.parse_known_args(given)
        if unknown:
            raise _unknown_argument(unknown[0], namespace.parser)
        return namespace.run(namespace)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stdout = None
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("RANK", "0") == "0":  # every process of a distributed training comes here
            print(f"vitmix: error: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; '{self.prog} --help' shows how it is used")


def _with_dashes(argument: str) -> str:
    """`--weight_decay=1` as `--weight-decay=1`: settings may be spelled as in YAML files."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _unknown_argument(argument: str, parser: argparse.ArgumentParser) -> ValueError:
    name = argument.partition("=")[0]
    known = [text for text in parser._option_string_actions if text.startswith("--")]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return ValueError(f"unknown argument {name!r}; {hint}'{parser.prog} --help' lists them all")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# train


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "vitmix train [--config FILE] [--SETTING VALUE ...]"
    parser.epilog = "Later layers win: defaults, --recipe, --config, flags. Without arguments it trains the example."
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings, such as a run's config.yaml")
    sections: dict[str, Any] = {}
    for name, field in config.FIELDS.items():
        section = sections.setdefault(field.metadata["section"], None)
        if section is None:
            section = sections[field.metadata["section"]] = parser.add_argument_group(field.metadata["section"])
        section.add_argument("--" + name.replace("_", "-"), **_argument(name))


def _argument(name: str) -> dict[str, Any]:
    """How argparse takes a setting: as text, which the configuration turns into a value, as it does for YAML."""
    field, kind = config.FIELDS[name], config.KINDS[name]
    inner = next((each for each in typing.get_args(kind) if each is not type(None)), kind)
    described = str(field.metadata["help"])
    if field.metadata["choices"]:
        described += ": " + ", ".join(field.metadata["choices"])
    default = _default(name)
    if default not in (None, False, {}):
        shown = " ".join(f"{each:.4g}" for each in default) if isinstance(default, tuple) else default
        described += f" (default: {shown})"
    settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": described.replace("%", "%%"), "dest": name}
    if bool in (kind, inner):
        return settings | {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kind) is dict:
        return settings | {"nargs": "+", "metavar": "KEY=VALUE"}
    if tuple in (typing.get_origin(kind), typing.get_origin(inner)):
        return settings | {"nargs": "+", "metavar": "NUMBER"}
    words = {int: "N", float: "NUMBER"}
    return settings | {"metavar": words.get(kind if kind in words else inner, "TEXT")}


def _default(name: str) -> Any:
    return getattr(config.TrainConfig(), name)


def _train(namespace: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(namespace).items() if name in config.FIELDS}
    if flags.get("recipe") == "help":
        return _list_recipes(namespace)
    if "model_args" in flags:
        flags["model_args"] = dict(map(_key_and_value, flags["model_args"]))
    settings = config.resolve(flags, namespace.config)
    from vitmix.engine import Trainer

    trainer = Trainer(settings)
    try:
        return trainer.run()
    except (ValueError, OSError):  # input was checked before; what comes now needs its whole traceback
        traceback.print_exc()
        return 1


def _key_and_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"model_args takes KEY=VALUE, such as depth=6, got {text!r}")
    return key, yaml.safe_load(value)


# recipes, methods


def _add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this recipe instead of the list")


def _list_recipes(namespace: argparse.Namespace) -> int:
    if getattr(namespace, "name", None):
        print(recipe_text(namespace.name), end="")
        return 0
    names = list_recipes()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {recipe_header(name)[0]}")
    print("\nvitmix recipes NAME prints one; vitmix train --recipe NAME trains with it.")
    return 0


def _list_methods(namespace: argparse.Namespace) -> int:
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


COMMANDS: dict[str, Command] = {
    "train": Command("Train a model, or continue a training.", _add_train_arguments, _train),
    "recipes": Command("List the recipes, or print one.", _add_recipe_arguments, _list_recipes),
    "methods": Command("List the mixing methods and their settings.", lambda parser: None, _list_methods),
}
