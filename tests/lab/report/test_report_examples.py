"""The examples in a report: training images as a method mixed them, with their targets."""

import base64
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training import TINY, one_thread, train  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.evaluation.classification import evaluate_run
from vitmix.lab.evaluation.examples import mixed_examples
from vitmix.lab.evaluation.subject import open_subject
from vitmix.lab.report import write_report
from vitmix.lab.report.html import html
from vitmix.lab.runs import Run
from vitmix.lab.runs.examples import SOURCES, Example, TargetPart

pytestmark = pytest.mark.usefixtures("one_thread")


def test_examples_repeat_and_carry_their_targets(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(tmp_path / str(seed), method="mixup(alpha=0.8) | tl_align", seed=seed, epochs=1, smoothing=0.1)
    first, again = (mixed_examples(open_subject(tmp_path / "0"), count=3) for _ in range(2))
    assert first == again and len(first) == 6  # both methods of the switch
    other = mixed_examples(open_subject(tmp_path / "1"), count=3)
    assert [each.mixed for each in other] != [each.mixed for each in first]
    for example in first:
        assert sum(part.share for part in example.target) == pytest.approx(1, abs=0.006)
        assert all(0 < part.share <= 1 for part in example.target)
        roles = [part.role for part in example.target]
        assert roles[0] == "own" and list(example.sources) == ["own", "partner"]
        assert roles[1:2] == ["partner"] or example.target[0].share > 0.9  # of the same class
    assert any(len(example.target) > 2 for example in first)  # two classes, and what smoothing spreads


@pytest.mark.parametrize("method", ["smmix", "(mixup | cutmix) + htm(block=1) + vtm(block=1, tokens=2)", "none"])
def test_examples_of_every_kind_of_method(tmp_path: Path, method: str) -> None:
    train(tmp_path / "run", method=method, epochs=1)
    assert mixed_examples(open_subject(tmp_path / "run"), count=2)


def test_examples_show_rare_classes_as_often_as_the_training(tmp_path: Path) -> None:
    labels = np.arange(48) % 12 == 0  # 4 of 48
    pixels = np.random.default_rng(0).integers(0, 256, (48, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=labels.astype(np.int64))
    settings = {"data": f"npz:{tmp_path / 'images.npz'}", "method": "none", "epochs": 1}
    for balance in (False, True):
        train(tmp_path / str(balance), balance=balance, **settings)
    usual, balanced = (
        [each.target[0].name for each in mixed_examples(open_subject(tmp_path / str(balance)), count=16)]
        for balance in (False, True)
    )
    assert usual.count("1") < 4 and 4 < balanced.count("1") < 12


def test_examples_of_activation_labels(tmp_path: Path) -> None:
    maps = ["maps", "--data", TINY["data"], "--teacher", "saliency:spectral", "--output", str(tmp_path / "maps")]
    assert cli.main([*maps, "--workers", "0"]) == 0
    method = "mixup(loss=bce) | tokenmix(label=activation)"
    train(tmp_path / "run", method=method, maps=str(tmp_path / "maps"), epochs=1)
    found = mixed_examples(open_subject(tmp_path / "run"), count=2)
    assert len(found) == 4 and any("tokenmix" in example.method or "activation" in example.method for example in found)


def test_an_image_that_played_no_part_is_no_source(tmp_path: Path) -> None:
    train(tmp_path / "run", method="none", epochs=1, smoothing=0.1)
    for example in mixed_examples(open_subject(tmp_path / "run"), count=16):
        assert list(example.sources) == ["own"] and example.sources["own"] == example.mixed
        assert [part.role for part in example.target] == ["own", "rest"]


def test_tokens_that_htm_takes_are_shown(tmp_path: Path) -> None:
    """Every cell is that of the original image or of the image that gave the token."""
    train(tmp_path / "run", method="htm(block=1, rho=0)", epochs=1)
    found = [each for each in mixed_examples(open_subject(tmp_path / "run"), count=16) if "taken" in each.sources]
    assert found
    for example in found:
        assert list(example.sources) == ["own", "taken"]
        mixed, own, taken = (pixels(each) for each in (example.mixed, *example.sources.values()))
        cells = [each.reshape(2, 8, 2, 8, 3).swapaxes(1, 2).reshape(4, -1) for each in (mixed, own, taken)]
        from_own, from_taken = ((cells[0] == each).all(1) for each in cells[1:])
        assert (from_own | from_taken).all() and (from_taken & ~from_own).any()


def pixels(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def textures(folder: Path) -> Path:
    """Images as full of detail as photos of foliage: structure at every scale."""
    generator = np.random.default_rng(0)
    for number in range(20):
        place = folder / ("train" if number < 16 else "val") / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        layers = [
            generator.normal(0, 12, (side, side, 3)).repeat(384 // side, 0).repeat(384 // side, 1)
            for side in (6, 24, 96, 192, 384)
        ]
        Image.fromarray((128 + np.sum(layers, axis=0)).clip(0, 255).astype(np.uint8)).save(place / f"{number}.png")
    return folder


def test_many_configurations_of_large_images_stay_small(tmp_path: Path) -> None:
    model = {"patch_size": 64, "embed_dim": 16, "depth": 2, "num_heads": 2}
    run = tmp_path / "runs" / "0"
    train(
        run,
        data=f"imagefolder:{textures(tmp_path / 'data')}",
        size=384,
        model_args=model,
        method="mixup | cutmix | tokenmix(loss=ce)",
        epochs=1,
    )
    evaluate_run(run)
    first = Run(run).examples.mixed
    assert {pixels(example.mixed).shape for example in first} == {(256, 256, 3)}
    assert {pixels(each).shape for example in first for each in example.sources.values()} == {(96, 96, 3)}
    for number in range(1, 6):
        other = shutil.copytree(run, tmp_path / "runs" / str(number))
        config = (other / "config.yaml").read_text()
        (other / "config.yaml").write_text(re.sub(r"smoothing: .*", f"smoothing: 0.{number}", config))
    write_report([tmp_path / "runs"], tmp_path / "page.html", examples=5)
    assert (tmp_path / "page.html").stat().st_size < 5_000_000


def test_a_class_may_be_called_rest() -> None:
    target = [TargetPart("own", "rest", 0.6), TargetPart("partner", "cat", 0.3), TargetPart("rest", "rest", 0.1)]
    image = "data:image/png;base64,"
    shown = html.example(Example("mixup", image, {"own": image}, tuple(target)), SOURCES)
    assert re.findall('<i class="([a-z]+)"', shown) == ["own", "partner", "rest"]
