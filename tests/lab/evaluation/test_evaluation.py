"""Evaluation: every measure against a slow twin, the run's own numbers, the cost of known models, wrong input."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from support import SMALL_VIT
from training import one_thread, train  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.data import ArrayImages, EvalLoader
from vitmix.lab.data.loader import Batch
from vitmix.lab.data.sources import open_images
from vitmix.lab.evaluation import (
    Running,
    calibration_bins,
    calibration_error,
    classification,
    open_subject,
    predict,
)
from vitmix.lab.evaluation import subject as subject_module
from vitmix.lab.evaluation.classification import evaluate, evaluate_run
from vitmix.lab.evaluation.cost import count_flops, count_parameters
from vitmix.lab.evaluation.predictions import Outcomes
from vitmix.lab.runs import Estimate, Run
from vitmix.lab.training.header import read_header

pytestmark = pytest.mark.usefixtures("one_thread")
SIXTEEN = "shapes(size=16, length=48, test_length=24)"


@pytest.fixture(scope="module")
def run(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    output = tmp_path_factory.mktemp("runs") / "run"
    train(output, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    return output


def slow_calibration_error(confidence: list[float], correct: list[bool], bins: int) -> float:
    error = 0.0
    for number in range(bins):
        inside = [
            (sure, right)
            for sure, right in zip(confidence, correct, strict=True)
            if number < sure * bins <= number + 1 or (number == 0 and sure == 0)
        ]
        if inside:
            gap = sum(right for _, right in inside) / len(inside) - sum(sure for sure, _ in inside) / len(inside)
            error += len(inside) / len(confidence) * abs(gap)
    return error


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(min_value=1, max_value=20)
)
def test_calibration_error_is_that_of_plain_loops(pairs: list[tuple[float, bool]], bins: int) -> None:
    confidence, correct = [sure for sure, _ in pairs], [right for _, right in pairs]
    found = calibration_error(np.array(confidence), np.array(correct), bins)
    assert found == pytest.approx(slow_calibration_error(confidence, correct, bins), abs=1e-12)
    assert sum(row.count for row in calibration_bins(np.array(confidence), np.array(correct), bins)) == len(pairs)


def test_calibration_of_known_cases() -> None:
    assert calibration_error(np.ones(4), np.array([True] * 4)) == 0  # sure and right
    assert calibration_error(np.ones(4), np.array([False] * 4)) == 1  # sure and wrong
    assert calibration_error(np.full(4, 0.75), np.array([True, True, True, False])) == 0


def test_predictions_are_those_of_plain_loops() -> None:
    logits, labels = torch.randn(40, 7), torch.randint(7, (40,))
    found = Outcomes.of(logits, labels)
    for row in range(40):
        odds = (logits[row].double() - logits[row].double().logsumexp(0)).exp().tolist()
        ranked = sorted(range(7), key=lambda place: -odds[place])
        assert found.predicted[row] == ranked[0]
        assert float(found.confidence[row]) == pytest.approx(odds[ranked[0]], rel=1e-5)
        assert float(found.losses[row]) == pytest.approx(-np.log(odds[labels[row]]), rel=1e-4)
        assert bool(found.in_top5[row]) == (int(labels[row]) in ranked[:5])


def test_mixed_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="soft label"):
        Outcomes.of(torch.randn(4, 3), torch.rand(4, 3))
    with pytest.raises(ValueError, match="not finite"):
        Outcomes.joined([Outcomes.of(torch.full((2, 3), torch.nan), torch.tensor([0, 1]))])


def test_the_last_incomplete_batch_counts_once(run: Path) -> None:
    subject = open_subject(run)
    images = ArrayImages(np.random.default_rng(0).integers(0, 255, (11, 16, 16, 3), np.uint8), [0] * 11, ["a"], "noise")
    whole, parts = (
        predict(subject.model, EvalLoader(images, subject.augmentation, batch=batch), torch.device("cpu"))
        for batch in (11, 4)
    )
    assert len(parts) == 11 and torch.equal(whole.predicted, parts.predicted)


def test_run_is_evaluated_as_in_training(run: Path) -> None:
    found = evaluate_run(run)
    best = json.loads((run / "summary.json").read_text())["best"]
    assert found.n == 24
    assert found.accuracy == best["accuracy"] and found.accuracy5 == best["accuracy5"]
    assert found.loss == pytest.approx(best["eval_loss"], rel=1e-5)
    counts = np.zeros((12, 12), int)
    for label, seen, count in found.confusion:
        counts[label, seen] = count
    assert counts.sum() == 24 and counts.trace() / 24 == pytest.approx(found.accuracy)
    assert Run(run).evaluation == found


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({}, False),
        ({"ema": 0.9, "best": "ema_eval_loss"}, False),
        ({"accumulate": 2}, True),
        ({"resident": True}, True),
    ],
)
def test_the_best_weights_are_evaluated_once_where_that_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], again: bool
) -> None:
    passes: list[object] = []
    monkeypatch.setattr(classification, "predict", lambda *given, **how: passes.append(1) or predict(*given, **how))
    trainer = train(tmp_path / "run", **settings)
    trainer.evaluate_best()
    stored = Run(tmp_path / "run").evaluation
    assert stored is not None and bool(passes) == again
    fresh = evaluate_run(tmp_path / "run")
    times = ("seconds", "images_per_second", "passes_timed")
    one, two = ({key: value for key, value in each.to_json().items() if key not in times} for each in (stored, fresh))
    assert one == two


def test_evaluation_of_other_weights_is_not_taken(run: Path) -> None:
    evaluate_run(run)
    content = (run / "best.safetensors").read_bytes()
    (run / "best.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    other = Run(run).evaluation
    (run / "best.safetensors").write_bytes(content)
    assert other is None and Run(run).evaluation is not None


def test_evaluation_without_its_measures_is_not_taken(run: Path, tmp_path: Path) -> None:
    evaluate_run(run)
    whole = (run / "evaluation.json").read_text()
    cut = {name: value for name, value in json.loads(whole).items() if name != "confusion"}
    (run / "evaluation.json").write_text(json.dumps(cut))
    assert Run(run).evaluation is None
    (run / "evaluation.json").write_text(whole)


def test_damaged_weights_are_called_so(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    cut = tmp_path / "run" / "best.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    for what in (tmp_path / "run", cut):
        with pytest.raises(ValueError, match="damaged or truncated"):
            open_subject(what)
    (tmp_path / "cut.safetensors").write_bytes(cut.read_bytes())
    with pytest.raises(ValueError, match="damaged or truncated"):
        open_subject(tmp_path / "cut.safetensors")
    Image.new("RGB", (8, 8)).save(tmp_path / "image.jpg")
    with pytest.raises(ValueError, match="neither a safetensors file nor a torch.save file"):
        open_subject(tmp_path / "image.jpg", model="vit_tiny_patch16_224")


def test_moved_weights_know_their_model_and_preprocessing(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "weights.safetensors"
    moved.write_bytes((run / "best.safetensors").read_bytes())
    subject, own = open_subject(moved), open_subject(run)
    fields = ("sides", "mean", "std", "crop_pct", "interpolation")
    assert [getattr(subject.augmentation, name) for name in fields] == [
        getattr(own.augmentation, name) for name in fields
    ]
    assert read_header(moved).model == "vit_tiny_patch16_224"
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(subject.model(images), own.model(images))


def test_weights_without_a_word_need_the_model(tmp_path: Path) -> None:
    settings = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 16}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **settings)
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match="give --arch"):
        open_subject(tmp_path / "bare.safetensors")
    found = open_subject(tmp_path / "bare.safetensors", model="vit_tiny_patch16_224", model_args=settings)
    assert found.outputs == 5
    assert torch.equal(found.model(torch.ones(1, 3, 16, 16)), model.eval()(torch.ones(1, 3, 16, 16)))


def test_classes_are_matched_by_name(run: Path) -> None:
    subject = open_subject(run)
    assert subject.classes is not None
    pixels = np.random.default_rng(0).integers(0, 255, (6, 16, 16, 3), np.uint8)
    images = ArrayImages(pixels, [0, 1, 0, 1, 0, 1], ["star", "disk"], "two")
    fitted, remarks = subject.fit_labels(images)
    assert [subject.classes[label] for label in fitted.labels] == ["star", "disk"] * 3 and "by name" in remarks[0]
    assert list(images.labels) == [0, 1] * 3  # what was given stays
    with pytest.raises(ValueError, match="'zebra'"):
        subject.fit_labels(ArrayImages(pixels, [0] * 6, ["zebra"], "other"))


def test_flops_and_parameters_of_known_models() -> None:
    # Published with the models: 5.7 M parameters and 1.26 G multiply-adds of DeiT-T with its attention counted.
    model = timm.create_model("deit_tiny_patch16_224")
    assert count_parameters(model) == 5_717_416
    assert count_flops(model, (224, 224)) / 2e9 == pytest.approx(1.26, rel=0.01)
    # By hand: one block of width 8 with 2 heads and 4 + 1 tokens.
    settings = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 3}
    small = timm.create_model("vit_tiny_patch16_224", **settings)
    tokens, width = 5, 8
    adds = 4 * 3 * 64 * width + tokens * width * (3 + 1 + 4 + 4) * width + 2 * tokens * tokens * width + width * 3
    assert count_flops(small, (16, 16)) == 2 * adds


def test_timm_name_with_random_weights() -> None:
    args = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 12}
    subject = open_subject("vit_tiny_patch16_224", model_args=args, size=16)
    from vitmix.lab.data import open_images

    found = evaluate(subject, open_images(SIXTEEN, "test"), Running(batch=10))
    assert found.n == 24 and "random weights" in found.weights and found.images_per_second > 0


def test_a_file_that_is_named_is_what_is_measured(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(run)]) == 0
    kept = (run / "evaluation.json").read_bytes()
    capsys.readouterr()
    assert cli.main(["eval", str(run / "last.safetensors")]) == 0
    assert "last.safetensors" in capsys.readouterr().out and (run / "evaluation.json").read_bytes() == kept
    assert cli.main(["eval", str(run / "last.safetensors"), "--suite", "clean"]) == 0
    assert "Written to" not in capsys.readouterr().out and not (run / "robustness.json").exists()


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(run), "--output", str(tmp_path / "found.json"), "--batch", "7"]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    low, high = Estimate.of_proportion(round(24 * found["accuracy"]), 24).interval or (0, 0)
    assert f"{100 * found['accuracy']:.2f} % [{100 * low:.2f}, {100 * high:.2f}]  n = 24" in said
    assert "Values in brackets are 95 % intervals." in said and f"{found['parameters']:,}" in said
    assert cli.main(["eval", str(run), "--data", SIXTEEN, "--split", "train", "--weights", "last"]) == 0
    assert "n = 48" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense", "--data", "shapes"], "unknown model"),
        (["vit_tiny_patch16_224"], "names no data"),
        (["no/such.safetensors"], "no file"),
        (["RUN", "--pretrained"], "has its own weights"),
        (["RUN", "--batch", "0"], "batch must be"),
        (["RUN", "--arch", "deit_tiny_patch16_224"], "remove model"),
        (["RUN/..", "--data", "shapes"], "not a run folder"),
        (["RUN", "--output", "RUN/none/x.json"], "does not exist; create it first"),
        (["RUN", "--output", "RUN"], "is a folder; give a file name"),
        (["RUN", "--size", "0"], "size must be an integer of at least 1"),
        (["vit_tiny_patch16_224", "--data", "shapes", "--model-args", "num_classes=0"], "num_classes must be"),
        (["RUN/best.safetensors", "--arch", "resnet10t"], "holds weights of vit_tiny_patch16_224, not of resnet10t"),
        (["RUN", "--output", "/proc/x.json"], "'/proc'"),
        (["RUN/config.yaml", "--data", "shapes", "--arch", "vit_tiny_patch16_224"], "not a weights file"),
    ],
)
def test_wrong_input(
    run: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_late(*arguments: object, **settings: object) -> None:
        raise AssertionError("refused only after the whole pass")

    monkeypatch.setattr("vitmix.lab.evaluation.classification.predict", too_late)
    assert cli.main(["eval", *(each.replace("RUN", str(run)) for each in arguments)]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_the_command_opens_the_data_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "run")
    opened: list[str] = []
    monkeypatch.setattr(subject_module, "open_images", lambda *names: opened.append(names[0]) or open_images(*names))
    assert cli.main(["eval", str(tmp_path / "run")]) == 0
    assert len(opened) == 1 and Run(tmp_path / "run").evaluation is not None


def test_predicting_waits_for_the_device_once() -> None:
    class Waits(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    model = timm.create_model("vit_tiny_patch16_224", **SMALL_VIT).eval()
    batches = [Batch(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]), torch.arange(2)) for _ in range(4)]
    with Waits() as waits:
        predict(model, batches, torch.device("cpu"))
    assert waits.count == 0
