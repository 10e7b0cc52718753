"""An old name of `vitmix.lab.runs.SCORES`."""

from vitmix.lab.runs import SCORES as MEASURES  # noqa: F401
