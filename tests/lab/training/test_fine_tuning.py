"""Trainings that start from weights: of which model they are, what is new in them, and what is said of it."""

import shutil
from pathlib import Path

import pytest
import torch

from training import TINY, one_thread, same_weights, tiny, weights, whole_run  # noqa: F401
from vitmix.lab.training.config import TrainConfig, resolve, to_yaml
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.weights import write_weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def finished(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    return whole_run(tmp_path_factory)


def test_fine_tuning(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(tiny(tmp_path / "same", checkpoint=str(finished)))
    assert same_weights(dict(trainer.core.model.state_dict()), weights(finished, "best"))
    trainer = Trainer(tiny(tmp_path / "more", checkpoint=str(finished / "last.safetensors"), num_classes=20, epochs=1))
    own, old = trainer.core.model.state_dict(), weights(finished)
    assert own["head.weight"].shape[0] == 20
    assert all(torch.equal(own[key], old[key]) for key in old if not key.startswith("head."))
    assert trainer.run() == 0
    assert "the classifier is new" in capsys.readouterr().out


def test_fine_tuning_knows_the_model_of_the_weights(finished: Path, tmp_path: Path) -> None:
    for given in (finished, finished / "last.safetensors"):
        found = resolve({"checkpoint": str(given), "data": "imagefolder:somewhere"})
        assert (found.model, found.size, found.model_args) == (TINY["model"], TINY["size"], TINY["model_args"])
    other = resolve({"checkpoint": str(finished), "data": "shapes", "model_args": {"depth": 1}, "size": 24})
    assert other.model_args == {**TINY["model_args"], "depth": 1} and other.size == 24
    example = resolve({"checkpoint": str(finished)})
    assert example.data == "shapes" and (example.model_args, example.size) == (TINY["model_args"], TINY["size"])
    (tmp_path / "config.yaml").write_text(to_yaml(example))
    assert resolve(file=tmp_path / "config.yaml") == example
    sized = resolve({"checkpoint": str(finished), "data": "shapes", "model_args": {"img_size": 32}})
    assert sized.size is None and sized.model_args["img_size"] == 32
    torch.save({}, tmp_path / "other.pth")
    assert resolve({"checkpoint": str(tmp_path / "other.pth"), "data": "shapes"}).model == TrainConfig().model
    write_weights(tmp_path / "short.safetensors", {}, {"vitmix": '{"model": "test_vit"}'})
    assert resolve({"checkpoint": str(tmp_path / "short.safetensors"), "data": "shapes"}).model == "test_vit"
    with pytest.raises(ValueError, match="there is no (weights file|file of weights) .*nothing"):
        resolve({"checkpoint": "nothing", "data": "shapes"})
    with pytest.raises(ValueError, match=r"checkpoint in the flags must be a string or none, got \['a'\]"):
        resolve({"checkpoint": ["a"], "data": "shapes"})


def test_fine_tuning_goes_on_without_its_first_weights(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "first")
    named = ("model", "model_args", "size")
    given = {name: value for name, value in TINY.items() if name not in named}
    given |= {"checkpoint": str(tmp_path / "first"), "output": str(tmp_path / "run"), "epochs": 1}
    begun = Trainer(resolve(given))
    begun.run()
    (tmp_path / "first").rename(tmp_path / "gone")
    assert resolve(given) == begun.config


def test_fine_tuning_says_what_it_changes(finished: Path, tmp_path: Path) -> None:
    patches = {**TINY["model_args"], "patch_size": 4}
    (said,) = Trainer(tiny(tmp_path / "patches", checkpoint=str(finished), model_args=patches)).remarks
    assert said.endswith("resampled, because sizes differ: patch_embed.proj.weight, pos_embed.")
    wider = {**TINY["model_args"], "embed_dim": 32, "patch_size": 4}
    with pytest.raises(
        ValueError, match=r"pos_embed is \(1, 5, 16\) instead of \(1, 17, 32\).* names vit_tiny_patch16_224 wi"
    ):
        Trainer(tiny(tmp_path / "wider", checkpoint=str(finished), model_args=wider))
