"""Robustness: models whose answers are known by hand, answers that survive a stop, wrong input."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from grays import (
    CENTERS,
    GRAYS,
    NearestGray,
    classifier_of,
    gray_images,
    grays_subject,
    named,
    subject_of,
    tiny_vit,
    within,
)
from training import one_thread, train  # noqa: F401
from vitmix import AttentionTap
from vitmix.lab.cli import main as cli
from vitmix.lab.cli._robustness import run_suite
from vitmix.lab.data.images import ArrayImages, FileImages, ImageSet
from vitmix.lab.evaluation import Robustness, Running, conditions, open_subject, robustness
from vitmix.lab.evaluation.conditions import Answers, Condition, Examiner
from vitmix.lab.evaluation.corruptions import CorruptedImages
from vitmix.lab.evaluation.describe import describe_suite, pixels_text
from vitmix.lab.evaluation.occlusion import PatchOrder, drop_patches, gaussian_noise, saliency_of
from vitmix.lab.evaluation.parts import chosen
from vitmix.lab.evaluation.robustness import Suite
from vitmix.lab.runs import Facts, Measurement, Run
from vitmix.lab.runs.estimates import wilson
from vitmix.lab.settings import fitted

pytestmark = pytest.mark.usefixtures("one_thread")


# Noise and occlusion


def test_noise_is_the_images_own_and_grows_with_sigma() -> None:
    pixels, indices = torch.full((3, 3, 16, 16), 0.5), torch.tensor([4, 7, 9])
    assert torch.equal(gaussian_noise(pixels, indices, indices, sigma=0), pixels)
    noisy = gaussian_noise(pixels, indices, indices, sigma=0.05)
    assert torch.equal(noisy[1:2], gaussian_noise(pixels[:1], indices[1:2], indices[1:2], sigma=0.05))
    assert not torch.equal(noisy[0], noisy[1])
    assert float((noisy - 0.5).std()) == pytest.approx(0.05, rel=0.05)
    loud = gaussian_noise(pixels, indices, indices, sigma=5.0)
    assert float(loud.min()) == 0 and float(loud.max()) == 1


def test_dropped_patches_by_hand() -> None:
    pixels = torch.ones(1, 3, 4, 4)
    rank = torch.tensor([[2, 0, 3, 1]])  # the right upper quarter first, then the right lower one
    half = drop_patches(pixels, rank, share=0.5, grid=(2, 2))
    assert torch.equal(half[0, 0], torch.tensor([[1.0, 1, 0, 0]] * 4))
    assert torch.equal(drop_patches(pixels, rank, share=0, grid=(2, 2)), pixels)
    assert not drop_patches(pixels, rank, share=1, grid=(2, 2)).any()


@pytest.mark.parametrize(
    ("changes", "kind"), [({}, "class_row"), ({"class_token": False, "global_pool": "avg"}, "column_mean")]
)
def test_salient_patches_are_those_that_attention_reads(changes: dict[str, Any], kind: str) -> None:
    classifier = classifier_of(subject_of(tiny_vit(**changes), 12, side=32))
    pixels, indices = torch.rand(5, 3, 32, 32), torch.arange(5)
    with AttentionTap(classifier.model, **{kind: [-1]}) as tap:
        classifier(pixels)
    first, last = (PatchOrder(classifier, (32, 32), order=f"salient-{end}") for end in ("first", "last"))
    ranks = first(pixels, indices)
    assert first.grid == (4, 4)
    seen = getattr(tap, kind)(-1)
    for row in range(5):
        wanted = sorted(range(16), key=lambda patch: -float(seen[row, patch]))
        assert [int(ranks[row, patch]) for patch in wanted] == list(range(16))
    assert torch.equal(last(pixels, indices), 15 - ranks)
    handles = sum(len(module._forward_hooks) for module in classifier.model.modules())
    assert handles == 0  # attacks see the model without a tap


def test_random_order_is_the_images_own_and_needs_no_attention() -> None:
    classifier = classifier_of(grays_subject())
    order = PatchOrder(classifier, (28, 28), order="random")
    ranks = order(torch.rand(3, 3, 28, 28), torch.tensor([0, 1, 5]))
    assert order.grid == (14, 14) and all(sorted(row.tolist()) == list(range(196)) for row in ranks)
    again = PatchOrder(classifier, (28, 28), order="random")(torch.rand(1, 3, 28, 28), torch.tensor([5]))
    assert torch.equal(again[0], ranks[2]) and not torch.equal(ranks[0], ranks[1])
    with pytest.raises(ValueError, match="cannot be read"):
        saliency_of(classifier, (28, 28))


# The suite on a model that is known


def test_suite_of_a_known_model() -> None:
    settings = Robustness(
        parts=("clean", "noise", "occlusion", "attacks"),
        sigmas=(0.0, 0.3),
        dropped=(0.0, 1.0),
        epsilons=(4 / 255, 0.0, 1 / 255),
        alphas=(0.01,),
    )
    found = named(robustness(grays_subject(), gray_images(), Running(batch=5), settings))
    n = len(GRAYS)
    assert all(each.n == n and each.low <= each.mean <= each.high for each in found.values())
    assert found["clean"].mean == found["noise sigma=0"].mean == found["occlusion random 0 %"].mean == 1
    assert found["noise sigma=0.3"].mean < 1
    assert found["occlusion random 100 %"].mean == np.mean([gray < 63.5 for gray in GRAYS])  # all is black
    for attack in ("fgsm", "pgd-10 alpha=0.01"):
        values = [found[f"{attack} eps={bound}"].mean for bound in ("0", "1/255", "4/255")]
        assert values[0] == found["attack none"].mean == 1
        assert values == pytest.approx([within(GRAYS, bound) for bound in (0, 1, 4)])
    assert (found["clean"].low, found["clean"].high) == wilson(n, n)


def test_calibration_is_that_of_the_answers() -> None:
    found = named(robustness(grays_subject(), gray_images(), Running(batch=5), Robustness(parts=("clean",))))
    logits = grays_subject().model.eval()
    with torch.no_grad():
        pixels = torch.from_numpy(gray_images().pixels).permute(0, 3, 1, 2) / 255
        sure = classifier_of(subject_of(logits, 4))(pixels).softmax(1).amax(1)
    places = [min(int(np.ceil(float(each) * 15)) - 1, 14) for each in sure]
    error = sum(abs(sum(1 - float(sure[i]) for i in range(12) if places[i] == place)) for place in set(places)) / 12
    assert found["clean calibration error"].mean == pytest.approx(error, abs=1e-6)


def test_accuracy_under_attack_cannot_rise_with_the_bound() -> None:
    subject, images = (
        subject_of(tiny_vit(), 12, side=32),
        np.random.default_rng(0).integers(0, 255, (24, 32, 32, 3), np.uint8),
    )
    with torch.no_grad():
        labels = classifier_of(subject)(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).argmax(1).tolist()
    labels[0] = (labels[0] + 1) % 12  # a mistake, and two classes at least
    data = ArrayImages(images, labels, [str(number) for number in range(12)], "noise")
    for norm, scale, alpha in (("linf", 1 / 255, 0.001), ("l2", 0.25, 0.1)):
        bounds = tuple(scale * strength for strength in (0, 0.25, 0.5, 1, 4))
        settings = Robustness(parts=("attacks",), norm=norm, epsilons=bounds, alphas=(alpha,), steps=3)
        found = [each for each in robustness(subject, data, Running(batch=8), settings) if each.name.startswith("pgd")]
        values = [each.estimate.mean for each in found]
        assert values[0] == pytest.approx(23 / 24) and values == sorted(values, reverse=True) and values[-1] < values[0]


def test_choice_of_images_is_nested_and_the_same_each_time() -> None:
    images = gray_images(range(0, 250, 5))
    small, large = (chosen(images, limit, 0) for limit in (7, 20))
    values = [set(each.pixels[:, 0, 0, 0].tolist()) for each in (small, large)]
    assert values[0] < values[1] and len(values[1]) == 20
    assert chosen(images, 50, 0) is images and chosen(images, None, 0) is images
    found = robustness(
        grays_subject(), images, Running(), Robustness(parts=("noise", "attacks"), limit=20, attack_limit=7)
    )
    assert {each.estimate.n for each in found} == {20, 7}


# Resumption


class Stop(Exception):
    """Stands for the end of the process."""


class Counted(NearestGray):
    """Counts the images that it was shown."""

    seen = 0

    def forward(self, images: Tensor) -> Tensor:
        Counted.seen += len(images)
        return super().forward(images)


FOG = Facts(part="corruptions", corruption="fog", severity=1)
NOISE = Robustness(parts=("clean", "noise"), sigmas=(0.1, 0.2))


def test_stopped_suite_goes_on_without_measuring_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "SAVE_SECONDS", -1.0)
    whole = list(robustness(grays_subject(), gray_images(), Running(batch=5), NOISE))
    n, told = len(GRAYS), []

    def stop(name: str, done: int, total: int) -> None:
        told.append((name, done, total))
        if done >= n + 10:
            raise Stop

    Counted.seen = 0
    with pytest.raises(Stop):
        list(
            robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path, progress=stop)
        )
    assert Counted.seen == n + 10 and told[-1] == ("noise sigma=0.1", n + 10, 3 * n)
    again = list(robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path))
    assert Counted.seen == 3 * n + 5  # the batch that was measured and not yet written, and no other
    assert again == whole
    assert list(robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path)) == whole
    assert Counted.seen == 3 * n + 5
    assert len(list(tmp_path.iterdir())) == 3


def test_stored_answers_keep_their_names() -> None:
    """Otherwise every condition of older runs would be measured again."""
    images, subject = gray_images(side=32), subject_of(NearestGray(side=32), 4, side=32)
    name = Examiner(subject, Running()).key(Condition("fog 1", images, FOG, FOG.to_json()))
    assert name == "c79f9c514dd2097b3047ba18d2dd0c4e"


def test_corruptions_of_another_crop_are_other_cells() -> None:
    """They are made of cropped images and then taken whole, so the crop must still be in their name."""
    images, keys = gray_images(side=32), set()
    for crop in (1.0, 0.875):
        subject = subject_of(NearestGray(side=32), 4, side=32)
        subject = dataclasses.replace(subject, config=dataclasses.replace(subject.config, crop_pct=crop))
        examiner = Examiner(subject, Running())
        made = CorruptedImages(images, examiner.augmentation, lambda pixels, seed: pixels)
        keys.add(examiner.key(Condition("fog 1", made, FOG, FOG.to_json(), cropped=True)))
    assert len(keys) == 2


@pytest.mark.parametrize("change", ["weights", "pixels", "labels", "settings", "damage", "format"])
def test_answers_of_anything_else_are_not_taken(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    list(robustness(subject_of(Counted(), 4), gray_images(), Running(batch=5), NOISE, folder=tmp_path))
    model, images, settings = Counted(), gray_images(), NOISE
    if change == "weights":
        model.centers.data[0] += 1e-6
    elif change == "pixels":
        images.pixels[0, 0, 0, 0] += 1
    elif change == "labels":
        images.labels[0] = 3
    elif change == "settings":
        settings = Robustness(parts=("clean", "noise"), sigmas=(0.15, 0.25), seed=1)
    elif change == "format":
        monkeypatch.setattr(conditions, "FORMAT", 0)
    else:
        for place in tmp_path.iterdir():
            place.write_text(place.read_text()[:-9])
    Counted.seen = 0
    list(robustness(subject_of(model, 4), images, Running(batch=5), settings, folder=tmp_path))
    assert Counted.seen == 3 * len(GRAYS)


def test_answers_come_back_exactly() -> None:
    answers = Answers(np.array([1, 0, -1, 1], np.int8), np.random.default_rng(0).random(4).astype(np.float32), 3)
    back = Answers.parse(answers.text(), 4)
    assert back.done == 3 and back.right.tolist() == [1, 0, -1, -1]
    assert np.array_equal(back.confidence[:3], answers.confidence[:3]) and answers.count("") == (2, 3)
    assert Answers.parse(answers.text(), 5).done == 0 and Answers.parse("[]", 4).done == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [("8/255", "8/255"), ("0.5/255", "0.5/255"), ("0.1", "0.1"), ("0", "0"), ("1", "1")]
    + [("0.003", "0.003"), ("1.25/255", "1.25/255"), ("1/3", "85/255"), ("1/7", "0.142857")],
)
def test_bounds_are_shown_as_they_are_written(text: str, shown: str) -> None:
    assert pixels_text(*fitted(Robustness, "epsilons", [text], "the flags")) == shown


def test_unreadable_images_are_not_counted(tmp_path: Path) -> None:
    for number, gray in enumerate((10, 250, 10)):
        Image.new("RGB", (8, 8), (gray,) * 3).save(tmp_path / f"{number}.png")
    (tmp_path / "1.png").write_bytes(b"not an image")
    images = FileImages(tmp_path, ["0.png", "1.png", "2.png"], [0, 3, 1], ["a", "b", "c", "d"], "files")
    for _ in range(2):  # the second time from what was kept
        again = FileImages(tmp_path, images.files, images.labels, images.classes, "files")
        suite = Suite(grays_subject(), again, Running(batch=2), Robustness(parts=("clean",)), folder=tmp_path / "cells")
        found = list(suite)
        assert found[0].name == "clean" and found[0].estimate.n == 2 and found[0].estimate.mean == 0.5
        assert len(suite.broken) == 1 and suite.broken[0].startswith("1.png")
        said = describe_suite(suite.results(found, seconds=0.0))
        assert said.endswith("\n1 image could not be read and is not counted")


# Refusals and the command


def test_images_are_needed_unless_all_are_in_folders() -> None:
    with pytest.raises(ValueError, match="give --data"):
        Suite(grays_subject(), None, Running(), NOISE)


def test_one_class_is_refused() -> None:
    images: ImageSet = gray_images((10, 20))
    with pytest.raises(ValueError, match="a single class"):
        Suite(grays_subject(), images, Running(), NOISE)


def test_saliency_of_a_model_without_attention_is_refused_only_when_asked_for() -> None:
    subject = subject_of(timm.create_model("test_resnet", num_classes=4).eval(), 4, side=32)
    settings = Robustness(parts=("occlusion",), dropped=(0.5,))
    suite = Suite(subject, gray_images(side=32), Running(), settings)
    assert [each.name for each in suite] == ["occlusion random 50 %"] and "not by saliency" in suite.remarks[0]
    with pytest.raises(ValueError, match="needs attention, which this ResNet does not have"):
        Suite(subject, gray_images(side=32), Running(), Robustness(parts=("occlusion",), orders=("salient-last",)))


@pytest.mark.parametrize(("part", "package"), [("autoattack", "pyautoattack"), ("corruptions", "imagecorruptions")])
def test_missing_package_is_named(part: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf'package {package}.*pip install "vitmix\[eval\]"'):
        Suite(subject_of(NearestGray(side=32), 4, side=32), gray_images(side=32), Running(), Robustness(parts=(part,)))


SMALL = Robustness(sigmas=(0.1,), dropped=(0.5,), epsilons=(8 / 255,), alphas=(0.01,), steps=1)


def test_what_is_not_possible_is_left_out_of_the_whole_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images too small for corruptions, too few classes for AutoAttack, and packages that are not there."""
    subject = subject_of(NearestGray(CENTERS[:3]), 3)
    grays = gray_images((10, 60, 100, 160))
    images = ArrayImages(grays.pixels, grays.labels.tolist(), ["a", "b", "c"], "grays")
    suite = Suite(subject, images, Running(), SMALL)
    assert {each.of.part for each in suite} == {"clean", "noise", "occlusion", "attacks"}
    said = " ".join(suite.remarks)
    assert "the suite corruptions is left out: corruptions are made for images of at least 32 pixels" in said
    assert "the suite autoattack is left out" in said
    for part in ("corruptions", "autoattack"):
        with pytest.raises(ValueError, match="32 pixels|4 classes|pyautoattack"):
            Suite(subject, images, Running(), dataclasses.replace(SMALL, parts=("robustness", part)))
    for package in ("pyautoattack", "imagecorruptions"):
        monkeypatch.setitem(sys.modules, package, None)
    suite = Suite(subject_of(NearestGray(side=32), 4, side=32), gray_images(side=32), Running(), SMALL)
    assert [series.conditions[0].of.part for series in suite.series] == [
        "clean",
        "noise",
        "occlusion",
        "attacks",
        "attacks",
        "attacks",
    ]
    assert sum('pip install "vitmix[eval]"' in remark for remark in suite.remarks) == 2


def test_mistakes_are_refused_in_the_whole_suite_too() -> None:
    subject, images = subject_of(NearestGray(side=32), 4, side=32), gray_images(side=32)
    with pytest.raises(ValueError, match="is neither"):
        Suite(subject, images, Running(), dataclasses.replace(SMALL, reference="nowhere.json"))
    with pytest.raises(ValueError, match="no folder 'nowhere'"):
        Suite(subject, images, Running(), dataclasses.replace(SMALL, folders={"c": Path("nowhere")}))


def test_parts_of_the_whole_suite() -> None:
    whole = ("clean", "noise", "occlusion", "corruptions", "attacks", "autoattack")
    assert Robustness().measured == Robustness(parts=("robustness", "noise")).measured == whole
    assert set(Robustness(folders={"a": Path("a")}).measured) == {*whole, "shifts"}
    assert Robustness(parts=("noise", "clean", "noise")).measured == ("clean", "noise")


@pytest.fixture(scope="module")
def run(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    output = tmp_path_factory.mktemp("runs") / "run"
    train(output)
    return output


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", str(run), "--suite", "clean,occlusion,attacks", "--limit", "12", "--attack-limit", "6"]
    command += ["--epsilons", "0", "8/255", "0.5/255", "--alphas", "0.01", "--steps", "2", "--orders", "salient-first"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    found = json.loads((run / "robustness.json").read_text())
    by_name = {each["name"]: each for each in found["measurements"]}
    assert by_name["clean"]["n"] == 12 and by_name["pgd-2 alpha=0.01 eps=8/255"]["n"] == 6
    assert by_name["clean"]["value"] == by_name["occlusion salient-first 0 %"]["value"]
    assert "fgsm eps=0.5/255" in by_name and by_name["occlusion salient-first 0 %"]["of"]["grid"] == [2, 2]
    assert "Note: patches are dropped on a grid of 2 x 2." in said
    assert found["parts"]["attacks"]["settings"]["epsilons"] == [0, 8 / 255, 0.5 / 255]
    assert "pgd-2 alpha=0.01 eps=8/255" in said and "n = 12" in said and "images  " in said
    kept = {place: place.stat().st_mtime_ns for place in (run / "robustness").iterdir()}
    assert cli.main(command) == 0 and {place: place.stat().st_mtime_ns for place in kept} == kept
    assert open_subject(run).run == run


def test_the_runs_file_grows_by_parts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A further command replaces what it measured; other weights and other data do not get in, nor stay."""
    output = shutil.copytree(run, tmp_path / "run")
    (output / "robustness.json").unlink(missing_ok=True)
    command = ["eval", str(output), "--limit", "8", "--suite"]
    attack = ["--attack-limit", "4", "--alphas", "0.1", "--steps", "1", "--epsilons", "0.1"]

    def names() -> list[str]:
        found = Run(output).robustness
        assert found is not None
        return [each.name for each in found.measurements]

    assert cli.main([*command, "attacks", *attack]) == 0
    assert cli.main([*command, "attacks", *attack, "--norm", "l2"]) == 0
    assert cli.main([*command, "clean"]) == 0
    l2 = ["attack none l2", "fgsm l2 eps=0.1", "pgd-1 l2 alpha=0.1 eps=0.1"]
    linf = [name.replace(" l2", "") for name in l2]
    assert names() == [*linf, *l2, "clean", "clean calibration error"]
    assert cli.main([*command, "attacks", *attack, "--epsilons", "0.2"]) == 0
    assert names()[:2] == l2[:2] and names()[-1] == "pgd-1 alpha=0.1 eps=0.2" and linf[1] not in names()
    before = (output / "robustness.json").read_bytes()
    for other in (["--weights", "last"], ["--split", "train"], ["--size", "16"]):
        assert cli.main([*command, "clean", *other]) == 0
        assert "Add --output FILE" in capsys.readouterr().out
    assert (output / "robustness.json").read_bytes() == before
    weights = load_file(output / "best.safetensors")
    with safe_open(output / "best.safetensors", "pt") as file:  # pyright: ignore[reportPrivateImportUsage]
        facts = file.metadata()
    weights["head.bias"] = weights["head.bias"] + 1
    save_file(weights, output / "best.safetensors", facts)
    assert Run(output).robustness is None
    assert cli.main([*command, "clean", "--output", str(tmp_path / "copy.json")]) == 0
    assert names() == ["clean", "clean calibration error"]
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads((output / "robustness.json").read_text())
    (output / "robustness.json").write_text('{"measurements": [1]}')
    assert Run(output).robustness is None


def test_results_belong_to_the_weights_that_were_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that goes on may find better weights while the suite measures the former ones."""
    output, measured = shutil.copytree(run, tmp_path / "run"), Suite.__iter__
    (output / "robustness.json").unlink(missing_ok=True)

    def measured_while_training(suite: Suite) -> Iterator[Measurement]:
        shutil.copy(output / "config.yaml", output / "best.safetensors")
        return measured(suite)

    monkeypatch.setattr(Suite, "__iter__", measured_while_training)
    assert cli.main(["eval", str(output), "--suite", "clean", "--limit", "4"]) == 0
    assert (output / "robustness.json").is_file() and Run(output).robustness is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--norm", "l2"], "needs a suite"),
        (["--suite", "attacks", "--epsilons", "8"], "epsilons are in pixels of 0..1, got 8; write 8/255"),
        (["--suite", "attacks", "--alphas", "2.5"], "alphas are in pixels of 0..1, got 2.5; write 2.5/255"),
        (["--suite", "noise", "--cells", __file__], "is a file"),
        (["--suite", "corruptions", "--folders", "c=."], "holds no <corruption>/<severity>/<class>"),
        (["--suite", "robustnes"], "did you mean 'robustness'?"),
        (["--limit", "3"], "needs a suite"),
        (["--suite", "shifts"], "needs folders"),
        (["--suite", "shifts", "--folders", "a"], "written NAME=DIR"),
        (
            ["--suite", "noise", "--epsilons", "8/255"],
            "applies to the suite attacks or autoattack, which --suite noise does not",
        ),
        (["--suite", "autoattack", "--steps", "3"], "--steps applies to the suite attacks, which"),
        (
            ["--suite", "clean,noise", "--attack-limit", "3"],
            "--attack-limit applies to the suite attacks or autoattack",
        ),
        (["--suite", "attacks", "--orders", "random"], "--orders applies to the suite occlusion"),
        (["--suite", "noise", "--reference", "alexnet"], "--reference applies to the suite corruptions"),
        (["--suite", "noise", "--folders", "c=."], "the folder 'c' belongs to the suite 'corruptions'"),
        (["--suite", "corruptions", "--folders", "a=."], "the folder 'a' belongs to the suite 'shifts'"),
        (["--suite", "shifts", "--folders", "b=."], "unknown folder 'b'"),
        (["--suite", "shifts", "--folders", "a=nowhere"], "no folder 'nowhere'"),
        (["--suite", "corruptions", "--folders", "c=nowhere"], "no folder 'nowhere'"),
        (["--suite", "corruptions"], "at least 32 pixels"),
        (["--suite", "corruptions", "--corruptions", "smog"], "unknown corruption 'smog'"),
        (["--suite", "corruptions", "--reference", "nowhere.json"], "is neither"),
        (["--suite", "attacks", "--epsilons", "8/0"], "such as 0.03 or 8/255"),
        (["--suite", "attacks", "--steps", "0"], "steps must be"),
        (["--suite", "occlusion", "--orders", "salient"], "unknown order"),
        (["--suite", "noise", "--limit", "0"], "limit must be"),
        (["--suite", "noise", "--output", "no/such/folder.json"], "does not exist"),
    ],
)
def test_wrong_input(run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(run), *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_results_name_the_weights_that_were_read(tmp_path: Path) -> None:
    train(tmp_path / "run")
    run = tmp_path / "run"
    subject = open_subject(run)
    other = (run / "best.safetensors").read_bytes()
    (run / "best.safetensors").write_bytes(other[:-4] + b"\0\0\0\1")  # a training goes on meanwhile
    run_suite(
        Robustness(parts=("clean",)), subject, subject.evaluation_images(), Running(), own=True, cells=None, output=None
    )
    assert Run(run).robustness is None


def test_a_damaged_cell_is_measured_again(tmp_path: Path) -> None:
    subject, images = grays_subject(), gray_images()
    once = list(Suite(subject, images, Running(), Robustness(parts=("clean",)), folder=tmp_path))
    (cell,) = tmp_path.glob("*.json")
    cell.write_bytes(b"\xff" + cell.read_bytes())
    assert list(Suite(subject, images, Running(), Robustness(parts=("clean",)), folder=tmp_path)) == once
