"""An old name of `vitmix.lab.runs.is_better`."""

from vitmix.lab.runs import is_better as is_better
