"""`vitmix train`: its flags are the fields of `TrainConfig`."""

import argparse
import sys
import traceback
import typing
from typing import Any

import yaml

from vitmix.lab.cli._command import Command
from vitmix.lab.cli.recipes import list_all
from vitmix.lab.reading import parse_yaml
from vitmix.lab.training import config
from vitmix.lab.training.output import unfailing_output

EXAMPLES = {"model_args": "depth=6", "--set": "epochs=10"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
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


def _run(namespace: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(namespace).items() if name in config.FIELDS}
    if flags.get("recipe") == "help":
        return list_all()
    if "model_args" in flags:
        flags["model_args"] = dict(map(key_and_value, flags["model_args"]))
    settings = config.resolve(flags, namespace.config)
    with unfailing_output():
        return _train(settings)


def _train(settings: config.TrainConfig) -> int:
    import torch

    from vitmix.lab.data.images import NothingReadable
    from vitmix.lab.training import processes
    from vitmix.lab.training.checkpoints import Foreign
    from vitmix.lab.training.engine import Trainer

    checked = False
    try:
        trainer = Trainer(settings)
        checked = True
        code = trainer.run()
        if code == 0:
            trainer.evaluate_best()
        return code
    except processes.Refused:
        if torch.distributed.get_rank() == 0:  # it speaks for all
            raise
        return 2
    except Exception as error:
        # Input was checked before; what comes later needs its whole traceback.
        expected = isinstance(error, (NothingReadable, Foreign))
        wrong_input = isinstance(error, (ValueError, OSError)) and (not checked or expected)
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            _tell_failure(error, with_traceback=not wrong_input)
            return 2 if wrong_input else 1
        if wrong_input or not isinstance(error, (ValueError, OSError)):
            raise
        if isinstance(error, OSError) and error.filename:  # a file that cannot be read says it all
            then = "the same command continues from the newest complete checkpoint, or starts if there is none"
            print(f"vitmix: error: {error.strerror}: {error.filename}; {then}", file=sys.stderr)
        else:
            traceback.print_exc()
        return 1
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _tell_failure(error: Exception, *, with_traceback: bool) -> None:
    """Says in one of several processes why the training failed, and where."""
    import torch

    from vitmix.lab.training import processes

    if not processes.fails_first():
        return
    said = " ".join(str(error).split()) or type(error).__name__
    if processes.is_lost_connection(error):
        said = f"another process ended without a word, as when memory runs out ({said})"
    elif with_traceback:
        traceback.print_exception(error)
        said = f"{type(error).__name__}: {said}"
    print(f"vitmix: error: process {torch.distributed.get_rank()}: {said}", file=sys.stderr)


def key_and_value(text: str, setting: str = "model_args") -> tuple[str, Any]:
    """`"depth=6"` as `("depth", 6)`."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"{setting} takes KEY=VALUE, such as {EXAMPLES[setting]}, got {text!r}")
    try:
        return key, parse_yaml(value)
    except yaml.YAMLError:
        raise ValueError(f"{setting} takes values as YAML has them, got {text!r}; close brackets and quotes") from None
    except ValueError as problem:
        raise ValueError(f"{setting} cannot take {key}: {problem}") from None


COMMAND = Command("Train a model, or continue a training.", _add_arguments, _run)
