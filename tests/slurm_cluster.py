"""A Slurm cluster on this machine: munged, slurmctld and two slurmd, in a temporary folder, as root."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("n1", "n2")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdTimeout=30
KillWait=30
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def why_not() -> str:
    """Why there can be no cluster here; empty if there can."""
    os.environ["PATH"] += ":/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs Slurm and munge (Debian: slurm-wlm), {missing[0]} is missing"
    return "" if os.geteuid() == 0 else "starts the daemons of Slurm, which needs root"


@contextmanager
def slurm_cluster() -> Iterator[Path]:
    """The cluster's folder, while it runs; SLURM_CONF names its configuration."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name:
        folder, before = Path(name), os.environ.get("SLURM_CONF")
        folder.chmod(0o755)
        os.environ["SLURM_CONF"] = str(_configure(folder))
        try:
            processes.append(_munge(folder))
            _wait(lambda: (folder / "munge" / "socket").exists())
            processes.append(_begin("slurmctld", "-D"))
            processes += [_begin("slurmd", "-D", "-N", node) for node in NODES]
            _wait(lambda: ask("sinfo", "--noheader", "--format=%T") == "idle")
            yield folder
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(30)
            if before is None:
                del os.environ["SLURM_CONF"]
            else:
                os.environ["SLURM_CONF"] = before


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _configure(folder: Path) -> Path:
    for each in ("state", "munge", *(f"spool-{node}" for node in NODES)):
        (folder / each).mkdir()
    ports = free_ports(1 + len(NODES))
    host = socket.gethostname().partition(".")[0]
    lines = CONFIG.format(host=host, port=ports[0], folder=folder).splitlines()
    about = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=1000"
    lines[-1:-1] = [f"NodeName={node} {about} Port={port}" for node, port in zip(NODES, ports[1:], strict=True)]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    return folder / "slurm.conf"


def _munge(folder: Path) -> "subprocess.Popen[bytes]":
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    flags = [f"--{flag}={folder / 'munge' / name}" for flag, name in files.items()]
    return _begin("munged", "--foreground", "--force", *flags)


def _begin(*command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait(condition: object, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "the cluster did not start in time"
        time.sleep(0.2)
