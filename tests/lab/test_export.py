"""Export: timm and transformers load the folder and give the very same logits; nothing is left half-written."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

from samples import eval_sample
from training import one_thread, train, train_until  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.data.sources import without_folders
from vitmix.lab.evaluation import open_subject
from vitmix.lab.evaluation.classification import evaluate_run
from vitmix.lab.export import _unfinished, export
from vitmix.lab.runs.estimates import wilson
from vitmix.lab.training.weights import write_weights

pytestmark = pytest.mark.usefixtures("one_thread")
MODELS: dict[str, dict[str, Any]] = {
    "vit": {},
    "deit_distilled": {
        "model": "deit_tiny_distilled_patch16_224",
        "model_args": {"patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
    },
    "cct": {"model": "cct_2_3x2_32", "model_args": {}, "size": 32, "data": "shapes(size=32, length=16, test_length=8)"},
}


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    output = tmp_path_factory.mktemp("runs") / request.param
    train(output, epochs=1, crop_pct=0.9, std=(0.2, 0.3, 0.25), **{"method": "mixup", **MODELS[request.param]})
    return output


@pytest.mark.parametrize("to", ["timm", "hf"])
def test_timm_gives_the_same_logits(run: Path, tmp_path: Path, to: str) -> None:
    subject = open_subject(run)
    export(subject, tmp_path / "model", to=to)
    images = torch.randn(3, 3, *subject.augmentation.sides)
    with torch.no_grad():
        expected = subject.model(images)
        whole = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
        path = str(tmp_path / "model" / "model.safetensors")
        by_file = timm.create_model(subject.config.model, checkpoint_path=path, **subject.settings).eval()
        assert torch.equal(whole(images), expected) and torch.equal(by_file(images), expected)
    config = timm.data.resolve_data_config({}, model=whole)
    assert config["crop_pct"] == 0.9 and tuple(config["std"]) == (0.2, 0.3, 0.25)
    assert tuple(config["input_size"]) == (3, *subject.augmentation.sides)
    assert whole.pretrained_cfg["label_names"][0] == "disk"


@pytest.mark.filterwarnings("default")  # transformers' own
def test_transformers_gives_the_same_logits(run: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    subject = open_subject(run)
    export(subject, tmp_path / "model", to="hf")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "model")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "model")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8))
    inputs = processor(image)["pixel_values"]
    torch.testing.assert_close(inputs[0], eval_sample(image, subject.augmentation), rtol=0, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(model(inputs).logits, subject.model(inputs))
    assert model.config.id2label[1] == "ring" and model.config.num_labels == subject.outputs


def test_card_has_recipe_and_results(tmp_path: Path) -> None:
    train(tmp_path / "run", epochs=1)
    found = evaluate_run(tmp_path / "run")
    export(open_subject(tmp_path / "run"), tmp_path / "model", to="hf")
    card = (tmp_path / "model" / "README.md").read_text()
    for name, value in (("top-1", found.accuracy), ("top-5", found.accuracy5)):
        low, high = (100 * end for end in wilson(round(24 * value), 24))
        assert f"| {name} | {100 * value:.2f} % [{low:.2f}, {high:.2f}] |" in card
    assert "n = 24; brackets are 95 % intervals over the images:" in card
    assert "mixup(alpha=0.8) | tl_align" in card and "epochs: 1" in card and "  patch_size: 8" in card
    assert str(tmp_path) not in card  # nothing of this machine


def test_card_has_the_results_of_a_run_that_is_named_by_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "run", epochs=1)
    evaluate_run(Path("run"))
    export(open_subject(tmp_path / "run"), tmp_path / "model", to="timm")
    assert "n = 24" in (tmp_path / "model" / "README.md").read_text()


def test_card_of_the_last_weights_lacks_the_results_of_the_best(tmp_path: Path) -> None:
    train(tmp_path / "run", epochs=1)
    evaluate_run(tmp_path / "run")
    train(tmp_path / "other", epochs=1, seed=1)
    shutil.copy(tmp_path / "other" / "last.safetensors", tmp_path / "run")
    export(open_subject(tmp_path / "run", weights="last"), tmp_path / "model", to="timm")
    assert "Not evaluated" in (tmp_path / "model" / "README.md").read_text()


def test_card_says_nothing_of_this_machine(tmp_path: Path) -> None:
    data = tmp_path / "birds"
    for number in range(12):
        folder = data / ("train" if number < 8 else "val") / ("owl", "wren")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20, 20), 80).convert("RGB").save(folder / f"{number}.png")
    train(tmp_path / "run", epochs=1, data=f"imagefolder:{data}/", scale=(0.5, 1.0), method="mixup")
    evaluate_run(tmp_path / "run")
    export(open_subject(tmp_path / "run"), tmp_path / "model", to="timm")
    card = (tmp_path / "model" / "README.md").read_text()
    assert str(tmp_path) not in card
    assert "trained on `imagefolder:birds/`" in card and "On imagefolder:birds/val (val), n = 4" in card
    assert "top-1" in card and "top-5" not in card  # of two classes
    recipe = yaml.safe_load(card.split("```yaml")[1].split("```")[0])
    assert recipe["data"] == "imagefolder:birds/" and recipe["scale"] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("npz:/home/me/cats", "npz:cats"),
        ("imagefolder:photos/cats?holdout=0.1", "imagefolder:cats?holdout=0.1"),
        ("torchvision:CIFAR10:/home/me/sets", "torchvision:CIFAR10:sets"),
        ("hfds:/home/me/cats(label=fine)", "hfds:cats(label=fine)"),
        ("hfds:owner/cats", "hfds:owner/cats"),
        ("wds:/home/me/train-{0..3}.tar", "wds:train-{0..3}.tar"),
        ("shapes(size=16)", "shapes(size=16)"),
    ],
)
def test_places_of_data_are_left_out(spec: str, shown: str) -> None:
    assert without_folders(spec, spec) == shown


def test_card_says_that_the_training_was_not_finished(tmp_path: Path) -> None:
    train_until(tmp_path / "run", 13, epochs=50)  # of 6 updates an epoch
    export(open_subject(tmp_path / "run"), tmp_path / "model", to="timm")
    assert "not finished:** 2 of 50 epochs were done" in (tmp_path / "model" / "README.md").read_text()
    train(tmp_path / "whole", epochs=1)
    export(open_subject(tmp_path / "whole"), tmp_path / "other", to="timm")
    assert "not finished" not in (tmp_path / "other" / "README.md").read_text()


@pytest.mark.parametrize(
    ("done", "epochs", "said"), [(0, 1, "0 of 1 epoch were"), (1, 1, "1 of 1 epoch was"), (1, 2, "1 of 2 epochs was")]
)
def test_one_epoch_is_no_plural(done: int, epochs: int, said: str) -> None:
    assert _unfinished(done, epochs)[0].endswith(f"{said} done at the export.")


def test_weights_of_elsewhere(tmp_path: Path) -> None:
    settings = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 16}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **settings)
    write_weights(tmp_path / "bare.safetensors", model.state_dict())
    arguments = [f"{name}={value}" for name, value in settings.items()]
    given = ["--arch", "vit_tiny_patch16_224", "--to", "timm", "--model-args", *arguments]
    assert cli.main(["export", str(tmp_path / "bare.safetensors"), str(tmp_path / "out"), *given]) == 0
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(again(images), model.eval()(images))
    assert "Not evaluated" in (tmp_path / "out" / "README.md").read_text()


def test_refusals_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(tmp_path / "none"), str(tmp_path / "out"), "--to", "timm"]) == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    train(tmp_path / "run", epochs=1)
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "full"), "--to", "timm"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"full", "run"}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epochs"] == 1


def test_outputs_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    train(tmp_path / "run", epochs=1)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    cases = {".": "is the current folder", "/proc/model": "cannot make the folder /proc/model", "..": "exists already"}
    cases["\udcff"] = "must be valid UTF-8"
    for output, sentence in cases.items():
        assert cli.main(["export", str(tmp_path / "run"), output, "--to", "timm"]) == 2
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1
    assert not list((tmp_path / "empty").iterdir())
