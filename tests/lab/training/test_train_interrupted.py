"""Trainings that are stopped, killed or run out of disk: what was written is complete, and they go on bit for bit."""

import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kill_runs import contents, different
from training import (  # noqa: F401
    look_often,
    one_thread,
    poison,
    replace_file,
    rows,
    same_weights,
    tiny,
    train,
    train_until,
    weights,
    whole_run,
)
from vitmix.lab import writing
from vitmix.lab.cli import main as cli
from vitmix.lab.data import workers
from vitmix.lab.data.images import DataLost
from vitmix.lab.data.loader import Batch
from vitmix.lab.runs import Epoch
from vitmix.lab.training import checkpoints
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.scores import Scored

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def finished(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    return whole_run(tmp_path_factory)


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_equals_uninterrupted(finished: Path, tmp_path: Path, workers: int) -> None:
    output, chance = tmp_path / "run", random.Random(workers)
    for update in sorted(chance.sample(range(1, 12), 3 - workers // 2)):
        train_until(output, update, ema=0.9, checkpoint_every="1 step" if update % 2 else "2 steps", workers=workers)
    train(output, ema=0.9, workers=workers)
    assert same_weights(weights(finished), weights(output))
    assert same_weights(weights(finished, "best"), weights(output, "best"))
    newest, damaged = checkpoints.newest_checkpoint(output / "checkpoints")
    assert newest is not None and not damaged
    ema = checkpoints.load_checkpoint(newest).ema
    whole, _ = checkpoints.newest_checkpoint(finished / "checkpoints")
    assert ema is not None and whole is not None and same_weights(ema, checkpoints.load_checkpoint(whole).ema or {})
    shown = ("epoch", "lr", "loss", "accuracy", "eval_loss", "ema_accuracy")
    assert [[row[name] for name in shown] for row in rows(output)] == [[r[n] for n in shown] for r in rows(finished)]


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize(
    "method", ["(mixup | cutmix) + htm(block=1) + vtm(block=1, tokens=2)", "mixup | smmix", "recursivemix"]
)
def test_every_state_is_resumed(tmp_path: Path, method: str, resident: bool) -> None:
    settings = {"method": method, "resident": resident, "accumulate": 2, "erasing": 0.5, "erase_after_mixing": True}
    settings |= {"clip_grad": 1.0, "mixing_off_epoch": 1, "repeats": 2, "optimizer": "sgd", "layer_decay": 0.8}
    train(tmp_path / "whole", **settings)
    train_until(tmp_path / "parts", 4, checkpoint_every="3 steps", **settings)
    train_until(tmp_path / "parts", 8, checkpoint_every="3 steps", **settings)
    train(tmp_path / "parts", **settings)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_kill_before_older_checkpoints_are_removed(finished: Path, tmp_path: Path) -> None:
    """After the last checkpoint no other one is written that would remove them."""
    output = shutil.copytree(finished, tmp_path / "copy")
    (output / "summary.json").unlink()
    folder = output / "checkpoints"
    (last,) = checkpoints.list_checkpoints(folder)[-1:]
    for update in (3, 4, 5):
        shutil.copytree(last, folder / f"{checkpoints.PREFIX}{update:09d}", dirs_exist_ok=True)
    (folder / f"{checkpoints.PREFIX}000000004" / checkpoints.MANIFEST).unlink()  # its removal had begun
    before = [path.name for path in checkpoints.list_checkpoints(folder)]
    train(output, ema=0.9, keep=2)
    assert [path.name for path in checkpoints.list_checkpoints(folder)] == before[-2:]
    assert same_weights(weights(finished), weights(output))


def test_the_kill_test_sees_what_differs(finished: Path, tmp_path: Path) -> None:
    """All but times: a number of the metrics, a bit of the weights, the state of training, a file left behind."""
    output = shutil.copytree(finished, tmp_path / "copy")
    whole = contents(finished)
    newest, _ = checkpoints.newest_checkpoint(output / "checkpoints")
    assert newest is not None

    def change(path: Path, old: bytes, new: bytes) -> list[str]:
        before = path.read_bytes()
        assert old in before
        path.write_bytes(before.replace(old, new))
        found = different(contents(output), whole)
        path.write_bytes(before)
        return found

    row = json.loads((output / "metrics.jsonl").read_text().splitlines()[0])
    assert change(output / "metrics.jsonl", str(row["seconds"]).encode(), b"77") == []
    assert change(output / "metrics.jsonl", str(row["loss"]).encode(), b"77") == ["metrics.jsonl"]
    content = (output / "last.safetensors").read_bytes()
    assert change(output / "last.safetensors", content[-1:], bytes([content[-1] ^ 1])) == ["last.safetensors"]
    place = f"checkpoints/{newest.name}"
    assert change(newest / "training.json", b'["step", 0]', b'["step", 1]') == [
        f"{place}/manifest.json",
        f"{place}/training.json",
    ]
    (output / ".best.safetensors.7.partial").touch()
    assert different(contents(output), whole) == [".best.safetensors.7.partial"]


def test_finished_run_is_not_repeated(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = shutil.copytree(finished, tmp_path / "copy")
    before = (output / "last.safetensors").stat().st_mtime_ns
    train(output, ema=0.9)
    assert (output / "last.safetensors").stat().st_mtime_ns == before
    assert "finished" in capsys.readouterr().out


def test_truncated_checkpoint_is_passed_over(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    train_until(output, 9, ema=0.9, checkpoint_every="2 steps", keep=3)
    newest = checkpoints.list_checkpoints(output / "checkpoints")[-1]
    content = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(content[: len(content) // 2])
    (output / "checkpoints" / ".update-000000009.partial").mkdir()
    train(output, ema=0.9)
    said = capsys.readouterr().out
    assert "update-000000008 is damaged" in said and "2 updates are repeated" in said
    assert "update-000000009 was interrupted" in said
    assert same_weights(weights(finished), weights(output))


def truncate(path: Path) -> None:
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[: len(content) // 2])


def stop_after(update: int, output: Path, **changes: object) -> int:
    """The exit code of a training that is sent SIGTERM after this many updates."""
    trainer = Trainer(tiny(output, **changes))
    learn = trainer._learn

    def learn_and_stop(*arguments: object) -> None:
        learn(*arguments)  # pyright: ignore
        if trainer.update == update:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer._learn = learn_and_stop
    return trainer.run()


def test_damaged_checkpoints_do_not_crowd_out_new_ones(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    train_until(output, 9, ema=0.9, checkpoint_every="2 steps")
    for path in checkpoints.list_checkpoints(output / "checkpoints"):
        truncate(path)
    assert stop_after(3, output, ema=0.9) == 143
    said = capsys.readouterr().out
    assert "Checkpoint of update 3 is written" in said and "starts from the beginning" in said
    names = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert names == ["damaged-update-000000006", "damaged-update-000000008", "update-000000003"]
    train(output, ema=0.9)
    assert "resuming at update 3 of 12" in capsys.readouterr().out
    assert same_weights(weights(finished), weights(output))


def test_stray_names_do_not_stop_resuming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_until(tmp_path / "run", 5, checkpoint_every="2 steps")
    folder = tmp_path / "run" / "checkpoints"
    shutil.copytree(folder / "update-000000004", folder / "update-000000120.bak")
    train(tmp_path / "run")
    assert "resuming at update 4 of 12 (epoch 1)\n" in capsys.readouterr().out
    assert (folder / "update-000000120.bak").exists()


@pytest.mark.parametrize(
    "position",
    [
        *({}, None, [], {"epoch": "1"}, {"epoch": 10**9}, {"step": -1}, {"best": 3}, {"best": {"epoch": 1}}, {"x": 1}),
        *({"epoch": 2, "history": [{}, {}]}, {"epoch": 1, "history": [{"epoch": 1, "seconds": "x"}]}),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], position: Any
) -> None:
    output = tmp_path / "run"
    train_until(output, 3, checkpoint_every="2 steps")
    (path,) = checkpoints.list_checkpoints(output / "checkpoints")
    state = checkpoints.load_checkpoint(path).training
    changed = {**state["position"], **position} if position else position
    _, skeleton = checkpoints.pack(state | {"position": changed})
    replace_file(path, "training.json", json.dumps(skeleton).encode())
    assert cli.main(["train", "--config", str(output / "config.yaml"), "--output", str(output)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vitmix: error: ") and said.count("\n") == 1 and "not a checkpoint of this run" in said
    assert path.is_dir()


def test_best_weights_that_are_gone_are_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run chooses new ones; deleted later, the summary and a finished run say what is there."""
    output = tmp_path / "run"
    train_until(output, 7, checkpoint_every="6 steps")
    (output / "best.safetensors").unlink()
    trainer = Trainer(tiny(output))
    tell = trainer.journal.tell

    def tell_and_delete(epoch: Epoch) -> None:
        assert trainer.position.best is not None and trainer.position.best.number == 2
        (output / "best.safetensors").unlink()
        tell(epoch)

    trainer.journal.tell = tell_and_delete
    assert trainer.run() == 0
    said = capsys.readouterr().out
    assert f"{output / 'best.safetensors'} is missing; the best weights are selected from now on" in said
    text = said[said.index("Trained ") :]
    assert "best.safetensors" not in text and f"Weights   {output / 'last.safetensors'} (final)" in text
    assert f"checkpoint_path='{output / 'last.safetensors'}'" in text
    assert json.loads((output / "summary.json").read_text())["best"] is None

    train(tmp_path / "whole")
    (tmp_path / "whole" / "best.safetensors").unlink()
    capsys.readouterr()
    train(tmp_path / "whole")
    said = capsys.readouterr().out
    assert f"{tmp_path / 'whole' / 'best.safetensors'} is missing" in said


def test_best_weights_of_a_repeated_epoch_are_not_called_those_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU does not repeat an epoch bit for bit: one that was the best may be so no longer."""

    def trainer_with(*accuracies: float) -> Trainer:
        trainer = Trainer(tiny(tmp_path / "run", checkpoint_every="1 epoch", best="accuracy"))
        score = trainer._score
        trainer._score = lambda model: Scored(
            score(model).values | {"accuracy": accuracies[trainer.position.epoch]}, []
        )
        return trainer

    class Killed(BaseException):
        pass

    def kill(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise Killed

    first = trainer_with(0.5, 0.9)
    first.journal.tell = kill  # after the best weights are written, and before the checkpoint
    with pytest.raises(Killed):
        first.run()
    again = trainer_with(0.5, 0.4)
    assert again.run() == 0
    said = capsys.readouterr().out
    assert "best.safetensors is of epoch 2, which is repeated; the best weights are selected from now on" in said
    assert again.position.best is not None and again.position.best.number == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best"]["accuracy"] == 0.4
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "run", "best"))


def test_full_disk(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, write, full = tmp_path / "run", writing.write_synced, [False]

    def write_until_full(path: Path, content: bytes) -> None:
        if full[0] and "training.safetensors" in path.name:
            path.write_bytes(content[:10])
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(writing, "write_synced", write_until_full)
    trainer = Trainer(tiny(output, ema=0.9, checkpoint_every="2 steps", keep=1))
    save = trainer._save

    def save_while_there_is_room() -> str:
        full[0] = trainer.update > 4
        return save()

    trainer._save = save_while_there_is_room
    assert trainer.run() == 0
    said = capsys.readouterr().out
    assert "checkpoint of update 6 could not be written: No space left on device" in said
    assert "newest complete checkpoint is update-000000004" in said
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["update-000000004"]
    assert same_weights(weights(finished), weights(output))


def test_a_stop_without_a_checkpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_checkpoint", fail)
    assert stop_after(3, tmp_path / "run") == 143
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("Stopped by SIGTERM. There is no complete checkpoint") and "continues" not in said


def test_a_checkpoint_that_vanishes_while_starting(tmp_path: Path) -> None:
    """The model was built without its initial weights, which must not be trained instead."""
    train_until(tmp_path / "run", 5, checkpoint_every="2 steps")
    trainer = Trainer(tiny(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(RuntimeError, match="is gone; rerun the command"):
        trainer.run()


def test_metrics_make_up_for_a_full_disk(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, write = tmp_path / "run", writing.write_synced
    trainer = Trainer(tiny(output, ema=0.9))

    def write_some(path: Path, content: bytes) -> None:
        if "metrics" in path.name and trainer.update < 12:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(writing, "write_synced", write_some)
    assert trainer.run() == 0
    assert "metrics could not be written: No space left on device" in capsys.readouterr().out
    assert [row["loss"] for row in rows(output)] == [row["loss"] for row in rows(finished)]


def test_a_disk_that_is_full_at_the_end(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run"
    trainer = Trainer(tiny(output, ema=0.9))

    def fail(summary: object) -> None:
        raise OSError(28, "No space left on device")

    trainer.folder.write_summary = fail
    assert trainer.run() == 1
    said = capsys.readouterr().out
    assert "newest complete checkpoint is update-000000012; rerun the command to resume from there" in said
    train(output, ema=0.9)
    assert same_weights(weights(finished), weights(output)) and (output / "summary.json").exists()


def test_signal_saves_and_exits(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, update, code in ((signal.SIGTERM, 3, 143), (signal.SIGINT, 7, 130)):
        trainer = Trainer(tiny(tmp_path / "run", ema=0.9))
        learn = trainer._learn

        def learn_and_stop(*arguments: object, trainer=trainer, learn=learn, update=update, number=number) -> None:
            learn(*arguments)
            if trainer.update == update:
                os.kill(os.getpid(), number)

        trainer._learn = learn_and_stop
        assert trainer.run() == code
        assert f"Checkpoint of update {update} is written" in capsys.readouterr().out
    train(tmp_path / "run", ema=0.9)
    assert same_weights(weights(finished), weights(tmp_path / "run"))


def test_signal_to_the_whole_job(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loader's workers end first, as when a scheduler signals every process."""
    trainer = Trainer(tiny(tmp_path / "run", ema=0.9, workers=2))
    learn, check = trainer._learn, trainer.stopper.check

    def learn_and_stop(*arguments: object) -> None:
        learn(*arguments)
        if trainer.update == 2:
            workers = multiprocessing.active_children()
            os.kill(os.getpid(), signal.SIGTERM)
            for worker in workers:
                os.kill(worker.pid or 0, signal.SIGKILL)
            time.sleep(0.2)
            # As if it had come while waiting for a batch.
            trainer.stopper.check = lambda accelerator: check(accelerator) if trainer.stopper.lost else None

    trainer._learn = learn_and_stop
    assert trainer.run() == 143
    assert "is written" in capsys.readouterr().out
    train(tmp_path / "run", ema=0.9)
    assert same_weights(weights(finished), weights(tmp_path / "run"))


def lose_workers_at(trainer: Trainer, update: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the loader's workers when the trainer has a batch after this many updates."""
    look_often(monkeypatch)
    to = Batch.to

    def kill_and_move(self: Batch, device: object) -> Batch:
        if trainer.update == update:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, signal.SIGKILL)
                worker.join()
        return to(self, device)  # pyright: ignore

    monkeypatch.setattr(Batch, "to", kill_and_move)


LONGER = {"ema": 0.9, "data": "shapes(size=16, length=160, test_length=24)", "epochs": 1}


def test_lost_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint is written before the run ends: an hour of training is not worth less than a network."""
    train(tmp_path / "whole", **LONGER)
    trainer = Trainer(tiny(tmp_path / "run", **LONGER))
    read = type(trainer.loader.images).read
    left = iter([True] * 37)

    def fail(self: Any, index: int) -> Any:
        if not next(left, False):
            raise DataLost("the network is gone")
        return read(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(type(trainer.loader.images), "read", fail)
        with pytest.raises(DataLost, match="^the network is gone$"):
            trainer.run()
    assert trainer.update > 0
    said = f"Checkpoint of update {trainer.update} is written"
    assert said in capsys.readouterr().out
    train(tmp_path / "run", **LONGER)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_a_killed_loader_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint is written, the sentence says why, and the same command goes on."""
    train(tmp_path / "whole", **LONGER)
    trainer = Trainer(tiny(tmp_path / "run", workers=2, **LONGER))
    with monkeypatch.context() as patch:
        lose_workers_at(trainer, 1, patch)
        assert trainer.run() == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"Stopped because loader worker \d+ was ended by SIGKILL, as when memory runs out", said), said
    assert f"Checkpoint of update {trainer.update} is written" in said and "lower --workers" in said
    assert 2 <= trainer.update < 20
    train(tmp_path / "run", **LONGER)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_a_worker_lost_between_the_parts_of_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half an update cannot be saved, so the rest of it is read without workers."""
    train(tmp_path / "whole", accumulate=2, **LONGER)
    watched = workers._watched

    def lost_after_five(torch_loader: Any) -> Iterator[Any]:
        yield from itertools.islice(watched(torch_loader), 5)
        raise workers.WorkerLost("loader worker 7 was ended by SIGKILL")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "_watched", lost_after_five)
        assert Trainer(tiny(tmp_path / "run", accumulate=2, **LONGER)).run() == 1
    assert "Checkpoint of update 3 is written" in capsys.readouterr().out
    train(tmp_path / "run", accumulate=2, **LONGER)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_a_killed_worker_of_the_evaluation(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(tiny(tmp_path / "run", ema=0.9, workers=2, eval_batch=1))
    with monkeypatch.context() as patch:
        lose_workers_at(trainer, 6, patch)
        assert trainer.run() == 1
    assert "Checkpoint of update 6 is written" in capsys.readouterr().out
    train(tmp_path / "run", ema=0.9, eval_batch=1)
    assert same_weights(weights(finished), weights(tmp_path / "run"))


def test_counts_survive_a_restart(tmp_path: Path) -> None:
    settings = {"skip_nonfinite": True, "checkpoint_every": "1 step"}
    trainer = Trainer(tiny(tmp_path / "run", **settings))
    poison(trainer, 2)
    trainer.stopper.received = signal.SIGTERM
    check = trainer.stopper.check
    trainer.stopper.check = lambda accelerator: check(accelerator) if trainer.update == 5 else None
    assert trainer.run() == 143
    train(tmp_path / "run", **settings)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["skipped_updates"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resuming_on_a_gpu(tmp_path: Path, precision: str) -> None:
    settings = {"precision": precision, "cpu": False, "resident": True, "optimizer": "momentum", "lr": 0.1}
    train(tmp_path / "whole", **settings)
    train_until(tmp_path / "parts", 7, checkpoint_every="3 steps", **settings)
    train(tmp_path / "parts", **settings)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for key in whole:
        torch.testing.assert_close(parts[key], whole[key], atol=1e-3, rtol=1e-2)  # kernels may add in any order
    newest, _ = checkpoints.newest_checkpoint(tmp_path / "parts" / "checkpoints")
    assert newest is not None
    assert (checkpoints.load_checkpoint(newest).training["scaler"] is None) == (precision != "fp16")


def _signal_after(monkeypatch: pytest.MonkeyPatch, update: int, pause: float = 0.0) -> None:
    learn = Trainer._learn

    def stopped(self: Trainer, *arguments: object) -> None:
        learn(self, *arguments)  # pyright: ignore
        time.sleep(pause)
        if self.update == update:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_learn", stopped)


def test_a_second_sigterm_does_not_end_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a scheduler and a launcher both pass it on. In a process: unpatched it would end pytest."""
    sent = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: sent.append(number))
    write = writing.write_synced

    def slow(path: Path, content: bytes) -> None:
        if checkpoints.PREFIX in path.parent.name:
            os.kill(os.getpid(), signal.SIGTERM)
        write(path, content)

    _signal_after(monkeypatch, 3)
    trainer = Trainer(tiny(tmp_path / "run", checkpoint_every="9 epochs"))
    monkeypatch.setattr(writing, "write_synced", slow)
    try:
        assert trainer.run() == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sent == []


def test_time_of_updates_before_a_stop_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path / "run", epochs=1, log_every=50)  # 6 updates
    _signal_after(monkeypatch, 5, pause=0.1)
    assert Trainer(config).run() == 143
    trainer = Trainer(config)
    assert trainer.run() == 0 and trainer.position.seconds > 0.6


def test_a_signal_when_nothing_is_left_to_train_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tiny(tmp_path / "run", epochs=1))
    monkeypatch.setattr(trainer.journal, "tell", lambda row: os.kill(os.getpid(), signal.SIGTERM))
    assert trainer.run() == 128 + signal.SIGTERM
    assert (tmp_path / "run" / "summary.json").exists() and (tmp_path / "run" / "last.safetensors").exists()
