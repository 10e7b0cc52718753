"""The cost of integrations: the benchmark takes steps of each in turn, and the page has what was stored."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TINY = {"IMAGE": 16, "PATCH": 8, "WIDTH": 24, "DEPTH": 2, "BATCH": 4, "WARM_UP": 1}


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch):
    for package in ("transformers", "accelerate", "lightning"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "integration_overhead", raising=False)
    import integration_overhead

    return integration_overhead


@pytest.mark.filterwarnings("ignore")  # advice of Lightning and transformers on loaders
def test_every_integration_is_timed(overhead, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TINY.items():
        monkeypatch.setattr(overhead, name, value)
    threads = torch.get_num_threads()
    try:
        stored = overhead.measure(steps=2)
    finally:
        torch.set_num_threads(threads)
    assert [(row["integration"], row["method"]) for row in stored["rows"]] == [
        (name, method) for method in overhead.METHODS for name in ("MixTrainer", "MixModule", "MixTask")
    ]
    for row in stored["rows"]:
        assert len(row["times"]) == len(row["plain"]) == 2 and min(*row["times"], *row["plain"]) > 0
    assert len(overhead.table(stored).splitlines()) == 5


def test_a_table_has_median_ratios(overhead) -> None:
    names = [(name, method) for name in overhead.INTEGRATIONS for method in overhead.METHODS]
    rows = [
        {"integration": name, "method": method, "times": [2.0, 3.0, 9.0], "plain": [2.0 + number, 2.0, 3.0]}
        for number, (name, method) in enumerate(names)
    ]
    assert "| `MixTrainer` | 1.500 | 1.500 | 1.500 |" in overhead.table({"rows": rows})


def test_the_page_has_the_stored_ratios_alone(overhead) -> None:
    """A number without a stored file behind it fails here, as one that differs from it does."""
    cost = (ROOT / "docs" / "integrations.md").read_text().partition("## Cost")[2]
    shown = re.findall(r"^\| `Mix\w+` \|.*$", cost, re.MULTILINE)
    assert not re.search(r"\d\.\d{2}", "\n".join(line for line in cost.splitlines() if line not in shown))
    if not overhead.STORED.exists():
        assert shown == []
        return
    stored = json.loads(overhead.STORED.read_text())
    assert shown == overhead.table(stored).splitlines()[2:]
    for row in stored["rows"]:
        assert overhead.ratio(row) <= 1.02 and len(row["times"]) == stored["steps"] == 60
