"""A teacher's labels of every token, from its stored maps to the end of a training."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor

import reference_baselines
from blobs import RAND, SIDE, blob_images, correlation
from training import TINY, one_thread, same_weights, tiny, train, train_until, weights  # noqa: F401
from vitmix import functional as F
from vitmix.lab.cli.main import main
from vitmix.lab.data.loader import TrainLoader
from vitmix.lab.data.resident import ResidentLoader
from vitmix.lab.data.sources import open_images
from vitmix.lab.maps.labels import TeacherLabels
from vitmix.lab.maps.making import make_maps
from vitmix.lab.maps.stored import read_top_maps
from vitmix.lab.maps.teachers import Teacher, saliency_teacher
from vitmix.lab.training import prepare
from vitmix.lab.training.engine import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def stored(batch: int, top: int, rows: int, columns: int, classes: int) -> tuple[Tensor, Tensor]:
    """Logits, and classes that differ within a location; one of them is unknown."""
    values = torch.randn(batch, top, rows, columns, dtype=torch.float64)
    order = torch.rand(batch, classes + 1, rows, columns).argsort(1)[:, :top]
    return values, order - 1


def test_logits_at_places_equal_the_slow_twin() -> None:
    values, classes = stored(2, 3, 4, 5, 6)
    places = torch.rand(2, 3, 4, 6, dtype=torch.float64)
    found = F.placed_logits(values, classes, places, (2, 3), 6)
    torch.testing.assert_close(found, reference_baselines.placed_logits(values, classes, places, (2, 3), 6))


def test_places_outside_the_image_have_no_logits() -> None:
    """However far outside: the map has no location there."""
    values, classes = stored(1, 3, 4, 5, 6)
    places = torch.tensor([-9.0, -0.5, 1.5, 9.0], dtype=torch.float64).expand(1, 2, 4, 4).clone()
    places[:, 0] = places[:, 0].mT.clone()
    outside = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    assert not F.placed_logits(values, classes, torch.cat([places, outside], 1), (4, 4), 6).any()


def places_of(crops: Tensor, flips: Tensor, grid: tuple[int, int]) -> Tensor:
    """Where the cells of flipped and cropped images come from."""
    centers = [(torch.arange(side, dtype=torch.float64) + 0.5) / side for side in grid]
    row, column = torch.meshgrid(*centers, indexing="ij")
    places = torch.stack([torch.stack([top + row * height, left + column * width, torch.ones(grid).double()])
                          for top, left, height, width in crops.tolist()])  # fmt: skip
    places[flips, 1] = 1 - places[flips, 1]
    return places


def test_logits_at_the_places_of_a_crop_equal_roi_align() -> None:
    """Which takes one sample per cell, too, where a cell of the crop is no larger than a location of the map."""
    values, classes = stored(4, 3, 6, 7, 9)
    crops = torch.tensor([[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1], [0.4, 0.0, 0.3, 0.9], [0.55, 0.6, 0.4, 0.4]]).double()
    flips = torch.tensor([True, False, True, False])
    grid = (6, 7)
    ours = F.placed_logits(values, classes, places_of(crops, flips, grid), grid, 9).softmax(1)
    known = F.dense_maps(values, classes + 1, 10)[:, 1:]
    torch.testing.assert_close(ours, F.crop_label_maps(known, crops, flips, grid))


def kinks(maps: Tensor) -> Tensor:
    """By how much the slope of interpolated maps `(B, K, h, w)` changes at most, along rows and along columns."""
    around = torch.nn.functional.pad(maps, (1, 1, 1, 1), mode="replicate")
    return torch.stack([around.diff(n=2, dim=dim).abs().amax((1, 2, 3)) for dim in (2, 3)], 1)


def test_labels_of_finer_maps_are_near_roi_align() -> None:
    """Maps of 18 x 18 on 14 x 14 tokens: two samples per token and direction, where RoI align takes one or two.

    Interpolation is linear but for kinks. The mean over an interval, or of its two quarter points, differs from the
    value in its middle by at most an eighth of the kink times the length; softmax halves a difference of logits.
    """
    values, classes = stored(32, 5, 18, 18, 9)
    corners, sides = torch.rand(2, 32, 2, dtype=torch.float64)
    sides = torch.where(torch.arange(32).unsqueeze(1) < 8, 0.8 + 0.2 * sides, 0.1 + 0.65 * sides)
    crops, flips = torch.cat([corners * (1 - sides), sides], 1), torch.rand(32) < 0.5
    labels = TeacherLabels(values, classes, (14, 14), 9)
    grid = labels.place_grid((224, 224))
    assert grid == (28, 28)
    known = F.dense_maps(values, classes + 1, 10)[:, 1:]
    image, tokens = (each.double() for each in labels.of(places_of(crops, flips, grid), torch.arange(32)))
    apart = (tokens - F.crop_label_maps(known, crops, flips, (14, 14))).abs().amax((1, 2, 3))
    twice = (sides > 14 / 18).all(1)
    assert twice.any() and apart[twice].max() < 1e-6  # labels are float32
    bent = kinks(known)
    assert (apart <= (bent * sides * 18 / 14).sum(1) / 16 + 1e-6).all() and apart.max() > 1e-3
    samples = sides * 18 / 28 + sides * 18 / (sides * 18).ceil()  # lengths that one sample stands for, ours and theirs
    apart = (image - F.crop_label_maps(known, crops, flips, (1, 1)).flatten(1)).abs().amax(1)
    assert (apart <= (bent * samples).sum(1) / 16 + 1e-6).all() and apart.max() > 1e-3


@pytest.mark.parametrize("kind", [TrainLoader, ResidentLoader])
@pytest.mark.parametrize("policy", [None, "rand-m9-mstd0.5-inc1"])
def test_labels_of_cells_move_with_their_images(kind: type, policy: str | None) -> None:
    """Images are their own maps of one class, so that cells show what is at their place."""
    images, values = blob_images()
    augmentation = dataclasses.replace(RAND, auto_augment=policy and "rand-m9-n1-p1-mstd0.5", color_jitter=0.0)
    labels = TeacherLabels(values.unsqueeze(1), torch.zeros(24, 1, 40, 40, dtype=torch.int16), (16, 16), 1)
    grid = labels.place_grid((SIDE, SIDE))
    assert grid == (48, 48)
    loader = kind(images, augmentation, batch=8, seed=5, place_grid=grid)
    plain = kind(images, augmentation, batch=8, seed=5)
    close = []
    for batch, same in zip(loader.epoch(1), plain.epoch(1), strict=True):
        torch.testing.assert_close(batch.images, same.images, rtol=0, atol=0)
        assert batch.places is not None
        found = F.placed_logits(
            values[batch.indices].unsqueeze(1), labels.classes[batch.indices], batch.places, (16, 16), 1
        )
        seen = torch.nn.functional.adaptive_avg_pool2d(batch.images.mean(1), 16)
        close += [correlation(*pair) for pair in zip(found[:, 0], seen, strict=True)]
    # Colors that RandAugment changes lower the correlation of some, places that do not fit that of most.
    assert np.quantile(close, 0.0 if policy is None else 0.4) > 0.98


def teacher(folder: Path, classes: int = 12) -> list[str]:
    state = timm.create_model("test_resnet", num_classes=classes).state_dict()
    safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()}, folder / "t.safetensors")
    return ["--model", str(folder / "t.safetensors"), "--arch", "test_resnet", "--size", "64", "--top", "3"]


def test_token_labeling_from_the_teacher_to_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = str(tmp_path / "maps")
    command = ["maps", "--data", TINY["data"], "--output", maps, "--workers", "0", *teacher(tmp_path)]
    assert main(command) == 0
    assert "--method token_labeling" in capsys.readouterr().out
    settings = {"method": "token_labeling", "maps": maps, "auto_augment": "rand-m9-mstd0.5-inc1", "scale": [0.3, 1.0]}
    settings["checkpoint_every"] = "2 steps"
    for resident in (False, True):
        train(tmp_path / f"whole{resident}", **settings, resident=resident)
        train_until(tmp_path / f"parts{resident}", 7, **settings, resident=resident)
        train(tmp_path / f"parts{resident}", **settings, resident=resident)
        assert same_weights(weights(tmp_path / f"whole{resident}"), weights(tmp_path / f"parts{resident}"))
    given = train(tmp_path / "given", **settings, labels="data", epochs=1)
    assert given.teacher is not None and given.position.history[0].values["tokens"] > 0
    relabel = train(tmp_path / "relabel", **settings | {"method": "cutmix"}, labels="teacher", epochs=1)
    assert relabel.teacher is not None


def test_whose_labels_the_images_have(tmp_path: Path) -> None:
    images = open_images(TINY["data"], "train")
    make_maps(
        images, Teacher("t", timm.create_model("test_resnet", num_classes=12).eval(), (64, 64)), tmp_path / "maps"
    )
    for labels, expected in ((None, False), ("teacher", False), ("data", True)):
        trainer = Trainer(
            tiny(tmp_path / f"run-{labels}", method="token_labeling", maps=str(tmp_path / "maps"), labels=labels)
        )
        batch = next(iter(trainer.loader.epoch(0)))
        rows, found = prepare.training_labels(trainer.config, trainer.teacher, batch, batch.indices)
        assert (rows is batch.labels) == expected and found is not None
        assert found.shape == (8, 12, 2, 2)
        torch.testing.assert_close(found.sum(1), torch.ones(8, 2, 2))
        trainer.lock.release()


def test_classes_that_the_data_does_not_have_are_left_out(tmp_path: Path) -> None:
    images = open_images(TINY["data"], "train")
    many = Teacher("many", timm.create_model("test_resnet", num_classes=40).eval(), (64, 64))
    numbers = list(range(30, 18, -1))
    make_maps(images, many, tmp_path / "maps", top=20, classes=numbers)
    values, labels = read_top_maps(tmp_path / "maps", images)
    assert values.shape == labels.shape == (48, 20, 2, 2)
    assert set(labels.unique().tolist()) <= set(range(-1, 12))
    kept = (labels >= 0).sum(1)
    assert kept.min() < 12 and (labels == -1).any() and kept.max() > 0


def refusal(output: Path, **settings: object) -> str:
    with pytest.raises(ValueError) as caught:
        Trainer(tiny(output, **settings))
    return str(caught.value)


def test_what_cannot_teach_is_refused_in_one_sentence(tmp_path: Path) -> None:
    images = open_images(TINY["data"], "train")
    make_maps(images, saliency_teacher("spectral"), tmp_path / "saliency")
    shared = Teacher("t", timm.create_model("test_resnet", num_classes=12).eval(), (64, 64))
    make_maps(images, shared, tmp_path / "shared", classes=[0] * 12)
    make_maps(images, shared, tmp_path / "maps")
    run, maps = tmp_path / "run", str(tmp_path / "maps")
    assert "give --maps FOLDER" in refusal(run, method="token_labeling")
    assert "give --maps FOLDER" in refusal(run, labels="teacher")
    assert "has no classes" in refusal(run, method="token_labeling", maps=str(tmp_path / "saliency"))
    assert "several classes" in refusal(run, method="token_labeling", maps=str(tmp_path / "shared"))
    assert "does not use them" in refusal(run, maps=maps)
    both = "token_labeling(loss=bce) | tokenmix(label=activation)"
    assert "use one of them" in refusal(run, method=both, maps=maps)
    for method in ("decouplemix", "token_labeling + decoupled", "mixup | decouplemix"):
        assert "needs one class per image" in refusal(run, method=method, maps=maps, labels="teacher")
    assert "needs one class per image" in refusal(run, method="token_labeling + decoupled", maps=maps)
    assert "no single activation map" in refusal(run, method="token_labeling", maps=maps, auto_augment="augmix-m3-w2")
    assert not run.exists()
