"""Advice comes from stored results: the packaged evidence, the page and the cards are made of them."""

import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from command import done, vitmix
from support import ROOT
from vitmix.lab.advice.choice import PlannedTraining, choose, is_shown, largest_deviation
from vitmix.lab.advice.evidence import SCRATCH, WEIGHTS, Cost, Findings, Measured, Series, stored, without_settings
from vitmix.lab.advice.words import gain_text, shown
from vitmix.lab.cli import suggest
from vitmix.lab.runs import Estimate
from vitmix.lab.training.config import resolve

MAKE = runpy.run_path(str(ROOT / "docs" / "make_evidence.py"))
page = MAKE["page"]


def test_files_follow_from_the_results() -> None:
    for path, text in MAKE["contents"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is old; run python docs/make_evidence.py"


def gain(mean: float, half: float | None = None, n: int = 3) -> Estimate:
    if half is None:
        return Estimate(mean, None, 1)
    return Estimate(mean, half / 2, n, mean - half, mean + half)


def series(name: str, updates: int, start: str = SCRATCH, **gains: Estimate) -> Series:
    rows = [
        Measured(key, key, each.n, 50 + each.mean, each, ((updates // 4, each.mean - 9),))
        for key, each in gains.items()
    ]
    return Series(name, start, False, "vit", 64, 50_000, updates, (Measured("no mixing", "none", 3, 50.0), *rows))


COST = Cost("vit", 8, "GPU", {"smmix": 1.3, "cutmix": 1.01, "mixup": 1.0, "cutmix + htm": 1.1})
SHORT = series("short", 10_000, cutmix=gain(-3, 1), smmix=gain(5, 2), mixup=gain(1, 2))
LONG = series("long", 50_000, cutmix=gain(7), smmix=gain(11), mixup=gain(1))
EVIDENCE = Findings((SHORT, LONG), COST)


@pytest.mark.parametrize(
    ("updates", "chosen", "name"),
    [(1_000, None, "short"), (4_999, None, "short"), (5_000, "smmix", "short"), (20_000, "smmix", "short")]
    + [(25_000, "smmix", "long"), (10**6, "smmix", "long")],
)
def test_the_nearest_length_decides(updates: int, chosen: str | None, name: str) -> None:
    found = choose(EVIDENCE, PlannedTraining(50_000, updates, SCRATCH))
    assert (found.chosen and found.chosen.method, found.series and found.series.name) == (chosen, name)


def test_models_and_starts_decide() -> None:
    refuse = {"smmix": "it reads attention"}.get
    assert (
        choose(EVIDENCE, PlannedTraining(50_000, 10_000, SCRATCH, refusal=refuse)).chosen is None
    )  # cutmix lost, mixup did not gain
    found = choose(EVIDENCE, PlannedTraining(50_000, 50_000, SCRATCH, refusal=refuse))
    assert found.chosen is not None and found.chosen.method == "cutmix"
    assert found.refused == {"smmix": "it reads attention"}
    assert choose(EVIDENCE, PlannedTraining(50_000, 50_000, WEIGHTS)).series is None
    tuned = dataclasses.replace(EVIDENCE, series=(*EVIDENCE.series, series("pets", 600, WEIGHTS, mixup=gain(2, 1))))
    found = choose(tuned, PlannedTraining(3_680, 600, WEIGHTS))
    assert found.chosen is not None and found.chosen.method == "mixup"  # new results change the advice


def test_one_seed_must_gain_more_than_seeds_differ() -> None:
    assert largest_deviation([SHORT, LONG]) == 1.0
    assert is_shown(LONG.methods[1], 3.0) and not is_shown(LONG.methods[1], 3.5)
    assert not is_shown(LONG.methods[1], largest_deviation([LONG]))  # nothing is known about seeds


def test_every_number_is_of_the_evidence_or_the_plan() -> None:
    plan = PlannedTraining(3_000, 50_000, SCRATCH, size=224)
    text = shown(EVIDENCE, plan, command="")
    gained = "+11.00 points (no interval, n = 1 seed)"
    assert gained in text and "1.30 times the step of the bare model" in text and "One seed" in text
    assert "With fewer than 5,000 updates, train without mixing" in text
    assert "Measured on 50,000 images; this data has 3,000." in text and "64 pixels; this model takes 224" in text
    changed = dataclasses.replace(EVIDENCE, series=(SHORT, series("long", 40_000, cutmix=gain(13.37), smmix=gain(2))))
    other = shown(changed, plan, command="")
    assert "+13.37 points" in other and "40,000 updates" in other and gained not in other
    few = shown(EVIDENCE, PlannedTraining(3_000, 600, SCRATCH), command="")
    assert "shortest training measured on photographs has 10,000 updates" in few
    assert "2,500 updates into the schedule of results/short, 3 of 3 methods were behind" in few
    assert "the best, smmix, was at -4.00 points" in few


TUNED = dataclasses.replace(
    EVIDENCE, series=(*EVIDENCE.series, series("pets", 600, WEIGHTS, cutmix=gain(0.4, 1), smmix=gain(-2, 1)))
)


def test_no_mixing_is_explained() -> None:
    """The best method is named with its interval and cost, and why it is not recommended."""
    text = shown(TUNED, PlannedTraining(3_600, 600, WEIGHTS, model="resnet"), command="")
    assert "No method of the 2 measured showed a gain at 600 updates." in text
    assert (
        "Best  cutmix, +0.40 points (95 % interval -0.60 to +1.40, n = 3 seeds): no difference shown; results/pets"
        in text
    )
    assert "Cost  of cutmix: 1.01 times the step of the bare model" in text
    assert "Not   With fewer than 300 updates, train without mixing" in text
    assert "Not   1 of 2 methods lost accuracy at 600 updates: smmix." in text
    assert "Measured with vit, not with resnet." in text and "Not measured in fine-tuning: mixup, " in text
    assert "| fine-tuning | 600 | yes | `none` | best: cutmix, +0.40 points" in page(TUNED)


def test_the_best_method_works_with_the_model() -> None:
    refuse = {"smmix": "it reads attention"}.get
    text = shown(EVIDENCE, PlannedTraining(50_000, 10_000, SCRATCH, refusal=refuse), command="")
    assert "No method that works with this model showed a gain" in text
    assert "Best  mixup, +1.00 points (95 % interval -1.00 to +3.00, n = 3 seeds): no difference shown" in text
    assert "smmix gained more, but it reads attention." in text


def test_short_trainings_and_gains_name_the_next_answer() -> None:
    few = shown(EVIDENCE, PlannedTraining(50_000, 600, SCRATCH), command="")
    assert "Best  smmix, +5.00 points (95 % interval +3.00 to +7.00, n = 3 seeds): a gain; results/short" in few
    assert few.count("2,500 updates into the schedule") == 1 and "1 of 3 methods lost accuracy" in few
    gained = shown(EVIDENCE, PlannedTraining(50_000, 10_000, SCRATCH), command="")
    assert "Next  mixup, +1.00 points (95 % interval -1.00 to +3.00, n = 3 seeds): no difference shown; cost: 1.00" in (
        gained
    )


def test_early_accuracy_is_said_of_its_own_training() -> None:
    ahead = dataclasses.replace(TUNED.series[-1], updates=10_000)
    rows = [dataclasses.replace(each, course=((100, 2.0),)) for each in ahead.methods[1:]]
    evidence = Findings((dataclasses.replace(ahead, methods=(ahead.methods[0], *rows)),), COST)
    text = shown(evidence, PlannedTraining(50_000, 600, WEIGHTS), command="")
    assert "In fine-tuning, 100 updates into the schedule of results/pets, 0 of 2" in text and "late" not in text


def test_the_page_names_methods_with_one_seed() -> None:
    mixed = series("mixed", 50_000, cutmix=gain(7, 2), smmix=gain(11), mixup=gain(1))
    text = " ".join(page(Findings((SHORT, mixed), COST)).split())
    assert "One seed in results/mixed, so small differences mean nothing: smmix, mixup." in text
    assert "One seed in results/short" not in text and "on photographs with fewer than 10,000 updates" in text


def test_words() -> None:
    assert gain_text(SHORT.methods[2]) == "+5.00 points (95 % interval +3.00 to +7.00, n = 3 seeds)"
    assert (
        without_settings("mixup(alpha=0.8)") == "mixup"
        and without_settings("(cutmix + vtm(block=3))") == "cutmix + vtm"
    )
    assert COST.of("mixup(alpha=0.8) | smmix") == pytest.approx(1.15) and COST.of("unknown") is None
    assert "no comparison is stored" in page(EVIDENCE)


def test_the_package_has_evidence() -> None:
    assert {"tinyimagenet100", "tinyimagenet200"} <= {each.name for each in stored().series}
    assert all(each.gain is not None for one in stored().series for each in one.methods if each.method != "none")


def test_the_readme_recommends_what_the_evidence_does() -> None:
    words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    advice = words.split("In short: ")[1].split("## Results")[0]
    short, long = stored().alike(start=SCRATCH, built_in=False)

    def recommended(updates: int, start: str = SCRATCH, *, readable: bool = True) -> str:
        def refusal(method: str) -> str | None:
            simple = without_settings(method) in ("mixup", "cutmix")
            return None if readable or simple else "it reads attention"

        chosen = choose(stored(), PlannedTraining(50_000, updates, start, refusal=refusal)).chosen
        return "none" if chosen is None else chosen.method

    least = short.updates // 2
    assert f"in fine-tuning, and in trainings from scratch with fewer than {least:,} updates, train without" in advice
    assert recommended(least - 1) == "none"
    assert {recommended(updates, WEIGHTS) for updates in (100, 600, 50_000)} == {"none"}
    assert "In longer trainings from scratch, use `smmix`" in advice
    assert recommended(least) == recommended(long.updates) == "smmix"
    (cutmix,) = (each for each in long.methods if each.method == "cutmix")
    seeds = {1: "one seed", 2: "two seeds", 3: "three seeds"}[cutmix.n]
    assert f"use `cutmix` in very long trainings ({long.updates:,} updates, {seeds})" in advice
    assert recommended(long.updates, readable=False) == "cutmix"
    assert f"at {short.updates:,} updates, neither `mixup` nor `cutmix` showed a gain" in advice
    assert recommended(short.updates, readable=False) == "none"
    assert '`"mixup | cutmix"` is the mixing of DeiT\'s recipe, but showed no gain in our results' in advice
    switches = [each for one in stored().series for each in one.methods if each.name == "MixUp or CutMix"]
    assert len(switches) > 1 and not any(is_shown(each, 0) for each in switches)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("images")
    for name in ("first", "second"):
        (root / name).mkdir()
        for number in range(20):
            pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return f"imagefolder:{root}"


def test_command(images: str) -> None:
    text = done("suggest", "--data", images, "--model", "test_vit")
    assert f"vitmix train --data {images} --model test_vit --method none --epochs 100 --batch 16" in text
    assert text.startswith(
        "36 images of 2 classes, test_vit, training from scratch, 100 epochs of batch 16: 200 updates"
    )
    text = done("suggest", "--data", images, "--model", "test_vit", "--epochs", "24000")  # two updates each
    best = choose(stored(), PlannedTraining(36, 48_000, SCRATCH)).chosen
    assert best is not None and f"--method {best.method}" in text and gain_text(best) in text
    text = done("suggest", "--data", images, "--model", "test_resnet", "--epochs", "24000")
    assert "--method cutmix" in text and "SMMix gained more, but" in text
    text = done("suggest", "--data", images, "--model", "test_vit", "--pretrained")
    assert f"vitmix train --recipe finetune --data {images} --model test_vit --pretrained\n" in text
    assert "test_vit, fine-tuning, 40 epochs" in text
    assert "The shortest training measured on photographs has 627 updates" in text
    text = done("suggest", "--data", images, "--model", "test_vit", "--hours", "0.5", "--cpu")
    assert "images/s, measured here without loading, on steps of 16 images in fp32" in text and "--epochs 300" in text


@pytest.mark.parametrize(("batch", "precision"), [(None, "fp32"), (5, "fp32"), (None, "bf16")])
def test_speed_is_that_of_the_training(
    images: str, batch: int | None, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps have the batch, the size and the precision of the training that is recommended."""
    seen, forward = set(), VisionTransformer.forward

    def watched(model: VisionTransformer, pixels: Tensor) -> Tensor:
        scores = forward(model, pixels)
        seen.add((*pixels.shape, str(scores.dtype), model.training))
        return scores

    monkeypatch.setattr(VisionTransformer, "forward", watched)
    given = {"data": images, "model": "test_vit", "recipe": "finetune", "pretrained": True, "precision": precision}
    config = resolve(given | ({"batch": batch} if batch else {}))
    model = timm.create_model("test_vit", num_classes=2)
    assert suggest._images_per_second(model, dataclasses.replace(config, cpu=True), (32, 32)) > 0
    dtype = "torch.bfloat16" if precision == "bf16" else "torch.float32"
    assert seen == {(config.batch, 3, 32, 32, dtype, True)} and config.batch == (batch or 16)


def test_a_batch_that_does_not_fit_is_one_sentence(images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(model: VisionTransformer, pixels: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(VisionTransformer, "forward", full)
    said = vitmix("suggest", "--data", images, "--model", "test_vit", "--hours", "1", "--cpu")
    assert said.code == 2 and "a step of 16 images does not fit into the memory of cpu; give a smaller" in said.err


def test_what_training_refuses_is_not_suggested(images: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.txt"
    weights.write_text("none")
    for arguments, sentence in (
        (["--checkpoint", str(weights)], "is not a weights file"),
        (["--batch", "1000"], "a batch of 1000 is more than the 36 training images; lower --batch"),
        (["--size", "33"], "size must be a multiple of the patches of test_vit, 16 pixels, got 33; use 32 or 48"),
    ):
        said = vitmix("suggest", "--data", images, "--model", "test_vit", "--cpu", *arguments)
        assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1, said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "test_vit"], "--data"),
        (["--data", "imagefolder:nowhere"], "is not a folder"),
        (["--data", "shapes", "--model", "vitt"], "unknown model"),
        (["--data", "shapes", "--model", "test_vit", "--hours", "0"], "hours must be"),
        (["--data", "shapes", "--model", "test_vit", "--checkpoint", "no.pth", "--pretrained"], "give one of them"),
    ],
)
def test_wrong_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    said = vitmix("suggest", *arguments)
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1
