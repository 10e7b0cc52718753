"""`vitmix bench --suite families`, on tiny models: what is stored, continued and refused."""

import json
from pathlib import Path

import pytest
import timm
from torch import nn

from vitmix.lab.bench import families
from vitmix.lab.bench.families import FAMILIES, FILE, Family, interval_of
from vitmix.lab.bench.steps import StepRow
from vitmix.lab.cli.main import main

SMALL = ["bench", "--suite", "families", "--repeats", "2", "--steps", "1", "--warmup", "1", "--cpu"]


def _resnet() -> nn.Module:
    return timm.create_model("test_resnet", num_classes=3)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small families, and steps that are not compiled."""
    small = {
        "ViT-Lite": Family("vit_lite_7_8_32", 2),
        "ResNet": Family("resnet", 3, 32, build=_resnet),
    }
    monkeypatch.setattr(families, "FAMILIES", small)
    monkeypatch.setattr("vitmix.lab.bench.steps.Learner.compile", lambda *args, **settings: None)


def test_each_family_is_measured_once(tmp_path: Path, tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*SMALL, "--methods", "cutmix", "transmix", "--output", str(tmp_path / "out")]
    assert main([*command, "--only", "ResNet"]) == 0
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "ResNet: measured already" in printed.err
    assert "Left out: transmix, because an attention share needs attention" in printed.err
    found = json.loads((tmp_path / "out" / FILE).read_text())
    methods = {name: [row["method"] for row in each["steps"]] for name, each in found.items()}
    assert methods == {"ResNet": ["cutmix"], "ViT-Lite": ["cutmix", "transmix"]}
    assert all(len(row["times"]) == 2 for each in found.values() for row in each["steps"])
    assert [each["settings"]["batch"] for each in found.values()] == [3, 2]
    table = printed.out.splitlines()
    assert any(line.startswith("ViT-Lite") and "transmix" in line and " to " in line for line in table)


def test_more_repeats_measure_a_family_again(tmp_path: Path, tiny: None) -> None:
    command = [*SMALL, "--methods", "cutmix", "--only", "ResNet", "--output", str(tmp_path)]
    assert main(command) == 0
    assert main([*command, "--repeats", "3", "--batch", "2"]) == 0
    found = json.loads((tmp_path / FILE).read_text())["ResNet"]
    assert len(found["steps"][0]["times"]) == 3 and found["settings"]["batch"] == 2


def test_other_settings_measure_a_family_again(tmp_path: Path, tiny: None) -> None:
    command = [*SMALL, "--methods", "cutmix", "--only", "ResNet", "--output", str(tmp_path)]
    assert main(command) == 0
    assert main([*command, "--batch", "2"]) == 0
    assert json.loads((tmp_path / FILE).read_text())["ResNet"]["settings"]["batch"] == 2


@pytest.mark.parametrize("content", ["[]", '{"ResNet": {}}', '{"ResNet": {"settings": {}, "steps": [{}]}}', "{"])
def test_another_file_of_this_name_is_kept(
    content: str, tmp_path: Path, tiny: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).write_text(content)
    assert main([*SMALL, "--methods", "cutmix", "--output", str(tmp_path)]) == 2
    assert FILE in capsys.readouterr().err.splitlines()[-1] and (tmp_path / FILE).read_text() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "families", "--model", "vit_lite_7_8_32"], "--suite chooses the models; leave out --model"),
        (
            ["--suite", "families", "--against", "--size", "64"],
            "--suite chooses the models; leave out --size, --against",
        ),
        (["--suite", "families", "--only", "Resnet"], "ResNet"),
        (["--only", "ResNet"], "--only chooses families of a suite; give --suite families, too"),
        (["--suite", "familys"], "families"),
    ],
)
def test_wrong_input(arguments: list[str], message: str, tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--cpu", *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("vitmix: error:") and message in error


def test_the_interval_is_that_of_the_ratios_of_rounds() -> None:
    base = StepRow("cutmix", "compiled", [10.0, 20.0, 10.0])
    row = StepRow("tl_align", "compiled", [11.0, 22.0, 10.5])
    found = interval_of(row, base)
    middle, error = 3.25 / 3, 0.05 / 3**0.5 / 3**0.5  # of 1.1, 1.1 and 1.05
    margin = 4.302653 * error  # Student's t with two degrees of freedom
    assert (found.low, found.mean, found.high) == pytest.approx((middle - margin, middle, middle + margin), abs=1e-6)
    assert interval_of(base, base).low is None


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.build is not None])
def test_models_that_are_not_of_timm_are_built(name: str) -> None:
    pytest.importorskip("transformers", minversion="5")
    build = FAMILIES[name].build
    assert build is not None and sum(each.numel() for each in build().parameters()) > 80e6


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.build is None])
def test_models_of_timm_exist(name: str) -> None:
    assert timm.is_model(FAMILIES[name].model)
