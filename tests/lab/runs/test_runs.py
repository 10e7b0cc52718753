"""Run folders as typed records: version 0.1 and published folders are read whole and written back as they were."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinned import FOLDER
from vitmix.lab.runs import (
    Analysis,
    Estimate,
    Evaluation,
    Facts,
    LeftOut,
    Measurement,
    Record,
    RobustnessResults,
    Run,
    Summary,
    Table,
    best_epoch,
)
from vitmix.lab.runs.training import Epoch, parse_epochs

OLD = FOLDER / "run_0.1"
KINDS: dict[str, type[Record]] = {
    "summary.json": Summary,
    "evaluation.json": Evaluation,
    "robustness.json": RobustnessResults,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _files(folder: Path) -> dict[Path, type[Record]]:
    found = {folder / name: kind for name, kind in KINDS.items() if (folder / name).exists()}
    return found | dict.fromkeys(sorted((folder / "analysis").glob("*.json")), Analysis)


def test_files_are_written_back_as_they_were() -> None:
    files = _files(OLD)
    assert len(files) == 11
    for path, kind in files.items():
        assert kind.from_json(_json(path)).to_json() == _json(path), path
    lines = (OLD / "metrics.jsonl").read_text()
    assert [epoch.to_json() for epoch in parse_epochs(lines)] == [json.loads(line) for line in lines.splitlines()]


def test_a_run_of_version_0_1() -> None:
    run = Run.open(OLD)
    assert run.config.epochs == len(run.epochs) == 2
    assert run.summary is not None and run.summary.best is not None and run.best_epoch is not None
    assert run.best_epoch is run.epochs[0] and run.best_epoch.number == run.summary.best.number
    assert run.evaluation is not None and run.evaluation.n == 24 == sum(map(run.evaluation.images_of, range(12)))
    assert run.robustness is not None
    noise = [each for each in run.robustness.measurements if each.of.sigma is not None]
    assert [each.of.sigma for each in noise] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert all(each.of.part == "noise" and each.estimate.interval is not None for each in noise)
    assert run.robustness.by_name["noise sigma=0.5"].of.protocol in run.robustness.parts
    assert len(run.analyses) == 8 and not run.problems.keys() - {".left_out"}
    table = run.analyses["accuracy"].tables[0]
    assert table.row(["cutmix"])["top-1"].n == 20 and table.column("top-1", method="cutmix") == [0.2]
    assert run.analyses["accuracy"].text() == (OLD / "analysis" / "accuracy.txt").read_text().rstrip("\n")


def test_results_of_other_weights_are_left_out(run: Path) -> None:
    (run / "best.safetensors").write_bytes((run / "last.safetensors").read_bytes() + b" ")
    (run / "last.safetensors").unlink()
    found = Run(run)
    assert found.evaluation is None and found.robustness is None and not found.analyses
    assert all("about other weights" in found.problems[name] for name in ("evaluation.json", "analysis/htm.json"))
    assert found.summary is not None  # which the training wrote with the weights
    (run / "best.safetensors").unlink()
    assert Run(run).evaluation is not None and len(Run(run).analyses) == 8  # as in a published folder


def test_a_replaced_file_has_another_checksum(run: Path) -> None:
    before = Run(run).checksum()
    assert before == _json(run / "evaluation.json")["weights_sha256"]
    content = bytearray((run / "best.safetensors").read_bytes())
    content[-1] ^= 1
    state = (run / "best.safetensors").stat()
    (run / "other").write_bytes(content)
    os.utime(run / "other", ns=(state.st_atime_ns, state.st_mtime_ns))
    (run / "other").replace(run / "best.safetensors")
    assert Run(run).checksum() != before


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("summary.json", {"text": 3}, "text must be a string"),
        ("summary.json", {"peak_memory": "x"}, "peak_memory must be a number"),
        ("summary.json", {"broken_images": [1]}, "an entry of broken_images must be a string"),
        ("evaluation.json", {"accuracy": None}, "accuracy must be a number"),
        ("evaluation.json", {"n": -1}, "n must be a whole number"),
        ("evaluation.json", {"n": True}, "n must be a whole number"),
        ("evaluation.json", {"bins": []}, "do not fit each other"),
        ("evaluation.json", {"confusion": [[0, 1]]}, "an entry of confusion must be a list of 3"),
        ("evaluation.json", {"confusion": [[10**9, 1, 1]]}, "do not fit each other"),
        ("robustness.json", {"parts": {}}, "does not say how it was measured"),
        ("robustness.json", {"measurements": [3]}, "it is not a mapping"),
        ("robustness.json", {"corruption_errors": []}, "corruption_errors must be a mapping"),
    ],
)
def test_a_file_that_does_not_fit_is_none_and_says_why(run: Path, name: str, change: dict, why: str) -> None:
    (run / name).write_text(json.dumps(_json(run / name) | change))
    found = Run(run)
    assert getattr(found, name.removesuffix(".json")) is None
    assert why in found.problems[name] and name in found.problems[name]


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"a": ' * 900 + b"1" + b"}" * 900, b"3", b"\xff"])
def test_hostile_content_is_refused_in_a_sentence(run: Path, content: bytes) -> None:
    for path in _files(run):
        path.write_bytes(content)
    found = Run(run)
    assert found.summary is None and found.evaluation is None and found.robustness is None and not found.analyses
    assert len(found.problems) == 11 and all(str(run) in why and "\n" not in why for why in found.problems.values())


def test_pipes_are_not_waited_for(run: Path) -> None:
    for name in KINDS:
        (run / name).unlink()
        os.mkfifo(run / name)
    found = Run(run)
    assert found.summary is None and found.evaluation is None and "not a regular file" in found.problems["summary.json"]


@pytest.mark.parametrize(
    "facts",
    [
        {"share": 0.1},
        {"severity": 1},
        {"attack": "fgsm", "epsilon": 0.1},
        {"attack": "fgsm", "norm": "linf"},
        {"alpha": 0.1},
        {"norm": "x"},
        {"sigma": "0.1"},
    ],
)
def test_facts_belong_together(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Facts.from_json({"part": "noise", **facts})


def test_facts_name_the_protocol() -> None:
    assert Facts(part="attacks", attack="none", norm="l2").protocol == "attacks l2"
    assert Facts(part="attacks", attack="none", norm="linf").protocol == "attacks"
    assert Facts(part="clean").to_json() == {"part": "clean"}


def test_robustness_grows_by_parts(run: Path) -> None:
    before = Run(run).robustness
    assert before is not None
    new = Measurement("noise sigma=0.5", Estimate.of_proportion(1, 2), Facts(part="noise", sigma=0.5))
    found = replace(before, measurements=(new,), parts={"noise": before.parts["noise"]})
    Run(run).write_robustness(found)
    after = Run(run).robustness
    assert after is not None and after.parts.keys() == before.parts.keys()
    assert [each for each in after.measurements if each.of.part == "noise"] == [new]
    assert len(after.measurements) == len(before.measurements) - 5
    Run(run).write_robustness(replace(found, weights_sha256="other"))
    assert Run(run).robustness is None  # of other weights: nothing is kept beside it
    assert len(_json(run / "robustness.json")["measurements"]) == 1


def test_rows_of_a_table_must_be_estimates() -> None:
    table = Table("title", ("method",), [(("cutmix",), {"top-1": Estimate(0.5, None, 2)})])
    plain = table.to_json()
    assert Table.from_json(plain) == table and "p" not in plain["rows"][0]["top-1"]
    for row in ({"method": "cutmix"}, {"method": "cutmix", "top-1": 3}, {"top-1": plain["rows"][0]["top-1"]}):
        with pytest.raises(ValueError):
            Table.from_json(plain | {"rows": [row]})


def test_left_out_belongs_to_the_weights(run: Path) -> None:
    assert Run(run).left_out == frozenset()
    sha256 = Run(run).checksum()
    assert sha256 is not None
    Run(run).write_left_out(LeftOut(sha256, ("htm",)))
    assert Run(run).left_out == {"htm"} and _json(run / ".left_out") == {"weights_sha256": sha256, "names": ["htm"]}
    Run(run).write_left_out(LeftOut("other", ("htm",)))
    assert Run(run).left_out == frozenset()


def test_the_best_epoch_is_the_first_of_the_best() -> None:
    def epochs(name: str, *values: float | None) -> list[Epoch]:
        return [Epoch(number, {} if value is None else {name: value}) for number, value in enumerate(values)]

    assert best_epoch(rows := epochs("accuracy", None, 0.1, 0.3, 0.3, 0.2), "accuracy") is rows[2]
    assert best_epoch(rows := epochs("eval_loss", 0.4, 0.2, None, 0.3), "eval_loss") is rows[1]
    assert best_epoch(epochs("accuracy", None), "accuracy") is None


def test_paired_differences() -> None:
    found = Estimate.paired([3.0, 5.0, 6.0], [1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3) and found.n == 3 and found.p == pytest.approx(0.0199, abs=1e-3)
    assert found.interval == pytest.approx((7 / 3 - 1.4342, 7 / 3 + 1.4342), abs=1e-3)
    assert Estimate.paired([1.0], [0.5]) == Estimate(0.5, None, 1)
    assert Estimate.paired([1.0, 2.0], [0.0, 1.0]).interval is None  # no spread, no test
    with pytest.raises(ValueError, match="equally many"):
        Estimate.paired([1.0], [])
