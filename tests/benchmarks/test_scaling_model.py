"""The page of the scaling model shows what its script computes."""

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


def test_the_page_has_the_tables_of_the_script(scaling) -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    for table in scaling.tables().split("\n\n"):
        assert table in page
    assert f"{scaling.measured_rate():,.0f} images/s" in page


def test_parameters_are_those_of_timm(scaling) -> None:
    for model, size in zip(scaling.MODELS, ("small", "base", "large"), strict=True):
        with torch.device("meta"):
            built = timm.create_model(f"vit_{size}_patch16_224")
        assert model.parameters == sum(each.numel() for each in built.parameters())


def test_limits_of_the_formulas(scaling) -> None:
    links = scaling.Links("endless", 1e30, 1e30)
    assert scaling.all_reduce(1e9, 8, links) == pytest.approx(0)
    assert scaling.all_reduce(1e9, 8, scaling.FAST) == pytest.approx(2 * 7 / 8 * 1e9 / (0.8 * 450e9))
    for fsdp in (False, True):
        known = [scaling.efficiency(scaling.BASE, 128, gpus, scaling.SLOW, fsdp=fsdp) for gpus in (8, 64, 512)]
        assert 1 > known[0] > known[1] > known[2] > 0
