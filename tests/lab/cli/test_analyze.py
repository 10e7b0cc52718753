"""`vitmix analyze`: what is measured, where it goes, what is refused."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training import one_thread, train
from vitmix.lab.cli import main as cli
from vitmix.lab.data import Shapes
from vitmix.lab.runs import Analysis, Estimate, Table
from vitmix.lab.studies import labels
from vitmix.lab.studies.figures import plot_bars, plot_blocks, plot_label_error
from vitmix.lab.studies.studies import STUDIES, headline

__all__ = ["one_thread"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("analyze") / "run"
    train(folder, method="cutmix + htm(block=1, tau=9)", epochs=1)
    yield folder


def test_analyze_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "found"
    assert cli.main(["analyze", str(run), "--images", "16", "--output", str(output), "--figure", "svg"]) == 0
    said = capsys.readouterr().out
    for title in ("Accuracy on mixed images", "Label error", "Token fluctuation: cutmix", "RMSE", "What HTM mixed"):
        assert title in said
    assert "Left out" not in said
    names = {path.name for path in output.iterdir()}
    studies = ("accuracy", "labels", "fluctuation", "regions", "presence", "sharpness", "coverage", "htm")
    assert names == {f"{name}.{ending}" for name in studies for ending in ("json", "txt", "svg")}
    assert studies == tuple(STUDIES) and "64/64 images  accuracy" in said
    assert (output / "regions.txt").read_text().strip() in said
    stored = json.loads((output / "htm.json").read_text())
    assert stored["tables"][0]["rows"][0]["samples"]["mean"] == 1  # tau 9: everybody is easy
    assert stored["weights_sha256"] == hashlib.sha256((run / "best.safetensors").read_bytes()).hexdigest()
    assert json.loads((output / "labels.json").read_text())["tables"][0]["rows"][0]["error"]["n"] <= 16


HEADLINES = {  # title of the table, its number, and how the sentence names the row with the best one
    "accuracy": ("Accuracy", "top-1", "images mixed by {method} are recognized best"),
    "labels": ("Label error", "error", "the labels of '{rule}' are closest to the visible objects"),
    "fluctuation": ("RMSE", "of shares", "{labels} labels differ by"),
    "regions": ("Attention", "partner to partner", "attend most to each other with {method}"),
    "presence": ("Presence", "deviation", "({method})"),
    "sharpness": ("Sharpness", "TV, L1", "{saliency} is sharpest in block {block}"),
    "coverage": ("Objects", "pasted", "{method} shows most of the partner's object"),
    "htm": ("What HTM", "samples", "in epoch {epoch}, the last"),
}


def test_every_study_begins_with_its_main_number(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert HEADLINES.keys() == STUDIES.keys()
    assert cli.main(["analyze", str(run), "--images", "16", "--output", str(tmp_path / "found")]) == 0
    said = capsys.readouterr().out
    for study, (title, column, words) in HEADLINES.items():
        stored = json.loads((tmp_path / "found" / f"{study}.json").read_text())
        table = next(each for each in stored["tables"] if each["title"].startswith(title))
        rows = [row for row in table["rows"] if column in row]
        place = next((key for key in ("block", "epoch") if key in table["keys"]), None)
        if place and study != "sharpness":
            rows = [row for row in rows if row[place] == rows[-1][place]]
        best = (min if study == "labels" else max)(rows, key=lambda row: row[column]["mean"])
        text = headline(Analysis.from_json(stored))
        assert text.startswith(f"{study}: ") and words.format(**best) in text, text
        percent = column in table.get("percent", ())
        number = Estimate.from_json(best[column])
        assert (f"{number.text(100, '.1f')} %" if percent else number.text()) in text, text
        assert f"\n{text}\n" in f"\n{said}", text


def test_only_what_is_the_runs_own_goes_to_its_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its best weights on its own data with the usual methods, images and pairs; the rest must not replace that."""
    monkeypatch.chdir(tmp_path)
    own, here = run / "analysis" / "coverage.json", tmp_path / "analysis" / "coverage.json"
    for what in (run, run / "best.safetensors"):
        assert cli.main(["analyze", str(what), "--study", "coverage"]) == 0
        assert f"{run / 'analysis'}: coverage" in capsys.readouterr().out and own.is_file() and not here.parent.exists()
        content = own.read_bytes()
        own.unlink()
    own.write_bytes(content)
    data = "shapes(size=16, length=24, test_length=24)"
    for given in (
        [str(run), "--weights", "last"],
        [str(run / "last.safetensors")],
        [str(run / "best.safetensors"), "--data", data],
        [str(run), "--split", "train"],
        [str(run), "--size", "16"],
        [str(run), "--method", "cutmix"],
        [str(run), "--images", "8"],
        [str(run), "--batch", "8"],
        [str(run), "--seed", "1"],
    ):
        assert cli.main(["analyze", *given, "--study", "coverage"]) == 0
        said = capsys.readouterr().out
        assert "analysis: coverage, each as" in said and f"Not in {run / 'analysis'}" in said and here.is_file()
        here.unlink()
    assert cli.main(["analyze", str(run), "--seed", "1", "--study", "coverage", "--output", "other"]) == 0
    assert "other: coverage" in (said := capsys.readouterr().out) and "Not in" not in said
    assert own.read_bytes() == content
    monkeypatch.chdir(run)
    for given in ([".", "--weights", "last"], ["best.safetensors", "--data", data]):
        assert cli.main(["analyze", *given, "--study", "coverage"]) == 2
        assert "add --output FOLDER" in capsys.readouterr().err
    assert cli.main(["analyze", ".", "--seed", "1", "--study", "coverage", "--output", "analysis"]) == 0
    assert own.read_bytes() != content  # who names it means it


def test_the_head_is_that_of_eval(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which weights were measured is said: those of a bare name are random."""
    model = ["vit_tiny_patch16_224", "--model-args", "img_size=32", "patch_size=8", "embed_dim=24", "depth=2"]
    model += ["num_heads=2", "num_classes=14", "--data", "shapes(size=32, length=24, test_length=24)"]
    for given in (model, [str(run)]):
        assert cli.main(["eval", *given]) == 0
        expected = capsys.readouterr().out.partition("\n\n")[0]
        output = ["--output", str(tmp_path / "found"), "--study", "coverage"]
        assert cli.main(["analyze", *given, *output]) == 0
        assert capsys.readouterr().out.startswith(f"{expected}\n\n")
        assert expected.startswith("Model  ") and "\nData   " in expected
        assert ("with random weights" in expected and "Note: 14 outputs" in expected) == (given is model)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no model is named"),
        (["--study", "magic"], "unknown study 'magic'"),
        (["RUN", "--study", "regions", "--method", "mixup"], "blends the images"),
        (["RUN", "--study", "accuracy", "--method", "nomix"], "nomix"),
        (["RUN", "--study", "labels", "--method", "none"], "'none' does not mix images"),
        (["RUN", "--study", "labels", "--method", "htm(block=1)"], "does not mix images; use a method"),
        (["RUN", "--mask-value", "1"], "needs a folder of masks"),
        (["RUN", "--study", "labels", "--masks", "nowhere"], "no mask folder"),
        (["RUN", "--images", "1"], "images must be an integer of at least 2"),
        (
            ["resnet18", "--data", "shapes(size=16, length=24, test_length=24)", "--study", "presence"],
            "needs attention",
        ),
        (["resnet18", "--data", "shapes(size=16, length=24, test_length=24)", "--study", "htm"], "read from a run"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(run) if each == "RUN" else each for each in arguments]
    assert cli.main(["analyze", *given]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_no_masks_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        path = tmp_path / "images" / "train" / Shapes.classes[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 20 * number, dtype=np.uint8)).save(path)
    data = f"imagefolder:{tmp_path / 'images'}"
    assert cli.main(["analyze", str(run), "--data", data, "--split", "train", "--study", "labels"]) == 2
    assert "have no masks" in capsys.readouterr().err
    command = ["analyze", str(run), "--data", data, "--split", "train", "--output", str(tmp_path / "found")]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    for name in ("labels", "coverage"):
        assert f"\nLeft out: {name}, because " in said and not (tmp_path / "found" / f"{name}.json").exists()
    assert said.count("have no masks") == 2 and said.count("--masks FOLDER") == 2


def test_methods_that_a_model_does_not_allow_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that nobody named: a model without attention still has an accuracy on mixed images."""
    data, output = "shapes(size=32, length=24, test_length=24)", tmp_path / "found"
    given = ["analyze", "resnet10t", "--model-args", "num_classes=12", "--size", "32", "--data", data, "--images", "16"]
    assert cli.main([*given, "--output", str(output), "--study", "accuracy", "labels", "coverage"]) == 0
    said = capsys.readouterr().out
    assert "Left out: smmix, because salient_box needs attention, which this ResNet does not have" in said
    rows = json.loads((output / "labels.json").read_text())["tables"][0]["rows"]
    assert [labels.RULES[row["rule"]] for row in rows][:3] == ["cutmix", "tl_align", "mix(mask=box, share=activation)"]
    assert cli.main([*given, "--study", "accuracy", "--method", "smmix", "--output", str(output)]) == 2
    assert "needs attention" in capsys.readouterr().err


def test_a_stopped_command_says_what_it_finished(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(asked: object) -> list:
        raise KeyboardInterrupt

    monkeypatch.setitem(STUDIES, "regions", dataclasses.replace(STUDIES["regions"], measure=stop))
    given = ["analyze", str(run), "--images", "8", "--output", str(tmp_path / "found")]
    assert cli.main([*given, "--study", "accuracy", "regions"]) == 130
    assert capsys.readouterr().err == f"Stopped. Finished studies are in {tmp_path / 'found'}: accuracy.\n"
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"accuracy.json", "accuracy.txt", "accuracy.png"}


def test_bars_of_one_row_stand_at_one_height() -> None:
    """Also where a column has no value in some rows."""
    one = Estimate(1.0, 0.1, 9, 0.9, 1.1)
    rows = [(("0", "area"), {"error": one}), (("1", "aligned"), {"error": one, "to area": one})]
    error, to_area = plot_bars([Table("Labels", ("block", "rule"), rows)]).axes
    assert error.get_ylim() == to_area.get_ylim() == (1.5, -0.5)
    assert [label.get_text() for label in error.get_yticklabels()] == ["block 0, area", "block 1, aligned"]


def test_label_errors_have_a_panel_for_each_mask_and_a_line_for_each_rule() -> None:
    one = Estimate(0.2, 0.1, 9, 0.1, 0.3)
    names = ("CutMix box, area", "CutMix box, prior", "blocks, prior", "mix(mask=box, share=aligned)")
    tables = [
        Table(f"Label error by the {key}", ("rule", key), [((name, "20% to 40%"), {"error": one}) for name in names])
        for key in ("hidden", "area", "size")
    ]
    figure = plot_label_error(tables)
    assert [axes.get_title() for axes in figure.axes] == ["CutMix box", "blocks", "methods"] * 2
    box, blocks, methods = figure.axes[:3]
    assert [line.get_label() for line in box.lines] == ["area", "prior"]
    assert [line.get_label() for line in methods.lines] == ["mix(mask=box, share=aligned)"]
    assert box.lines[1].get_color() == blocks.lines[0].get_color() != box.lines[0].get_color()
    assert box.lines[0].get_xydata().tolist() == [[0.3, 0.2]]


def test_lines_of_methods_can_be_compared() -> None:
    def table(high: float) -> list[tuple[tuple[str, str], dict[str, Estimate]]]:
        return [
            (("cutmix" if high < 2 else "smmix", str(block)), {"own": Estimate(high, 0.1, 9, high - 0.5, high + 0.5)})
            for block in range(3)
        ]

    panels = plot_blocks([Table("Regions", ("method", "block"), [*table(1), *table(5)])], measure="attention").axes
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[0].get_ylabel() == "attention"
    assert panels[0].get_ylim()[0] < 0.5 and panels[1].get_ylim()[1] > 5.5  # the intervals are in view


def test_studies_that_are_there_are_not_made_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "run"
    shutil.copytree(run, own, ignore=shutil.ignore_patterns("analysis"))
    assert cli.main(["analyze", str(own)]) == 0
    folder = own / "analysis"
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "regions.json").unlink()
    by_masks = json.loads((folder / "labels.json").read_text()) | {"masks": "outlines"}
    (folder / "labels.json").write_text(json.dumps(by_masks))
    capsys.readouterr()
    assert cli.main(["analyze", str(own)]) == 0
    said = capsys.readouterr().out
    made = {path.stem for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert made == {"regions", "labels"} and "masks" not in json.loads((folder / "labels.json").read_text())
    assert all((folder / f"{name}.txt").read_text().strip() in said for name in STUDIES)
    assert cli.main(["analyze", str(own), "--study", "accuracy"]) == 0  # what is named is made
    assert (folder / "accuracy.json").stat().st_mtime_ns != times[folder / "accuracy.json"]
