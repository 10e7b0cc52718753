"""Slurm's commands as functions: sbatch, squeue, scancel, scontrol; and what their answers mean.

Commands rather than sacct or a library over it: they need no accounting database, which small clusters do not have.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .words import Node, waiting_for

PATIENCE_SECONDS, ORDER_SECONDS = 60.0, 10.0
FIELDS = ("JobID", "State", "Reason", "NodeList", "exit_code", "RestartCnt")
FREE_STATES = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "POWERED_DOWN", "POWERING_UP"}


class Silent(Exception):
    """Slurm's controller does not answer, which says nothing about the jobs."""


class Slow(Silent):
    """A command has not ended in time."""


class Rejected(ValueError):
    """Slurm does not take a job; the text says why."""


@dataclass(frozen=True)
class JobState:
    """A job, as Slurm describes it; `code` is the exit code of its script."""

    state: str
    reason: str
    node: str
    code: int
    restarts: int


def check_installed() -> None:
    if shutil.which("sbatch") is None:
        raise ValueError("there is no sbatch here; run the command on a login node of a Slurm cluster")


def submit(script: str, options: Mapping[str, str]) -> str:
    """Hands a job to Slurm; returns its number."""
    flags = [f"--{name}" if value == "" else f"--{name}={value}" for name, value in options.items()]
    done = _call("sbatch", "--parsable", *flags, content=script)
    if done.returncode:
        raise Rejected(_said(done))
    return done.stdout.strip().partition(";")[0]


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """The jobs that Slurm knows, those that ended a few minutes ago included."""
    return _queue(f"--jobs={','.join(jobs)}") if jobs else {}


def named(name: str) -> dict[str, JobState]:
    """The jobs of this user with a name, likewise."""
    return _queue("--me", f"--name={name}")


def _queue(*selection: str) -> dict[str, JobState]:
    form = ",".join(f"{name}:|" for name in FIELDS)
    done = _call("squeue", "--noheader", "--states=all", *selection, f"--Format={form}")
    if done.returncode and "Invalid job id" not in done.stderr:
        raise Silent(_said(done))
    found = {}
    for line in done.stdout.splitlines():
        number, state, reason, node, code, restarts = line.split("|")[: len(FIELDS)]
        found[number] = JobState(state, reason, node, _exit_code(int(code)), int(restarts))
    return found


def _exit_code(status: int) -> int:
    """Of a status as wait(2) gives it; negative for a signal."""
    return status >> 8 & 255 or -(status & 127)


def cancel(job: str) -> bool:
    """Ends a job, and takes a waiting one out of the queue; False if Slurm has not done it in time."""
    return _order("scancel", job)


def stop(job: str) -> bool:
    """Lets a job that runs write a checkpoint; `cancel` gives it only as long as the cluster's KillWait."""
    return _order("scancel", "--batch", "--signal=TERM", job)


def _order(*command: str) -> bool:
    try:
        return _call(*command, seconds=ORDER_SECONDS).returncode == 0
    except Slow:  # scancel waits for a job between two states, such as one that is put back into the queue
        return False


def partitions() -> dict[str, bool]:
    """The partitions, and which is the default."""
    done = _call("sinfo", "--noheader", "--format=%P")
    if done.returncode:
        raise Silent(_said(done))
    return {name.rstrip("*"): name.endswith("*") for name in done.stdout.split()}


def nodes(partition: str | None) -> list[Node]:
    """The nodes of a partition, or of the default one; all if neither is known."""
    known = partitions()
    names = set((partition or "").split(",")) & set(known) or {name for name, usual in known.items() if usual}
    done = _call("scontrol", "--oneliner", "show", "nodes")
    found = [(_fields(line), line) for line in done.stdout.splitlines() if line.startswith("NodeName=")]
    return [
        _node(values, line)
        for values, line in found
        if not names or names & set(values.get("Partitions", "").split(","))
    ]


def _fields(line: str) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition("=") for each in line.split())}


def _node(values: Mapping[str, str], line: str) -> Node:
    total, used = _amounts(values.get("CfgTRES", "")), _amounts(values.get("AllocTRES", ""))
    free = {name: amount - used.get(name, 0) for name, amount in total.items()}
    states = set(re.sub(r"[*~#!%$@^-]", "", values.get("State", "")).split("+"))
    reason = re.search(r" Reason=(.*?)(?: \[.*)?$", line)
    why = f": {reason[1].strip()}" if reason else ""
    trouble = "" if states <= FREE_STATES else f"{_in_words(states)}{why}"
    return Node(values["NodeName"], total, free, trouble)


def _amounts(text: str) -> dict[str, float]:
    """`cpu=8,mem=64G,gres/gpu=2` as `{"CPU": 8, "GPU": 2}`."""
    found = {name: value for name, _, value in (each.partition("=") for each in text.split(","))}
    return {name: float(found[key]) for name, key in (("CPU", "cpu"), ("GPU", "gres/gpu")) if key in found}


def _in_words(states: set[str]) -> str:
    for state, word in (("DRAIN", "drained"), ("DRAINED", "drained"), ("DRAINING", "drained"), ("DOWN", "down")):
        if state in states:
            return word
    return " and ".join(sorted(states - FREE_STATES)).lower().replace("_", " ")


def waits_for(state: JobState, number: str, request: Mapping[str, float], nodes: Callable[[], Sequence[Node]]) -> str:
    """What Slurm's reason for a waiting job means."""
    reason = state.reason
    if state.state in ("SUSPENDED", "STOPPED"):
        return f"an administrator: job {number} is suspended; 'scontrol resume {number}' lets it go on"
    if "Held" in reason or "held" in reason or state.state == "REQUEUE_HOLD":
        return f"its release: job {number} is held ({reason}); 'scontrol release {number}' lets it start"
    if reason in ("None", "", "Priority"):
        return "its turn: other jobs come first"
    if reason == "BeginTime":
        return "Slurm, which starts a job that lost its node after a pause of some minutes at most"
    if reason in ("PartitionTimeLimit", "PartitionNodeLimit"):
        return f"other limits: its partition does not allow them ({reason}); change --slurm and rerun the command"
    if reason.startswith(("QOS", "Assoc", "MaxJobs")):
        return f"a limit of your account ({reason}): it starts when other jobs of yours end"
    return waiting_for(request, nodes())


def _call(
    *command: str, content: str | None = None, seconds: float = PATIENCE_SECONDS
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            input=content,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the comparison alone
        )
    except subprocess.TimeoutExpired:
        raise Slow(f"{command[0]} has not answered for {seconds:g} s") from None
    if done.returncode and re.search("Unable to contact|Socket timed out|Zero Bytes were", done.stderr):
        raise Silent(_said(done))
    return done


def _said(done: "subprocess.CompletedProcess[str]") -> str:
    """The first error of a command, which later ones only repeat."""
    lines = done.stderr.strip().splitlines() or [f"{done.args[0]} ended with code {done.returncode}"]
    return (lines[0].partition("error: ")[2] or lines[0]).strip().rstrip(".")
