"""A state with NaN or infinite numbers is never saved as a checkpoint, nor called a finished training."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from training import one_thread, poison_gradient, rows, tiny, train, weights  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.training import checkpoints
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.scores import Scored

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("update", [7, 11], ids=["middle", "last"])
def test_weights_that_are_not_finite_are_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], update: int
) -> None:
    """The gradient of an update is NaN while its loss is finite; after the last update no loss would show it."""
    trainer = Trainer(tiny(tmp_path / "run", checkpoint_every="2 steps", ema=0.9))
    poison_gradient(trainer, update)
    assert trainer.run() == 1
    newest, damaged = checkpoints.newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert newest is not None and newest.name == f"update-{update - 1:09d}" and not damaged
    said = capsys.readouterr().out
    assert f"the weights are not finite after update {update + 1}" in said and newest.name in said
    assert all(value.isfinite().all() for value in weights(tmp_path / "run", "best").values())
    assert not (tmp_path / "run" / "summary.json").exists()
    train(tmp_path / "run", ema=0.9)  # the last good checkpoint goes on
    assert f"resuming at update {update - 1} of 12" in capsys.readouterr().out
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_best_weights_are_finite(tmp_path: Path) -> None:
    """The first epoch's weights would be the best so far, whatever they are."""
    trainer = Trainer(tiny(tmp_path / "run", epochs=1))
    poison_gradient(trainer, 5)
    assert trainer.run() == 1
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_a_measure_that_is_nan_is_not_the_best(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path / "run", best="eval_loss"))
    score = trainer._score

    def lost_at_first(model: torch.nn.Module) -> Scored:
        found = score(model)
        return Scored(found.values | ({"eval_loss": math.nan} if trainer.position.epoch == 0 else {}), found.outcomes)

    trainer._score = lost_at_first
    assert trainer.run() == 0
    assert trainer.position.best is not None and trainer.position.best.number == 2


def test_files_are_valid_json_and_leave_out_what_is_not_finite(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    trainer = Trainer(tiny(tmp_path / "run"))
    score = trainer._score
    lost = {"accuracy": 0.5, "eval_loss": math.nan}
    trainer._score = lambda model: Scored(
        lost if trainer.position.epoch == 1 else score(model).values | {"eval_loss": -math.inf}, []
    )
    assert trainer.run() == 0
    written = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line, parse_constant=refuse) for line in written]
    assert [sorted({"accuracy", "eval_loss", "loss"} & row.keys()) for row in lines] == [["accuracy", "loss"]] * 2
    assert ["eval_loss" in row for row in rows(tmp_path / "run")] == [False, False]
    summary = json.loads((tmp_path / "run/summary.json").read_text(), parse_constant=refuse)
    assert summary["last"] == lines[-1] and summary["accuracy"] == 0.5
    report = ["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html"), "--examples", "0", "--no-eval"]
    assert cli.main(report) == 0


@pytest.mark.parametrize(("part", "words"), [("optimizer", "the optimizer's state is"), ("ema", "the EMA weights are")])
def test_other_state_that_is_not_finite_is_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, words: str
) -> None:
    trainer = Trainer(tiny(tmp_path / "run", checkpoint_every="2 steps", ema=0.9))
    learn = trainer._learn

    def learn_and_spoil(*arguments: Any) -> None:
        learn(*arguments)
        if trainer.update == 4:
            assert trainer.ema is not None
            averaged, moments = next(trainer.ema.module.parameters()), next(iter(trainer.optimizer.state.values()))
            spoiled = averaged if part == "ema" else moments["exp_avg_sq"]
            spoiled.data.view(-1)[0] = math.inf

    trainer._learn = learn_and_spoil
    assert trainer.run() == 1
    said = capsys.readouterr().out
    assert f"{words} not finite after update 4" in said and "update-000000002" in said
    assert [each.name for each in (tmp_path / "run" / "checkpoints").iterdir()] == ["update-000000002"]


def test_a_buffer_may_be_infinite_but_not_nan(tmp_path: Path) -> None:
    """Attention masks are buffers that hold minus infinity."""
    for value, code in ((-math.inf, 0), (math.nan, 1)):
        trainer = Trainer(tiny(tmp_path / f"run{value}", epochs=1))
        trainer.core.model.register_buffer("mask", torch.tensor([0.0, value]))
        assert trainer.run() == code


def test_a_saved_nan_is_not_resumed_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As versions that did not look at the weights have written it."""
    trainer = Trainer(tiny(tmp_path / "run", checkpoint_every="2 steps"))
    poison_gradient(trainer, 7)
    trainer._check_state = lambda: None
    assert trainer.run() == 1  # by the loss
    train(tmp_path / "run")
    said = capsys.readouterr().out
    assert "update-000000008 is damaged" in said and "not finite" in said and "resuming at update 6" in said
