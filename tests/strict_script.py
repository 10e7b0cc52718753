"""Runs a script with deprecations that arise in vitmix as errors; Python's -W knows whole names of modules only."""

import runpy
import sys
import warnings
from pathlib import Path

if __name__ == "__main__":
    warnings.filterwarnings("error", category=DeprecationWarning, module=r"(vitmix(\.|$)|__main__$)")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
