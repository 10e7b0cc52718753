"""The recipe for fine-tuning: what is fitted to the data, what is trained, and what is written."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from support import ROOT, SHARED
from training import TINY, one_thread, same_weights, tiny, train, train_until, weights, whole_run  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.data.plan import EpochPlan
from vitmix.lab.evaluation.subject import open_subject
from vitmix.lab.runs.published import NEWER, _settings
from vitmix.lab.training.config import TrainConfig, read_yaml, resolve
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.fitted import RULES, fitted_text
from vitmix.lab.training.partial import merged_weights

pytestmark = pytest.mark.usefixtures("one_thread")
FITTED = ("batch", "epochs", "warmup_epochs", "lr", "layer_decay")


@pytest.fixture(scope="module")
def finished(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    return whole_run(tmp_path_factory)


def data(images: int) -> str:
    return f"shapes(size=16, length={images}, test_length=24)"


def finetuned(finished: Path, output: Path, images: int = 48, **changes: Any) -> TrainConfig:
    given = {"recipe": "finetune", "data": data(images), "checkpoint": str(finished), "output": str(output)}
    return resolve({**given, "workers": 0, "track": "none", "cpu": True, "crop_pct": 1.0, **changes})


@pytest.mark.parametrize(
    ("images", "batch", "epochs"),
    [(4, 4, 40), (200, 16, 40), (1000, 16, 18), (3680, 64, 20), (12_000, 128, 12), (50_000, 256, 8)],
)
def test_rules(images: int, batch: int, epochs: int) -> None:
    config = TrainConfig(lr_per=None)
    for name, rule in RULES.items():
        config = dataclasses.replace(config, **{name: rule(images, config)})
    assert (config.batch, config.epochs, config.warmup_epochs) == (batch, epochs, epochs / 10)
    assert config.lr == float(f"{3e-4 * (batch / 64) ** 0.5:.2g}") and config.layer_decay == 0.75
    assert config.batch <= images  # every epoch has an update


def test_settings_follow_the_data_and_flags_win(finished: Path, tmp_path: Path) -> None:
    config = finetuned(finished, tmp_path / "run", 200)
    assert [getattr(config, name) for name in FITTED] == [16, 40, 4.0, 0.00015, 0.75]
    assert config.recipe == "finetune" and config.model == TINY["model"] and config.size == TINY["size"]
    config = finetuned(finished, tmp_path / "run", 200, epochs=5, batch=32, layer_decay="none")
    assert [getattr(config, name) for name in FITTED] == [32, 5, 0.5, 0.00021, None]
    assert finetuned(finished, tmp_path / "run", 200, lora=4).lr == 0.0005
    assert fitted_text(config, FITTED, 200) == (
        "Fitted to 200 images: warmup_epochs 0.5, lr 0.00021; given: batch 32, epochs 5, layer_decay none."
    )


def test_first_lines_and_stored_configuration(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(finetuned(finished, tmp_path / "run", epochs=1))
    assert trainer.run() == 0
    out = capsys.readouterr().out
    assert "Fitted to 48 images: batch 16, warmup_epochs 0.1, lr 0.00015, layer_decay 0.75; given: epochs 1." in out
    assert "the classifier is new." in out
    stored = read_yaml(tmp_path / "run" / "config.yaml")
    assert [stored[name] for name in FITTED] == [16, 1, 0.1, 0.00015, 0.75]
    (tmp_path / "run" / "config.yaml").write_text((tmp_path / "run" / "config.yaml").read_text().replace("48", "9"))
    assert resolve(file=tmp_path / "run" / "config.yaml").batch == 16  # stored values are not fitted again


def test_head_is_reset(finished: Path, tmp_path: Path) -> None:
    old = weights(finished, "best")
    new = dict(Trainer(finetuned(finished, tmp_path / "new")).core.model.state_dict())
    kept = dict(Trainer(finetuned(finished, tmp_path / "kept", reset_head=False)).core.model.state_dict())
    assert same_weights(kept, old)
    assert {name for name in old if not torch.equal(new[name], old[name])} == {"head.weight", "head.bias"}


@pytest.mark.parametrize("method", ["none", "smmix", "tl_align", "mixup | cutmix", "none + htm(block=1)"])
def test_frozen_backbone(finished: Path, tmp_path: Path, method: str) -> None:
    trainer = Trainer(finetuned(finished, tmp_path / "run", freeze=True, epochs=1, method=method))
    assert trainer.run() == 0
    old, new = weights(finished, "best"), weights(tmp_path / "run")
    assert {name for name in old if not torch.equal(new[name], old[name])} == {"head.weight", "head.bias"}


@pytest.mark.parametrize("method", ["none", "smmix", "tl_align", "none + htm(block=1)"])
def test_low_rank_weights_are_merged(finished: Path, tmp_path: Path, method: str) -> None:
    trainer = Trainer(finetuned(finished, tmp_path / "run", lora=2, epochs=2, method=method, ema=0.5))
    assert trainer.run() == 0
    trainer.evaluate_best()
    old, new = weights(finished, "best"), weights(tmp_path / "run")
    assert new.keys() == old.keys()  # timm loads it as it is
    change = new["blocks.0.attn.qkv.weight"] - old["blocks.0.attn.qkv.weight"]
    assert 0 < torch.linalg.matrix_rank(change, rtol=1e-3) <= 2
    assert torch.equal(new["blocks.0.norm1.weight"], old["blocks.0.norm1.weight"])
    images = torch.randn(3, 3, 16, 16)
    again = open_subject(tmp_path / "run", weights="last").model
    torch.testing.assert_close(again(images), trainer.core.model.eval()(images), atol=1e-6, rtol=1e-5)
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["n"] == 24


def test_low_rank_training_resumes(finished: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"recipe": "finetune", "checkpoint": str(finished), "lora": 2, "method": "smmix"}
    given |= {"lr": 0.003, "layer_decay": None, "warmup_epochs": 0.5}
    whole = train(tmp_path / "whole", **given)
    train_until(tmp_path / "cut", 7, checkpoint_every="3 steps", **given)
    train(tmp_path / "cut", checkpoint_every="3 steps", **given)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert same_weights(dict(merged_weights(whole.core.model)), weights(tmp_path / "whole"))


def test_balanced_classes(tmp_path: Path) -> None:
    labels = np.array([0] * 50 + [1] * 8 + [2] * 2)
    plan = EpochPlan(60, 10, seed=0, labels=labels)
    indices, repeats = plan.order(0)
    assert np.bincount(labels[indices]).tolist() == [20, 20, 20]
    assert len(set(zip(indices.tolist(), repeats.tolist(), strict=True))) == 60  # each copy is augmented by itself
    assert np.bincount(indices, minlength=60)[58:].tolist() == [10, 10]
    assert np.bincount(indices, minlength=60)[:50].max() == 1
    assert not np.array_equal(indices, plan.order(1)[0]) and np.array_equal(indices, plan.order(0)[0])
    halves = [EpochPlan(60, 10, seed=0, rank=rank, world=2, labels=labels).order(0)[0] for rank in range(2)]
    assert np.array_equal(np.stack(halves, 1).ravel(), indices)


def folder(root: Path, counts: dict[str, int]) -> str:
    generator = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(generator.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(root / name / f"{number}.png")
    return f"imagefolder:{root}"


@pytest.mark.parametrize("resident", [False, True])
def test_balanced_training(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], resident: bool) -> None:
    place = folder(tmp_path / "images", {"many": 44, "few": 4})
    given = {"data": place, "checkpoint": str(finished), "recipe": "finetune", "epochs": 1}
    trainer = Trainer(tiny(tmp_path / "run", **given, balance=True, resident=resident))
    seen = torch.cat([batch.labels for batch in trainer.loader.epoch(0)])
    assert abs(int((seen == 0).sum()) - int((seen == 1).sum())) <= 8  # of the last batch, which is dropped
    assert trainer.run() == 0
    assert "Balanced: classes of 3 to 40 images are shown equally often." in capsys.readouterr().out
    train(tmp_path / "plain", **given)
    assert "Note: classes have 3 to 40 images; --balance shows them equally often." in capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["train", "--recipe", "finetune", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vitmix: error: ") and said.count("\n") == 1 and "Traceback" not in said
    return said


def test_wrong_input_is_one_sentence(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = folder(tmp_path / "images", {"first": 3, "second": 3})
    start = ("--checkpoint", str(finished))
    assert "starts from trained weights; add --pretrained, or --checkpoint FILE" in refused(capsys, "--data", place)
    (tmp_path / "empty").mkdir()
    assert "holds no class folders" in refused(capsys, "--data", f"imagefolder:{tmp_path / 'empty'}", *start)
    one = folder(tmp_path / "one", {"only": 3})
    assert "one class folder only" in refused(capsys, "--data", one, *start)
    assert "is not a folder" in refused(capsys, "--data", "imagefolder:nowhere", *start)
    missing = refused(capsys, "--data", place, "--checkpoint", "missing.safetensors")
    assert "there is no weights file missing.safetensors" in missing
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "plain.pth")
    unnamed = refused(capsys, "--data", place, "--checkpoint", "plain.pth")
    assert "plain.pth does not name its model; give --model NAME" in unnamed
    assert "unknown model 'deit_tinny'" in refused(capsys, "--data", place, *start, "--model", "deit_tinny")
    both = refused(capsys, "--data", place, *start, "--freeze", "--lora", "4")
    assert "freeze trains the classifier alone, lora trains more; give one of them" in both
    small = folder(tmp_path / "small", {"first": 8, "second": 8})
    save_file(timm.create_model("test_resnet", num_classes=2).state_dict(), tmp_path / "cnn.safetensors")
    cnn = refused(
        capsys,
        "--data",
        small,
        "--model",
        "test_resnet",
        "--checkpoint",
        str(tmp_path / "cnn.safetensors"),
        "--lora",
        "4",
    )
    assert "lora adds to linear layers, but ResNet has none; use --freeze instead" in cnn
    assert "lora must be" in refused(capsys, "--data", place, *start, "--lora", "0")
    assert cli.main(["train", "--data", place, "--freeze", "--epochs", "1"]) == 2
    assert "freeze keeps the weights to start from" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_three_images_per_class(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "images", {"first": 3, "second": 3})
    arguments = ["--data", place, "--checkpoint", str(finished), "--output", str(tmp_path / "run"), "--epochs", "2"]
    assert cli.main(["train", "--recipe", "finetune", *arguments, "--workers", "0", "--track", "none"]) == 0
    assert "Fitted to 4 images: batch 4" in capsys.readouterr().out


@pytest.mark.slow
def test_pets_reach_88_percent(tmp_path: Path) -> None:
    """DeiT-Tiny on Oxford-IIIT Pets without mixing; seed 0 reached 88.12 %.

    vitmix train --recipe finetune --data imagefolder:pets --model deit_tiny_patch16_224 \
        --checkpoint deit_tiny_patch16_224.safetensors
    """
    file, pets = SHARED / "deit_tiny" / "deit_tiny_patch16_224.safetensors", tmp_path / "pets"
    if not file.is_file() or not (SHARED / "pets128").is_dir():
        pytest.skip("needs deit_tiny and pets128 in ../shared/data")
    subprocess.run([sys.executable, str(SHARED / "unpack.py"), "pets128", str(pets)], check=True)
    arguments = ["--data", f"imagefolder:{pets}", "--model", "deit_tiny_patch16_224", "--checkpoint", str(file)]
    assert cli.main(["train", "--recipe", "finetune", *arguments, "--output", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"] >= 0.88


def test_skipped_files_are_counted(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "images", {"first": 8, "second": 8})
    for name in ("a.gif", "b.GIF", "notes.txt", "LICENSE", ".hidden"):
        (tmp_path / "images" / "first" / name).write_text("")
    train(tmp_path / "run", data=place, checkpoint=str(finished), epochs=1, batch=4)
    out = capsys.readouterr().out
    assert "Note: 4 files were skipped in imagefolder:" in out and ": 2 .gif, 1 .txt, 1 without a suffix." in out
    assert out.count("were skipped") == 1  # not again for the part that is held out
    assert f"Next      vitmix report {tmp_path / 'run'}" in out


def test_the_page_shows_the_rules() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    for name in FITTED:
        cells = [line.split(" | ")[2:] for line in page.splitlines() if line.startswith(f"| `{name}` | ")][0]
        shown = [float(cell.strip(" |")) for cell in cells]
        for images, value in zip((200, 3_680, 50_000), shown, strict=True):
            config = TrainConfig(lr_per=None)
            for each, rule in RULES.items():
                config = dataclasses.replace(config, **{each: rule(images, config)})
            assert getattr(config, name) == value, (name, images)


def test_published_configurations_are_read_as_they_were(finished: Path, tmp_path: Path) -> None:
    for changes in ({}, {"reset_head": False}, {"lora": 4, "balance": True}):
        config = finetuned(finished, tmp_path / "run", **changes)
        assert resolve(_settings(config)) == config
    assert not set(NEWER) & _settings(tiny("x")).keys()
