"""Comparisons on a cluster, as a user runs them, beside the same comparison with `--jobs 1`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from comparing import SETTINGS
from slurm_cluster import free_ports
from vitmix.lab.comparison import read_matrix
from vitmix.lab.comparison.matrix import Training

# Long enough that a node can be lost in the middle; a checkpoint every few steps.
LONG = SETTINGS | {"epochs": 60, "checkpoint_every": "5 steps", "log_every": 1, "eval_every": 5, "cpu": True}
VARYING = ("second", "time", "memory", "images/s", "slowdown", "runs")  # in names of times, and of folders


def write_matrix(folder: Path) -> Path:
    path = folder / "matrix.yaml"
    path.write_text(yaml.safe_dump({"rows": {"CutMix": "cutmix", "none": "none"}, "seeds": [0], "settings": LONG}))
    return path


def trainings_of(matrix: Path, output: Path) -> list[Training]:
    return read_matrix(str(matrix)).trainings(output)


class Command:
    """`vitmix compare` in a process whose output goes to a file."""

    def __init__(self, matrix: Path, output: Path, *flags: str) -> None:
        self.file = output.with_suffix(f".{time.monotonic_ns()}.txt")
        words = [sys.executable, "-m", "vitmix", "compare", str(matrix), "--output", str(output), *flags]
        with open(self.file, "wb") as file:
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def said(self) -> str:
        return self.file.read_text()

    def wait_for(self, condition: Callable[[], object], seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, f"it did not happen in time: {self.said}"
            time.sleep(0.2)

    def end(self, seconds: float = 1200) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        finally:
            self.close()

    def interrupt(self) -> int:
        os.killpg(self.process.pid, signal.SIGINT)  # as a terminal does it
        return self.end()

    def interrupt_in_the_middle(self, trainings: list[Training]) -> int:
        """Once each has a checkpoint; from there on they wait, so that none ends before the signal."""
        with ExitStack() as waiting:
            for training in trainings:
                self.wait_for(lambda training=training: any(map(_has_checkpoint, processes_of(training))))
                waiting.enter_context(paused(training))
            self.wait_for(lambda: all(training.run.epochs for training in trainings))  # results appear as they come
            os.killpg(self.process.pid, signal.SIGINT)
        return self.end()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def updates(training: Training) -> int:
    """Of the newest checkpoint."""
    found = [int(path.name.removeprefix("update-")) for path in training.run.checkpoints.glob("update-*")]
    return max(found, default=0)


def processes_of(training: Training) -> list[int]:
    """The processes on this machine that train it, in its folder or in a temporary folder of the same name."""
    settings = f"/{training.run.path.name}/.training.yaml"
    texts = {int(each.parent.name): text_of(each) for each in Path("/proc").glob("[0-9]*/cmdline")}
    return [number for number, text in texts.items() if settings in text and "comparison.process" in text]


def _has_checkpoint(process: int) -> bool:
    """Whether a training has one in its own folder, from which files may travel later."""
    words = text_of(Path(f"/proc/{process}/cmdline")).split()
    folders = [Path(word).parent for word in words if word.endswith("/.training.yaml")]
    return any(any(folder.glob("checkpoints/update-*")) for folder in folders)


def text_of(file: Path) -> str:
    """Of a file in /proc; empty if its process has ended."""
    try:
        return file.read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


@contextmanager
def paused(training: Training) -> Iterator[None]:
    """Lets it neither train nor end."""
    (process,) = processes_of(training)
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def check_equal(trainings: list[Training], reference: list[Training]) -> None:
    """Weights, epochs and tables are those of `--jobs 1`, bit for bit; only times differ."""
    for one, other in zip(trainings, reference, strict=True):
        for name in ("best.safetensors", "last.safetensors"):
            assert (one.run.path / name).read_bytes() == (other.run.path / name).read_bytes(), f"{one.name}: {name}"
        assert [_timeless(each.values) for each in one.run.epochs] == [
            _timeless(each.values) for each in other.run.epochs
        ]
    assert _table(trainings) == _table(reference)


def _table(trainings: list[Training]) -> Any:
    """What the command wrote, without times."""
    output = trainings[0].run.path.parents[1]
    return _timeless(json.loads((output / "compare.json").read_text()))


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(each) for name, each in value.items() if not any(word in name for word in VARYING)}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


@contextmanager
def moto_server(bucket: str) -> Iterator[str]:
    """An S3 that is none, with one bucket; the environment names it."""
    import boto3

    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    given = {**keys, "AWS_ENDPOINT_URL": url}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", url.rpartition(":")[2]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = boto3.client("s3", endpoint_url=url)
        for left in reversed(range(60)):
            try:
                client.create_bucket(Bucket=bucket)
                break
            except Exception:
                assert left, "the server did not start"
                time.sleep(1)
        yield f"s3://{bucket}/comparison"
    finally:
        server.terminate()
        server.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
