"""The command `vitmix`: finds the subcommand, reads its arguments, and turns wrong input into an error message."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress

from vitmix import __version__
from vitmix._registry import PLUGINS, load_plugins
from vitmix.lab.cli import COMMANDS, RENAMED
from vitmix.lab.cli._parser import Parser, add_commands, parse, settings_from
from vitmix.lab.training.output import flush_or_discard

BAD_INPUT = 2
INTERRUPTED = 128 + signal.SIGINT
TURN_SECONDS = 10  # that other processes of a node give the first one to speak
CLOSED_PIPE = 141  # as a shell reports a tool that SIGPIPE ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    warnings.formatwarning = lambda message, *_, **__: f"vitmix: note: {message}\n"
    failure: OSError | None = None
    code, plugins = 1, os.environ.get(PLUGINS)
    with suppress(AttributeError):  # a stand-in for the stream
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore  names of files need not be valid UTF-8
    try:
        code = _main(arguments)
    except KeyboardInterrupt:  # Ctrl-C needs no message; a training run that has begun saves its state first
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        code = CLOSED_PIPE
    finally:  # argparse leaves by SystemExit when it has printed its help
        if plugins is None:  # what --plugin added was for the processes that this command started
            os.environ.pop(PLUGINS, None)
        else:
            os.environ[PLUGINS] = plugins
        # What is left in the buffers would fail when the interpreter ends, with a traceback.
        failure = flush_or_discard(sys.stdout) or flush_or_discard(sys.stderr)
    if failure is None or code:
        return code
    if isinstance(failure, BrokenPipeError):
        return CLOSED_PIPE
    print(f"vitmix: error: the output could not be written: {failure.strerror}", file=sys.stderr)
    return 1


def make_parser() -> Parser:
    """The parser of every command."""
    parser = Parser(prog="vitmix", description="Mixing augmentation for vision transformers.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"vitmix {__version__}")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help=f"import a module or a .py file that registers parts or methods; may be repeated; also ${PLUGINS}",
    )
    add_commands(parser, COMMANDS, "COMMAND")
    return parser


def _main(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    try:
        found = parse(parser, _with_new_name(sys.argv[1:] if arguments is None else list(arguments)))
        if found.plugin:  # in the environment, so that the processes this one starts have them too
            os.environ[PLUGINS] = ",".join(filter(None, (os.environ.get(PLUGINS), *found.plugin)))
        load_plugins()
        return found.command.run(settings_from(found))
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # once per node: another node may have other files
            with suppress(BrokenPipeError):
                print(f"vitmix: error: {_one_line(error)}", file=sys.stderr)
        else:  # torchrun ends all processes of a node once one has ended, so the first would lose its turn
            time.sleep(TURN_SECONDS)
        return BAD_INPUT


def _with_new_name(arguments: list[str]) -> list[str]:
    """The arguments with the new name of a renamed command, and a note about it."""
    places = [
        n for n, word in enumerate(arguments) if not word.startswith("-") and arguments[n - 1 : n] != ["--plugin"]
    ]
    if not places or arguments[places[0]] not in RENAMED:
        return arguments
    old, new = arguments[places[0]], RENAMED[arguments[places[0]]]
    warnings.warn(f"'vitmix {old}' is now 'vitmix {new}'; the old name will be removed in 0.3", FutureWarning, 2)
    return [*arguments[: places[0]], new, *arguments[places[0] + 1 :]]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
