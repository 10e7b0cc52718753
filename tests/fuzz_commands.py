"""The command in this process, with stand-ins for what would take long or reach out: a training ends after two updates.

Nothing connects to a network; a comparison starts no trainings; models pass a few small batches.
"""

import io
import os
import re
import shlex
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader

from fuzz import Wrong
from vitmix.lab import families
from vitmix.lab.bench import growth, steps
from vitmix.lab.cli import main as cli
from vitmix.lab.comparison import runner
from vitmix.lab.training.engine import Trainer

ERROR = "vitmix: error: "
UPDATES, PASSES, PIXELS = 2, 6, 300_000  # of a command; of one batch
LARGE = 1_000_000  # parameters: a valid model that only takes long
CODES = {"compare": (0, 2, 75), "train": (0, 1, 2)}
REASONS = ("Stopped: ", "could not be written: ")  # of a training that ends with 1
_passes = 0


class Enough(BaseException):
    """The input was accepted: what follows is only work."""


def enough(*_: Any, **__: Any) -> NoReturn:
    raise Enough


def _count_passes(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    global _passes
    if hasattr(module, "pretrained_cfg"):  # a whole model of timm
        _passes += 1
        if _passes > PASSES or (inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].numel() > PIXELS):
            raise Enough


@cache
def prepare() -> None:
    """Puts the stand-ins into this process."""

    def no_network(*_: Any, **__: Any) -> NoReturn:
        raise OSError("no network")

    connect, load = socket.socket.connect, DataLoader.__init__

    def connect_here(opened: socket.socket, address: Any) -> None:
        if opened.family != socket.AF_UNIX:  # by which workers send what they loaded
            no_network()
        connect(opened, address)

    def load_with_two(loader: DataLoader, *arguments: Any, num_workers: int = 0, **settings: Any) -> None:
        load(loader, *arguments, num_workers=min(num_workers, 2), **settings)

    learn = Trainer._learn

    def learn_twice(trainer: Trainer, *arguments: Any) -> None:
        if trainer.update >= UPDATES or sum(each.numel() for each in trainer.core.model.parameters()) > LARGE:
            raise Enough
        learn(trainer, *arguments)

    torch._dynamo.config.disable = True  # pyright: ignore  a compiler may take minutes
    mock.patch.object(socket.socket, "connect", connect_here).start()
    mock.patch.object(DataLoader, "__init__", load_with_two).start()
    mock.patch.object(socket, "getaddrinfo", no_network).start()
    mock.patch.object(Trainer, "_learn", learn_twice).start()
    mock.patch.object(runner, "run_trainings", lambda *_, **__: []).start()
    mock.patch.object(steps, "measure_steps", enough).start()
    mock.patch.object(growth, "measure_statistics", enough).start()
    mock.patch.object(families, "table", lambda: ([["family", "method"], ["x", "yes"]], ["x: y"])).start()
    # These give the same each time, and take longer than what follows.
    mock.patch.object(cli, "make_parser", cache(cli.make_parser)).start()
    mock.patch.object(metadata, "entry_points", cache(metadata.entry_points)).start()
    nn.modules.module.register_module_forward_pre_hook(_count_passes)
    torch.set_num_threads(1)


@contextmanager
def _captured() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """What is printed, by streams that refuse what a terminal's would refuse."""
    out, err = io.BytesIO(), io.BytesIO()
    before = sys.stdout, sys.stderr
    sys.stdout = io.TextIOWrapper(out, "utf-8", "strict", write_through=True)
    sys.stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", write_through=True)
    kept = sys.stdout, sys.stderr  # a stream that is lost would close its buffer
    try:
        yield out, err
    finally:
        for stream in kept:
            stream.detach()
        sys.stdout, sys.stderr = before


def run_command(arguments: Sequence[str]) -> bool:
    """Whether the command accepts these arguments; `Wrong` where it ends in another way than documented."""
    global _passes
    prepare()
    _passes, code = 0, 0
    plugins = os.environ.pop("VITMIX_PLUGINS", None)
    with _captured() as (out, err), warnings.catch_warnings():
        form = warnings.formatwarning
        try:
            code = cli.main(list(arguments))
        except Enough:
            pass
        except SystemExit as end:  # of --help and --version
            code = end.code if isinstance(end.code, int) else 3
        finally:
            warnings.formatwarning = form
            os.environ.pop("VITMIX_PLUGINS", None)
            if plugins is not None:
                os.environ["VITMIX_PLUGINS"] = plugins
        printed, said = out.getvalue().decode(), err.getvalue().decode()
    if "Traceback" in said or "Traceback" in printed:
        raise Wrong(f"a traceback: {said[-3000:]}")
    command = next((each for each in arguments if not each.startswith("-")), "")
    if code not in CODES.get(command, (0, 2)):
        raise Wrong(f"exit code {code}: {said[-300:]}")
    if code == 1 and not any(reason in printed for reason in REASONS):
        raise Wrong(f"exit code 1 without a reason: {printed[-300:]} {said[-300:]}")
    errors = [line for line in said.splitlines() if line.startswith(ERROR)]
    if len(errors) != (code == 2):
        raise Wrong(f"exit code {code} with {len(errors)} errors: {said[-300:]}")
    if code == 2 and not said.endswith(f"{errors[0]}\n"):
        raise Wrong(f"lines after the error: {said[-300:]}")
    if code == 2 and re.match(rf"{ERROR}'\S+' codec", errors[0]):
        raise Wrong(f"an error of Python's, which names no file: {errors[0]}")
    if code == 2 and len(errors[0]) > 20_000:
        raise Wrong(f"an error of {len(errors[0])} characters: {errors[0][:300]}")
    return code != 2


def as_typed(arguments: Sequence[str]) -> str:
    """The command line for a shell; arguments that no shell can be given are escaped."""
    words = [word if len(word) < 400 else f"{word[:200]}...({len(word)} characters)" for word in arguments]
    return "vitmix " + shlex.join(words).encode("ascii", "backslashreplace").decode()
