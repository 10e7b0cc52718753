"""One cell of a matrix as a process: `python -m vitmix.compare.cell PARENT FILE [FLAG ...]`.

It trains what the file says, unless that is done, and measures what the flags say and was not yet measured. It is told
to stop when the process that started it is gone, however that ended: the training then writes a checkpoint, and the
next comparison goes on from there instead of finding the folder taken.
"""

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

from vitmix import cli
from vitmix.compare.further import Further, note
from vitmix.compare.runner import is_trained
from vitmix.train.config import resolve
from vitmix.train.runs import RunFolder

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def stop_with(parent: int) -> None:
    """Asks the kernel for SIGTERM when the parent ends; elsewhere than on Linux the training ends by itself."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # gone before the kernel knew
        raise SystemExit(128 + signal.SIGTERM)


def run(settings: str, further: Further) -> int:
    """The exit code of the first command that fails, or 0."""
    config = resolve(file=settings)
    assert config.output is not None
    folder = Path(config.output)
    code = 0 if is_trained(RunFolder(folder)) else cli.main(["train", "--config", settings])
    for command in further.missing(folder) if code == 0 else ():
        name, *flags = command.split()
        code = cli.main([name, str(folder), *flags, *(["--cpu"] if config.cpu else [])])
        if code:
            break
        note(folder, command)
    return code


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("settings")
    parser.add_argument("--suite")
    parser.add_argument("--analyze", action="store_true")
    given = parser.parse_args()
    stop_with(given.parent)
    raise SystemExit(run(given.settings, Further(given.suite, given.analyze)))
