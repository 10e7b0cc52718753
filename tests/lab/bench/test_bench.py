"""`vitmix bench` with the smallest sizes, and what it measures with."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import vitmix
from support import close, tiny_batch, tiny_vit
from vitmix.lab.bench.materialized import materialize, statistics_from_matrix
from vitmix.lab.bench.report import as_json, base_of, ratios, step_table
from vitmix.lab.bench.steps import (
    Step,
    StepRow,
    Workload,
    batch_for,
    check_image,
    looks_inside,
    measure_steps,
    refused,
    workload_model,
)
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


@pytest.mark.parametrize(("own", "sides"), [(24, (24, 24)), ((16, 24), (16, 24)), (None, (224, 224))])
def test_images_have_the_size_of_the_models_settings(own: int | tuple[int, int] | None, sides: tuple[int, int]) -> None:
    settings = {"patch_size": 8, "depth": 1} | ({} if own is None else {"img_size": own})
    work = Workload("vit_tiny_patch16_224", 1, None, torch.device("cpu"), torch.float32, 0.0, False, settings)
    model = workload_model(work)
    images, _ = batch_for(model, work)
    assert images.shape[2:] == sides
    check_image(model, images)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nothing_like_it"], "nothing_like_it"),
        (["--batch", "0"], "at least 1"),
        (["--batch", str(2**63 - 1)], "is too large"),
        (["--size", "3", "--parts", "kernels"], "the model does not take images of 3 × 3 pixels"),
        (["--size", "3", "--parts", "steps"], "the model does not take images of 3 × 3 pixels"),
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


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("bare model", False),
        ("cutmix", False),
        ("fmix | saliencymix", False),
        ("decouplemix", False),
        ("puzzlemix", False),  # its extra pass is of the model as it is
        ("transmix", True),
        ("recursivemix", True),
        ("attentive_cutmix", True),
        ("mergemix", True),  # runs the blocks itself
        ("cutmix | cutmix + htm", True),
    ],
)
def test_methods_that_look_inside_the_model(text: str, inside: bool) -> None:
    model = tiny_vit()
    assert looks_inside(text, model) is inside
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.slow
def test_a_shared_model_is_compiled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.utils.counters.clear()
    methods = ["--methods", "cutmix", "bare model", "fmix", "saliencymix", "decouplemix", "mixpro"]
    assert main(["bench", *SMALL, *methods, "--modes", "shared", "--parts", "steps", "--output", str(tmp_path)]) == 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # the model, and two whole steps
    rows = json.loads((tmp_path / "bench.json").read_text())["steps"]
    shared = ["cutmix", "bare model", "fmix", "saliencymix", "decouplemix"]
    assert [(row["method"], row["mode"]) for row in rows] == [
        *((method, "shared") for method in shared),
        ("cutmix", "compiled"),
        ("mixpro", "compiled"),
    ]
    assert rows[-1]["relative_to"] == ["cutmix", "compiled"] and rows[1]["relative_to"] == ["cutmix", "shared"]
    assert rows[3]["ahead"] > 0 and rows[2]["ahead"] is None
    assert "computed before the step" in capsys.readouterr().out


def test_a_stopped_run_keeps_its_rounds() -> None:
    stored = []
    work = Workload("vit_lite_7_8_32", 2, None, torch.device("cpu"), torch.float32, 0.05, False)
    counts = {"repeats": 2, "steps": 1, "warmup": 1}

    def store(rows: Sequence[StepRow]) -> None:
        stored.append([(row.method, len(row.times)) for row in rows])

    measure_steps(["cutmix", "fmix"], ["eager"], work, **counts, tell=lambda text: None, store=store)
    assert stored == [[("cutmix", 1), ("fmix", 1)], [("cutmix", 2), ("fmix", 2)]]


def test_without_matplotlib_the_figure_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vitmix.lab.bench.plot", None)
    short = ["--modes", "eager", "--parts", "steps", "--methods", "cutmix", "--output", str(tmp_path)]
    assert main(["bench", *SMALL, *short]) == 0
    assert "bench.png is left out" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["bench.json"]


def test_ratios_are_those_of_a_round() -> None:
    base = StepRow("cutmix", "compiled", [1.0, 2.0, 4.0])
    assert ratios(StepRow("fmix", "compiled", [1.5, 2.0, 8.0]), base) == (1.5, 1.0, 2.0)
    assert ratios(StepRow("fmix", "materialized", [3.0, 3.0, 9.0]), base) == (1.5, None, None)
    found = json.loads(as_json({}, [base, StepRow("fmix", "compiled", [1.5, 2.0, 8.0])], {}))["steps"][1]
    assert (found["ratio"], found["lowest"], found["highest"]) == (1.5, 1.0, 2.0)


def test_ratios() -> None:
    rows = [StepRow("cutmix", "eager", [3.0, 1.0, 2.0], 4.0), StepRow("tl_align", "eager", [3.0], 4.1)]
    rows += [StepRow("cutmix", "compiled", [1.0], 2.0), StepRow("cutmix", "materialized", [4.0], 8.0)]
    assert base_of(rows, "eager").median == 2 and base_of(rows, "materialized").mode == "compiled"
    rows[1].method, rows[1].easy = "(mixup(alpha=0.8) | cutmix) + htm(block=2)", 0.25
    lines = step_table(rows, 100).splitlines()
    assert len({len(line) for line in lines}) == 1 and "htm(block=2), 25.0 % easy " in lines[2]
    assert "1.500" in lines[2] and "50,000" in lines[1] and "4.000" in lines[4]
