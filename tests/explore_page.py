"""Serves the page of a small model, for tests: a process of its own, since servers leave event loops behind.

`python explore_page.py [RUNS]` prints the address.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of the page while the context lasts."""
    command = [sys.executable, "-W", "ignore", __file__, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        watch = threading.Timer(120, process.kill)
        watch.start()
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            watch.cancel()
            assert address.startswith("http"), "the page did not start"
            yield address
        finally:
            watch.cancel()
            process.kill()


if __name__ == "__main__":
    from test_explore import explorer
    from vitmix.lab.explore.server import serve

    page, address = serve(explorer(Path(sys.argv[1]) if len(sys.argv) > 1 else None), block=False)
    print(address, flush=True)
    page.block_thread()
