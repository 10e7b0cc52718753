"""One training run of a comparison as a process: `python -m vitmix.lab.comparison.process PARENT FILE [FLAG ...]`.

It trains what the file says, unless that is done, and evaluates what the flags ask for and is missing. It is stopped
when the process that started it ends, for whatever reason: the run then writes a checkpoint, and the next
comparison resumes it instead of finding the folder taken.
"""

import argparse
import ctypes
import os
import signal
import sys

from vitmix.lab.cli import main as cli
from vitmix.lab.comparison.evaluations import Evaluations
from vitmix.lab.runs import Run
from vitmix.lab.training.config import resolve_any

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def stop_with(parent: int) -> None:
    """Asks the kernel for SIGTERM when the parent ends; elsewhere than on Linux the run ends by itself."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # gone before the kernel knew
        raise SystemExit(128 + signal.SIGTERM)


def run(settings: str, evaluations: Evaluations) -> int:
    """The next step, then the rest; returns the exit code of what failed, or 0."""
    environment = dict(os.environ)
    config = resolve_any(file=settings)
    assert config.output is not None
    while not Run(config.output).is_trained or evaluations.missing(Run(config.output)):
        training = not Run(config.output).is_trained
        command = [config.command, "--config", settings]
        if not training:
            command = evaluations.command(Run(config.output), config)
        code = cli.main(command)
        if code or not Run(config.output).is_trained:  # the evaluation can fail; the run has printed why
            return code or 1
        if not training:
            evaluations.settle(Run(config.output), command[0])
        if evaluations.missing(Run(config.output)) and os.name == "posix":
            # In a new interpreter, as by hand: without the last step's device memory and settings of torch.
            sys.stdout.flush()
            arguments = [sys.executable, "-m", "vitmix.lab.comparison.process", *sys.argv[1:]]
            os.execve(sys.executable, arguments, environment)
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
        raise SystemExit(run(given.settings, Evaluations.of(given.suite, given.analyze)))
    except (ValueError, OSError) as error:
        raise SystemExit(f"vitmix: error: {error}") from None
