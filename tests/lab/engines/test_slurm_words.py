"""What Slurm's commands say, and what the comparison makes of it, without Slurm."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from comparing import write
from vitmix.lab.comparison import read_matrix
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.engines import NoRoom, on_slurm
from vitmix.lab.engines import slurm_commands as slurm
from vitmix.lab.engines.node import REPORT, NodeReport
from vitmix.lab.engines.on_slurm import SlurmCluster, SlurmJob

NODES = """\
NodeName=n1 CPUTot=8 State=IDLE+DRAIN Partitions=debug,gpu CfgTRES=cpu=8,mem=1000M,billing=2,gres/gpu=2 AllocTRES= \
CapWatts=n/a Reason=bad fan [root@2026-11-18T16:27:12]
NodeName=n2 CPUTot=8 State=MIXED* Partitions=debug CfgTRES=cpu=8,mem=1000M AllocTRES=cpu=6,mem=10M CapWatts=n/a
NodeName=n3 CPUTot=8 State=DOWN+NOT_RESPONDING Partitions=debug CfgTRES=cpu=8 AllocTRES= Reason=Not responding [x]
NodeName=n4 CPUTot=8 State=IDLE Partitions=other CfgTRES=cpu=8 AllocTRES=
"""


class Commands:
    """Stands for sbatch, squeue, scancel, scontrol and sinfo."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, str]] = {
            "sinfo": (0, "debug*\ngpu\nother\n", ""),
            "scontrol": (0, NODES, ""),
            "sbatch": (0, "12;cluster\n", ""),
            "scancel": (0, "", ""),
        }
        self.called: list[tuple[str, ...]] = []
        self.jobs: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.takes_and_is_silent = False

    def __call__(self, command: tuple[str, ...], **options: Any) -> "subprocess.CompletedProcess[str]":
        self.called.append(command)
        if command[0] == "squeue" and "squeue" not in self.answers:
            lines = [f"{number}|{self.jobs[number]}|" for number in self._asked(command)]
            return subprocess.CompletedProcess(command, 0, "\n".join(lines), "")
        if command[0] == "sbatch" and not self.answers["sbatch"][0]:
            self.names["12"] = _value(command, "--job-name=")
            if self.takes_and_is_silent:
                self.jobs["12"] = "RUNNING|None|n1|0|0"
                raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, *self.answers[command[0]])

    def _asked(self, command: tuple[str, ...]) -> list[str]:
        if numbers := _value(command, "--jobs="):
            return [number for number in numbers.split(",") if number in self.jobs]
        name = _value(command, "--name=")
        return [number for number in self.jobs if self.names.get(number) == name]

    @property
    def submitted(self) -> int:
        return sum(command[0] == "sbatch" for command in self.called)


class Killed(BaseException):
    """Nothing after it is executed."""


def _value(command: tuple[str, ...], option: str) -> str:
    return next((each.removeprefix(option) for each in command if each.startswith(option)), "")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands()
    monkeypatch.setattr(slurm.subprocess, "run", found)
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(on_slurm, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(on_slurm, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(on_slurm, "NODES_SECONDS", -1.0)
    return found


@pytest.fixture
def training(tmp_path: Path) -> Training:
    found = read_matrix(str(write(tmp_path))).trainings(tmp_path / "out")[0]
    found.run.path.mkdir(parents=True)
    return found


def begin(training: Training, said: list[str] | None = None, **settings: Any) -> tuple[SlurmCluster, SlurmJob]:
    engine = SlurmCluster(training.run.path.parent, **settings).__enter__()
    return engine, engine.start(training, [], (said if said is not None else []).append)


def test_nodes_of_a_partition(commands: Commands) -> None:
    assert [(node.name, node.trouble) for node in slurm.nodes(None)] == [
        *(("n1", "drained: bad fan"), ("n2", ""), ("n3", "down: Not responding"))
    ]
    assert [node.name for node in slurm.nodes("gpu")] == ["n1"] and slurm.nodes("gpu")[0].total == {"CPU": 8, "GPU": 2}
    assert slurm.nodes(None)[1].free == {"CPU": 2}


def test_a_job_carries_the_plan_and_the_options(commands: Commands, training: Training) -> None:
    options = {"partition": "debug", "time": "4:00:00", "requeue": ""}
    engine, _ = begin(training, options=options, cpus=3, gpus=2.0)
    (flags,) = [command for command in commands.called if command[0] == "sbatch"]
    assert {"--partition=debug", "--time=4:00:00", "--cpus-per-task=3", "--gres=gpu:2", "--requeue"} <= set(flags)
    assert f"--output={training.run.log}" in flags
    spec = engine.home.hand_over(training, ["--analyze"], 3)
    text = on_slurm.script(spec)
    assert text.startswith("#!/bin/sh\nexec ") and json.loads(text.splitlines()[2])["flags"] == ["--analyze"]
    note = json.loads((training.run.path / on_slurm.JOB).read_text())
    assert note["answered"] and f"--job-name={training.name}-{note['attempt'][:8]}" in flags


def test_what_a_waiting_job_waits_for(commands: Commands, training: Training) -> None:
    _, job = begin(training, cpus=4)
    trouble = "(n1 is drained: bad fan; n3 is down: Not responding)"
    full = f"4 CPU cores: n2, the only node that takes jobs, does not have as many free {trouble}"
    for state, words in {
        "PENDING|Resources": full,
        "PENDING|ReqNodeNotAvail, UnavailableNodes:n1": full,
        "PENDING|Priority": "its turn: other jobs come first",
        "PENDING|QOSMaxJobsPerUserLimit": "a limit of your account (QOSMaxJobsPerUserLimit): it starts when other "
        "jobs of yours end",
        "PENDING|JobHeldUser": "its release: job 12 is held (JobHeldUser); 'scontrol release 12' lets it start",
        "SUSPENDED|None": "an administrator: job 12 is suspended; 'scontrol resume 12' lets it go on",
        "RUNNING|None": "",
    }.items():
        commands.jobs["12"] = f"{state}||0|0"
        assert job.waiting() == words and job.ending() is None


@pytest.mark.parametrize(
    ("state", "reason", "lost"),
    [
        ("NODE_FAIL|None|n2|0|1", "its node was lost (job 12 on node n2)", True),
        ("PREEMPTED|None|n2|0|0", "another job took its place (job 12 on node n2)", True),
        ("FAILED|NonZeroExitCode|n2|36608|0", "its time was over (job 12 on node n2)", True),
        (
            "CANCELLED|None|n2|36608|0",
            "job 12 on node n2 was cancelled in Slurm; rerun the command to resume from its newest checkpoint",
            False,
        ),
        (
            "OUT_OF_MEMORY|OutOfMemory|n2|31488|0",
            "memory ran out (job 12 on node n2); give more with --slurm mem=32G, or set a smaller batch",
            False,
        ),
    ],
)
def test_why_a_job_ended(commands: Commands, training: Training, state: str, reason: str, lost: bool) -> None:
    _, job = begin(training)
    commands.jobs["12"] = state
    ending = job.ending()
    assert ending is not None and (ending.reason, ending.lost) == (reason, lost)
    assert job.ending() is ending and job.waiting() == ""


def test_a_failed_run_tells_its_own_reason(commands: Commands, training: Training) -> None:
    _, job = begin(training)
    commands.jobs["12"] = "FAILED|NonZeroExitCode|n2|512|0"
    report = NodeReport(job.attempt, "host", 2, "no such data")
    (training.run.path / REPORT).write_text(json.dumps(vars(report)))
    ending = job.ending()
    assert ending is not None and ending.reason == "no such data (job 12 on node n2)"


def test_a_node_without_the_folder_or_python(commands: Commands, training: Training) -> None:
    training.run.log.write_text("exec: no such file\n")
    folder = training.run.path.parent
    for state, part in {
        "FAILED|JobLaunchFailure|n2|4021|0": "does not see the folder",
        "FAILED|NonZeroExitCode|n2|18688|0": "does not see the folder",
        "FAILED|NonZeroExitCode|n2|18944|0": f"job 12 on node n2 cannot read or write the folder {folder}; "
        "check its disk space and permissions there",
        "FAILED|NonZeroExitCode|n2|32512|0": "ended with code 127 before the run began: exec: no such file; check",
    }.items():
        _, job = begin(training)
        commands.jobs["12"] = state
        ending = job.ending()
        assert ending is not None and part in ending.reason and not ending.lost


def test_a_requeued_job_is_told(commands: Commands, training: Training) -> None:
    said: list[str] = []
    _, job = begin(training, said)
    for state in ("RUNNING|None|n1|0|0", "PENDING|BeginTime||0|1", "RUNNING|None|n2|0|1"):
        commands.jobs["12"] = state
        assert job.ending() is None
    assert said[1:] == [
        f"{training.name} begins on node n1",
        f"{training.name} lost its place on node n1 and is back in the queue as job 12; it resumes from its newest "
        "checkpoint",
        f"{training.name} resumes on node n2",
    ]


def test_a_silent_controller_ends_nothing(commands: Commands, training: Training) -> None:
    said: list[str] = []
    _, job = begin(training, said)
    commands.answers["squeue"] = (1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    assert job.ending() is None and job.ending() is None
    assert len(said) == 2 and "controller does not answer" in said[1]
    commands.answers["scancel"] = commands.answers["squeue"]
    job.stop()
    ending = job.ending()
    assert ending is not None and "rerun the command to take it over" in ending.reason


def test_a_job_of_a_killed_command_is_taken_over(commands: Commands, training: Training) -> None:
    begin(training)
    commands.jobs["12"] = "RUNNING|None|n1|0|0"
    said: list[str] = []
    engine, job = begin(training, said)
    assert engine.knows(training) and job.number == "12" and commands.submitted == 1
    assert said == [f"{training.name} continues as job 12 of an earlier command"]
    commands.names["12"] = "another"  # numbers begin again after a reinstallation
    assert not engine.knows(training)


def test_no_second_job_while_the_controller_is_silent(commands: Commands, training: Training) -> None:
    """Silence says nothing about the job of an earlier command."""
    begin(training)
    commands.jobs["12"] = "RUNNING|None|n1|0|0"
    commands.answers["squeue"] = (1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(NoRoom, match=r"Slurm's controller does not answer \(Unable to contact slurm controller\)"):
        begin(training)
    assert commands.submitted == 1
    del commands.answers["squeue"]
    assert begin(training)[1].number == "12" and commands.submitted == 1


def test_a_job_that_slurm_took_without_an_answer_is_found(commands: Commands, training: Training) -> None:
    commands.takes_and_is_silent = True
    engine = SlurmCluster(training.run.path.parent).__enter__()
    with pytest.raises(NoRoom, match="sbatch has not answered for 60 s"):
        engine.start(training, [], print)
    job = engine.start(training, [], print)
    assert job.number == "12" and commands.submitted == 1
    commands.jobs["12"] = "FAILED|NonZeroExitCode|n2|512|0"
    report = NodeReport(job.attempt, "host", 2, "no such data")
    (training.run.path / REPORT).write_text(json.dumps(vars(report)))
    ending = job.ending()
    assert ending is not None and ending.reason == "no such data (job 12 on node n2)"


def test_a_job_that_appears_late_is_found(commands: Commands, training: Training) -> None:
    """Slurm may take a job after sbatch has given up, so a request keeps its name until one is answered."""
    commands.takes_and_is_silent = True
    engine, names = SlurmCluster(training.run.path.parent).__enter__(), set[str]()
    for _ in range(3):
        with pytest.raises(NoRoom):
            engine.start(training, [], print)
        commands.jobs.clear()
        names.add(commands.names["12"])
    assert len(names) == 1
    commands.takes_and_is_silent = False
    assert engine.start(training, [], print).number == "12"
    engine.start(training, [], print)  # its job has ended, so this one is another
    assert commands.names["12"] not in names


def test_a_command_killed_while_it_submits_leaves_a_job_that_is_found(
    commands: Commands, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = slurm.submit

    def killed(*arguments: Any) -> str:
        submit(*arguments)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(slurm, "submit", killed)
        begin(training)
    commands.jobs["12"] = "PENDING|Priority||0|0"
    engine, job = begin(training)
    assert engine.knows(training) and job.number == "12" and commands.submitted == 1


def test_slurm_is_not_asked_again_at_once(
    commands: Commands, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = begin(training)
    (training.run.path / on_slurm.JOB).unlink()
    commands.answers["sbatch"] = (1, "", "sbatch: error: too many jobs")
    with pytest.raises(NoRoom):
        engine.start(training, [], print)
    assert engine.has_room(0)
    monkeypatch.setattr(on_slurm, "LOOK_SECONDS", 5.0)
    assert not engine.has_room(0)


def test_refused_jobs(commands: Commands, training: Training) -> None:
    with pytest.raises(ValueError, match="Slurm has no partition 'gpus'; give --slurm partition= one of debug, gpu"):
        begin(training, options={"partition": "gpus"})
    with pytest.raises(ValueError, match="--slurm output is decided by the comparison"):
        begin(training, options={"output": "x"})
    with pytest.raises(ValueError, match="Slurm gives whole GPUs"):
        begin(training, gpus=0.5)
    engine, _ = begin(training)
    commands.answers["sbatch"] = (1, "", "sbatch: error: Invalid account\nsbatch: error: Batch job submission failed")
    (training.run.path / on_slurm.JOB).unlink()
    with pytest.raises(NoRoom, match=r"Slurm takes no further job now \(Invalid account\)"):
        engine.start(training, [], print)
    with pytest.raises(ValueError, match=f"Slurm refused {training.name}: Invalid account; check --slurm"):
        begin(training)


def test_stopping_signals_what_runs_and_cancels_what_waits(commands: Commands, training: Training) -> None:
    _, job = begin(training)
    for state, command in (("RUNNING", "--batch"), ("PENDING", "12")):
        commands.jobs["12"] = f"{state}|None|n1|0|0"
        job.stop()
        assert [each for each in commands.called if each[0] == "scancel"][-1][1] == command


def test_slurm_without_a_configuration_is_told(commands: Commands, training: Training) -> None:
    commands.answers["sinfo"] = (
        1,
        "",
        "sinfo: error: resolve_ctls_from_dns_srv: Unknown host\nsinfo: fatal: Could not",
    )
    words = (
        "Slurm does not answer here \\(resolve_ctls_from_dns_srv: Unknown host\\); when 'sinfo' works, run the command"
    )
    with pytest.raises(ValueError, match=words):
        begin(training)


def test_a_node_without_the_store(commands: Commands, training: Training, tmp_path: Path) -> None:
    _, job = begin(training, store=f"file://{tmp_path}/store")
    commands.jobs["12"] = "FAILED|NonZeroExitCode|n2|18688|0"
    ending = job.ending()
    assert ending is not None and ending.reason == (
        f"job 12 on node n2 does not see what the command wrote to file://{tmp_path}/store; "
        "give --store a place that all nodes share"
    )


def test_exit_codes() -> None:
    assert [slurm._exit_code(status) for status in (0, 36608, 9, 512)] == [0, 143, -9, 2]
