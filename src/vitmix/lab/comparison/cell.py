"""One cell of a matrix as a process: `python -m vitmix.lab.comparison.cell PARENT FILE [FLAG ...]`.

It trains what the file says, unless that is done, and measures what the flags say and is not there yet. It is told to
stop when the process that started it is gone, however that ended: the training then writes a checkpoint, and the next
comparison goes on from there instead of finding the folder taken.
"""

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

from vitmix.lab.cli import main as cli
from vitmix.lab.comparison.measuring import Measuring
from vitmix.lab.comparison.runner import is_trained
from vitmix.lab.training.config import resolve
from vitmix.lab.training.runs import RunFolder

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def stop_with(parent: int) -> None:
    """Asks the kernel for SIGTERM when the parent ends; elsewhere than on Linux the training ends by itself."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # gone before the kernel knew
        raise SystemExit(128 + signal.SIGTERM)


def run(settings: str, measuring: Measuring) -> int:
    """The next step of the cell, then the rest; returns the exit code of what failed, or 0."""
    environment = dict(os.environ)
    config = resolve(file=settings)
    assert config.output is not None
    folder = RunFolder(Path(config.output))
    while not is_trained(folder) or measuring.missing(folder):
        training = not is_trained(folder)
        command = ["train", "--config", settings] if training else measuring.command(folder, config)
        code = cli.main(command)
        if code or not is_trained(folder):  # whose evaluation can fail, which the training has told
            return code or 1
        if not training:
            measuring.settle(folder, command[0])
        if measuring.missing(folder) and os.name == "posix":
            # In a new interpreter, as by hand: without the last step's device memory and settings of torch.
            sys.stdout.flush()
            os.execve(sys.executable, [sys.executable, "-m", "vitmix.lab.comparison.cell", *sys.argv[1:]], environment)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("settings")
    parser.add_argument("--suite")
    parser.add_argument("--analyze", action="store_true")
    given = parser.parse_args()
    stop_with(given.parent)
    try:
        raise SystemExit(run(given.settings, Measuring.of(given.suite, given.analyze)))
    except (ValueError, OSError) as error:
        raise SystemExit(f"vitmix: error: {error}") from None
