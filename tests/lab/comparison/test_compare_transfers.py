"""Comparisons of transfers: rows by method and by backbone, their table, the published folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from command import done, vitmix
from mask_toys import TINY, write_masks
from vitmix.lab.comparison.matrix import parse_matrix
from vitmix.lab.comparison.publishing import with_fitted_settings
from vitmix.lab.comparison.runner import check_backbones, check_trainings
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.training import TransferTrainer
from vitmix.lab.environment import one_thread
from vitmix.lab.report.groups import find_runs
from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE, read_published

SETTINGS = {name: value for name, value in TINY.items() if name != "track"} | {"task": "segment", "epochs": 1}


@pytest.fixture(autouse=True)
def single() -> Any:
    with one_thread():
        yield


def content(data: Path, **changes: Any) -> dict[str, Any]:
    settings = SETTINGS | {"data": f"masks:{data}"}
    return {
        "about": "Toys",
        "rows": {"none": "none", "CutMix": "cutmix"},
        "seeds": [0, 1],
        "settings": settings,
    } | changes


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished comparison; one run was made by its process, the others here."""
    folder = tmp_path_factory.mktemp("compared")
    plain = content(write_masks(folder / "data"))
    (folder / "matrix.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    with one_thread():
        for training in parse_matrix(plain, "it").trainings(folder / "out")[1:]:
            assert isinstance(training.config, TransferConfig)
            trainer = TransferTrainer(training.config)
            assert trainer.run() == 0
            trainer.evaluate_best()
    said = done(
        "compare", str(folder / "matrix.yaml"), "--output", str(folder / "out"), "--publish", str(folder / "small")
    )
    assert "4 runs: 3 done, 1 to run." in said and "mIoU, %" in said and "GFLOPs" not in said
    return folder


def test_rows_are_compared_by_the_score_of_the_task(compared: Path) -> None:
    found = json.loads((compared / "out" / "compare.json").read_text())
    none, cutmix = found["rows"]
    assert none["row"] == "none" and found["baseline"] == "CutMix" and set(none["miou"]) == {"0", "1"}
    runs = [Run(path) for path in none["runs"]]
    assert [run.epochs[-1].values["miou"] for run in runs] == list(none["miou"].values())
    assert none["difference"]["mean"] == pytest.approx(none["mean"] - cutmix["mean"]) and none["difference"]["n"] == 2
    assert runs[0].dense is not None and none["parameters"] == runs[0].dense.parameters
    tables = {each["title"]: each for each in found["measured"]["tables"]}
    assert list(tables) == ["Scores", "IoU of each class"]
    classes = tables["IoU of each class"]["rows"][0]["columns"]
    of_class = runs[0].dense.scores.by_class[0]
    assert classes[of_class.name]["seeds"]["0"] == of_class.values["iou"]
    page = (compared / "out" / "compare.html").read_text()
    assert "mIoU against training time" in page and "Scores of each class" in page


def test_the_small_folder_has_everything_but_weights(compared: Path, tmp_path: Path) -> None:
    small = compared / "small"
    readme = (small / "README.md").read_text()
    assert "| mIoU, % |" in readme and "## Besides mIoU" in readme and "### IoU of each class" in readme
    assert str(compared) not in readme.replace(f"masks:{compared}/data", "")
    stored = read_published(small / FILE).runs
    for name, run in stored.items():
        first = Run(compared / "out" / "runs" / name)
        assert run.dense is not None and first.dense is not None and isinstance(run.config, TransferConfig)
        assert run.dense.scores.by_class[0].values == pytest.approx(first.dense.scores.by_class[0].values)
        assert run.dense.weights == f"{name}/best.safetensors"
    again = tmp_path / "again"
    said = done("compare", str(small), "--no-train", "--output", str(tmp_path / "out"), "--publish", str(again))
    assert "mIoU, %" in said
    assert (again / FILE).read_bytes() == (small / FILE).read_bytes()
    assert (again / "README.md").read_text() == readme
    runs, left_out = find_runs([small])
    assert len(runs) == 4 and not left_out
    done("report", str(small), "--output", str(tmp_path / "page.html"))


def test_rows_by_backbone(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.touch()
    plain = content(
        tmp_path, rows={"trained": {"backbone": str(weights), "arch": "vit_tiny_patch16_224"}, "random": {}}
    )
    plain["settings"].pop("backbone")
    plain["rows"]["random"] = {"backbone": "vit_tiny_patch16_224"}
    found = parse_matrix(plain, "it").trainings(tmp_path)
    assert {each.model for each in found} == {"vit_tiny_patch16_224"} and len({each.name for each in found}) == 4
    check_trainings(found)
    check_backbones(found)
    weights.unlink()
    check_trainings(found)
    with pytest.raises(ValueError, match="there is no run folder and no file"):
        check_backbones(found)
    models = parse_matrix(content(tmp_path, models=["vit_tiny_patch16_224", "deit_tiny_patch16_224"]), "it")
    assert [each.config.backbone for each in models.trainings(tmp_path)[::4]] == list(models.models)  # pyright: ignore


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": {"task": "paint"}}, "task"),
        ({"rows": {"a": {"task": "detect"}, "b": "none"}}, "all runs of a matrix have one task"),
        ({"rows": {"a": {"smoothing": 0.1}}}, "unknown setting 'smoothing'"),
        ({"rows": {"a": "htm(block=2)"}}, "row 'a': .*mixes inside the network"),
        ({"rows": {"a": {"method": "cutmx"}}}, "row 'a': .*cutmx"),
        ({"rows": {"a": {"output": "x"}}}, "output cannot be set in a matrix"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    plain = content(tmp_path, **changes)
    plain["settings"] = SETTINGS | {"data": f"masks:{tmp_path}"} | changes.get("settings", {})
    with pytest.raises(ValueError, match=sentence):
        parse_matrix(plain, "it").trainings(tmp_path)


def test_copy_paste_is_a_method_of_detection(tmp_path: Path) -> None:
    settings = {"task": "detect", "data": "coco:x", "backbone": "vit_tiny_patch16_224"}
    found = parse_matrix({"rows": ["none", "copy_paste(0.3)"], "settings": settings}, "it")
    assert len(found.trainings(tmp_path)) == 6 and found.score == "ap"
    with pytest.raises(ValueError, match="copy_paste"):
        parse_matrix({"rows": ["copy_paste"], "settings": settings | {"task": "segment"}}, "it").trainings(tmp_path)


def test_suites_of_classifiers_are_refused(compared: Path) -> None:
    said = vitmix("compare", str(compared / "matrix.yaml"), "--suite", "noise", "--output", str(compared / "out"))
    assert said.code == 2 and "--suite measures classifiers" in said.err and "Traceback" not in said.err


def test_a_published_matrix_needs_no_data(tmp_path: Path) -> None:
    """The epochs that follow from `steps` and the number of images are published."""
    plain = content(write_masks(tmp_path / "data"), rows=["none"], seeds=[0])
    plain["settings"] |= {"steps": 3, "warmup_steps": 1}
    del plain["settings"]["epochs"], plain["settings"]["warmup_epochs"]
    (training,) = parse_matrix(plain, "it").trainings(tmp_path / "out")
    assert (training.config.epochs, training.config.warmup_epochs) == (2, 0.5)
    run = Run(tmp_path / "out" / "runs" / training.name)
    run.path.mkdir(parents=True)
    run.write_config(training.config)
    fitted = with_fitted_settings(parse_matrix(plain, "it"), [run])
    shutil.rmtree(tmp_path / "data")
    assert fitted.trainings(tmp_path / "out")[0].config == training.config


def test_settings_name_the_task_on_the_command_line(compared: Path, tmp_path: Path) -> None:
    flags = ["--set", "task=segment", "backbone=vit_tiny_patch16_224", f"data=masks:{compared}/data", "--seeds", "0"]
    said = done("compare", "--method", "none", "fmix", *flags, "--dry-run", "--output", str(tmp_path / "out"))
    assert said.count("to run") == 2 and "fmix-vit_tiny" in said
