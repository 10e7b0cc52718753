"""The studies of runs on the page of the report: every number is the one in the run's JSON."""

import hashlib
import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from test_report import Page
from training import one_thread, train
from vitmix.lab.cli import main as cli
from vitmix.lab.report import svg, write_report

__all__ = ["one_thread"]
STUDIES = ("accuracy", "labels", "fluctuation", "regions", "presence", "sharpness", "coverage", "htm")


def analyze(run: Path, *given: str) -> int:
    """Into the run's folder, where fewer images than usual go only if it is named."""
    return cli.main(["analyze", str(run), "--figure", "svg", "--output", str(run / "analysis"), *given])


@pytest.fixture(scope="module")
def runs(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configurations; of the second two seeds. The first run has all studies, the others a part of them."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "a", method="cutmix + htm(block=1, tau=9)", epochs=2)
    some = ["--study", "accuracy", "fluctuation", "presence"]
    for name, given in (("a", []), ("b", some), ("c", some)):
        if name != "a":
            train(folder / name, method="cutmix", epochs=2, seed=ord(name))
        assert analyze(folder / name, "--images", "12", *given) == 0
    return folder


@pytest.fixture(scope="module")
def section(runs: Path) -> str:
    return section_of(runs)


def section_of(folder: Path) -> str:
    output = folder.parent / f"{folder.name}.html"
    write_report([folder], output, examples=0)
    page = output.read_text()
    assert not Page(page).open  # well-formed
    return page.partition('<section id="analyses">')[2].partition("</section>")[0]


def stored(run: Path, source: str) -> Any:
    """The number at `FILE:TITLE/NAMES/COLUMN/PART`, found without the library."""
    file, _, place = source.partition(":")
    tables = json.loads((run / file).read_text())["tables"]
    table = next(table for table in tables if place.startswith(f"{table['title']}/"))
    *names, column, part = place.removeprefix(f"{table['title']}/").split("/")
    row = next(row for row in table["rows"] if [row[key] for key in table["keys"]] == names)
    return row[column][part]


def test_every_number_is_that_of_the_file(runs: Path, section: str) -> None:
    folders = sorted(path for path in runs.iterdir() if path.is_dir())
    numbers = Page(section).numbers
    seen: set[tuple[int, str]] = set()
    for attributes, text in numbers:
        value, source = float(attributes["value"]), attributes["data-from"]
        if "data-of" in attributes:
            assert attributes["data-group"] == "1"
            values = [stored(folder, source) for folder in folders[1:]]
            expected = {"mean": statistics.fmean, "deviation": statistics.stdev}[attributes["data-of"]](values)
        else:
            expected = stored(folders[int(attributes["data-run"])], source)
            seen.add((int(attributes["data-run"]), source))
        assert value == pytest.approx(expected, rel=1e-12)
        assert text in (f"{100 * value:.1f} %", f"{value:.4g}", f"{value:,.0f}")
    # and none is missing: all means and intervals of the first run
    for name in STUDIES:
        for table in json.loads((folders[0] / "analysis" / f"{name}.json").read_text())["tables"]:
            for row in table["rows"]:
                place = "/".join([table["title"], *(row[key] for key in table["keys"])])
                for column in table["columns"]:
                    for part in ("mean", "low", "high"):
                        if row.get(column, {}).get(part) is not None:
                            assert (0, f"analysis/{name}.json:{place}/{column}/{part}") in seen
    for name in STUDIES:
        assert f'id="analysis-{name}"' in section


def test_curves_lie_where_the_numbers_say(runs: Path, section: str) -> None:
    figures = re.findall(r'<figure data-analysis="([^"]+)">.*?data-ranges="([^"]+)"(.*?)</svg>', section, re.DOTALL)
    titles = [title for title, _, _ in figures]
    rules = ["share, mean over the pairs", "difference, mean over the pairs", "correlation", "share, one pair"]
    assert titles[: 4 * 3] == rules * 3  # of three runs
    assert {"cutmix, own to partner", "smmix, own to own", "cutmix, deviation", "attention, variance"} <= set(titles)
    assert "samples per batch" in titles
    _, ranges, drawing = figures[titles.index("cutmix, deviation")]
    y0, y1 = map(float, ranges.split()[2:])
    lines = re.findall(r'<polyline class="mean g(\d)" points="([^"]+)"', drawing)
    assert [group for group, _ in lines] == ["0", "1", "1"]
    for (_, points), name in zip(lines, "abc", strict=True):
        rows = json.loads((runs / name / "analysis" / "presence.json").read_text())["tables"][0]["rows"]
        for point, row in zip(points.split(), rows, strict=True):
            up = (svg.HEIGHT - svg.BOTTOM - float(point.split(",")[1])) / (svg.HEIGHT - svg.TOP - svg.BOTTOM)
            assert y0 + up * (y1 - y0) == pytest.approx(row["deviation"]["mean"], abs=(y1 - y0) * 1e-4)


def test_no_studies_no_section(runs: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs / "b", tmp_path / "run")
    shutil.rmtree(run / "analysis")
    assert section_of(run) == ""


def test_studies_of_other_weights_and_forms_are_said(runs: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs / "b", tmp_path / "run")
    place = run / "analysis" / "accuracy.json"
    content = json.loads(place.read_text())
    assert content["weights_sha256"] == hashlib.sha256((run / "best.safetensors").read_bytes()).hexdigest()
    place.write_text(json.dumps(content | {"weights_sha256": "0"}))
    (run / "analysis" / "presence.json").write_text('{"study": "presence"')
    section = section_of(run)
    assert f"{place} is about other weights" in section and "presence.json cannot be read" in section
    assert 'id="analysis-fluctuation"' in section and 'id="analysis-accuracy"' not in section


def test_what_was_not_measured_alike_is_said(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name in "ab":
        shutil.copytree(runs / name, folder / name)
    assert "Measured in different ways" not in section_of(folder)
    assert analyze(folder / "b", "--images", "8", "--study", "accuracy") == 0
    assert section_of(folder).count("Measured in different ways") == 1
