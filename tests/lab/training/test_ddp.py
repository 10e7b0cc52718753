"""Two processes on the CPU: the same gradients as one process with the same global batch and the same draws."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from ddp_worker import EVERY, METHODS, OWN, WHOLE, gradient_settings
from training import TINY, one_thread, rows, run_pair, same_weights, tiny, train, weights  # noqa: F401
from vitmix._sampling import Draw, generator_for
from vitmix.lab.training.engine import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes left their results."""
    folder = tmp_path_factory.mktemp("pair")
    run_pair("ddp_worker.py", folder)
    return folder


def found(pair: Path, part: str) -> list[Any]:
    """What a part of ddp_worker.py found in each process."""
    return [json.loads((pair / f"{part}-{rank}.json").read_text()) for rank in range(2)]


def joined(draws: list[Draw], batch: int) -> Draw:
    """The choices of two halves of a batch as one for the whole of it."""
    assert draws[0].choice == draws[1].choice
    values: dict[str, Tensor] = {}
    for name in draws[0].values:
        parts = [draw.values[name] for draw in draws]
        kind = name.rpartition(".")[2]
        if kind in ("partner", "pairs"):
            parts = [part + batch * number for number, part in enumerate(parts)]
        # Random places for windows and tokens have the samples in their second dimension, all else in the first.
        dim = 1 if kind == "place" or (kind == "noise" and parts[0].dim() == 3) else 0
        if dim == 0 and len(parts[0]) == 1:  # one choice for the whole half
            parts = [part.expand(batch, *part.shape[1:]) for part in parts]
        values[name] = torch.cat(parts, dim)
    return Draw(draws[0].choice, values)


@pytest.mark.parametrize("number", range(len(EVERY)), ids=EVERY)
def test_gradients_equal_those_of_one_process(
    pair: Path, tmp_path: Path, number: int, request: pytest.FixtureRequest
) -> None:
    """One process runs the whole batch in one forward pass, with the draws of the two ranks.

    HTM assigns partners within what a process sees, so there the one process goes through the halves one by one.
    """
    if EVERY[number] in OWN:
        request.getfixturevalue("own_parts")
    trainer = Trainer(tiny(tmp_path / "one", **gradient_settings(EVERY[number])))
    trainer.learner.train()
    batch, seed = next(trainer.loader.epoch(0)), trainer.config.seed
    halves = [(batch.images[rank::2], batch.labels[rank::2]) for rank in range(2)]
    draws = []
    for rank, (images, _) in enumerate(halves):
        own, shared = generator_for(seed, 0, 1 + rank), generator_for(seed, 0, 0)
        draws.append(trainer.method.draw(trainer.core.mixing.frame(images), own, shared=shared))
    if number < len(METHODS):
        images, labels = (torch.cat(parts) for parts in zip(*halves, strict=True))
        trainer.core(images, labels, draw=joined(draws, len(halves[0][1]))).loss.backward()
    else:
        for (images, labels), draw in zip(halves, draws, strict=True):
            (trainer.core(images, labels, draw=draw).loss / 2).backward()
    expected = {name: each.grad for name, each in trainer.core.named_parameters() if each.grad is not None}
    for rank in range(2):
        gradients = load_file(pair / f"gradients{number}-{rank}.safetensors")
        assert gradients.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(gradients[name], expected[name], atol=1e-5, rtol=1e-5)


def test_accumulated_gradients_equal_those_of_one_process(pair: Path) -> None:
    """Two parts on each of two processes, exchanged once, give the gradients of the batch as a whole."""
    assert found(pair, "accumulation") == [[False, True]] * 2
    for rank in range(2):
        whole = load_file(pair / f"gradients{METHODS.index('none')}-{rank}.safetensors")
        parts = load_file(pair / f"accumulated-{rank}.safetensors")
        assert parts.keys() == whole.keys()
        for name in whole:
            torch.testing.assert_close(parts[name], whole[name], atol=1e-6, rtol=1e-5)


def test_gradients_are_exchanged_with_a_static_graph(pair: Path) -> None:
    assert found(pair, "static_graph") == [[True] * 9] * 2


def same_tables(one: Path, two: Path) -> bool:
    measures = ("epoch", "loss", "accuracy", "eval_loss", "ema_accuracy")
    pairs = zip(rows(one), rows(two), strict=True)
    return all(a[name] == pytest.approx(b[name], abs=1e-5) for a, b in pairs for name in measures)


def test_whole_training_equals_that_of_one_process(pair: Path, tmp_path: Path) -> None:
    train(tmp_path / "one", ema=0.9, **gradient_settings("none"))
    for name in ("last", "best"):
        one, two = weights(tmp_path / "one", name), weights(pair / "plain", name)
        for key in one:
            torch.testing.assert_close(two[key], one[key], atol=1e-5, rtol=1e-4)
    assert len(rows(pair / "plain")) == 2 and same_tables(tmp_path / "one", pair / "plain")


def test_each_process_resumes_with_its_own_history(pair: Path) -> None:
    assert same_weights(weights(pair / "history"), weights(pair / "history_parts"))


@pytest.mark.parametrize("run", ["resumed", "stopped", "lost", "disk0/run"])
def test_interrupted_training_equals_the_uninterrupted(pair: Path, run: str) -> None:
    for name in ("last", "best"):
        assert same_weights(weights(pair / "two", name), weights(pair / run, name))
    assert same_tables(pair / "two", pair / run)


def test_a_signal_to_one_process_stops_both(pair: Path) -> None:
    assert found(pair, "stopped") == [[143, 3], [143, 3]]


def test_a_lost_loader_worker_stops_both(pair: Path) -> None:
    first, second = found(pair, "lost_worker")
    assert first[:2] == second[:2] and first[0] == 1 and 3 <= first[1] <= 6
    assert " of process 1; " in first[2] and f"Checkpoint of update {first[1]} is written" in first[2]


def test_only_the_first_process_has_a_run_folder(pair: Path) -> None:
    """On nodes with disks of their own the first one's checkpoints count, whatever lies on the others."""
    first, second = found(pair, "own_disks")
    assert "summary.json" in first and second == ["checkpoints"]


def test_a_loss_lost_in_one_process_stops_both(pair: Path) -> None:
    for code, said in found(pair, "nonfinite"):
        assert code == 1 and "not finite at update 5" in said
    assert "update-000000004" in found(pair, "nonfinite")[0][1]
    assert found(pair, "skipped") == [[0, 1], [0, 1]]


def test_refusals_are_the_same_everywhere(pair: Path) -> None:
    first, second = found(pair, "refusals")
    assert first == second
    assert first["settings"] == (
        "process 1 does not match process 0: it was started with another lr; give every process the same settings"
    )
    assert first["folder"].startswith("process 1: imagefolder: 'mine' is not a folder")
    assert "18 images of 2 classes instead of 16 of 2" in first["data"] and "same files" in first["data"]
    assert first["all"].startswith("imagefolder: 'nowhere' is not a folder")
    assert "did you mean" in first["late"]
    assert first["disk"].startswith("cannot write to the run folder")


def test_the_process_that_failed_says_why(pair: Path) -> None:
    first, second = found(pair, "failing")
    assert first == [1, ""]
    code, said = second
    assert code == 1 and "Traceback" in said and "learn_and_fail" in said
    last = said.splitlines()[-1]
    assert last == "vitmix: error: process 1: OSError: [Errno 5] Input/output error: 'image.png'"


def test_the_first_process_downloads(pair: Path) -> None:
    assert found(pair, "turns") == [[False, False], [True, True]]


def test_batch_must_divide(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 3 micro-batches, got 8; take 9"):
        Trainer(tiny(tmp_path / "run", accumulate=3))


# Accelerate starts one process where it is told of a CPU; the launcher for GPUs starts as many as it is told.
LAUNCHERS = {
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    + ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"],
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers(pair: Path, tmp_path: Path, launcher: str) -> None:
    """The command under a real launcher: it trains as the two processes above did, and refuses in one sentence."""
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**TINY, **WHOLE}))

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *LAUNCHERS[launcher], "-m", "vitmix", "train", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    done = launch("--config", str(tmp_path / "two.yaml"), "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trained   2 epochs") == 1
    assert same_weights(weights(pair / "two"), weights(tmp_path / "run"))
    done = launch("--config", str(tmp_path / "two.yaml"), "--data", "imagefolder:nowhere")
    assert done.returncode != 0 and done.stderr.count("vitmix: error: imagefolder: 'nowhere' is not a folder") == 1
    done = launch("--epocs", "3")
    assert done.returncode != 0 and done.stderr.count("vitmix: error: unknown argument") == 1


FAILURES = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "process 0: another process ended without an error message"),
    "unreadable": ("raise NothingReadable('no image could be read')", "process 1: no image could be read"),
}


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
def test_one_sentence_for_the_process_that_failed(tmp_path: Path, failure: str) -> None:
    act, sentence = FAILURES[failure]
    script = f"""
        import os, signal, sys
        from vitmix.lab.cli import main as cli
        from vitmix.lab.data.images import NothingReadable
        from vitmix.lab.training.engine import Trainer

        learn = Trainer._learn

        def learn_and_fail(self, *arguments):
            learn(self, *arguments)
            if self.update == 2:
                {act}

        if os.environ["RANK"] == "1":
            Trainer._learn = learn_and_fail
        sys.exit(cli.main(sys.argv[1:]))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**TINY, **WHOLE}))
    command = [sys.executable, "-m", *LAUNCHERS["torchrun"], str(tmp_path / "script.py"), "train"]
    command += ["--config", str(tmp_path / "two.yaml"), "--output", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("vitmix: error: ")]
    assert len(said) == 1 and sentence in said[0], done.stderr
    assert done.stderr.count("Traceback") == 1  # of the launcher


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for threads in /proc")
def test_no_thread_of_the_group_outlives_a_training(tmp_path: Path) -> None:
    """One that frees a tensor while the interpreter ends aborts the process, and torchrun counts it as failed."""
    script = """
        import sys
        from pathlib import Path
        from vitmix.lab.cli.main import main
        code = main(sys.argv[1:])
        print("Threads:", *sorted(each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")))
        sys.exit(code)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**TINY, **WHOLE}))
    command = [sys.executable, "-m", *LAUNCHERS["torchrun"], str(tmp_path / "script.py"), "train"]
    command += ["--config", str(tmp_path / "two.yaml"), "--output", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    said = [line for line in done.stdout.splitlines() if line.startswith("Threads: ")]
    assert done.returncode == 0 and len(said) == 2 and not any("gloo" in line for line in said), (
        done.stdout + done.stderr
    )
