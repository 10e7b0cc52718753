"""The report's section on changed images: every number, and every point of a curve, is that of RUN/robustness.json."""

import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from test_report import Page
from training import one_thread, train  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.report import svg, write_report

pytestmark = pytest.mark.usefixtures("one_thread")
ATTACK = ["--limit", "12", "--attack-limit", "6", "--alphas", "0.01", "--steps", "2", "--epsilons", "0.02", "0.1"]


def measure(run: Path) -> None:
    suite = ["eval", str(run), "--suite", "clean,noise,occlusion,attacks"]
    assert cli.main([*suite, *ATTACK]) == 0
    assert cli.main(["eval", str(run), "--suite", "attacks", *ATTACK, "--norm", "l2"]) == 0


def add_corruptions(run: Path, wrong: float) -> None:
    """The run's images are too small to be corrupted, so the numbers of one are made up."""
    found = json.loads((run / "robustness.json").read_text())
    for severity in range(1, 6):
        of = {"part": "corruptions", "corruption": "fog", "severity": severity}
        row = {"name": f"corruption fog {severity}", "value": 1 - wrong * severity / 5, "n": 12, "low": 0.1, "high": 1}
        found["measurements"].append({**row, "of": of})
    for name, of in (("error fog", {"corruption": "fog", "metric": "error"}), ("mCE", {"metric": "mCE"})):
        row = {"name": name, "value": wrong * 3 / 5, "n": 12, "low": 0.0, "high": 1.0}
        found["measurements"].append({**row, "of": {"part": "corruptions", **of}})
    found["parts"]["corruptions"] = found["parts"]["clean"]
    (run / "robustness.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def runs(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Two configurations, the first with two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method, seed in (("a-0", "cutmix", 0), ("a-1", "cutmix", 1), ("b-0", "mixup", 0)):
        train(folder / name, method=method, seed=seed, epochs=1)
        measure(folder / name)
        add_corruptions(folder / name, wrong=0.3 + 0.1 * seed)
    return folder


def section(runs: Path, place: Path) -> str:
    write_report([runs], place / "report.html", examples=0)
    page = (place / "report.html").read_text()
    assert not Page(page).open
    return page.partition('<section id="robustness">')[2].partition("</section>")[0]


def rows_of(folder: Path) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads((folder / "robustness.json").read_text())["measurements"]}


def test_every_number_is_that_of_the_file(runs: Path, tmp_path: Path) -> None:
    stored = [rows_of(runs / name) for name in ("a-0", "a-1", "b-0")]
    shown: set[tuple[str, str, int]] = set()
    for attributes, text in Page(section(runs, tmp_path)).numbers:
        file, _, place = attributes["data-from"].partition(":")
        what, _, name = place.partition(".")
        assert file == "robustness.json"
        group = int(attributes.get("data-group", 0))
        values = [each[name]["value"] for each in (stored[:2], stored[2:])[group]]
        kind = attributes.get("data-of", "number")
        if kind == "number":
            group = int(int(attributes["data-run"]) == 2)
            expected = stored[int(attributes["data-run"])][name][what]
        else:
            expected = {"mean": statistics.fmean, "deviation": statistics.stdev}[kind](values)
        assert float(attributes["value"]) == pytest.approx(expected, rel=1e-12)
        factor = 1 if what == "n" else 100
        assert float(text.replace("%", "").replace(",", "")) == pytest.approx(factor * expected, abs=0.051)
        shown.add((name, what, group))
    for name in stored[0]:  # all of them, for both configurations, and an interval where there is one run
        assert {(name, "value", 0), (name, "value", 1), (name, "low", 1), (name, "high", 1), (name, "n", 0)} <= shown


def test_curves_lie_where_the_numbers_say(runs: Path, tmp_path: Path) -> None:
    figures = dict(
        re.findall(r'<figure data-robustness="([^"]+)">(.*?)</figure>', section(runs, tmp_path), flags=re.DOTALL)
    )
    orders = [f"Occlusion, {order}" for order in ("random", "salient-first", "salient-last")]
    assert list(figures) == ["fog", "Gaussian noise", *orders, "FGSM", "PGD, 2 steps of 0.01"]
    stored = [rows_of(runs / name) for name in ("a-0", "a-1", "b-0")]
    wanted = {
        "Gaussian noise": [(tenth / 10, f"noise sigma={tenth / 10:g}") for tenth in range(6)],
        orders[1]: [(share, f"occlusion salient-first {share} %") for share in range(0, 100, 10)],
        "fog": [(severity, f"corruption fog {severity}") for severity in range(1, 6)],
    }
    for title, course in wanted.items():
        x0, x1, y0, y1 = map(float, re.findall('data-ranges="([^"]+)"', figures[title])[0].split())
        seeds = re.findall(r'<polyline class="seed g0" points="([^"]+)"', figures[title])
        means = re.findall(r'<polyline class="mean g(\d)" points="([^"]+)"', figures[title])
        assert len(seeds) == 2 and [group for group, _ in means] == ["0", "1"]
        both = [{name: statistics.fmean(each[name]["value"] for each in stored[:2]) for _, name in course}]
        values = [{name: each[name]["value"] for _, name in course} for each in stored]
        drawn = zip([*seeds, means[0][1], means[1][1]], [*values[:2], *both, values[2]], strict=True)
        for points, expected in drawn:
            places = [tuple(map(float, point.split(","))) for point in points.split()]
            for (x, y), (strength, name) in zip(places, course, strict=True):
                across = (x - svg.LEFT) / (svg.WIDTH - svg.LEFT - svg.RIGHT)
                up = (svg.HEIGHT - svg.BOTTOM - y) / (svg.HEIGHT - svg.TOP - svg.BOTTOM)
                assert x0 + across * (x1 - x0) == pytest.approx(strength, abs=(x1 - x0) * 1e-3)
                assert y0 + up * (y1 - y0) == pytest.approx(expected[name], abs=(y1 - y0) * 1e-3)


def test_both_norms_have_curves_of_their_own(runs: Path, tmp_path: Path) -> None:
    text = section(runs, tmp_path)
    for title in ("FGSM", "PGD, 2 steps of 0.01"):
        drawings = re.findall(rf'<figure data-robustness="{title}">(.*?)</figure>', text, flags=re.DOTALL)
        assert len(drawings) == 2 and "largest change" in drawings[0] and "Euclidean length" in drawings[1]
        assert all(drawing.count("<polyline") == 4 for drawing in drawings)


def test_what_does_not_compare_is_said(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs, tmp_path / "runs")
    assert "different images" not in section(folder, tmp_path)
    found = json.loads((folder / "b-0" / "robustness.json").read_text())
    found["parts"]["noise"] = {**found["parts"]["noise"], "data": "others"}
    (folder / "b-0" / "robustness.json").write_text(json.dumps(found))
    assert "different images or bounds, so these cannot be compared: noise<" in section(folder, tmp_path)
    attack = next(name for name in found["parts"] if name.startswith("attacks"))
    settings = found["parts"][attack]["settings"]
    found["parts"][attack] = {**found["parts"][attack], "settings": {**settings, "epsilons": [0.5]}}
    (folder / "b-0" / "robustness.json").write_text(json.dumps(found))
    assert f"so these cannot be compared: noise, {attack}<" in section(folder, tmp_path)
    text = section(folder, tmp_path)
    assert "different grids" not in text and "Grid of 2 × 2." in text
    for row in found["measurements"]:
        if row["of"]["part"] == "occlusion":
            row["of"]["grid"] = [7, 7]
    (folder / "b-0" / "robustness.json").write_text(json.dumps(found))
    text = section(folder, tmp_path)
    assert "Patches are dropped on different grids, so these accuracies cannot be compared: 2 × 2, 7 × 7<" in text
    assert "Grid of 2 × 2: cutmix." in text and "Grid of 7 × 7: mixup." in text
    corrupted = dict(found["parts"]["corruptions"])
    corrupted["settings"] = {**corrupted["settings"], "reference": "alexnet"}
    found["parts"]["corruptions"] = corrupted
    (folder / "b-0" / "robustness.json").write_text(json.dumps(found))
    assert "different references, so mCE cannot be compared" in section(folder, tmp_path)
    (folder / "b-0" / "robustness.json").write_text("{}")  # of another form
    text = section(folder, tmp_path)
    assert f"{folder}/b-0 has no results on changed images" in text and "--suite robustness" in text
    for name in ("a-0", "a-1"):
        (folder / name / "robustness.json").unlink()
    assert not section(folder, tmp_path)
