"""Old names of `vitmix.lab.runs`."""

from vitmix.lab.runs import Estimate as Spread  # noqa: F401
from vitmix.lab.runs import Table as Table
