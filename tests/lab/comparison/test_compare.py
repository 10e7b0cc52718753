"""Comparisons: statistics by hand, matrices that are refused or resolved, and a matrix that is killed and resumed."""

import csv
import dataclasses
import gzip
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from comparing import SETTINGS, finish, wait_for, write
from support import ROOT
from vitmix._text import create
from vitmix.lab.cli import main as cli
from vitmix.lab.comparison import compare, list_matrices, matrix, read_matrix
from vitmix.lab.comparison.matrix import RunMatrix, Training, changed, parse_matrix
from vitmix.lab.comparison.rows import text, verdict
from vitmix.lab.comparison.runner import is_busy, is_done
from vitmix.lab.comparison.stored import csv_cell, csv_text, stored_difference
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.report.quantities import best
from vitmix.lab.runs import Estimate, Run
from vitmix.lab.runs.published import FILE, read_published

# Statistics


def test_paired_difference_by_hand() -> None:
    found = Estimate.paired([0.82, 0.84, 0.89], [0.80, 0.80, 0.83])
    # differences 2, 4, 6 points: mean 4, deviation 2, error 2 / sqrt(3), t of 2 degrees 4.302653
    assert found.mean == pytest.approx(0.04) and found.std == pytest.approx(0.02) and found.n == 3
    margin = 4.302652729911275 * 0.02 / math.sqrt(3)
    assert found.low == pytest.approx(0.04 - margin) and found.high == pytest.approx(0.04 + margin)
    # of 2 degrees of freedom, P(|T| > t) = 1 - t / sqrt(2 + t²), here with t = 2 sqrt(3)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    assert verdict(found) == "no difference shown"
    assert verdict(Estimate.paired([0.9, 0.91, 0.92], [0.8, 0.812, 0.818])) == "better"
    assert verdict(Estimate.paired([0.8, 0.812, 0.818], [0.9, 0.91, 0.92])) == "worse"


def test_too_little_for_a_test() -> None:
    assert verdict(Estimate.paired([0.9], [0.1])) == "one seed, no test"
    alike = Estimate.paired([0.5, 0.7], [0.4, 0.6])
    assert alike.p is None and verdict(alike) == "seeds do not differ, no test"
    with pytest.raises(ValueError, match="equally many"):
        Estimate.paired([0.5], [])


# Matrices


def test_cells_of_a_matrix(tmp_path: Path) -> None:
    both = parse_matrix(
        {
            "rows": {"CutMix": "cutmix", "BCE": {"method": "tokenmix", "loss": "bce", "epochs": 7}},
            "models": ["deit_tiny_patch16_224", "deit_small_patch16_224"],
            "seeds": [3, 4],
            "settings": {"recipe": "deit", "epochs": 5},
        },
        "it",
    )
    trainings = both.trainings(tmp_path)
    assert len(trainings) == 8 and len({training.name for training in trainings}) == 8
    assert [(training.row, training.seed) for training in trainings[:4]] == [
        ("CutMix", 3),
        ("CutMix", 4),
        ("BCE", 3),
        ("BCE", 4),
    ]
    assert [training.model for training in trainings] == ["deit_tiny_patch16_224"] * 4 + ["deit_small_patch16_224"] * 4
    bce = next(training for training in trainings if training.row == "BCE")
    assert (bce.config.loss, bce.config.epochs, bce.config.batch) == ("bce", 7, 1024)
    assert bce.config.model == bce.model == "deit_tiny_patch16_224" and bce.data == "imagefolder:imagenet"
    assert both.reference == "CutMix" and parse_matrix(both.plain(), "it") == both


def test_flags_change_a_matrix(tmp_path: Path) -> None:
    small = changed(read_matrix("smmix_parts"), seeds=[5], settings={"recipe": "shapes", "epochs": 2})
    trainings = small.trainings(tmp_path)
    assert (
        len(trainings) == 6
        and {training.config.epochs for training in trainings} == {2}
        and trainings[0].data == "shapes"
    )
    alone = changed(None, methods=["cutmix", "smmix"], data=["shapes"], baseline="smmix")
    assert alone.reference == "smmix" and alone.seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (
            {"rows": {"CutMix": "cutmix", "SMMix": "smmix"}},
            {"method": "tl_align"},
            "--set method applies to every run, but the rows of the matrix set it ('CutMix', 'SMMix'); "
            "give --method to replace the rows",
        ),
        (
            {"rows": {"a": {"method": "none", "epochs": 9}, "b": "none"}},
            {"epochs": 1},
            "--set epochs applies to every run, but the rows of the matrix set it ('a'); change it in the matrix",
        ),
        (
            {"rows": ["cutmix"], "models": ["deit_tiny_patch16_224"]},
            {"model": "deit_small_patch16_224"},
            "--set model applies to every run, but the models of the matrix set it ('deit_tiny_patch16_224'); "
            "give --model to replace the models",
        ),
    ],
)
def test_what_a_row_sets_cannot_be_set_for_all(
    content: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        changed(parse_matrix(content, "it"), settings=settings)


def test_rows_named_by_the_same_method_are_one(tmp_path: Path) -> None:
    twice = changed(None, methods=["cutmix", "mixup|smmix", "mixup | smmix"], data=["shapes"], baseline="mixup|smmix")
    assert list(twice.rows) == ["cutmix", "mixup | smmix"] and twice.reference == "mixup | smmix"
    one, other = (
        changed(None, methods=[text], data=["shapes"], seeds=[0]).trainings(tmp_path)
        for text in ("mixup|smmix", "mixup | smmix")
    )
    assert one == other


def test_methods_as_rows_keep_their_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", str(write(tmp_path)), "--output", str(tmp_path / "out"), "--dry-run", "--set", "method=smmix"]
    assert cli.main(command) == 2
    assert "--set method applies to every run" in capsys.readouterr().err
    assert cli.main([*command[:-2], "--method", "smmix", "--set", "lr=0.1"]) == 0
    assert "smmix" in capsys.readouterr().out


def test_a_sweep_puts_the_value_of_each_row_in_its_place() -> None:
    content = {
        "sweep": {"method": "htm(tau={})", "guide": "g"},
        "rows": {"a": 0.1, "b": "0.2", "c": {"method": "none"}},
    }
    assert parse_matrix(content, "it").rows == {
        "a": {"method": "htm(tau=0.1)", "guide": "g"},
        "b": {"method": "htm(tau=0.2)", "guide": "g"},
        "c": {"method": "none"},
    }
    listed = parse_matrix({"sweep": {"maps": "maps/{}"}, "rows": ["strong", 26]}, "it")
    assert listed.rows == {"strong": {"maps": "maps/strong"}, "26": {"maps": "maps/26"}}


@pytest.mark.parametrize("name", sorted(list_matrices()))
def test_ready_matrices_are_trainings(name: str, tmp_path: Path) -> None:
    ready = read_matrix(name)
    trainings = ready.trainings(tmp_path)
    assert trainings and ready.about and ready.reference in ready.rows
    for training in trainings:
        if isinstance(training.config, TransferConfig):
            continue
        method = create(training.config.method, 10, loss=training.config.loss)
        taught = training.config.labels == "teacher"
        maps = taught or any(mixer.needs.maps or mixer.needs.label_maps for mixer in method.mixers)
        assert maps == (training.config.maps is not None)
        assert not maps or "vitmix maps --data DATA --model NAME --pretrained --output" in ready.note
    deciding = {(training.model, yaml.safe_dump(_settings(training.config))) for training in trainings}
    assert len(deciding) == len(trainings)  # no two rows are the same training


def _settings(config: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if name != "output" and not isinstance(value, tuple)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "has no rows"),
        ({"rows": {}}, "needs rows"),
        ({"rows": ["cutmix"], "row": 1}, "unknown entry of a matrix 'row'"),
        ({"rows": ["cutmix"], "baseline": "mixup"}, "unknown baseline"),
        ({"rows": ["cutmix"], "seeds": [1, 1]}, "different whole numbers"),
        ({"rows": ["cutmix"], "seeds": 3}, "must be a list"),
        ({"rows": ["cutmix"], "settings": {"seed": 1}}, "seed cannot be set"),
        ({"rows": {"a": 3}}, "must be a string or settings"),
        ({"rows": {"a": 3}, "sweep": {"method": "htm"}}, "sweep must be settings with {} for the value of a row"),
        ({"rows": {"a": 3}, "sweep": {"methods": "htm(tau={})"}}, "unknown setting 'methods'"),
        ({"rows": ["cutmix"], "settings": {"epoch": 3}}, "unknown setting 'epoch' in the settings of it; did you mean"),
        ({"rows": {"a": {"lrr": 3}}}, "unknown setting 'lrr' in it, rows, 'a'; did you mean 'lr'?"),
        ({"rows": {"a": {"lr": "fast"}}}, "lr in it, rows, 'a' must be a number, got 'fast'"),
        ({"rows": ["cutmix"], "models": {"b": {"lrr": 3}}}, "unknown setting 'lrr' in it, models, 'b'"),
        ({"rows": {"a": {"lr": -1}}}, "row 'a': lr must be a positive"),
        ({"rows": ["cutmixx"]}, "row 'cutmixx': unknown"),
        ({"rows": {"a b": "cutmix", "a_b": "mixup"}}, "would use the same folder"),
    ],
)
def test_wrong_matrices_are_refused(content: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_matrix(content, "it").trainings(tmp_path)


@pytest.mark.parametrize(
    ("name", "trainings", "epochs", "off"), [("small_images", 12 * 3, 100, None), ("cifar10", 4 * 2, 300, 175)]
)
def test_the_matrices_among_the_examples(name: str, trainings: int, epochs: int, off: int | None) -> None:
    found = read_matrix(str(ROOT / "examples" / f"{name}.yaml")).trainings(Path("out"))
    assert len(found) == trainings
    assert {(training.config.epochs, training.config.mixing_off_epoch) for training in found} == {(epochs, off)}


def test_unknown_matrix() -> None:
    with pytest.raises(ValueError, match="did you mean 'smmix_parts'"):
        read_matrix("smmix_part")


def test_file_of_any_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("what I did today")
    with pytest.raises(ValueError, match="notes.txt must hold settings as 'name: value' lines"):
        read_matrix(str(tmp_path / "notes.txt"))


# Running


def test_a_matrix_runs_once_and_is_killed_and_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, settings=SETTINGS | {"epochs": 4, "checkpoint_every": "1 steps", "log_every": 1})
    output = tmp_path / "out"
    arguments = ["compare", str(path), "--output", str(output)]
    command = [sys.executable, "-m", "vitmix", *arguments]
    trainings = read_matrix(str(path)).trainings(output)
    finish(trainings[1])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (output / "runs" / trainings[0].name / "checkpoints").exists())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not all(map(is_done, trainings))
    # The training notices that nobody waits for it.
    wait_for(lambda: not is_busy(trainings[0]))
    assert not is_done(trainings[0]) and trainings[0].run.exists

    assert cli.main(arguments) == 0
    said = capfd.readouterr().out
    assert "1 done, 1 to run" in said
    assert all(map(is_done, trainings)) and "resumes" in said and "compare.html" in said
    logs = "".join(each.read_text() for each in (output / "runs").glob("*/train.log"))
    assert "resuming at update" in logs
    stored = json.loads((output / "compare.json").read_text())
    rows = {row["row"]: row for row in stored["rows"]}
    runs = [json.loads((output / "runs" / training.name / "summary.json").read_text()) for training in trainings]
    cutmix, none = (run["last"]["accuracy"] for run in runs)
    assert rows["none"]["mean"] == none and rows["none"]["difference"]["mean"] == pytest.approx(none - cutmix)
    assert rows["none"]["difference"]["verdict"] == "one seed, no test"
    assert rows["CutMix"]["difference"] is None and rows["none"]["flops"] > 0
    page = (output / "compare.html").read_text()
    assert "Accuracy against training time" in page and page.count("<svg") >= 2

    times = {
        training.name: os.stat(output / "runs" / training.name / "last.safetensors").st_mtime_ns
        for training in trainings
    }
    assert cli.main(arguments) == 0
    assert "2 done, 0 to run" in capfd.readouterr().out
    assert times == {
        training.name: os.stat(output / "runs" / training.name / "last.safetensors").st_mtime_ns
        for training in trainings
    }

    assert cli.main([*arguments, "--set", "epochs=3"]) == 2
    assert "holds a run with another configuration (epochs: 4 -> 3)" in capfd.readouterr().err


def test_a_failing_row_leaves_the_others_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = {"CutMix": "cutmix", "broken": {"method": "cutmix", "data": "imagefolder:nowhere"}}
    path, output = write(tmp_path, rows=rows), tmp_path / "out"
    finish(read_matrix(str(path)).trainings(output)[0])
    assert cli.main(["compare", str(path), "--output", str(output)]) == 1
    said = capfd.readouterr().out
    assert "1 done, 1 to run" in said and "failed: imagefolder: 'nowhere' is not a folder" in said and "0 of 1" in said
    assert cli.main(["compare", str(path), "--output", str(output), "--dry-run"]) == 0
    said = capfd.readouterr().out
    assert said.startswith("done") and "to run  broken" in said


def test_paired_by_seed_and_best_or_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = SETTINGS | {"lr": 0.01, "epochs": 2, "data": "shapes(size=16, length=96, test_length=240)"}
    path, output = write(tmp_path, seeds=[0, 1, 2], settings=settings), tmp_path / "out"
    ready = read_matrix(str(path))
    trainings = ready.trainings(output)
    for training in trainings[:-1]:
        finish(training)
    found = compare(ready, trainings)
    cutmix, none = found.rows
    assert (len(cutmix.runs), len(none.runs), none.planned) == (3, 2, 3) and not found.complete
    assert found.difference(none) == Estimate.paired(found.quantity.values(none), found.quantity.values(cutmix)[:2])
    assert best("accuracy").values(compare(ready, trainings, measure="best").rows[0])
    assert cli.main(["compare", str(path), "--output", str(output), "--no-train", "--measure", "best"]) == 0
    said = capfd.readouterr().out
    assert "2 of 3" in said and "best epoch" in said and "Not all runs are finished" in said


def test_some_rows_first_and_all_of_them_later(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows in several calls: the baseline comes along once it is done, and what is published is what was asked for."""
    rows = {"CutMix": "cutmix", "no mixing": "none", "MixUp": "mixup", "TransMix": "transmix"}
    path, output, published = write(tmp_path, rows=rows), tmp_path / "out", tmp_path / "published"
    trainings = {training.row: training for training in read_matrix(str(path)).trainings(output)}

    def compare(*arguments: str) -> tuple[str, list[str]]:
        command = ["compare", str(path), "--output", str(output), "--publish", str(published), *arguments]
        assert cli.main(command) == 0
        compared = json.loads((output / "compare.json").read_text())["rows"]
        assert list(read_matrix(str(published)).rows) == [row["row"] for row in compared]
        return capfd.readouterr().out, [row["row"] for row in compared]

    said, compared = compare("--rows", "no mixing")  # trains it
    assert "1 run: 0 done" in said and "One training run of 0:" in (published / "README.md").read_text()
    assert "The baseline 'CutMix' is neither finished nor among --rows; there is nothing to compare with yet" in said
    assert compared == ["no mixing"] and is_done(trainings["no mixing"]) and not trainings["CutMix"].run.exists
    for row in ("CutMix", "MixUp"):
        shutil.copytree(trainings["no mixing"].run.path, trainings[row].run.path)
        Run(trainings[row].run.path).write_config(trainings[row].config)
    said, compared = compare("--rows", "MixUp", "no mixing", "MixUp")
    assert "3 runs: 3 done" in said and compared == ["CutMix", "MixUp", "no mixing"]
    assert "| to CutMix |" in (published / "README.md").read_text()
    said, compared = compare("--no-train")
    assert compared == list(rows) and "TransMix   0 of 1  -" in said
    assert read_published(published / FILE).runs.keys() == {trainings[row].name for row in rows if row != "TransMix"}
    readme = (published / "README.md").read_text()
    assert "| TransMix | 0 of 1 | - |" in readme and "Not all runs are finished" in readme
    assert "Not finished and left out: TransMix" in (output / "compare.html").read_text()


def test_rows_that_cannot_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, rows={"CutMix": "cutmix", "SMMix": "smmix", "no mixing": "none"})
    for arguments, sentence in (
        (["--rows", "smmix"], "unknown row 'smmix', known: CutMix, SMMix, 'no mixing'; did you mean 'SMMix'?"),
        (["--rows", "SMMix", "--method", "smmix"], "--method replaces the rows that --rows selects from"),
        (["--rows", "SMMix", "--baseline", "no mixing"], "the baseline 'no mixing' is not finished; name it among"),
        (["--rows", "SMMix", "--baseline", "nothing"], "unknown baseline 'nothing'"),
    ):
        assert cli.main(["compare", str(path), "--output", str(tmp_path / "out"), *arguments]) == 2
        said = capsys.readouterr()
        assert sentence in said.err and said.err.count("\n") == 1 and not said.out
    assert cli.main(["compare", "--rows", "SMMix"]) == 2
    assert "name the matrix first" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    command = ["compare", str(path), "--output", str(tmp_path / "out"), "--rows", "no mixing", "CutMix", "--dry-run"]
    assert cli.main(command) == 0
    assert [line.split()[2][:6] for line in capsys.readouterr().out.splitlines()] == ["no_mix", "CutMix"]


@pytest.mark.parametrize("how", ["--dry-run", "--no-train"])
def test_runs_of_another_configuration_are_no_results(how: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, output = write(tmp_path), tmp_path / "out"
    finish(read_matrix(str(path)).trainings(output)[0])
    changed = ["compare", str(path), "--output", str(output), "--set", "epochs=3", "--publish", str(tmp_path / "pub")]
    assert cli.main([*changed, how]) == 2
    assert "another configuration (epochs: 1 -> 3)" in capsys.readouterr().err
    assert not (output / "matrix.yaml").exists() and not (tmp_path / "pub").exists()


def test_long_names_share_no_folder(tmp_path: Path) -> None:
    data = [f"shapes(size=16, length=4800, test_length={number})" for number in (240, 241)]
    names = [training.name for training in parse_matrix({"rows": ["cutmix"], "data": data}, "it").trainings(tmp_path)]
    assert len(set(names)) == len(names) == 6 and all(len(name) < 120 for name in names)


def test_nothing_finished_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert cli.main(["compare", str(path), "--output", str(tmp_path / "out"), "--no-train"]) == 0
    assert "nothing to compare" in capsys.readouterr().out and not (tmp_path / "out").exists()
    empty = compare(read_matrix(str(path)), read_matrix(str(path)).trainings(tmp_path / "out"))
    assert "Not all runs are finished" in text(empty)


def test_list_and_wrong_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert cli.main(["compare", "--list"]) == 0
    assert "SMMix table 7" in capsys.readouterr().out
    for arguments, sentence in (
        ([], "nothing to compare"),
        (["--rows", "CutMix", "some.yaml"], "name the matrix first"),
        (["example", "--jobs", "0"], "jobs must be"),
        (["example", "--minutes", "0"], "minutes must be a positive"),
        (["example", "--set", "epochs"], "--set takes KEY=VALUE, such as epochs=10, got 'epochs'"),
        (["example", "--set", "lrr=1"], "unknown setting 'lrr' in --set; did you mean 'lr'?"),
        (["example", "--set", "scale=[1"], "--set takes values in YAML, got 'scale=[1'"),
        (["example", "--output", "file"], "'file' is a file; give a folder as --output"),
        (["example", "--model", "deit_tinny_patch16_224"], "unknown model 'deit_tinny_patch16_224'"),
    ):
        assert cli.main(["compare", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert isinstance(matrix.list_matrices()["example"], RunMatrix)


def test_every_ready_matrix_is_documented() -> None:
    page = (ROOT / "docs" / "compare.md").read_text()
    for name, ready in list_matrices().items():
        assert name == "example" or f"| `{name}` | {ready.about} |" in page


# Numbers


def check_published(folder: Path, output: Path, trainings: list[Training]) -> None:
    """The folder for a repository: all that was measured, nothing of where, and a matrix that trains it again."""
    assert {path.name for path in folder.iterdir()} == {"README.md", FILE}
    lines = [json.loads(line) for line in gzip.open(folder / FILE, "rt")]
    kept = ("config.yaml", "evaluation.json", "metrics.jsonl", "summary.json")
    assert {(line["run"], line["file"]) for line in lines[1:]} == {(each.name, k) for each in trainings for k in kept}
    readme = (folder / "README.md").read_text()
    assert str(output.parent) not in readme and str(output.parent) not in str(lines)
    stored = json.loads((output / "compare.json").read_text())["rows"]
    for row in stored:
        numbers = f"| {row['row']} | 3 | {100 * row['mean']:.2f} ± {100 * row['std']:.2f} |"
        assert numbers in readme and f"| {row['row']} | 2 | " in readme  # results, and cost
    assert f"torch {torch.__version__}" in readme
    again = read_matrix(str(folder)).trainings(output)
    assert [training.config for training in again] == [training.config for training in trainings]
    assert cli.main(["compare", str(folder), "--no-train"]) == 0  # made of the published runs alone
    for row, published in zip(stored, json.loads((folder / "compare.json").read_text())["rows"], strict=True):
        assert published["accuracy"] == pytest.approx(row["accuracy"], rel=1e-5)
        assert [Path(run).name for run in published["runs"]] == [Path(run).name for run in row["runs"]]
    assert cli.main(["report", str(folder), "--output", str(folder / "page.html")]) == 0
    page = (folder / "page.html").read_text()
    assert f"{folder / trainings[-1].name}" in page and "vitmix eval" not in page  # without weights


def test_page_table_and_files_say_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Made-up results: every number on the page and in the CSV is that of the JSON, and that of the run folders."""
    path, output = write(tmp_path, seeds=[0, 1, 2], settings=SETTINGS | {"epochs": 2}), tmp_path / "out"
    ready = read_matrix(str(path))
    trainings = ready.trainings(output)
    finish(trainings[0])
    for number, training in enumerate(trainings):
        if number:
            shutil.copytree(trainings[0].run.path, training.run.path)
            training.run.write_config(training.config)
        rows = [json.loads(line) for line in (training.run.path / "metrics.jsonl").read_text().splitlines()]
        rows[0]["accuracy"], rows[1]["accuracy"] = 0.25 + 0.0713 * number, 0.5 + 0.03 * number + 0.001 * number**2
        (training.run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        summary = training.run.summary
        training.run.write_summary(dataclasses.replace(summary, training_seconds=10.0 + number**2))
    published = tmp_path / "published"
    assert cli.main(["compare", str(path), "--output", str(output), "--no-train", "--publish", str(published)]) == 0
    said = capfd.readouterr().out
    check_published(published, output, trainings)
    capfd.readouterr()
    stored = json.loads((output / "compare.json").read_text())["rows"]
    table = list(csv.DictReader((output / "compare.csv").read_text().splitlines()))
    shown = re.findall(r'<data value="([^"]+)"([^>]*)>([^<]*)</data>', (output / "compare.html").read_text())

    def on_page(group: int, of: str, where: str = "") -> list[float]:
        wanted = [f'data-of="{of}"', f'data-group="{group}"', where]
        return [float(value) for value, about, _ in shown if all(each in about for each in wanted)]

    for group, (row, line) in enumerate(zip(stored, table, strict=True)):
        own = [0.5 + 0.03 * number + 0.001 * number**2 for number in range(3 * group, 3 * group + 3)]
        assert list(row["accuracy"].values()) == own and row["mean"] == pytest.approx(sum(own) / 3)
        for name, of in (("mean", "mean"), ("std", "deviation")):
            assert float(line[name]) == row[name] and row[name] in on_page(group, of, "last.accuracy")
        assert f"{100 * row['mean']:.2f} ± {100 * row['std']:.2f}" in said
        assert float(line["training_seconds"]) == pytest.approx(sum(row["training_seconds"]) / 3)
        assert float(line["training_seconds"]) in on_page(group, "mean", "training_seconds")
        assert float(line["parameters"]) == row["parameters"] and float(line["flops"]) == row["flops"]
        if row["difference"] is None:
            assert line["difference_mean"] == "" and row["row"] == "CutMix"
            continue
        expected = Estimate.paired(own, list(stored[0]["accuracy"].values()))
        assert row["difference"] == stored_difference(expected)
        for name, of in (("mean", "difference"), ("low", "low"), ("high", "high"), ("p", "p")):
            assert float(line[f"difference_{name}"]) == row["difference"][name]
            assert on_page(group, of) == [row["difference"][name]]
        assert line["difference_verdict"] == "better" and float(line["slowdown"]) == row["slowdown"]


@pytest.mark.parametrize("formula", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://x")'])
def test_texts_that_a_spreadsheet_would_compute_stay_texts(formula: str) -> None:
    row = {
        **{name: formula for name in ("row", "model", "data")},
        "seeds": [0, 1],
        "mean": -0.5,
        "std": 1e-05,
        "difference": {"mean": -0.25, "verdict": formula},
        "training_seconds": [1.0],
    }
    (found,) = csv.DictReader(io.StringIO(csv_text([row]), newline=""))
    assert [found[name] for name in ("row", "model", "data", "difference_verdict")] == [
        "'" + formula.replace("\r", "\n")
    ] * 4
    assert (found["mean"], found["std"], found["difference_mean"], found["seeds"]) == ("-0.5", "1e-05", "-0.25", "0 1")
    assert (
        csv_cell("-0.5") == "-0.5"
        and csv_cell("cutmix = x") == "cutmix = x"
        and csv_cell(-3) == -3
        and csv_cell("a\r=1") == "a\n=1"
    )
