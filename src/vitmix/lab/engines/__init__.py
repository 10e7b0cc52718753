"""Where the runs of a comparison are executed: processes of this machine, a Ray cluster, a Slurm cluster.

The runner decides what is run, an `Engine` where, and a `Job` is one run there. Nodes of a cluster execute `node.py`,
which runs the same process as on one machine; `files.py` and `stores.py` carry the run's files where nodes do not share
the output folder.
"""

from .base import Ending, Engine, Job, NoRoom
from .local import LocalProcesses
