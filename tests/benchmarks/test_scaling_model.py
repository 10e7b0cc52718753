"""The page of the scaling model shows what its script computes from stored measurements."""

import statistics
import sys
from pathlib import Path

import pytest
import timm
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "scaling_model", raising=False)
    import scaling_model

    return scaling_model


def page() -> str:
    return (ROOT / "docs" / "scaling.md").read_text()


def test_the_page_has_the_tables_of_the_script(scaling) -> None:
    for table in scaling.tables().split("\n\n"):
        assert table in page()


def test_the_page_says_what_was_measured(scaling) -> None:
    loader = scaling.measured()["loader"]
    one, many = loader["augmented"]["1"], loader["augmented"]["16"]
    text = " ".join(page().split())
    assert f"augments {many:,.0f} images/s with 16 workers" in text and f", {one:.0f} with one worker" in text
    assert f"decodes {loader['decoded']:.0f} images/s" in text and f"{loader['bytes'] / 1e3:.0f} kB" in text
    for step in scaling.measured()["steps"]:
        assert step["median"] == statistics.median(step["times"]) and len(step["times"]) == step["repeats"] == 9
        assert step["steps"] == 10 and step["precision"] == "bf16"


def test_parameters_are_those_of_timm(scaling) -> None:
    for model in scaling.MODELS:
        with torch.device("meta"):
            built = timm.create_model(model.timm)
        assert model.parameters == sum(each.numel() for each in built.parameters())


def test_limits_of_the_formulas(scaling) -> None:
    links = scaling.Links("endless", 1e30, 1e30)
    assert scaling.all_reduce(1e9, 8, links) == pytest.approx(0)
    assert scaling.all_reduce(1e9, 8, scaling.FAST) == pytest.approx(2 * 7 / 8 * 1e9 / (0.8 * 450e9))
    base = scaling.MODELS[1]
    for fsdp in (False, True):
        known = [scaling.throughput(base, 128, gpus, scaling.SLOW, fsdp=fsdp) for gpus in (8, 64, 512)]
        assert 1 > known[0][0] > known[1][0] > known[2][0] > 0
        assert known[0][1] == pytest.approx(8 * 128 * known[0][0] / base.seconds(128, "eager" if fsdp else "compiled"))


def test_a_transfer_hides_behind_computing_or_outlasts_it(scaling) -> None:
    """Slow twin: pieces of computation end one after the other, each begins a transfer, transfers do not overlap."""
    for transfers, one, compute in ((4, 1.0, 2.0), (4, 0.1, 2.0), (1, 3.0, 2.0), (26, 0.2, 5.0)):
        free = 0.0
        for piece in range(1, transfers + 1):
            free = max(free, compute * piece / transfers) + one
        hidden = transfers * one - (free - compute)
        assert scaling.exposed(transfers, one, compute) == pytest.approx(free - compute) and hidden >= 0
