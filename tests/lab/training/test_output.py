"""Output whose reader is gone, as in `vitmix train ... | head -1`."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from training import TINY, one_thread, tiny  # noqa: F401
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.output import Unfailing, unfailing_output


@pytest.fixture
def closed() -> Any:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def vitmix(*arguments: str, stdout: Any, stderr: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "vitmix", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, stdout=stdout, stderr=stderr, env=buffered, timeout=120)


def test_training_goes_on(tmp_path: Path, closed: int) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    arguments = ("train", "--config", str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "run"))
    assert vitmix(*arguments, stdout=closed, stderr=closed).returncode == 0
    assert (tmp_path / "run" / "summary.json").exists() and (tmp_path / "run" / "evaluation.json").exists()
    done = vitmix(*arguments, "--lr", "9", stdout=closed, stderr=subprocess.PIPE)  # refused: there is another run
    assert done.returncode == 2 and done.stderr.startswith(b"vitmix: error: ") and done.stderr.count(b"\n") == 1
    assert vitmix(*arguments, "--lr", "9", stdout=closed, stderr=closed).returncode == 2


@pytest.mark.usefixtures("one_thread")
def test_training_from_python_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: int) -> None:
    with open(os.dup(closed), "w", closefd=True) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert Trainer(tiny(tmp_path / "run", epochs=1)).run() == 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else closing it fails


def test_what_others_print_in_a_training_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        stream = _Failing()
        stream.failure = errno.EPIPE
        monkeypatch.setattr(sys, name, stream)
    with unfailing_output():
        print("from a data set")
        print("from a plugin", file=sys.stderr, flush=True)
    with pytest.raises(BrokenPipeError):
        print("after it")


@pytest.mark.parametrize("arguments", [("methods",), ("train", "--help"), ("recipes", "deit")])
def test_other_commands_end_quietly(closed: int, arguments: tuple[str, ...]) -> None:
    done = vitmix(*arguments, stdout=closed, stderr=subprocess.PIPE)
    # The code with which a shell reports a tool that SIGPIPE ended; argparse's help does not look.
    assert done.stderr == b"" and done.returncode == (0 if "--help" in arguments else 141)


def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = vitmix("recipes", "deit", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"vitmix: error: the output could not be written: No space left on device\n"


class _Failing(io.StringIO):
    failure = 0

    def write(self, text: str) -> int:
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))
        return super().write(text)


def test_a_full_disk_may_have_room_again() -> None:
    stream = _Failing()
    output = Unfailing(stream)
    for failure in (0, errno.ENOSPC, 0, errno.EPIPE, 0):
        stream.failure = failure
        print(errno.errorcode.get(failure, "fine"), file=output)
    assert stream.getvalue() == "fine\nfine\n"


def test_what_the_encoding_lacks_is_escaped() -> None:
    held = io.BytesIO()
    stream = io.TextIOWrapper(held, "ascii", write_through=True)
    print("30 ± 1 in \udcff", file=Unfailing(stream))
    assert held.getvalue() == b"30 \\xb1 1 in \\udcff\n"
