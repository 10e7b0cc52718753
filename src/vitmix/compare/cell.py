"""One cell of a matrix as a process: `python -m vitmix.compare.cell PARENT FILE` trains what the file says.

It is told to stop when the process that started it is gone, however that ended: the training then writes a checkpoint,
and the next comparison goes on from there instead of finding the folder taken.
"""

import ctypes
import os
import signal
import sys

from vitmix import cli

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def stop_with(parent: int) -> None:
    """Asks the kernel for SIGTERM when the parent ends; elsewhere than on Linux the training ends by itself."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # gone before the kernel knew
        raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    stop_with(int(sys.argv[1]))
    raise SystemExit(cli.main(["train", "--config", sys.argv[2]]))
