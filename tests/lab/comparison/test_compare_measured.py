"""What was measured besides accuracy, in a published comparison: files of the real form with made-up numbers."""

import gzip
import json
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comparing import SETTINGS, finish, write
from vitmix.lab.cli import main as cli
from vitmix.lab.comparison import read_matrix
from vitmix.lab.comparison.markdown import UNLIKE, markdown_table
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.comparison.rows import verdict
from vitmix.lab.runs import Estimate
from vitmix.lab.runs.published import FILE

ROWS = {"CutMix": "cutmix", "no mixing": "none", "mixup | cutmix": "mixup | cutmix"}
SIGMAS = ("0", "0.1", "0.2", "0.3", "0.4", "0.5")
STUDY = {"own to own": "regions", "correlation": "fluctuation", "of shares": "fluctuation", "bias": "labels"}
SMALL = SETTINGS | {"model_args": {**SETTINGS["model_args"], "patch_size": 4}}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was evaluated and analyzed as its user would."""
    folder = tmp_path_factory.mktemp("measured")
    path = write(folder, settings=SMALL)
    training = read_matrix(str(path)).trainings(folder / "out")[0]
    finish(training)
    run = str(training.run.path)
    assert cli.main(["eval", run, "--suite", "noise,occlusion"]) == 0
    assert cli.main(["analyze", run, "--study", "accuracy", "regions", "fluctuation", "labels"]) == 0
    return training.run.path


@pytest.fixture
def trainings(measured: Path, tmp_path: Path) -> list[Training]:
    """Rows of three seeds each, every number of every run another one."""
    found = read_matrix(str(write(tmp_path, rows=ROWS, seeds=[0, 1, 2], settings=SMALL))).trainings(tmp_path / "out")
    make_up(found, measured)
    return found


def make_up(trainings: list[Training], measured: Path) -> None:
    for number, training in enumerate(trainings):
        shutil.copytree(measured, training.run.path)
        training.run.write_config(training.config)
        change(
            training, "robustness.json", lambda content, number=number: _move(content["measurements"], "value", number)
        )
        for path in (training.run.path / "analysis").glob("*.json"):
            change(training, f"analysis/{path.name}", lambda content, number=number: _move(content, "mean", number))


def _move(content: Any, name: str, number: int) -> None:
    """Gives every number of this name a value of its own, with effects of the row and of the seed."""
    row, seed = divmod(number, 3)
    for place, each in enumerate(_holders(content, name)):
        each[name] = 0.2 + 0.001 * place + 0.1 * row + 0.02 * seed + 0.003 * row * seed**2


def _holders(content: Any, name: str) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return [found for each in content for found in _holders(each, name)]
    if isinstance(content, dict):
        own = [content] if isinstance(content.get(name), float) else []
        return own + [found for each in content.values() for found in _holders(each, name)]
    return []


def change(training: Training, file: str, how: Callable[[Any], None]) -> None:
    path = training.run.path / file
    content = json.loads(path.read_text())
    how(content)
    path.write_text(json.dumps(content))


def publish(tmp_path: Path, *, matrix: str = "matrix.yaml", output: str = "out", to: str = "published") -> str:
    command = ["compare", str(tmp_path / matrix), "--output", str(tmp_path / output), "--no-train"]
    assert cli.main([*command, "--publish", str(tmp_path / to)]) == 0
    return (tmp_path / to / "README.md").read_text()


def tables(readme: str) -> dict[str, dict[str, list[str]]]:
    """By heading and row the trainings of the tables, the head's under ''."""
    found = {}
    for title, rows in re.findall(r"### (.*)\n\n((?:\|.*\n)+)", readme):
        lines = [[training.strip() for training in re.split(r"(?<!\\)\|", line)[1:-1]] for line in rows.splitlines()]
        found[title] = {line[0].replace("\\|", "|"): line[1:] for line in lines if line[0] != "---"}
    return found


def robustness(training: Training, name: str) -> float:
    content = json.loads((training.run.path / "robustness.json").read_text())
    return next(row["value"] for row in content["measurements"] if row["name"] == name)


def study(training: Training, name: str, column: str, **where: str) -> float:
    """The number of the last row with these names."""
    content = json.loads((training.run.path / "analysis" / f"{name}.json").read_text())
    rows = [row for table in content["tables"] for row in table["rows"] if column in row]
    return [row[column]["mean"] for row in rows if where.items() <= row.items()][-1]


def shown(values: list[float], scale: float = 100, form: str = ".2f") -> str:
    return f"{scale * statistics.fmean(values):{form}} ± {scale * statistics.stdev(values):{form}}"


def test_every_number_is_that_of_the_runs(trainings: list[Training], tmp_path: Path) -> None:
    readme = publish(tmp_path)
    found = tables(readme)
    assert list(found) == [
        *("Gaussian noise", "Occlusion, random", "Occlusion, salient-first", "Occlusion, salient-last"),
        *(f"Accuracy on mixed images, {top}" for top in ("top-1", "top-2")),
        *(f"Label error, {column}" for column in ("error", "bias", "to area")),
        *(f"Token fluctuation: cutmix, {column}" for column in ("share", "difference", "correlation")),
        "RMSE between area and aligned labels: cutmix, area and aligned",
        *(f"Attention between the regions of a mixed image, {method}" for method in ("cutmix", "smmix")),
        "Differences to CutMix",
    ]
    assert found["Gaussian noise"][""] == ["seeds", *(f"σ = {sigma}" for sigma in SIGMAS), "mean"]
    shares = [f"{share} %" for share in range(0, 100, 10)]
    assert found["Occlusion, salient-last"][""] == ["seeds", *shares, "mean"]
    methods = found["Accuracy on mixed images, top-2"][""][1:-1]
    assert methods == ["mixup", "cutmix", "tokenmix", "smmix"]
    for row in ROWS:
        own = [training for training in trainings if training.row == row]
        noise = [[robustness(training, f"noise sigma={sigma}") for training in own] for sigma in SIGMAS]
        mean = [statistics.fmean(each) for each in zip(*noise[1:], strict=True)]  # the images as they are do not count
        assert found["Gaussian noise"][row] == ["3", *map(shown, noise), shown(mean)]
        for order in ("random", "salient-first", "salient-last"):
            dropped = [[robustness(training, f"occlusion {order} {share}") for training in own] for share in shares]
            mean = [statistics.fmean(each) for each in zip(*dropped[1:], strict=True)]
            assert found[f"Occlusion, {order}"][row] == ["3", *map(shown, dropped), shown(mean)]
        mixed = [[study(training, "accuracy", "top-2", method=method) for training in own] for method in methods]
        mean = [statistics.fmean(each) for each in zip(*mixed, strict=True)]
        assert found["Accuracy on mixed images, top-2"][row] == ["3", *map(shown, mixed), shown(mean)]
        for column, title, where in (
            ("own to own", "Attention between the regions of a mixed image, smmix", {"method": "smmix", "block": "1"}),
            (
                "correlation",
                "Token fluctuation: cutmix, correlation",
                {"block": "1", "rule": "aligned"},
            ),  # the last block
            ("of shares", "RMSE between area and aligned labels: cutmix, area and aligned", {}),
            ("bias", "Label error, bias", {"rule": "blocks, aligned"}),
        ):
            values = [study(each, STUDY[column], column, **where) for each in own]
            place = found[title][""].index(where.get("rule", column))
            assert found[title][row][place] == shown(values, 1, ".3g")
    assert "24 images" in readme and UNLIKE not in readme


def test_differences_are_paired_and_counted(trainings: list[Training], tmp_path: Path) -> None:
    change(trainings[4], "robustness.json", lambda content: _lower(content, "noise sigma=0.1"))
    readme = publish(tmp_path)
    found = tables(readme)["Differences to CutMix"]
    assert found[""][1:3] == ["Gaussian noise", "Occlusion, random"] and len(found[""]) == 7 and "12 tests: " in readme
    assert list(found) == ["", "no mixing", "mixup | cutmix"]
    stored = json.loads((tmp_path / "out" / "compare.json").read_text())["measured"]
    assert stored["tests"] == len(stored["differences"]) == 12
    by_row = [
        [statistics.fmean(robustness(training, f"noise sigma={sigma}") for sigma in SIGMAS[1:]) for training in own]
        for own in (trainings[:3], trainings[3:6], trainings[6:])
    ]
    for row, values in zip(("no mixing", "mixup | cutmix"), by_row[1:], strict=True):
        expected = Estimate.paired(values, by_row[0])
        assert expected.low is not None and expected.high is not None
        bold = " **better**" if row == "mixup | cutmix" else ""  # seed 1 of the other spoils it
        text = f"{100 * expected.mean:+.2f} ({100 * expected.low:+.2f} to {100 * expected.high:+.2f}){bold}"
        assert found[row][:2] == ["3", text]
        (kept,) = (each for each in stored["differences"] if each["row"] == row and each["of"] == "Gaussian noise")
        assert kept["p"] == expected.p and kept["verdict"] == verdict(expected)
    (noise,) = (table for table in stored["tables"] if table["title"] == "Gaussian noise")
    assert noise["rows"][1]["columns"]["mean"]["seeds"] == dict(zip("012", by_row[1], strict=True))


def _lower(content: Any, name: str) -> None:
    for row in content["measurements"]:
        row["value"] -= 0.3 * (row["name"] == name)


def test_what_is_missing_is_left_out(trainings: list[Training], tmp_path: Path) -> None:
    for training in trainings[1:3] + trainings[4:]:  # a seed of two rows stays
        (training.run.path / "robustness.json").unlink()
    for training in trainings[3:]:
        shutil.rmtree(training.run.path / "analysis")
    for training in trainings[:3]:
        (training.run.path / "analysis" / "regions.json").unlink()
    readme = publish(tmp_path)
    found = tables(readme)
    assert not [title for title in found if title.startswith("Attention between")]
    assert list(found["Label error, error"]) == ["", "CutMix"]
    assert list(found["Gaussian noise"]) == ["", "CutMix", "no mixing"]
    assert found["Gaussian noise"]["CutMix"][:2] == ["1", f"{100 * robustness(trainings[0], 'noise sigma=0'):.2f}"]
    assert re.fullmatch(r"[+-]\d+\.\d\d", found["Differences to CutMix"]["no mixing"][1])
    assert (
        "A test needs at least two seeds" in readme
        and "Accuracy on mixed images, top-1" not in found["Differences to CutMix"][""]
    )
    for training in trainings:
        (training.run.path / "robustness.json").unlink(missing_ok=True)
        shutil.rmtree(training.run.path / "analysis", ignore_errors=True)
    assert "Besides accuracy" not in publish(tmp_path)
    assert "measured" not in json.loads((tmp_path / "out" / "compare.json").read_text())


def test_only_what_was_measured_alike_is_tested(
    trainings: list[Training], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fewer(content: Any) -> None:
        for part in content["parts"].values():
            part["settings"]["limit"] = 10

    change(trainings[3], "robustness.json", fewer)
    change(trainings[6], "analysis/accuracy.json", lambda content: content.update(weights_sha256="of other weights"))
    readme = publish(tmp_path)
    assert "accuracy.json is about other weights" in capsys.readouterr().out
    assert readme.count(UNLIKE) == 4  # noise, and three orders of occlusion
    assert tables(readme)["Differences to CutMix"]["no mixing"][0] == "2 or 3"
    assert tables(readme)["Accuracy on mixed images, top-1"]["mixup | cutmix"][0] == "2"


def test_rows_are_compared_within_model_and_data(measured: Path, tmp_path: Path) -> None:
    data = {name: {"data": SMALL["data"]} for name in ("here", "there")}
    rows = {"CutMix": "cutmix", "none": "none"}
    trainings = read_matrix(str(write(tmp_path, rows=rows, data=data, seeds=[0, 1, 2], settings=SMALL))).trainings(
        tmp_path / "out"
    )
    make_up(trainings, measured)  # CutMix here, none here, CutMix there, none there
    readme = publish(tmp_path)
    lines = re.findall(r"\| none \| (here|there) \| 3 \| ([+-][\d.]+) ", readme.split("### Differences")[1])
    noise = [
        statistics.fmean(robustness(training, f"noise sigma={sigma}") for sigma in SIGMAS[1:]) for training in trainings
    ]
    means = [statistics.fmean(noise[first : first + 3]) for first in range(0, 12, 3)]
    own, other = (f"{100 * (means[place + 1] - means[place]):+.2f}" for place in (0, 2))
    assert lines == [("here", own), ("there", other)] and own != f"{100 * (means[3] - means[0]):+.2f}"
    assert "|  | data | seeds | σ = 0 |" in readme


def test_the_published_folder_says_it_again_and_nothing_of_where(trainings: list[Training], tmp_path: Path) -> None:
    where = json.loads((trainings[0].run.path / "analysis" / "regions.json").read_text())["weights"]
    for training in trainings:  # analyzed by another path to the run than the comparison's
        weights = str(Path("/home/somebody/runs") / training.name / Path(where).name)
        change(training, "analysis/regions.json", lambda content, weights=weights: content.update(weights=weights))
        change(
            training,
            "robustness.json",
            lambda content, training=training: content.update(weights=f"../x/{training.name}/best"),
        )
    readme = publish(tmp_path)
    lines = gzip.open(tmp_path / "published" / FILE, "rt").read()
    assert "somebody" not in lines and "../x" not in lines
    again = publish(tmp_path, matrix="published", output="published", to="again")
    assert gzip.open(tmp_path / "again" / FILE, "rt").read() == lines
    assert again == readme


def test_rows_with_bars_keep_the_table_whole() -> None:
    assert markdown_table(["", "a"], ["mixup | cutmix", 1]).splitlines()[-1] == r"| mixup \| cutmix | 1 |"


def test_a_comparison_measures_its_trainings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, output = write(tmp_path, rows={"CutMix": "cutmix"}, settings=SMALL), tmp_path / "out"
    (training,) = read_matrix(str(path)).trainings(output)
    folder = training.run.path
    finish(training)
    command = ["compare", str(path), "--output", str(output), "--suite", "clean, noise", "--analyze"]
    assert cli.main([*command, "--dry-run"]) == 0
    assert "\nto evaluate CutMix" in capfd.readouterr().out
    assert cli.main([*command, "--publish", str(tmp_path / "small")]) == 0
    said = capfd.readouterr().out
    assert "1 run: 1 done, 0 to run, 1 to evaluate." in said and f"{training.name} is trained; evaluating it" in said
    parts = json.loads((folder / "robustness.json").read_text())["parts"]
    studies = {path.stem for path in (folder / "analysis").glob("*.json")}
    assert parts.keys() == {"clean", "noise"} and {"accuracy", "labels", "regions"} <= studies and "htm" not in studies
    page = (tmp_path / "small" / "README.md").read_text()
    assert "vitmix compare . --output AGAIN --suite clean,noise --analyze\n" in page and "### Gaussian noise" in page

    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert cli.main(command) == 0
    assert "1 done, 0 to run." in capfd.readouterr().out
    assert times == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}

    shutil.rmtree(folder / "analysis")
    assert cli.main(["eval", str(folder), "--suite", "noise", "--limit", "5"]) == 0
    capfd.readouterr()
    assert cli.main([*command[:-3], "--suite", "clean", "--dry-run"]) == 0
    assert capfd.readouterr().out.startswith("done")
    for flags in (["--analyze"], ["--suite", "noise"]):  # it is not there any more, or not of all images
        assert cli.main([*command[:-3], *flags, "--dry-run"]) == 0
        assert capfd.readouterr().out.startswith("to evaluate")
    (folder / "best.safetensors").unlink()
    assert cli.main(command) == 2
    assert f"{training.name} has no weights to evaluate" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--suite", "noise,oclusion"], "unknown suite 'oclusion', known: "),
        (["--suite", "shifts"], "use vitmix eval"),
        (["--analyze", "--no-train"], "--no-train and --analyze exclude each other"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    flags: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", str(write(tmp_path)), "--output", str(tmp_path / "out"), *flags]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_new_studies_and_evaluations_need_no_code_here(trainings: list[Training], tmp_path: Path) -> None:
    def add(content: Any) -> None:
        for strength in (0.0, 2.0):
            of = {"part": "rotation", "kind": "left", "strength": strength}
            row = {"name": f"rotation {strength:g}", "value": 0.5 - strength / 10, "n": 24, "low": 0.1, "high": 0.9}
            content["measurements"].append({**row, "of": of})
        content["parts"]["rotation"] = content["parts"]["noise"]

    for training in trainings:
        change(training, "robustness.json", add)
        mine = json.loads((training.run.path / "analysis" / "accuracy.json").read_text())
        number = {"mean": 0.25 + training.seed, "std": None, "n": 3, "low": None, "high": None}
        table = {"title": "Mine", "keys": ["block"], "columns": ["depth"], "percent": [], "notes": ["Told."]}
        table["rows"] = [{"block": block, "depth": number} for block in "01"]
        mine |= {"study": "mine", "tables": [table]}
        (training.run.path / "analysis" / "mine.json").write_text(json.dumps(mine))
    found = tables(publish(tmp_path))
    assert found["rotation, left"][""] == ["seeds", "strength = 0", "strength = 2", "mean"]
    assert found["rotation, left"]["CutMix"] == ["3", "50.00 ± 0.00", "30.00 ± 0.00", "30.00 ± 0.00"]
    assert found["Mine"]["CutMix"] == ["3", "1.25 ± 1"]
    page = (tmp_path / "out" / "compare.html").read_text()
    assert '<figure data-robustness="rotation, left">' in page and "<code>rotation 2</code>" in page
    assert '<h3 id="analysis-mine">Mine</h3>' in page and '<figure data-analysis="depth">' in page
