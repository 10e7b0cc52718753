"""The command that cards cite for the host's time runs, on a small batch."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "host_masks.py"


def test_it_prints_a_row_for_each_number_of_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--batch", "2", "--size", "32"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line[0].isdigit()]
    assert [row[0] for row in rows] == ["2", "4", "8", "16"]
    assert all(float(each) >= 0 for row in rows for each in row) and printed.count("Co-Mixup") == 2
