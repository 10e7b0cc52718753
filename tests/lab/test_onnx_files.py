"""Exports: onnxruntime gives the same logits for any batch, and `vitmix eval` reads what `vitmix export` wrote."""

import json
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from training import one_thread, train  # noqa: F401
from vitmix.lab import onnx_files
from vitmix.lab.cli import main as cli
from vitmix.lab.evaluation import open_subject
from vitmix.lab.export import export

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def run(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    output = tmp_path_factory.mktemp("runs") / "vit"
    train(output, epochs=1, crop_pct=0.9, std=(0.2, 0.3, 0.25), num_classes=14)
    return output


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in onnx_files.PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed (extra onnx)")
    folder = tmp_path_factory.mktemp("exports") / "model"
    assert cli.main(["export", str(run), str(folder), "--to", "onnx"]) == 0
    return folder


def test_onnxruntime_gives_the_same_logits(run: Path, exported: Path) -> None:
    import onnxruntime

    assert {path.name for path in exported.iterdir()} == {"model.onnx", "config.json", "README.md"}
    session = onnxruntime.InferenceSession(str(exported / "model.onnx"))
    model = open_subject(run).model
    for batch in (1, 3, 16):
        images = torch.randn(batch, 3, 16, 16)
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(logits, model(images).numpy(), atol=1e-4, rtol=0)
    assert "onnxruntime.InferenceSession" in (exported / "README.md").read_text()
    assert json.loads((exported / "config.json").read_text())["pretrained_cfg"]["std"] == [0.2, 0.3, 0.25]


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_other_logits_are_refused(run: Path, scale: float, tmp_path: Path) -> None:
    """Whatever their size: float32 rounds logits of ten thousand by more than 1e-4."""
    for name in onnx_files.PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed (extra onnx)")
    model, path = open_subject(run).model, tmp_path / "model.onnx"
    with torch.no_grad():
        model.head.weight *= scale  # pyright: ignore
        model.head.bias.normal_().mul_(scale)  # pyright: ignore
        largest = float(model(torch.randn(8, 3, 16, 16)).abs().max())
        onnx_files.write_onnx(model, path, (16, 16))
        onnx_files.check_onnx(model, path, (16, 16))
        model.head.bias += 1e-3 * max(largest, 1.0)  # pyright: ignore
    with pytest.raises(ValueError, match=r"the logits of the ONNX file differ by .*, more than 0.0001 of the largest"):
        onnx_files.check_onnx(model, path, (16, 16))


def test_missing_packages_are_one_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict(sys.modules, {"onnxscript": None}):
        assert cli.main(["export", str(run), str(tmp_path / "model"), "--to", "onnx"]) == 2
    said = capsys.readouterr().err
    assert "this needs the package onnxscript" in said and 'get it with: pip install "vitmix[onnx]"' in said
    assert not (tmp_path / "model").exists()


def test_eval_computes_with_onnxruntime(
    run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = open_subject(run).config.data
    for name, what in (("torch", run), ("onnx", exported), ("file", exported / "model.onnx")):
        out = ["--data", data, "--output", str(tmp_path / f"{name}.json"), "--workers", "0", "--cpu"]
        assert cli.main(["eval", str(what), *out]) == 0
    found = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("torch", "onnx", "file")]
    for name in ("accuracy", "n", "parameters", "flops", "size", "classes"):
        assert found[0][name] == found[1][name] == found[2][name]
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], abs=1e-4) and found[1]["weights"].endswith("model.onnx")
    damaged = tmp_path / "damaged"
    shutil.copytree(exported, damaged)
    (damaged / "model.onnx").write_bytes(b"no model")
    capsys.readouterr()
    assert cli.main(["eval", str(damaged), "--data", data]) == 2
    assert "onnxruntime cannot read" in capsys.readouterr().err
    for more, said in (
        (["--size", "32"], "which names its model and size"),
        (["--precision", "bf16"], "computes in fp32"),
        (["--suite", "robustness"], "run the suite on its run"),
    ):
        assert cli.main(["eval", str(exported), "--data", data, *more]) == 2
        assert said in capsys.readouterr().err
    assert cli.main(["eval", str(exported)]) == 2
    assert "give --data" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["timm", "hf"])
def test_eval_reads_exports(run: Path, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]) -> None:
    subject = open_subject(run)
    export(subject, tmp_path / "model", to=to)
    again = open_subject(tmp_path / "model")
    assert again.classes is not None and again.classes[:12] == subject.classes
    ours, theirs = subject.augmentation, again.augmentation
    assert (theirs.size, theirs.mean, theirs.std, theirs.crop_pct) == (ours.size, ours.mean, ours.std, ours.crop_pct)
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(again.model(images), subject.model(images))
    capsys.readouterr()
    for what in (run, tmp_path / "model"):
        data = ["--data", subject.config.data, "--output", str(tmp_path / f"{Path(what).name}.json")]
        assert cli.main(["eval", str(what), *data, "--workers", "0"]) == 0
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("vit", "model"))
    assert (first["accuracy"], first["loss"], first["n"]) == (second["accuracy"], second["loss"], second["n"])


def test_other_folders_are_one_sentence(run: Path, exported: Path, tmp_path: Path) -> None:
    for what in (exported, exported / "model.onnx"):
        with pytest.raises(ValueError, match="is an ONNX export, which only vitmix eval reads; name the run"):
            open_subject(what)
    export(open_subject(run), tmp_path / "model", to="timm")
    for damage in ('{"architecture": "vit_tiny_patch16_224"}', "[]", '{"pretrained_cfg": {"input_size": 3}}'):
        (tmp_path / "model" / "config.json").write_text(damage)
        with pytest.raises(ValueError, match="is neither a run folder nor an exported model"):
            open_subject(tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()
    with pytest.raises(ValueError, match="is neither a run folder nor an exported model"):
        open_subject(tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "model").mkdir()
    with pytest.raises(ValueError, match="is not a run folder: it has no config.yaml; name one of vitmix train"):
        open_subject(tmp_path / "model")
