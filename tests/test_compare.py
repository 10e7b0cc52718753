"""Comparisons: statistics by hand, matrices that are refused or resolved, and a matrix that is killed and goes on."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from training import TINY
from vitmix import cli
from vitmix.compare import list_matrices, matrix, paired_difference, read_matrix
from vitmix.compare.matrix import Cell, Matrix, changed, parse_matrix
from vitmix.compare.results import compare_cells, text
from vitmix.compare.runner import is_busy, is_done
from vitmix.evaluate.stored import evaluate_run
from vitmix.spec import create
from vitmix.train.engine import Trainer

SETTINGS = {name: value for name, value in TINY.items() if name not in ("method", "model_args", "track")}
SETTINGS |= {"epochs": 1, "model_args": dict(TINY["model_args"])}


# Statistics


def test_paired_difference_by_hand() -> None:
    found = paired_difference([0.82, 0.84, 0.89], [0.80, 0.80, 0.83])
    # differences 2, 4, 6 points: mean 4, deviation 2, error 2 / sqrt(3), t of 2 degrees 4.302653
    assert found.mean == pytest.approx(0.04) and found.std == pytest.approx(0.02) and found.n == 3
    margin = 4.302652729911275 * 0.02 / math.sqrt(3)
    assert found.low == pytest.approx(0.04 - margin) and found.high == pytest.approx(0.04 + margin)
    # of 2 degrees of freedom, P(|T| > t) = 1 - t / sqrt(2 + t²), here with t = 2 sqrt(3)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    assert found.verdict == "no difference shown"
    assert paired_difference([0.9, 0.91, 0.92], [0.8, 0.812, 0.818]).verdict == "better"
    assert paired_difference([0.8, 0.812, 0.818], [0.9, 0.91, 0.92]).verdict == "worse"


def test_too_little_for_a_test() -> None:
    assert paired_difference([0.9], [0.1]).verdict == "one seed, no test"
    alike = paired_difference([0.5, 0.7], [0.4, 0.6])
    assert alike.p is None and alike.verdict == "seeds do not differ, no test"
    with pytest.raises(ValueError, match="as many on either side"):
        paired_difference([0.5], [])


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
    cells = both.cells(tmp_path)
    assert len(cells) == 8 and len({cell.name for cell in cells}) == 8
    assert [(cell.row, cell.seed) for cell in cells[:4]] == [("CutMix", 3), ("CutMix", 4), ("BCE", 3), ("BCE", 4)]
    assert [cell.model for cell in cells] == ["deit_tiny_patch16_224"] * 4 + ["deit_small_patch16_224"] * 4
    bce = next(cell for cell in cells if cell.row == "BCE")
    assert (bce.config.loss, bce.config.epochs, bce.config.batch) == ("bce", 7, 1024)
    assert bce.config.model == bce.model == "deit_tiny_patch16_224" and bce.data == "imagefolder:imagenet"
    assert both.reference == "CutMix" and parse_matrix(both.plain(), "it") == both


def test_flags_change_a_matrix(tmp_path: Path) -> None:
    small = changed(read_matrix("smmix_parts"), seeds=[5], settings={"recipe": "shapes", "epochs": 2})
    cells = small.cells(tmp_path)
    assert len(cells) == 6 and {cell.config.epochs for cell in cells} == {2} and cells[0].data == "shapes"
    alone = changed(None, methods=["cutmix", "smmix"], data=["shapes"], baseline="smmix")
    assert alone.reference == "smmix" and alone.seeds == (0, 1, 2)
    wins = changed(parse_matrix({"rows": {"a": {"method": "none", "epochs": 9}}}, "it"), settings={"epochs": 1})
    assert wins.cells(tmp_path)[0].config.epochs == 1


@pytest.mark.parametrize("name", sorted(list_matrices()))
def test_ready_matrices_are_trainings(name: str, tmp_path: Path) -> None:
    ready = read_matrix(name)
    cells = ready.cells(tmp_path)
    assert cells and ready.about and ready.reference in ready.rows
    for cell in cells:
        method = create(cell.config.method, 10)
        activation = any(mixer.share.name == "activation" for mixer in method.mixers)
        assert activation == (cell.config.maps is not None)
        assert not activation or "vitmix maps" in ready.note
    deciding = {(cell.model, yaml.safe_dump(_settings(cell.config))) for cell in cells}
    assert len(deciding) == len(cells)  # no two rows are the same training


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
        ({"rows": {"a": 3}}, "must be a text or settings"),
        ({"rows": ["cutmix"], "settings": {"epoch": 3}}, "row 'cutmix': unknown setting 'epoch'"),
        ({"rows": ["cutmixx"]}, "row 'cutmixx': unknown"),
        ({"rows": {"a b": "cutmix", "a_b": "mixup"}}, "would share the folder"),
    ],
)
def test_wrong_matrices_are_refused(content: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_matrix(content, "it").cells(tmp_path)


def test_unknown_matrix() -> None:
    with pytest.raises(ValueError, match="did you mean 'smmix_parts'"):
        read_matrix("smmix_part")


# Running


def write(tmp_path: Path, **changes: Any) -> Path:
    content = {"rows": {"CutMix": "cutmix", "none": "none"}, "seeds": [0], "settings": SETTINGS} | changes
    path = tmp_path / "matrix.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_a_matrix_runs_once_and_is_killed_and_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, settings=SETTINGS | {"epochs": 4, "checkpoint_every": "1 steps", "log_every": 1})
    output = tmp_path / "out"
    arguments = ["compare", str(path), "--output", str(output)]
    command = [sys.executable, "-m", "vitmix", *arguments]
    cells = read_matrix(str(path)).cells(output)
    finish(cells[1])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (output / "runs" / cells[0].name / "checkpoints").exists())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not all(map(is_done, cells))
    # The training notices that nobody waits for it.
    wait_for(lambda: not is_busy(cells[0].folder))
    assert not is_done(cells[0]) and cells[0].folder.exists

    assert cli.main(arguments) == 0
    said = capfd.readouterr().out
    assert "1 done, 1 to run" in said
    assert all(map(is_done, cells)) and "goes on" in said and "compare.html" in said
    logs = "".join(each.read_text() for each in (output / "runs").glob("*/train.log"))
    assert "resuming at update" in logs
    stored = json.loads((output / "compare.json").read_text())
    rows = {row["row"]: row for row in stored["rows"]}
    runs = [json.loads((output / "runs" / cell.name / "summary.json").read_text()) for cell in cells]
    cutmix, none = (run["last"]["accuracy"] for run in runs)
    assert rows["none"]["mean"] == none and rows["none"]["difference"]["mean"] == pytest.approx(none - cutmix)
    assert rows["none"]["difference"]["verdict"] == "one seed, no test"
    assert rows["CutMix"]["difference"] is None and rows["none"]["flops"] > 0
    page = (output / "compare.html").read_text()
    assert "Accuracy against training time" in page and page.count("<svg") >= 2

    times = {cell.name: os.stat(output / "runs" / cell.name / "last.safetensors").st_mtime_ns for cell in cells}
    assert cli.main(arguments) == 0
    assert "2 done, 0 to run" in capfd.readouterr().out
    assert times == {cell.name: os.stat(output / "runs" / cell.name / "last.safetensors").st_mtime_ns for cell in cells}

    assert cli.main([*arguments, "--set", "epochs=3"]) == 2
    assert "holds a run with another configuration (epochs: 4 -> 3)" in capfd.readouterr().err


def wait_for(condition: Any, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_failing_row_leaves_the_others_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = {"CutMix": "cutmix", "broken": {"method": "cutmix", "model": "no_such_model"}}
    path, output = write(tmp_path, rows=rows), tmp_path / "out"
    finish(read_matrix(str(path)).cells(output)[0])
    assert cli.main(["compare", str(path), "--output", str(output)]) == 1
    said = capfd.readouterr().out
    assert "1 done, 1 to run" in said and "failed: unknown model 'no_such_model'" in said and "0 of 1" in said
    assert cli.main(["compare", str(path), "--output", str(output), "--dry-run"]) == 0
    said = capfd.readouterr().out
    assert said.startswith("done") and "to run  broken" in said


def finish(cell: Cell) -> None:
    """What a process of the comparison would do."""
    assert Trainer(cell.config).run() == 0
    evaluate_run(cell.folder.path)


def test_paired_by_seed_and_best_or_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = SETTINGS | {"lr": 0.01, "epochs": 2, "data": "shapes(size=16, length=96, test_length=240)"}
    path, output = write(tmp_path, seeds=[0, 1, 2], settings=settings), tmp_path / "out"
    ready = read_matrix(str(path))
    cells = ready.cells(output)
    for cell in cells[:-1]:
        finish(cell)
    found = compare_cells(ready, cells)
    cutmix, none = found.entries
    assert (len(cutmix.runs), len(none.runs), none.planned) == (3, 2, 3) and not found.complete
    assert none.difference == paired_difference(none.values(found.source), cutmix.values(found.source)[:2])
    assert compare_cells(ready, cells, measure="best").entries[0].values("metrics.jsonl:best.accuracy")
    assert cli.main(["compare", str(path), "--output", str(output), "--no-train", "--measure", "best"]) == 0
    said = capfd.readouterr().out
    assert "2 of 3" in said and "best epoch" in said and "Not all trainings are finished" in said


def test_nothing_finished_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert cli.main(["compare", str(path), "--output", str(tmp_path / "out"), "--no-train"]) == 0
    assert "nothing to compare" in capsys.readouterr().out and not (tmp_path / "out").exists()
    empty = compare_cells(read_matrix(str(path)), read_matrix(str(path)).cells(tmp_path / "out"))
    assert "Not all trainings are finished" in text(empty)


def test_list_and_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--list"]) == 0
    assert "SMMix table 7" in capsys.readouterr().out
    for arguments, sentence in (([], "nothing to compare"), (["example", "--jobs", "0"], "jobs must be")):
        assert cli.main(["compare", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert isinstance(matrix.list_matrices()["example"], Matrix)


def test_every_ready_matrix_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "compare.md").read_text()
    for name, ready in list_matrices().items():
        assert name == "example" or f"| `{name}` | {ready.about} |" in page
