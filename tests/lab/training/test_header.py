"""Headers of weights from anywhere: nothing in them opens a connection or a file, or sets more than it may."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from training import TINY, one_thread, train  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.evaluation import open_subject
from vitmix.lab.training.config import FIELDS, resolve
from vitmix.lab.training.header import PREPROCESSING, Header, epoch_of, read_export, read_header

pytestmark = pytest.mark.usefixtures("one_thread")
HONEST: dict[str, Any] = {
    "model": "vit_tiny_patch16_224",
    "model_settings": {**TINY["model_args"], "num_classes": 8, "img_size": 16},
    "preprocessing": {"size": 16, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2], "crop_pct": 0.9},
    "classes": list("abcdefgh"),
    "method": "mixup",
}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every address that something tried to reach."""
    reached: list[Any] = []

    def refuse(*address: Any, **settings: Any) -> None:
        reached.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return reached


def weights_saying(place: Path, facts: Any, **settings: Any) -> Path:
    """A file of weights of the honest model, but for these settings, with this header."""
    model = timm.create_model(HONEST["model"], **HONEST["model_settings"] | settings)
    path = place / "weights.safetensors"
    save_file(model.state_dict(), path, {"vitmix": facts if isinstance(facts, str) else json.dumps(facts)})
    return path


def changed(part: str, **settings: Any) -> dict[str, Any]:
    return {**HONEST, part: {**HONEST[part], **settings}}


def test_an_honest_header_is_believed(tmp_path: Path) -> None:
    found = open_subject(weights_saying(tmp_path, HONEST))
    own = found.augmentation
    assert (own.sides, own.mean, own.std, own.crop_pct) == ((16, 16), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), 0.9)
    assert found.classes == tuple("abcdefgh") and found.settings == HONEST["model_settings"]


def test_images_need_not_be_square(tmp_path: Path) -> None:
    facts = changed("model_settings", img_size=[16, 24]) | {"preprocessing": {"size": [16, 24]}}
    assert open_subject(weights_saying(tmp_path, facts, img_size=[16, 24])).augmentation.sides == (16, 24)


HOSTILE = {
    "an address of weights": changed("model_settings", pretrained_cfg={"url": "http://127.0.0.1:9/x.pth"}),
    "published weights": changed("model_settings", pretrained=True),
    "a cache": changed("model_settings", cache_dir="/tmp"),
    "a file": changed("model_settings", checkpoint_path="/etc/passwd"),
    "a model on the hub": {**HONEST, "model": "hf-hub:timm/vit_tiny_patch16_224.augreg_in21k"},
    "a model in a folder": {**HONEST, "model": "local-dir:/tmp"},
    "no name": {**HONEST, "model": ["vit_tiny_patch16_224"]},
    "a tag that is none": {**HONEST, "model": "vit_tiny_patch16_224.nobody"},
    "published weights as preprocessing": changed("preprocessing", pretrained=True),
    "data": changed("preprocessing", data="hfds:somebody/something"),
    "a batch": changed("preprocessing", batch=10**6),
    "a huge image": changed("preprocessing", size=10**6),
    "images larger than the model's": changed("preprocessing", size=4096),
    "images larger than the model's own": {
        **changed("preprocessing", size=4096),
        "model_settings": {**TINY["model_args"], "num_classes": 8},
    },
    "a text for a size": changed("preprocessing", size="16"),
    "a mean that is none": changed("preprocessing", mean=[0, "1", 2]),
    "a zero std": changed("preprocessing", std=[0, 0, 0]),
    "an endless crop": changed("preprocessing", crop_pct=float("nan")),
    "a text for a depth": changed("model_settings", depth="2"),
    "a depth of many": changed("model_settings", depth=60_000),
    "a wide model": changed("model_settings", embed_dim=60_000),
    "a billion classes": changed("model_settings", num_classes=10**9),
    "tiny patches": changed("model_settings", img_size=4096, patch_size=1),
    "a class that is none": {**HONEST, "classes": [1, 2]},
    "settings that are none": {**HONEST, "model_settings": [1]},
    "preprocessing that is none": {**HONEST, "preprocessing": "mean"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_in_one_sentence(
    tmp_path: Path, name: str, no_network: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    path = weights_saying(tmp_path, HOSTILE[name])
    assert cli.main(["eval", str(path), "--data", "shapes(size=16, length=8, test_length=8)", "--cpu"]) == 2
    with pytest.raises(ValueError, match="cannot be used"):
        resolve({"checkpoint": str(path), "data": "shapes"})
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(f"vitmix: error: the header of {path} cannot be used: ")
    assert no_network == []


def test_classes_have_outputs(tmp_path: Path) -> None:
    for outputs in (8, None):  # None: as many as the classifier has
        facts = changed("model_settings", num_classes=outputs) | {"classes": list("abcdefghi")}
        with pytest.raises(ValueError, match="names 9 classes, but its model has 8 outputs"):
            open_subject(weights_saying(tmp_path, facts))


def test_a_run_cannot_ask_for_a_download(tmp_path: Path, no_network: list[Any]) -> None:
    train(tmp_path / "run", epochs=1)
    best = tmp_path / "run" / "best.safetensors"
    weights = load_file(best)
    config = (tmp_path / "run" / "config.yaml").read_text().replace("pretrained: false", "pretrained: true")
    (tmp_path / "run" / "config.yaml").write_text(config)
    facts = {"model": TINY["model"], "model_settings": {**TINY["model_args"], "num_classes": 8, "img_size": 16}}
    save_file(weights, best, {"vitmix": json.dumps(facts)})  # without classes
    assert open_subject(tmp_path / "run").config.pretrained and no_network == []
    facts["model_settings"]["checkpoint_path"] = "/etc/passwd"
    save_file(weights, best, {"vitmix": json.dumps(facts)})
    with pytest.raises(ValueError, match="'checkpoint_path', which a file may not set"):
        open_subject(tmp_path / "run")


def test_only_preprocessing_can_be_set() -> None:
    assert set(PREPROCESSING) == {"size", "mean", "std", "crop_pct", "interpolation"} and set(PREPROCESSING) <= set(
        FIELDS
    )


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "3", '{"model": ' + "[" * 900 + "]" * 900 + "}"])
def test_what_is_no_header_says_nothing(tmp_path: Path, text: str) -> None:
    assert read_header(weights_saying(tmp_path, text)) == Header()


def test_the_epoch_of_weights(tmp_path: Path) -> None:
    assert epoch_of(weights_saying(tmp_path, HONEST | {"epoch": 3})) == 3
    for facts in (HONEST, "[" * 100_000, "[]", {"epoch": "3"}, {"epoch": -1}, {"epoch": True}, {"epoch": 1.5}):
        assert epoch_of(weights_saying(tmp_path, facts)) is None
    (tmp_path / "weights.safetensors").write_bytes(b"\0" * 50)
    assert epoch_of(tmp_path / "weights.safetensors") is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=6,
)


@given(part=st.sampled_from(["model", "model_settings", "preprocessing", "classes"]), value=anything, data=st.data())
def test_any_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, part: str, value: Any, data: st.DataObject
) -> None:
    facts = dict(HONEST)
    if isinstance(facts[part], dict) and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(facts[part])))
        facts[part] = {**facts[part], key: value}
    else:
        facts[part] = value
    path = tmp_path_factory.mktemp("header") / "weights.safetensors"
    save_file({"head.weight": torch.zeros(8, 16)}, path, {"vitmix": json.dumps(facts)})
    try:
        found = read_header(path)
    except ValueError as refusal:
        assert str(path) in str(refusal) and "\n" not in str(refusal)
        return
    assert found.model is None or timm.is_model(found.model)


@pytest.mark.parametrize("content", [{1: torch.zeros(2)}, {"state_dict": {None: torch.zeros(2)}}])
def test_weights_need_names(content: dict[Any, Any], tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="instead of named weights"):
        open_subject(tmp_path / "weights.pth", model="test_vit")


def test_a_hostile_header_gives_no_hint(tmp_path: Path) -> None:
    path = weights_saying(tmp_path, {**HONEST, "preprocessing": []})
    with pytest.raises(ValueError, match="the weights in .* do not fit this"):
        open_subject(path, model="test_vit", model_args={"num_classes": 8})


def exported(folder: Path, model: str, *sides: int) -> Path:
    """The config.json of an exported folder."""
    cfg = {"input_size": [3, *sides], "mean": [0.5] * 3, "std": [0.5] * 3}
    facts = {"architecture": model, "num_classes": 8, "pretrained_cfg": cfg, "label_names": HONEST["classes"]}
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "model.onnx"])
def test_an_export_names_its_models_image_size(tmp_path: Path, name: str) -> None:
    """Otherwise a small folder could cause days of computation."""
    model = "deit_tiny_patch16_224"
    with torch.device("meta"):
        weights = timm.create_model(model, num_classes=8).state_dict()
    save_file({key: torch.empty(each.shape) for key, each in weights.items()}, tmp_path / name)
    assert read_export(exported(tmp_path, model, 224, 224)).preprocessing["size"] == 224
    for sides in ((4096, 4096), (4096, 224)):
        with pytest.raises(ValueError, match="size is .*4096.*, but its deit_tiny_patch16_224 takes images of 224"):
            read_export(exported(tmp_path, model, *sides))


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems may have no holes")
def test_a_file_of_holes_holds_no_weights(tmp_path: Path) -> None:
    with open(tmp_path / "model.onnx", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="values, but the file holds"):
        read_export(exported(tmp_path, "vit_large_patch16_224", 224, 224))
