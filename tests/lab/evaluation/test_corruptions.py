"""Corruptions, made here and downloaded, and folders of ImageNet's other test sets."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

from grays import (
    NearestGray,
    gray_images,
    named,
    subject_of,
)
from support import SMALL_VIT
from training import one_thread  # noqa: F401
from vitmix.lab.data.augment import global_generators_kept, seed_global_generators
from vitmix.lab.data.images import ArrayImages
from vitmix.lab.evaluation import Robustness, Running, open_subject, robustness
from vitmix.lab.evaluation.conditions import Answers, Condition, Examiner
from vitmix.lab.evaluation.corruptions import ALEXNET, COMMON, CorruptedImages, corruption, divisors, read_reference
from vitmix.lab.evaluation.robustness import Suite
from vitmix.lab.evaluation.shifts import open_shift, synsets
from vitmix.lab.evaluation.summaries import corruption_errors
from vitmix.lab.runs import Estimate, Facts

pytestmark = pytest.mark.usefixtures("one_thread")


# Corruptions


def test_corruption_that_does_nothing() -> None:
    subject, images = subject_of(NearestGray(side=32), 4, side=32), gray_images((10, 70, 130, 128, 250, 100), side=32)
    images.labels[5] = 3  # a mistake
    examiner = Examiner(subject, Running(batch=4))
    nothing = CorruptedImages(images, examiner.augmentation, lambda pixels, seed: pixels)
    clean, same = (
        examiner.answers(Condition(name, data, Facts(part=name), {}, cropped=name == "same"))
        for name, data in (("clean", images), ("same", nothing))
    )
    assert np.array_equal(clean.right, same.right) and clean.count("clean") == (5, 6)
    assert np.array_equal(clean.confidence, same.confidence)
    condition = Condition("fog 1", nothing, Facts(part="corruptions", corruption="fog", severity=1), {})
    errors = named(
        corruption_errors([(condition, same)], divisors({"fog": [1 / 6]}, ["fog"], 1), "relative error", "mCE")
    )
    assert errors["mCE"].mean == pytest.approx(1)  # as wrong as the reference, which is the clean one


def test_corruption_errors_by_hand() -> None:
    def answers(text: str) -> Answers:
        return Answers(np.array([int(mark) for mark in text], np.int8), np.ones(4, np.float32), 4)

    marks = {("fog", 1): "1110", ("fog", 2): "1100", ("snow", 1): "0000", ("snow", 2): "1111"}
    images: Any = None
    found = [
        (Condition("", images, Facts(part="corruptions", corruption=name, severity=at), {}), answers(text))
        for (name, at), text in marks.items()
    ]
    by = divisors({"fog": [0.5, 0.25], "snow": [1.0, 1.0]}, ["fog", "snow"], 2)
    errors = named(corruption_errors(found, by, "relative error", "mCE"))
    assert errors["relative error fog"].mean == pytest.approx((0.25 + 0.5) / (0.5 + 0.25))
    assert errors["relative error snow"].mean == pytest.approx(0.5)
    assert errors["mCE"].mean == pytest.approx(0.75) and errors["mCE"].n == 4
    assert errors["mCE"].low <= 0.75 <= errors["mCE"].high


def test_reference_errors(tmp_path: Path) -> None:
    assert read_reference("alexnet")["fog"] == [0.819324] and tuple(ALEXNET) == COMMON
    assert divisors(None, ["fog"], 5) == {"fog": 1}
    place = tmp_path / "reference.json"
    for content in ({"fog": 0.5}, {"fog": [0.4, 0.5, 0.6, 0.5, 0.5]}, {"corruption_errors": {"fog": [0.5]}}):
        place.write_text(json.dumps(content))
        assert divisors(read_reference(str(place)), ["fog"], 5) == pytest.approx({"fog": 0.5})
    for content, words in (({"fog": 7}, "errors in 0..1"), ([1], "errors in 0..1")):
        place.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words):
            read_reference(str(place))
    with pytest.raises(ValueError, match="is neither"):
        read_reference(str(tmp_path / "none.json"))
    for reference, words in (
        ({"snow": [1.0]}, "lack 'fog'"),
        ({"fog": [0.0]}, "is 0"),
        ({"fog": [0.1, 0.2]}, "2 errors"),
    ):
        with pytest.raises(ValueError, match=words):
            divisors(reference, ["fog"], 5)


@pytest.mark.parametrize("name", COMMON)
def test_every_corruption_is_the_images_own(name: str) -> None:
    pytest.importorskip("imagecorruptions")
    image = np.random.default_rng(1).integers(40, 200, (33, 40, 3), np.uint8)
    state = np.random.get_state()[1].tolist()
    for severity in (1, 5):
        corrupt = corruption(name, severity)
        found, again = corrupt(image, 3), corrupt(image, 3)
        assert found.shape == image.shape and found.dtype == np.uint8 and np.array_equal(found, again)
        assert not np.array_equal(found, image)
    random = {
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "glass_blur",
        "snow",
        "frost",
        "fog",
        "elastic_transform",
    }
    if name in random:
        assert not np.array_equal(found, corrupt(image, 4))
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize("side", [32, 224])
def test_frost_is_of_five_photographs(side: int) -> None:
    cv2 = pytest.importorskip("cv2")
    folder = Path(pytest.importorskip("imagecorruptions").__file__).parent / "frost"
    image = np.random.default_rng(1).integers(0, 255, (side, side + 8, 3), np.uint8)
    numbers = set()
    for seed in range(20):
        with global_generators_kept():
            seed_global_generators(seed)
            number = np.random.randint(5)
            frost = cv2.imread(str(next(folder.glob(f"frost{number + 1}.*"))))
            top, left = np.random.randint(0, frost.shape[0] - side), np.random.randint(0, frost.shape[1] - side - 8)
        part = frost[top : top + side, left : left + side + 8, ::-1]
        wanted = np.clip(0.8 * image + 0.6 * part, 0, 255).astype(np.uint8)
        assert np.array_equal(corruption("frost", 2)(image, seed), wanted)
        numbers.add(number)
    assert numbers == set(range(5))


def test_frost_covers_images_larger_than_its_photographs() -> None:
    pytest.importorskip("imagecorruptions")
    black = np.zeros((1400, 1408, 3), np.uint8)
    for seed in range(3):
        found = corruption("frost", 5)(black, seed)
        assert found.shape == black.shape and (found[-1].any(), found[:, -1].any()) == (True, True)


@pytest.mark.parametrize("severity", range(1, 6))
def test_elastic_is_imagenet_cs(severity: int) -> None:
    """ImageNet-C's two steps with OpenCV's functions, at its own side."""
    cv2 = pytest.importorskip("cv2")
    pytest.importorskip("imagecorruptions")
    before, width, corner = 244 * np.array(
        [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)][severity - 1]
    )
    rows, columns = np.mgrid[:224, :224]
    wave = 127 + 60 * np.sin(rows / 9) + 60 * np.cos(columns / 7)
    image = np.stack([wave, wave[::-1], wave.T], axis=-1).astype(np.uint8)
    with global_generators_kept():
        seed_global_generators(5)
        corners = np.float32([[186, 186], [186, 38], [38, 38]])  # (row, column): the middle and a third of the side
        moved = corners + np.random.uniform(-corner, corner, (3, 2)).astype(np.float32)
        noise = np.random.uniform(-1, 1, (2, 224, 224))
    shear = cv2.getAffineTransform(corners[:, ::-1].copy(), moved[:, ::-1].copy())
    sheared = cv2.warpAffine(image.astype(np.float32), shear, (224, 224), borderMode=cv2.BORDER_REFLECT_101)
    down, right = (before * gaussian_filter(each, width, mode="reflect", truncate=3) for each in noise)
    places = [(base + shift).astype(np.float32) for base, shift in ((columns, right), (rows, down))]
    wanted = cv2.remap(sheared, *places, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    found = corruption("elastic_transform", severity)(image, 5)
    assert np.abs(found + 0.5 - wanted).mean() < 1  # OpenCV interpolates in steps of a 32nd pixel
    assert np.abs(found + 0.5 - image).mean() > 10


def test_elastic_looks_the_same_at_any_size() -> None:
    pytest.importorskip("imagecorruptions")

    def change(side: int) -> float:
        rows, columns = np.mgrid[:side, :side] * 224 / side
        wave = 127 + 60 * np.sin(rows / 30) + 60 * np.cos(columns / 30)
        image = np.repeat(wave[..., None], 3, -1).astype(np.uint8)
        corrupt = corruption("elastic_transform", 5)
        changed = [np.abs(corrupt(image, seed).astype(float) - image).mean() for seed in range(20)]
        return float(np.mean(changed))

    assert change(56) == pytest.approx(change(112), rel=0.2)


def test_generated_corruptions_in_the_suite() -> None:
    pytest.importorskip("imagecorruptions")
    subject, images = subject_of(NearestGray(side=32), 4, side=32), gray_images((10, 70, 130, 250), side=32)
    settings = Robustness(parts=("corruptions",), corruptions=("brightness", "pixelate"))
    alone, helped = (named(robustness(subject, images, Running(batch=2, workers=count), settings)) for count in (0, 1))
    assert alone == helped
    assert alone["corruption pixelate 5"].mean == 1 and alone["error pixelate"].mean == 0  # of one gray
    # 0.1 to 0.5 are added: 10 leaves the first class from 63.5 on, 70 the second from 127.5, 130 the third from 191.5
    wrong = [[10 + 25.5 * k > 63.5, 70 + 25.5 * k > 127.5, 130 + 25.5 * k > 191.5, False] for k in (1, 2, 3, 4, 5)]
    for severity in (1, 2, 3, 4, 5):
        assert alone[f"corruption brightness {severity}"].mean == 1 - np.mean(wrong[severity - 1])
    assert alone["error brightness"].mean == pytest.approx(np.mean(wrong))
    assert alone["mean corruption error"].mean == pytest.approx(np.mean(wrong) / 2)
    assert "mCE" not in alone  # there is no reference for these images


# Folders


class Codes(nn.Module):
    """Says the class that an image's red and green write, but is sure of class 0, which ImageNet-R has not."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))
        self.pretrained_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "crop_pct": 1.0, "input_size": (3, 32, 32)}

    def forward(self, images: Tensor) -> Tensor:
        red, green = (images[:, channel].mean((1, 2)).mul(255).round().long() for channel in (0, 1))
        logits = nn.functional.one_hot((red * 256 + green).clamp(max=999), 1000).float() + self.zero
        return logits.index_fill(1, torch.tensor([0]), 2.0)


def write_code(place: Path, number: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), (number // 256, number % 256, 0)).save(place)


def test_the_classes_of_imagenet_r_are_those_it_chooses_from(tmp_path: Path) -> None:
    allowed = [synsets().index(name) for name in synsets("imagenet_r_synsets.txt")][:4]
    for number in allowed:
        write_code(tmp_path / "r" / synsets()[number] / "right.png", number)
        write_code(tmp_path / "r" / synsets()[number] / "wrong.png", allowed[0])
        write_code(tmp_path / "v2" / str(number) / "right.png", number)
    settings = Robustness(parts=("shifts",), folders={"r": tmp_path / "r", "v2": tmp_path / "v2"})
    suite = Suite(subject_of(Codes(), 1000, side=32), None, Running(batch=4), settings)
    found = named(suite)
    assert found["ImageNet-R"] == Estimate.of_proportion(5, 8)
    assert found["ImageNet-V2"].mean == 0  # among all 1000 classes it always says the first
    (tmp_path / "r" / synsets()[0]).mkdir()
    with pytest.raises(ValueError, match="not one of the .* classes of ImageNet-R"):
        open_shift("r", tmp_path / "r", suite.subject)


def test_a_model_of_fewer_classes_is_measured_on_those(tmp_path: Path) -> None:
    names = synsets("imagenet_r_synsets.txt")[:3]
    for name in names:
        write_code(tmp_path / name / "one.png", 0)
    own = (names[2], "n00000000", names[0])
    found = open_shift("r", tmp_path, subject_of(NearestGray(), 3, own))
    assert found.outputs == (0, 2) and found.left_out == 1 and found.images.labels.tolist() == [2, 0]
    with pytest.raises(ValueError, match="without names"):
        open_shift("r", tmp_path, subject_of(NearestGray(), 7))
    with pytest.raises(ValueError, match="at least two"):
        open_shift("r", tmp_path, subject_of(NearestGray(), 2, ("x", names[0])))


def test_a_downloaded_imagenet_c(tmp_path: Path) -> None:
    for severity in (1, 2):
        for name, gray in (("a", 10), ("d", 250)):
            place = tmp_path / "weather" / "fog" / str(severity) / name / "0.png"
            place.parent.mkdir(parents=True)
            Image.new("RGB", (32, 32), (gray if severity == 1 else 10,) * 3).save(place)
    subject = subject_of(NearestGray(side=32), 4, ("a", "b", "c", "d"), side=32)
    reference = tmp_path / "reference.json"
    reference.write_text('{"fog": [0.25, 0.5]}')
    chosen_settings = {"corruptions": ("fog",), "severities": (1, 2), "folders": {"c": tmp_path}}
    settings = Robustness(parts=("corruptions",), reference=str(reference), **chosen_settings)
    found = named(robustness(subject, gray_images(side=32), Running(batch=4), settings))
    assert [found[f"corruption fog {severity}"].mean for severity in (1, 2)] == [1, 0.5]
    assert found["mean corruption error"].mean == 0.25 and found["mCE"].mean == pytest.approx(0.25 / 0.375)
    (tmp_path / "weather" / "fog" / "2" / "a" / "0.png").rename(tmp_path / "weather" / "fog" / "2" / "a" / "1.png")
    with pytest.raises(ValueError, match="different images"):
        Suite(subject, gray_images(side=32), Running(), settings)


def write_cifar_c(folder: Path, side: int = 32) -> np.ndarray:
    """Grays 10, 70, 130 and 250 (classes 0 to 3); fog makes all of them black from the third severity on."""
    grays = np.array([10, 70, 130, 250], np.uint8)
    seen = np.concatenate([grays * (severity < 3) for severity in range(5)])
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "fog.npy", np.broadcast_to(seen[:, None, None, None], (20, side, side, 3)).astype(np.uint8))
    np.save(folder / "snow.npy", np.zeros((20, side, side, 3), np.uint8))
    np.save(folder / "labels.npy", np.tile(np.arange(4, dtype=np.uint8), 5))
    return seen


def test_a_downloaded_cifar_c(tmp_path: Path) -> None:
    write_cifar_c(tmp_path / "c")
    subject = subject_of(NearestGray(side=32), 4, side=32)
    reference = tmp_path / "reference.json"
    reference.write_text('{"fog": [0.2, 0.2, 0.2, 0.2, 0.7], "snow": 0.75}')
    chosen_settings = {"corruptions": ("fog", "snow"), "folders": {"c": tmp_path / "c"}}
    suite = Suite(subject, None, Running(batch=3), Robustness(parts=("corruptions",), **chosen_settings))
    found = named(suite)
    assert [found[f"corruption fog {severity}"].mean for severity in range(1, 6)] == [1, 1, 1, 0.25, 0.25]
    assert found["corruption fog 1"].n == 4 and "output i" in suite.remarks[0]
    assert found["mean corruption error"].mean == pytest.approx((0.3 + 0.75) / 2) and "mCE" not in found
    settings = Robustness(parts=("corruptions",), reference=str(reference), **chosen_settings)
    found = named(robustness(subject, None, Running(batch=3), settings, folder=tmp_path / "cells"))
    assert found["mCE"].mean == pytest.approx((1 + 1) / 2)
    np.save(tmp_path / "c" / "snow.npy", np.full((20, 32, 32, 3), 250, np.uint8))  # other content, other cells
    os.utime(tmp_path / "c" / "snow.npy", ns=(1, 1))
    again = named(robustness(subject, None, Running(batch=3), settings, folder=tmp_path / "cells"))
    assert again["error snow"].mean == 0.75 and len(list((tmp_path / "cells").iterdir())) == 15
    limited = named(robustness(subject, None, Running(batch=3), dataclasses.replace(settings, limit=2)))
    assert limited["mCE"].n == 2


def test_alexnets_errors_are_of_imagenet_alone(tmp_path: Path) -> None:
    """A model of 1000 classes without names could be of anything, a folder of CIFAR-C is of CIFAR."""
    write_cifar_c(tmp_path)
    np.save(tmp_path / "labels.npy", np.tile([0, 1, 2, 999], 5))
    settings = Robustness(parts=("corruptions",), corruptions=("fog",), folders={"c": tmp_path})
    assert "mCE" not in named(robustness(subject_of(Codes(), 1000, side=32), None, Running(), settings))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda at: np.save(at / "labels.npy", np.arange(20)), "the same labels once for each of 5 severities"),
        (lambda at: np.save(at / "labels.npy", np.tile(np.arange(3), 5)), "has 3 classes, but own has 4 outputs"),
        (lambda at: np.save(at / "labels.npy", np.zeros((4, 5))), "the same labels once"),
        (lambda at: np.save(at / "fog.npy", np.zeros((9, 32, 32, 3), np.uint8)), "has 9 images, labels.npy 20"),
        (lambda at: np.save(at / "fog.npy", np.zeros((20, 32, 32))), r"must hold images \(N, height, width, 3\) uint8"),
        (lambda at: (at / "fog.npy").write_bytes(b"no array"), "not a readable .npy file"),
        (lambda at: (at / "fog.npy").write_bytes(b""), "not a readable .npy file"),
        (lambda at: (at / "fog.npy").unlink(), "has no 'fog.npy'"),
    ],
)
def test_wrong_cifar_c(tmp_path: Path, spoil: Any, sentence: str) -> None:
    write_cifar_c(tmp_path)
    spoil(tmp_path)
    settings = Robustness(parts=("corruptions",), corruptions=("fog",), folders={"c": tmp_path})
    with pytest.raises(ValueError, match=sentence):
        Suite(subject_of(NearestGray(side=32), 4, side=32), None, Running(), settings)


def test_cifar_c_is_seen_as_the_test_set_is(tmp_path: Path) -> None:
    smooth = torch.nn.functional.interpolate(torch.rand(20, 3, 8, 8), (32, 32), mode="bilinear")
    pixels, labels = (smooth * 255).byte().permute(0, 2, 3, 1).numpy().copy(), np.arange(20) % 10
    np.save(tmp_path / "labels.npy", np.tile(labels, 5))
    np.save(tmp_path / "fog.npy", np.tile(pixels, (5, 1, 1, 1)))
    subject = open_subject("vit_tiny_patch16_224", model_args=SMALL_VIT, size=32)
    assert subject.augmentation.crop_pct < 1
    images = ArrayImages(pixels, labels, list(map(str, range(10))), "x")
    settings = Robustness(parts=("clean", "corruptions"), corruptions=("fog",), folders={"c": tmp_path})
    suite = Suite(subject, images, Running(batch=20), settings)
    found = [suite.examiner.answers(each).confidence for series in suite.series for each in series.conditions]
    assert all(np.array_equal(each, found[0]) for each in found)
