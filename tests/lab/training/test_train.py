"""The loop: it learns, repeats itself, averages, accumulates, says what it does and computes in other ways."""

import io
import json
import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import timm
import torch
import yaml
from accelerate.tracking import GeneralTracker, register_tracker_class
from PIL import Image
from rich.console import Console
from torch import Tensor

from support import never_waiting
from training import TINY, one_thread, poison, rows, same_weights, tiny, train, weights, whole_run  # noqa: F401
from vitmix import Learner
from vitmix.lab.cli import main as cli
from vitmix.lab.runs import Run
from vitmix.lab.training import checkpoints
from vitmix.lab.training.config import read_yaml, resolve
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.losses import LossTally
from vitmix.lab.training.optim import make_optimizer, make_schedule
from vitmix.lab.training.prepare import checkpoint_activations

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def finished(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    return whole_run(tmp_path_factory)


def cats_and_dogs(folder: Path) -> str:
    """Noise in files, named as data."""
    numbers = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = numbers.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")
    return f"imagefolder:{folder}"


def test_loss_falls(tmp_path: Path) -> None:
    still = {"smoothing": 0.0, "drop": 0.0, "drop_path": 0.0, "scale": None, "hflip": 0.0}
    train(tmp_path / "run", method="none", epochs=8, lr=0.02, **still)
    losses = [float(row["loss"]) for row in rows(tmp_path / "run")]
    assert losses[-1] < losses[0] - 0.2


def test_run_folder(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        ".lock", "config.yaml", "metrics.jsonl", "summary.json", "best.safetensors", "last.safetensors",
        "checkpoints",
    }  # fmt: skip
    assert [row["epoch"] for row in rows(finished)] == [1, 2]
    assert len(checkpoints.list_checkpoints(finished / "checkpoints")) == 2
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["updates"] == 12 and summary["broken_images"] == []
    assert 0 <= summary["accuracy"] <= 1 and summary["best"]["epoch"] in (1, 2)
    assert summary["environment"]["torch"] == torch.__version__ and summary["environment"]["device"].endswith("CPU")
    assert summary["processes"] == 1 and summary["peak_memory"] is None  # nobody counts a CPU's


def test_timm_loads_the_weights(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    settings = summary["model_settings"]
    model = timm.create_model(summary["model"], checkpoint_path=str(finished / "best.safetensors"), **settings)
    assert same_weights(dict(model.state_dict()), weights(finished, "best"))
    assert "timm.create_model" in summary["text"] and "best.safetensors" in summary["text"]


def test_same_seed_same_numbers(finished: Path, tmp_path: Path) -> None:
    train(tmp_path / "again", ema=0.9)
    assert same_weights(weights(finished), weights(tmp_path / "again"))
    train(tmp_path / "other", ema=0.9, seed=1)
    assert not same_weights(weights(finished), weights(tmp_path / "other"))


def test_stored_configuration_repeats_the_training(finished: Path, tmp_path: Path) -> None:
    config = resolve({"output": str(tmp_path / "again")}, file=finished / "config.yaml")
    Trainer(config).run()
    assert same_weights(weights(finished), weights(tmp_path / "again"))


class Memo(GeneralTracker):
    """A tracker that remembers."""

    name, requires_logging_directory = "memo", False
    seen: ClassVar[list[tuple[int, dict[str, float]]]] = []

    def __init__(self, run_name: str, **settings: object) -> None:
        super().__init__()

    @property
    def tracker(self) -> object:
        return self

    def store_init_configuration(self, values: dict[str, object]) -> None:
        assert values["lr"] == TINY["lr"]

    def log(self, values: dict[str, float], step: int | None = None, **settings: object) -> None:
        self.seen.append((step or 0, values))


def test_trackers_by_name(tmp_path: Path) -> None:
    register_tracker_class(Memo)
    train(tmp_path / "run", track="memo")
    assert [step for step, _ in Memo.seen] == [1, 2]
    assert all("accuracy" in values and "loss" in values for _, values in Memo.seen)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    output = tmp_path / "run"
    train(output, track="auto")
    events = EventAccumulator(str(output / "logs" / "vitmix")).Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2]
    assert {path.name for path in output.iterdir()} >= {"logs", "summary.json"}


def test_evaluation_now_and_then(tmp_path: Path) -> None:
    settings = {"data": "shapes(size=16, length=48, test_length=24)?holdout=0.25", "eval_split": "val"}
    trainer = train(tmp_path / "run", epochs=3, eval_every=2, best="eval_loss", **settings)
    found = rows(tmp_path / "run")
    assert ["accuracy" in row for row in found] == [False, True, True]
    losses = {row["epoch"]: row["eval_loss"] for row in found if "eval_loss" in row}
    assert trainer.position.best is not None
    assert trainer.position.best.number == min(losses, key=lambda epoch: losses[epoch])
    assert "held out" in trainer.eval_images.description and len(trainer.images) + len(trainer.eval_images) == 48


def test_what_it_is_going_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", epochs=1)
    data, model, *rest = capsys.readouterr().out.splitlines()
    assert data == (
        "Training on 48 images of 12 classes: shapes, 48 images of 16 px (train); "
        "evaluating on 24: shapes, 24 images of 16 px (test)."
    )
    parameters = sum(value.numel() for value in weights(tmp_path / "run").values())
    assert model.startswith(f"Model vit_tiny_patch16_224 with {parameters:,} parameters, on ")
    assert model.endswith(" CPU in fp32; method mixup(alpha=0.8) | tl_align.")
    assert not any(line.startswith("Note: no ") for line in rest)


def test_classes_without_a_picture_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 16, 16, 3), dtype=np.uint8)
    for split in ("train", "val"):
        np.savez(tmp_path / f"{split}.npz", images=pixels, labels=np.tile([0, 2, 9], 8))
    train(tmp_path / "run", data=f"npz:{tmp_path}", epochs=1, batch=6)
    said = capsys.readouterr().out
    assert "images of 10 classes" in said
    assert "\nNote: no training image shows 1, 3, 4, 5, 6 and 2 more classes.\n" in said
    assert "to evaluate on" not in said


@pytest.mark.parametrize("split", [True, False])
def test_what_is_evaluated_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], split: bool) -> None:
    root = tmp_path / "img"
    for place in ("train/cat", "train/dog", "train/emu", "val/cat", "val/dog") if split else ("cat", "dog"):
        (root / place).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(root / place / f"{number}.png")
    for name in ("train/cat", "val/cat") if split else ():
        (root / name / "3.png").write_text("no picture")
    trainer = train(tmp_path / "run", data=f"imagefolder:{root}", epochs=1, batch=6)  # which leaves no image out
    said = capsys.readouterr().out
    held_out = f"the tenth of imagefolder:{root} (train) that was held out"
    if split:
        assert (
            f"images of 3 classes: imagefolder:{root}/train (train); evaluating on 20: imagefolder:{root}/val" in said
        )
        assert "\nNote: no evaluation image shows emu.\n" in said
        summary = Run(trainer.folder.path).summary
        assert summary is not None
        broken = summary.broken_images
        assert [each.partition(":")[0] for each in broken] == ["evaluation", "training"]  # two files of one name
    else:
        assert "Training on 18 images of 2 classes" in said and "Note: no" not in said
        assert f"evaluating on 2: {held_out}, as the data has no other split.\n" in said
        assert f" % on {held_out}; best" in said


def test_a_way_on_from_a_finished_run(tmp_path: Path) -> None:
    output = tmp_path / "run"
    train(output, epochs=1)
    with pytest.raises(ValueError, match="epochs: 1 -> 3") as refusal:
        Trainer(tiny(output, epochs=3))
    way = f"""'vitmix train --checkpoint {output} --data "{TINY["data"]}" --output OTHER' trains its weights further"""
    assert way in str(refusal.value)
    assert Trainer(tiny(tmp_path / "other", epochs=3, checkpoint=str(output))).remarks
    with pytest.raises(ValueError, match="lr: .*the run's own settings$"):
        Trainer(tiny(output, epochs=1, lr=0.1))


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    shown = io.StringIO()
    trainer = Trainer(tiny(tmp_path / "run"))
    trainer.reporter.console = Console(file=shown, force_terminal=True, width=140)
    assert trainer.reporter.live and trainer.run() == 0
    text = shown.getvalue()
    assert all(words in text for words in ("epoch 1/2", "images/s  loss", "lr ", " left", "accuracy", "Trained"))


def test_nonfinite_loss_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(tiny(tmp_path / "run", checkpoint_every="2 steps"))
    poison(trainer, 5)
    assert trainer.run() == 1
    said = capsys.readouterr().out
    assert "not finite at update 5" in said and "tl_align" in said and "update-000000004" in said
    assert "--skip-nonfinite" in said
    assert checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "update-000000004"


def test_nonfinite_loss_is_skipped(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path / "run", skip_nonfinite=True))
    poison(trainer, 5)
    assert trainer.run() == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["skipped_updates"] == 1 and "Skipped   1 updates" in summary["text"]
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())
    assert all(math.isfinite(float(row["loss"])) for row in rows(tmp_path / "run"))


def test_nonfinite_loss_found_with_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a GPU, which is asked only now and then."""
    trainer = Trainer(tiny(tmp_path / "run", checkpoint_every="2 steps", log_every=4))
    poison(trainer, 5)
    trainer._usable = lambda values: True
    assert trainer.run() == 1
    said = capsys.readouterr().out
    assert "not finite at update 5" in said and "update-000000004" in said


def _scaled(trainer: Trainer, scale: float) -> None:
    """Scales the loss as fp16 does on a GPU."""
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)


def test_overflows_of_the_loss_scaler_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(tiny(tmp_path / "run"))
    _scaled(trainer, 2.0**127)
    assert trainer.accelerator.scaler is not None and trainer.run() == 0
    halvings = round(127 - math.log2(trainer.accelerator.scaler.get_scale()))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 1 <= halvings < 12 and summary["overflowed_updates"] == halvings and summary["skipped_updates"] == 0
    assert f"Overflow  {halvings} updates" in capsys.readouterr().out
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_both_kinds_of_skipped_updates_are_told_apart(tmp_path: Path) -> None:
    """A lost loss under a loss scaler is not one of the scaler's own overflows, and does not enter the means."""
    trainer = Trainer(tiny(tmp_path / "run", skip_nonfinite=True, clip_grad=1.0))
    _scaled(trainer, 2.0**127)
    poison(trainer, 10)
    assert trainer.accelerator.scaler is not None and trainer.run() == 0
    lowered = round(127 - math.log2(trainer.accelerator.scaler.get_scale()))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["skipped_updates"] == 1 and summary["overflowed_updates"] == lowered - 1 >= 1
    assert all(math.isfinite(float(row["loss"])) for row in rows(tmp_path / "run"))


def test_accumulation_gives_the_large_batch_s_gradient(tmp_path: Path) -> None:
    settings = {"method": "none", "drop": 0.0, "drop_path": 0.0, "optimizer": "momentum", "momentum": 0.0, "epochs": 1}
    train(tmp_path / "whole", **settings)
    train(tmp_path / "parts", accumulate=4, **settings)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for key in whole:
        torch.testing.assert_close(parts[key], whole[key], atol=1e-6, rtol=1e-5)  # sums in another order


def test_rare_reports_take_no_memory() -> None:
    tally = LossTally(["loss"], torch.device("cpu"), capacity=2**48)
    for update in range(2500):
        tally.add(torch.tensor([float(update)]))
    tally.flush()
    assert tally.sums == [sum(range(2500))] and tally.count == 2500


def test_averaged_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[str, Tensor] = {}
    learn = Trainer._learn

    def learn_and_average(trainer: Trainer, *arguments: object) -> None:
        learn(trainer, *arguments)  # type: ignore[arg-type]
        for key, value in trainer.core.model.state_dict().items():
            expected[key] = value.clone() if trainer.update == 1 else 0.9 * expected[key] + 0.1 * value

    monkeypatch.setattr(Trainer, "_learn", learn_and_average)
    trainer = train(tmp_path / "run", ema=0.9, best="ema_accuracy", epochs=1)
    assert trainer.ema is not None
    for key, value in trainer.ema.module.state_dict().items():
        torch.testing.assert_close(value, expected[key])
    assert same_weights(weights(tmp_path / "run", "best"), dict(trainer.ema.module.state_dict()))
    assert not same_weights(weights(tmp_path / "run", "best"), weights(tmp_path / "run"))


def test_mixing_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    draw = Trainer._draw

    def noted(trainer: Trainer, images: Tensor, epoch: int, step: int) -> object:
        drawn = draw(trainer, images, epoch, step)
        seen.append((epoch, drawn.choice))
        return drawn

    monkeypatch.setattr(Trainer, "_draw", noted)
    trainer = train(tmp_path / "run", method="cutmix + vtm(block=1, tokens=2)", mixing_off_epoch=1)
    assert {choice for epoch, choice in seen if epoch == 0} == {0}
    assert {choice for epoch, choice in seen if epoch == 1} == {1}
    off = trainer.core.mixer.mixers[1]
    assert str(off) == "vtm(block=1, tokens=2, smoothing=0.1)"


def test_schedule(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path / "run", epochs=4, cooldown_epochs=1, warmup_epochs=1, lr=0.01, min_lr=0.001))
    schedule, found = trainer.schedule, []
    for update in range(trainer.total_updates):
        schedule.step_update(update)
        found.append(trainer.optimizer.param_groups[0]["lr"])
    assert len(found) == 30 and found[0] == 1e-6 and max(found) == found[6]
    assert found[24:] == [0.001] * 6
    expected = 0.001 + 0.5 * 0.009 * (1 + math.cos(math.pi * 12 / 24))
    assert found[12] == pytest.approx(expected)
    constant = make_schedule(trainer.optimizer, tiny(tmp_path, schedule="constant", warmup_epochs=0, lr=0.01), 6)
    for update in (0, 5, 11):
        constant.step_update(update)
        assert trainer.optimizer.param_groups[0]["lr"] == 0.01


def test_optimizer_groups(tmp_path: Path) -> None:
    config = tiny(tmp_path, layer_decay=0.5, weight_decay=0.1, method="htm(block=1)")
    model = timm.create_model("test_vit", num_classes=12)
    from vitmix import create

    learner = Learner(model, create("htm(block=1)", num_classes=12))
    optimizer = make_optimizer(learner, config)
    listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(each) for each in listed} == {id(each) for each in learner.parameters()}
    assert len(listed) == len(list(learner.parameters()))
    scales = {group.get("lr_scale", 1.0) for group in optimizer.param_groups}
    assert 1.0 in scales and 0.5 in scales
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.1}


def test_top_5_of_few_classes_is_not_shown(tmp_path: Path) -> None:
    assert "accuracy5" in Trainer(tiny(tmp_path / "many")).reporter.columns
    assert "accuracy5" not in Trainer(tiny(tmp_path / "few", data=cats_and_dogs(tmp_path / "data"))).reporter.columns


def test_broken_images_are_counted(tmp_path: Path) -> None:
    data = cats_and_dogs(tmp_path / "data")
    (tmp_path / "data/train/cat/3.png").write_bytes(b"not a picture")
    (tmp_path / "data/val/dog/1.png").write_bytes(b"")
    train(tmp_path / "run", data=data, workers=1, epochs=1)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["broken_images"]) == 2
    assert any("cat/3.png" in each for each in summary["broken_images"])
    assert "Left out  2 images could not be used: " in summary["text"]
    assert [each.partition(" ")[0] for each in summary["broken_images"]] == ["evaluation:", "training:"]


def test_broken_images_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {**TINY, "data": cats_and_dogs(tmp_path / "data"), "epochs": 1, "output": str(tmp_path / "run")}
    (tmp_path / "data/val/dog/1.png").write_bytes(b"")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    assert cli.main(["train", "--config", str(tmp_path / "config.yaml")]) == 0
    assert (tmp_path / "run" / "evaluation.json").is_file()
    assert sum("dog/1.png" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("model", ["selecsls42", "hrnet_w18_small"])
def test_models_without_activation_checkpointing_are_refused(model: str) -> None:
    """timm's way to say so is an assertion."""
    with torch.device("meta"):
        network = timm.create_model(model)
    with pytest.raises(ValueError, match=f"^{model} has no activation checkpointing; leave grad_checkpointing out$"):
        checkpoint_activations(network, model)


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"grad_checkpointing": True, "method": "htm(block=1)"}])
def test_other_ways_to_compute(tmp_path: Path, changes: dict[str, object]) -> None:
    train(tmp_path / "run", epochs=1, **changes)
    assert math.isfinite(float(rows(tmp_path / "run")[0]["loss"]))


@pytest.mark.slow
def test_compiled_equals_eager(tmp_path: Path) -> None:
    settings = {"method": "tl_align", "drop": 0.0, "drop_path": 0.0, "epochs": 1}
    train(tmp_path / "eager", **settings)
    train(tmp_path / "compiled", compile=True, **settings)
    eager, compiled = weights(tmp_path / "eager"), weights(tmp_path / "compiled")
    for key in eager:
        torch.testing.assert_close(compiled[key], eager[key], atol=2e-4, rtol=1e-3)  # Adam magnifies rounding


@pytest.mark.slow
def test_example_without_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["accuracy"] >= 0.85
    assert read_yaml(run / "config.yaml")["recipe"] == "shapes"


def test_settings_of_the_tests_are_known() -> None:
    assert resolve(TINY).peak_lr == TINY["lr"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "method", ["none", "mixup | cutmix", "tl_align", "transmix", "tokenmix", "smmix", "vtm(block=1, tokens=2)"]
)
@pytest.mark.parametrize("resident", [False, True])
def test_no_update_waits_for_the_gpu(tmp_path: Path, method: str, resident: bool) -> None:
    erasing = {"erasing": 0.5, "erase_after_mixing": True}
    trainer = Trainer(
        tiny(tmp_path / "run", method=method, resident=resident, cpu=False, ema=0.9, log_every=50, **erasing)
    )
    trainer.learner.train()
    batches = trainer.loader.epoch(0)
    trainer._learn(batches, epoch=0)
    with never_waiting():
        for _ in range(3):
            trainer._learn(batches, epoch=0)


def test_another_model_guides(tmp_path: Path) -> None:
    guide = train(tmp_path / "guide", epochs=1, method="cutmix")
    weights = {name: value.clone() for name, value in guide.core.model.state_dict().items()}
    guided = train(tmp_path / "guided", epochs=1, method="smmix", guide=str(tmp_path / "guide"))
    alone = train(tmp_path / "alone", epochs=1, method="smmix")
    assert guided.core.mixing.guide is not guided.core.model
    losses = [trainer.position.history[-1].values["loss"] for trainer in (guided, alone)]
    assert losses[0] != losses[1]
    for name, value in guided.core.mixing.guide.state_dict().items():
        assert torch.equal(value, weights[name])
    for changes, sentence in (
        ({"method": "cutmix"}, "uses none"),
        ({"method": "smmix", "data": "shapes(size=16, length=48, test_length=24)", "num_classes": 13}, "13"),
        ({"method": "smmix", "size": 32, "model_args": {"img_size": 32}}, "the guide does not support these images"),
        ({"method": "smmix + vtm(block=1, tokens=400)"}, "cannot pick 400 tokens"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Trainer(tiny(tmp_path / "other", guide=str(tmp_path / "guide"), **changes))
    assert not (tmp_path / "other").exists()


def test_images_smaller_than_a_patch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of the patches of .*, 8 pixels, got 7; use 8 or 16"):
        Trainer(tiny(tmp_path / "run", size=7))
    assert not (tmp_path / "run").exists()


def test_what_follows_the_end_of_mixing_is_one_mixer(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path / "run", method="mixup(alpha=0.8) | cutmix", mixing_off_epoch=1))
    assert len(trainer.core.mixer.mixers) == 3
    trainer.lock.release()
