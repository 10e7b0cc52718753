"""`vitmix bench` with the smallest sizes, and what it measures with."""

import json
import re
from pathlib import Path

import pytest
import torch

import vitmix
from support import close, tiny_batch, tiny_vit
from vitmix.lab.bench.materialized import materialize, statistics_from_matrix
from vitmix.lab.bench.report import base_of, step_table
from vitmix.lab.bench.steps import Step, StepRow, Workload, refused
from vitmix.lab.cli.main import main

SMALL = ["--model", "vit_lite_7_8_32", "--batch", "2", "--repeats", "1", "--steps", "1", "--warmup", "1", "--cpu"]


def test_every_table_and_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["--methods", "cutmix", "bare model", "tl_align", "cutmix + htm", "--modes", "eager", "--against"]
    growth = ["--easy", "0.5", "--tokens", "8", "16", "--batches", "1", "2"]
    assert main(["bench", *SMALL, *methods, *growth, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "torch" in printed and "materialized" in printed and "carried share" in printed
    assert re.search(r"cutmix \+ htm, \d+\.\d % easy ", printed)
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["method"] for row in found["steps"]] == ["cutmix", "bare model", "tl_align", "cutmix + htm"] * 2
    assert all(row["median"] > 0 for row in found["steps"])
    assert {row["shape"][2] for row in found["tokens"]} == {8, 16} and found["settings"]["batch"] == 2
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nothing_like_it"], "nothing_like_it"),
        (["--batch", "0"], "at least 1"),
        (["--batch", str(2**63 - 1)], "is too large"),
        (["--easy", "2"], "between 0 and 1"),
        (["--graphs", "--cpu"], "CUDA"),
        (["--methods", "cutmux"], "cutmux"),
        (["--model", "resnet18", "--parts", "kernels"], "kernels and growth need a model with timm's Attention"),
        (
            ["--model", "resnet18", "--methods", "cutmix", "transmix"],
            "needs attention, which this ResNet does not have",
        ),
        (["--model", "resnet18", "--against"], "--against needs a model with timm's Attention"),
    ],
)
def test_wrong_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL, *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("vitmix: error:") and message in error


def test_what_a_model_does_not_allow_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--model", "resnet18", "--size", "32", "--modes", "eager", "--output", str(tmp_path)]
    assert main(["bench", *SMALL, *small]) == 0
    said = capsys.readouterr().out
    assert "Left out: kernels and growth need a model with timm's Attention" in said
    assert "Left out: transmix, because an attention share needs attention" in said
    measured = [row["method"] for row in json.loads((tmp_path / "bench.json").read_text())["steps"]]
    assert {"cutmix", "tl_align"} <= {*measured} and not {"transmix", "smmix", "cutmix + htm"} & {*measured}


@pytest.mark.parametrize("text", ["cutmix | cutmix + vtm(tokens=17)", "cutmix + vtm(tokens=17) | cutmix"])
def test_every_arm_of_a_switch_is_tried_before(text: str) -> None:
    work = Workload("vit_lite_7_8_32", 2, None, torch.device("cpu"), torch.float32, 0.05, False)
    assert "cannot pick 17 tokens out of 16 patches" in refused([text], work)[text]


@pytest.mark.parametrize("text", ["transmix", "tl_align", "smmix", "cutmix + vtm", "cutmix + htm(tau=9)"])
def test_the_materialized_path_computes_the_same(text: str) -> None:
    images, labels = tiny_batch()
    model = tiny_vit()
    learner = vitmix.Learner(model, vitmix.create(text, 10))
    draw = learner.mixing.draw(learner.mixing.frame(images))
    expected = learner(images, labels, draw=draw)
    materialize(model)
    with statistics_from_matrix():
        found = learner(images, labels, draw=draw)
    close(found.targets, expected.targets, 1e-5)
    close(found.loss, expected.loss.detach(), 1e-5)


@pytest.mark.parametrize("text", ["none + htm", "cutmix + htm", "cutmix + htm | mixup + htm(block=3)"])
def test_as_many_samples_are_easy_as_asked_for(text: str) -> None:
    images, labels = torch.randn(20, 3, 32, 32), torch.arange(20) % 10
    work = Workload("vit_tiny_patch16_224", 20, 32, torch.device("cpu"), torch.float32, 0.25, False)  # no dropout
    step = Step(text, "eager", work, images, labels)
    for _ in range(4):
        step()
    assert [float(each) for each in step.easy] == [0.25] * 4


@pytest.mark.parametrize(
    ("text", "counts", "taken"),
    [
        ("bare model", 5, [5]),
        ("cutmix", 5, [5]),
        ("mixup | cutmix", 6, [3, 3]),
        ("3*mixup | 1*cutmix", 8, [6, 2]),
        ("0.31*mixup | 0.69*cutmix", 13, [4, 9]),
        ("0.123*mixup | 0.456*cutmix | 0.421*cutmix(per=sample)", 17, [2, 7, 8]),
        ("0.01*mixup | 0.99*cutmix", 5, [0, 5]),
    ],
)
def test_a_repeat_has_whole_rounds_of_alternatives(text: str, counts: int, taken: list[int]) -> None:
    images, labels = torch.randn(2, 3, 32, 32), torch.arange(2)
    work = Workload("vit_lite_7_8_32", 2, None, torch.device("cpu"), torch.float32, 0.05, False)
    step = Step(text, "eager", work, images, labels)
    step()  # as between the repeats of two methods, so that rounds begin anywhere
    before = list(step.taken)
    assert step.whole_rounds(5) == counts
    for _ in range(counts):
        step()
    assert [now - then for now, then in zip(step.taken, before, strict=True)] == taken


def test_ratios() -> None:
    rows = [StepRow("cutmix", "eager", [3.0, 1.0, 2.0], 4.0), StepRow("tl_align", "eager", [3.0], 4.1)]
    rows += [StepRow("cutmix", "compiled", [1.0], 2.0), StepRow("cutmix", "materialized", [4.0], 8.0)]
    assert base_of(rows, "eager").median == 2 and base_of(rows, "materialized").mode == "compiled"
    rows[1].method, rows[1].easy = "(mixup(alpha=0.8) | cutmix) + htm(block=2)", 0.25
    lines = step_table(rows, 100).splitlines()
    assert len({len(line) for line in lines}) == 1 and "htm(block=2), 25.0 % easy " in lines[2]
    assert "1.500" in lines[2] and "50,000" in lines[1] and "4.000" in lines[4]
