"""The stored results are what their runs say: publishing them again changes nothing."""

import shutil
from pathlib import Path

import pytest

from vitmix import cli

RESULTS = Path(__file__).parents[1] / "results"
COMPARISONS = sorted(path.parent.name for path in RESULTS.glob("*/matrix.yaml"))


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_table_comes_from_the_runs_beside_it(name: str, tmp_path: Path) -> None:
    stored = RESULTS / name
    shutil.copytree(stored / "runs", tmp_path / "out" / "runs")
    command = ["compare", str(stored / "matrix.yaml"), "--no-train", "--output", str(tmp_path / "out")]
    assert cli.main([*command, "--publish", str(tmp_path / "again")]) == 0
    files = {path.relative_to(stored) for path in stored.rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*") if path.is_file()}
    for path in files:
        assert (stored / path).read_text() == (tmp_path / "again" / path).read_text(), path


def test_results_have_comparisons() -> None:
    assert COMPARISONS
