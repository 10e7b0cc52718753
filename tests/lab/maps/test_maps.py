"""Activation maps: teachers, and the folders of what they make."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

from blobs import blob_images
from training import one_thread  # noqa: F401
from vitmix.lab.data.images import ArrayImages
from vitmix.lab.data.sources import open_images
from vitmix.lab.maps import making
from vitmix.lab.maps.stored import describe_data, read_label_maps
from vitmix.lab.maps.teachers import SpectralResidual, Teacher, dense_logits, saliency_teacher

pytestmark = pytest.mark.usefixtures("one_thread")


# Teachers


def tiny_teacher(name: str, **settings) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, **settings).eval()


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_mambaout", "test_byobnet"])
def test_dense_logits_of_linear_heads_average_to_the_models(name):
    model = tiny_teacher(name)
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        dense, logits = dense_logits(model, images), model(images)
    assert dense.shape[:2] == (2, 5) and dense.shape[2] == dense.shape[3] > 1
    if name != "test_mambaout":  # a norm and a layer lie between pooling and classifier there
        torch.testing.assert_close(dense.mean((2, 3)), logits, atol=1e-4, rtol=1e-4)


def test_dense_logits_apply_what_lies_between_pooling_and_classifier():
    """Slow twin: norm and classifier of a ConvNeXt, and of a ViT's patches, place by place."""
    convnext: Any = tiny_teacher("test_convnext")
    images = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        features, dense = convnext.forward_features(images), dense_logits(convnext, images)
        for row, column in ((0, 0), (2, 1)):
            place = features[:, :, row : row + 1, column : column + 1]
            expected = convnext.head.fc(convnext.head.drop(convnext.head.norm(place).flatten(1)))
            torch.testing.assert_close(dense[:, :, row, column], expected)
    for settings in ({}, {"global_pool": "avg"}, {"class_token": False, "global_pool": "avg"}):
        vit: Any = tiny_teacher("test_vit", **settings)
        images = torch.randn(2, 3, 160, 160)
        with torch.no_grad():
            tokens, dense = vit.forward_features(images), dense_logits(vit, images)
            patch = tokens[:, vit.num_prefix_tokens + 3 * 10 + 4]
            torch.testing.assert_close(dense[:, :, 3, 4], vit.head(vit.fc_norm(patch)))
        assert dense.shape == (2, 5, 10, 10)


def test_a_module_that_gives_dense_logits_is_taken_at_its_word():
    dense = torch.nn.Conv2d(3, 7, 8, stride=8)
    assert dense_logits(dense, torch.zeros(1, 3, 32, 32)).shape == (1, 7, 4, 4)
    with pytest.raises(ValueError, match="forward_head"):
        dense_logits(torch.nn.Flatten(), torch.zeros(1, 3, 8, 8))


def test_spectral_saliency_finds_the_odd_one():
    drawn = 0.3 + 0.02 * torch.rand(1, 1, 64, 64).expand(-1, 3, -1, -1).contiguous()
    drawn[:, :, 40:46, 10:16] = 1
    saliency = SpectralResidual()(drawn)[0, 0]
    assert saliency.shape == (16, 16) and float(saliency.max()) == 1
    row, column = divmod(int(saliency.argmax()), 16)
    assert abs(row - 10.5) < 2 and abs(column - 3) < 2
    assert torch.isfinite(SpectralResidual()(torch.zeros(1, 3, 64, 64))).all()


# Folders of maps


class Blobs(torch.nn.Module):
    """A teacher of three classes whose map of class c is the image's brightness times c + 1, on an 8 x 8 grid."""

    def forward(self, images: Tensor) -> Tensor:
        gray = torch.nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 8)
        return gray * torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)


BLOBS = Teacher("blobs", Blobs(), size=(40, 40), mean=(0.0,) * 3, std=(1.0,) * 3)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "SHARD", 10)


def test_stored_maps_are_the_teachers(tmp_path, small_shards):
    images, values = blob_images()
    assert making.make_maps(images, BLOBS, tmp_path / "maps", top=3, batch=4) == []
    maps = read_label_maps(tmp_path / "maps", images)
    expected = torch.nn.functional.adaptive_avg_pool2d(values, 8) * (1 + torch.from_numpy(images.labels)).view(-1, 1, 1)
    torch.testing.assert_close(maps.float(), expected, atol=0.01, rtol=0.01)
    making.make_maps(images, BLOBS, tmp_path / "best", top=1)
    best = read_label_maps(tmp_path / "best", images)  # where another class is higher, the label's counts nothing
    assert torch.equal(best.flatten(1).sum(1) > 0, torch.from_numpy(images.labels == 2))


def test_stopped_making_goes_on_and_gives_the_same(tmp_path, small_shards):
    images, _ = blob_images()

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 10:
            raise Stop

    making.make_maps(images, BLOBS, tmp_path / "whole", batch=4)
    with pytest.raises(Stop):
        making.make_maps(images, BLOBS, tmp_path / "parts", batch=4, progress=stop)
    with pytest.raises(ValueError, match="lacks the maps of 14 of 24 images"):
        read_label_maps(tmp_path / "parts", images)
    (tmp_path / "parts" / ".maps-000000010.safetensors.partial").write_bytes(b"half")
    seen = []
    making.make_maps(images, BLOBS, tmp_path / "parts", batch=4, workers=1, progress=lambda done, _: seen.append(done))
    assert seen == [10, 20, 24]
    (tmp_path / "early").mkdir()  # stopped while the index was written for the first time
    (tmp_path / "early" / ".index.json.partial").write_bytes(b"half")
    making.make_maps(images, BLOBS, tmp_path / "early")
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes()


def test_a_teacher_in_training_mode_is_not_trained(tmp_path):
    images, _ = blob_images()
    module = tiny_teacher("test_resnet").train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    teacher = Teacher("resnet", module, size=(64, 64))
    making.make_maps(images, teacher, tmp_path, classes=[0, 1, 2])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert making.make_maps(images, teacher, tmp_path) == []  # and knows its folder again


def test_damaged_shards_are_refused_and_made_anew(tmp_path, small_shards):
    images, _ = blob_images()
    making.make_maps(images, BLOBS, tmp_path)
    shard = tmp_path / "maps-000000010.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="maps-000000010.*checksum differs; run the same"):
        read_label_maps(tmp_path, images)
    assert "made again" in making.make_maps(images, BLOBS, tmp_path)[0]
    assert shard.read_bytes() == content


def test_maps_of_other_data_or_another_teacher_are_refused(tmp_path):
    images, values = blob_images()
    making.make_maps(images, BLOBS, tmp_path / "maps")
    others = {
        "fewer": images.subset(np.arange(20), "fewer"),
        "turned": ArrayImages(images.pixels[:, ::-1].copy(), images.labels, images.classes, "turned"),
        "relabeled": ArrayImages(images.pixels, images.labels[::-1].copy(), images.classes, "relabeled"),
    }
    for name, other in others.items():
        with pytest.raises(ValueError, match=f"other data .blobs, 24 images.*{name}"):
            read_label_maps(tmp_path / "maps", other)
        with pytest.raises(ValueError, match="maps of other data"):
            making.make_maps(other, BLOBS, tmp_path / "maps")
    with pytest.raises(ValueError, match="maps of blobs that differ in size"):
        making.make_maps(images, dataclasses.replace(BLOBS, size=(48, 48)), tmp_path / "maps")
    with pytest.raises(ValueError, match="differ in top"):
        making.make_maps(images, BLOBS, tmp_path / "maps", top=2)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(ValueError, match="holds no activation maps"):
        making.make_maps(images, BLOBS, tmp_path / "photos")
    with pytest.raises(ValueError, match="not a folder of activation maps"):
        read_label_maps(tmp_path / "nothing", images)


def test_data_is_known_again_wherever_it_lies(tmp_path):
    """Decoders differ by a level or two, and folders are moved."""
    images, _ = blob_images()
    noisy = np.clip(images.pixels.astype(int) + np.random.default_rng(0).integers(-2, 3, images.pixels.shape), 0, 255)
    other = ArrayImages(noisy.astype(np.uint8), images.labels, images.classes, "elsewhere")
    assert describe_data(images).same_as(describe_data(other))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "data": {}}'])
def test_damaged_indexes_get_one_sentence(tmp_path, content):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(ValueError, match="not an index of activation maps"):
        read_label_maps(tmp_path, blob_images()[0])


@pytest.mark.parametrize("rows", [[0, 10**30], [0, 25], [-1, 10], [10, 10]])
def test_an_index_with_impossible_rows_is_refused(tmp_path, small_shards, rows):
    images, _ = blob_images()
    making.make_maps(images, BLOBS, tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"][0]["rows"] = rows
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="not an index of activation maps .*rows"):
        read_label_maps(tmp_path, images)


def test_a_teacher_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    images, _ = blob_images()
    vit = Teacher("vit", tiny_teacher("test_vit"), size=(50, 50))
    with pytest.raises(ValueError, match="vit does not take images of 50 x 50"):
        making.make_maps(images, vit, tmp_path / "maps")
    with pytest.raises(ValueError, match="teacher's 3 classes, 0..2, got 3 numbers up to 7"):
        making.make_maps(images, BLOBS, tmp_path / "maps", classes=[0, 1, 7])
    assert not (tmp_path / "maps").exists()


def test_maps_of_every_kind_of_data(tmp_path):
    """A folder of images of different sizes, arrays, a data set that is computed, and one that is divided."""
    for split in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / "photos" / split / label).mkdir(parents=True)
            for number in range(3):
                drawn = Image.effect_noise((20 + 30 * number, 40), 50)
                drawn.save(tmp_path / "photos" / split / label / f"{number}.png")
    (tmp_path / "arrays").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "arrays" / "train.npz", images=pixels, labels=np.arange(8) % 2)
    data = [f"imagefolder:{tmp_path / 'photos'}", f"npz:{tmp_path / 'arrays'}", "shapes(size=16, length=5)"]
    for number, text in enumerate([*data, "shapes(size=16, length=60)?holdout=0.2"]):
        images = open_images(text, "train")
        making.make_maps(images, saliency_teacher("spectral"), tmp_path / str(number))
        assert read_label_maps(tmp_path / str(number), open_images(text, "train")).shape == (len(images), 16, 16)


def test_unreadable_images_have_empty_maps(tmp_path):
    images, _ = blob_images()
    images.broken[4] = "image 4: damaged"
    remarks = making.make_maps(images, BLOBS, tmp_path, batch=3)
    assert "1 image could not be read" in remarks[0]
    maps = read_label_maps(tmp_path, images)
    assert not maps[4].any() and maps[5].any()


def test_classes_of_data_and_teacher_are_matched(tmp_path):
    assert making.match_classes(["a", "b", "c"], 3) == [0, 1, 2]
    assert making.match_classes(["n01440764", "n01514859"], 1000) == [0, 8]
    with pytest.raises(ValueError, match="2 classes and the teacher 1000"):
        making.match_classes(["cat", "dog"], 1000)
    with pytest.raises(ValueError, match="n00000000 is not one of ImageNet's 1000; use a teacher"):
        making.match_classes(["n01440764", "n00000000"], 1000)
    file = tmp_path / "classes.json"
    file.write_text('{"dog": 207, "cat": 281}')
    assert making.read_classes(file, ["cat", "dog"]) == [281, 207]
    with pytest.raises(ValueError, match="no number for class 'cow'"):
        making.read_classes(file, ["cat", "cow"])
    file.write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match="each of the 2 classes"):
        making.read_classes(file, ["cat", "dog"])
