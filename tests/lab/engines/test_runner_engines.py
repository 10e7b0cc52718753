"""The runner with an engine that only pretends: lost runs, full clusters, and what is said of them."""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from comparing import write
from vitmix.lab.comparison import read_matrix, runner
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.engines import Ending, Engine, NoRoom
from vitmix.lab.engines.base import Say


class Pretended:
    """A job that is over after some looks."""

    def __init__(self, endings: Iterator[Ending | None], waits: str = "") -> None:
        self.endings, self.waits, self.orders = endings, waits, list[str]()
        self._last: Ending | None = None

    def ending(self) -> Ending | None:
        self._last = self._last or (Ending("it was stopped") if self.orders else next(self.endings))
        return self._last

    def waiting(self) -> str:
        return self.waits

    def stop(self) -> None:
        self.orders.append("stop")

    def kill(self) -> None:
        self.orders.append("kill")


class Cluster(Engine):
    """An engine with one script of endings for each start."""

    def __init__(self, *scripts: Sequence[Ending | None] | str, waits: str = "") -> None:
        self.scripts, self.waits = iter(scripts), waits
        self.started: list[str] = []
        self.handed: list[Pretended] = []
        self.open, self.jobs = False, None

    def __enter__(self) -> "Cluster":
        self.open = True
        return self

    def __exit__(self, *error: object) -> None:
        self.open = False

    def prepare(self, trainings: Sequence[Training], say: Say) -> None:
        say("prepared")

    def start(self, training: Training, flags: Sequence[str], say: Say) -> Pretended:
        script = next(self.scripts)
        if isinstance(script, str):
            raise NoRoom(script)
        self.started.append(training.name)
        self.handed.append(Pretended(iter(script), self.waits))
        return self.handed[-1]


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.01)
    return read_matrix(str(write(tmp_path))).trainings(tmp_path / "out")


def said_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def lost(update: int) -> list[Ending | None]:
    return [None, Ending("the node was lost (n2)", lost=True, update=update)]


def test_a_lost_run_starts_again(trainings: list[Training], capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(lost(3), lost(3), lost(7), lost(7), [Ending("no such data (on node n1)")])
    (failure,) = runner.run_trainings(trainings[:1], engine=cluster)
    assert failure.reason == "no such data (on node n1)" and cluster.started == [trainings[0].name] * 5
    again = f"{trainings[0].name} starts again from its newest checkpoint, because the node was lost (n2)"
    assert said_of(capsys) == [again] * 4 + [f"{trainings[0].name} failed: no such data (on node n1)"]
    assert not cluster.open


def test_a_run_that_is_lost_without_progress_fails(trainings: list[Training]) -> None:
    (failure,) = runner.run_trainings(trainings[:1], engine=Cluster(lost(5), lost(5), lost(5)))
    assert failure.reason == (
        "the node was lost (n2), 3 times without a new checkpoint; write checkpoints more often "
        "(--set checkpoint_every='300 seconds') and rerun the command"
    )


def test_a_loss_that_checkpoints_do_not_help_names_its_own_remedy(trainings: list[Training]) -> None:
    full: list[Ending | None] = [Ending("memory ran out", lost=True, remedy="set a smaller batch")]
    (failure,) = runner.run_trainings(trainings[:1], engine=Cluster(full, full, full))
    assert failure.reason == (
        "memory ran out, 3 times without a new checkpoint; set a smaller batch and rerun the command"
    )


class Broken(Pretended):
    """A job whose engine no longer answers."""

    def stop(self) -> None:
        raise ValueError("the cluster no longer answers")


class BreaksLater(Pretended):
    """A job whose engine does not tell how it ended."""

    def ending(self) -> Ending | None:
        if self.orders:
            raise ValueError("the cluster no longer answers")
        return None


@pytest.mark.parametrize("kind", [Broken, BreaksLater])
def test_a_job_that_cannot_be_stopped_leaves_no_other_at_work(
    trainings: list[Training], monkeypatch: pytest.MonkeyPatch, kind: type[Pretended]
) -> None:
    cluster = Cluster([None] * 99, [None] * 99)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def start(*arguments: object) -> Pretended:
        job = Cluster.start(cluster, *arguments)  # type: ignore[arg-type]
        return kind(iter([None] * 99)) if len(cluster.handed) == 1 else job

    monkeypatch.setattr(cluster, "start", start)
    with pytest.raises(ValueError, match="the cluster no longer answers"):
        runner.run_trainings(trainings, engine=cluster, minutes=0.05 / 60)
    assert cluster.handed[1].orders == ["stop"] and not cluster.open
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    crew = runner._Crew(cluster, runner.NOTHING, print)
    assert all(crew._claim(training) for training in trainings)  # no claim is left behind


def test_one_sentence_tells_what_several_runs_wait_for(
    trainings: list[Training], capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = "1 GPU: none of the 3 nodes has one free"
    cluster = Cluster([None, None, Ending("x")], [None, None, None, Ending("y")], waits=gpu)
    assert len(runner.run_trainings(trainings, engine=cluster)) == 2
    waits = [line for line in said_of(capsys) if "wait" in line]
    assert waits == [f"{trainings[0].name} and 1 more wait for {gpu}"]


def test_a_full_queue_is_asked_again(trainings: list[Training], capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster([None, Ending("x")], "the queue is full", "the queue is full", [Ending("y")])
    assert [failure.reason for failure in runner.run_trainings(trainings, engine=cluster)] == ["x", "y"]
    assert said_of(capsys).count("the queue is full") == 1


def test_a_refusal_stops_what_has_begun(trainings: list[Training], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([None] * 99)

    def start(*arguments: object) -> Pretended:
        if cluster.started:
            raise ValueError("Slurm refused it")
        return Cluster.start(cluster, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "start", start)
    with pytest.raises(ValueError, match="Slurm refused it"):
        runner.run_trainings(trainings, engine=cluster)
    assert cluster.handed[0].orders == ["stop"] and not cluster.open
    assert runner._Crew(cluster, runner.NOTHING, print)._claim(trainings[1])  # no claim is left behind


def test_time_that_is_over_stops_jobs(trainings: list[Training]) -> None:
    cluster = Cluster([None] * 99, [None] * 99)
    assert runner.run_trainings(trainings, engine=cluster, minutes=0.05 / 60) == []
    assert [job.orders for job in cluster.handed] == [["stop"], ["stop"]]
