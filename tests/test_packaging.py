"""What is published: the wheel and the source archive hold what they need and nothing else; who is cited is right."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import vitmix

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vitmix"
CODE = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")}
DATA = {  # not Python, and read at run time
    path.relative_to(PACKAGE.parent).as_posix()
    for path in PACKAGE.rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
}
NOT_PUBLISHED = ("tests", "results", "benchmarks", "examples", "notebooks", "runs", "comparisons")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, built from the working tree."""
    pytest.importorskip("hatchling", reason="hatchling builds the package; pip install -e '.[dev]'")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    folder = str(tmp_path_factory.mktemp("dist"))
    wheel, source = (next(builder(str(ROOT)).build(directory=folder)) for builder in (WheelBuilder, SdistBuilder))
    return Path(wheel), Path(source)


def test_data_files_are_known() -> None:
    endings = {".yaml", ".j2", ".css", ".typed"}
    assert endings <= {Path(name).suffix or Path(name).name for name in DATA}
    for folder in ("lab/training/recipes", "lab/comparison/matrices", "lab/report/templates"):
        assert any(name.startswith(f"vitmix/{folder}/") for name in DATA), folder


def test_wheel_has_the_package_and_nothing_else(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        facts = {
            name.rpartition("/")[2]: wheel.read(name).decode() for name in wheel.namelist() if ".dist-info/" in name
        }
    assert names == CODE | DATA
    assert "vitmix = vitmix._command:main" in facts["entry_points.txt"]
    assert f"Version: {vitmix.__version__}\n" in facts["METADATA"]
    assert "LICENSE" in facts


def test_source_archive_builds_the_same_package(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {f"src/{name}" for name in CODE | DATA} <= names
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE"} <= names
    assert not [name for name in names if name.split("/")[0] in NOT_PUBLISHED]


@pytest.mark.slow
def test_twine_accepts_both(archives: tuple[Path, Path]) -> None:
    pytest.importorskip("twine", reason="pip install -e '.[release]'")
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_citation_names_the_papers_of_the_cards() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert {"message", "title", "authors", "license"} <= set(cited)
    cards = " ".join(re.sub(r"\s+", " ", card.read_text()) for card in (ROOT / "docs" / "methods").glob("*.md"))
    for paper in cited["references"]:
        assert f"*{paper['title']}.*" in cards, paper["title"]
        assert str(paper["year"]) in cards.split(paper["title"])[1][:40], paper["title"]
        for author in paper["authors"]:
            assert author["family-names"] in cards


def test_versions_agree() -> None:
    stated = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert stated is not None and stated[1] == vitmix.__version__
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None and vitmix.__version__.startswith(newest[1])
