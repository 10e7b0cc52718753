"""The command `vitmix`. It needs the packages of the laboratory, which the library alone does not install."""

import sys
from importlib.util import find_spec

PACKAGES = ("torchvision", "accelerate", "yaml", "rich", "matplotlib")


def main() -> int:
    """Runs the command and returns its exit code."""
    try:
        return _main()
    except KeyboardInterrupt:  # during the imports below; later the command itself catches it
        return 130


def _main() -> int:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        print(f"vitmix: error: the command needs {', '.join(missing)}: pip install 'vitmix[lab]'", file=sys.stderr)
        return 2
    from vitmix.lab.cli.main import main as run

    return run()
