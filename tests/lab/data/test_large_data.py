"""Data that does not fit a folder of files: WebDataset shards and Hugging Face data sets, in any order, resumably."""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fsdp_worker import METHODS, SETTINGS
from training import one_thread, run_pair, same_weights, train, train_until, weights  # noqa: F401
from training import rows as epochs
from vitmix.lab.data import Augmentation, EvalLoader, TrainLoader, open_images, tar_index
from vitmix.lab.data import tar_sets as tars
from vitmix.lab.data.images import BrokenImage

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = Augmentation(size=16, scale=None, hflip=0, auto_augment=None, erasing=0, crop_pct=1.0)


def png(number: int) -> bytes:
    """Of one color, which tells which image it is."""
    file = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def shard(path: Path, numbers: range, classes: int = 3) -> Path:
    files: dict[str, bytes] = {}
    for number in numbers:
        files |= {f"{number:04d}.png": png(number), f"{number:04d}.cls": str(number % classes).encode()}
    return write_tar(path, files)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(3):
        shard(tmp_path / "data" / f"set-train-{number:03d}.tar", range(10 * number, 10 * number + 10))
    shard(tmp_path / "data" / "set-val-000.tar", range(100, 108))
    return tmp_path / "data"


def numbers_of(loader: EvalLoader) -> list[int]:
    batches = [batch.images for batch in loader]
    means, stds = torch.tensor(PLAIN.mean), torch.tensor(PLAIN.std)
    pixels = torch.cat(batches)[:, :, 0, 0] * stds + means
    return [round(float(value) * 255) for value in pixels.mean(1)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", ["a"]),
        ("a{08..11}.tar", ["a08.tar", "a09.tar", "a10.tar", "a11.tar"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{x,y}-{0..1}", ["x-0", "x-1", "y-0", "y-1"]),
    ],
)
def test_braces(text: str, found: list[str]) -> None:
    assert tars.expand_braces(text) == found


def test_braces_are_those_of_webdataset() -> None:
    braceexpand = pytest.importorskip("braceexpand", reason="webdataset is not installed (extra dev)").braceexpand
    for text in ("a-{000..012}.tar", "{train,val}-{0..2}.tar", "{098..101}", "plain.tar"):
        assert tars.expand_braces(text) == list(braceexpand(text))


@pytest.mark.parametrize("place", ["", "/set-train-{000..002}.tar", "/set-train-*.tar"])
def test_shards_are_read_in_order(shards: Path, place: str) -> None:
    images = open_images(f"wds:{shards}{place}?holdout=0.1" if place else f"wds:{shards}", "train")
    kept = numbers_of(EvalLoader(images, PLAIN, batch=7))
    assert kept == list(range(30)) if not place else set(kept) < set(range(30)) and len(kept) == 27
    assert [int(label) for label in images.labels] == [number % 3 for number in kept]


def test_splits_by_name(shards: Path) -> None:
    assert numbers_of(EvalLoader(open_images(f"wds:{shards}", "test"), PLAIN, batch=4)) == list(range(100, 108))
    shard(shards / "train" / "000.tar", range(3))  # the folder's name counts where the file's says nothing
    assert len(open_images(f"wds:{shards}", "train")) == 33
    shard(shards / "other.tar", range(3))
    with pytest.raises(ValueError, match=r"other\.tar.*is not; give every shard its split"):
        open_images(f"wds:{shards}", "train")


def test_every_rank_and_worker_reads_its_own(shards: Path) -> None:
    images = open_images(f"wds:{shards}", "train")
    seen = [
        int(index)
        for rank in (0, 1)
        for batch in TrainLoader(images, PLAIN, batch=5, seed=3, workers=rank, rank=rank, world=2).epoch(1)
        for index in batch.indices
    ]
    assert sorted(seen) == list(range(30)) and seen != sorted(seen)


def test_index_is_built_once(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(open_images(f"wds:{shards}", "train")) == 30
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", lambda *given: pytest.fail("the shard was scanned again"))
        assert len(open_images(f"wds:{shards}", "train")) == 30
    shard(shards / "set-train-001.tar", range(10, 15))  # changed: a new index
    assert len(open_images(f"wds:{shards}", "train")) == 25


def test_index_goes_to_the_cache_of_read_only_data(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write = tar_index._write
    monkeypatch.setattr(
        tar_index, "_write", lambda content, folder, name: folder.endswith("vitmix") and write(content, folder, name)
    )
    open_images(f"wds:{shards}", "val")
    assert {path.suffix for path in (tmp_path / "cache" / "vitmix").iterdir()} == {".npz"}
    assert not list(shards.glob(".vitmix*"))


def test_labels_from_json_and_names_of_classes(tmp_path: Path) -> None:
    files = {"a/x.jpg.png": b"", "a/1.png": png(1), "a/1.json": b'{"label": 1}', "2.png": png(2)}
    write_tar(tmp_path / "0.tar", {**files, "2.json": b'{"label": 0, "text": "two"}', "2.txt": b"two"})
    (tmp_path / "classes.json").write_text(json.dumps(["cat", "dog"]))
    images = tars.tar_splits(str(tmp_path))["train"]()
    assert list(images.labels) == [1, 0] and images.classes == ["cat", "dog"]
    assert images.name(0) == "0.tar[a/1]"


def test_written_by_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed (extra dev)")
    with webdataset.ShardWriter(str(tmp_path / "w-%03d.tar"), maxcount=4, verbose=0) as writer:
        for number in range(10):
            image = Image.fromarray(np.full((16, 16, 3), number, np.uint8))
            writer.write({"__key__": f"{number:03d}", "png": image, "cls": number % 2})
    images = tars.tar_splits(f"{tmp_path}/w-{{000..002}}.tar")["train"]()
    assert numbers_of(EvalLoader(images, PLAIN, batch=4)) == list(range(10))
    assert list(images.labels) == [0, 1] * 5


def test_broken_images_are_named(tmp_path: Path) -> None:
    files = {"0.png": png(0)[:40], "0.cls": b"0", "1.png": png(1), "1.cls": b"1"}
    images = tars.tar_splits(str(write_tar(tmp_path / "s.tar", files)))["train"]()
    with pytest.raises(BrokenImage, match=r"s\.tar\[0\]"):
        images[0]
    assert images.readable(0)[2] == 1


def test_refusals_of_shards(tmp_path: Path) -> None:
    def sentence(text: str) -> str:
        with pytest.raises(ValueError) as caught:
            open_images(text, "train")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "is a program" in sentence("wds:pipe:curl https://example.org/{0..3}.tar")
    assert "holds no .tar files" in sentence(f"wds:{tmp_path}")
    assert "there is no shard" in sentence(f"wds:{tmp_path}/a-{{0..3}}.tar")
    write_tar(tmp_path / "no_label.tar", {"1.png": png(1)})
    assert "has no label" in sentence(f"wds:{tmp_path}/no_label.tar")
    write_tar(tmp_path / "bad_label.tar", {"1.png": png(1), "1.cls": b"cat"})
    assert "class number" in sentence(f"wds:{tmp_path}/bad_label.tar")
    write_tar(tmp_path / "huge_label.tar", {"1.png": png(1), "1.cls": str(10**30).encode()})
    assert "class number" in sentence(f"wds:{tmp_path}/huge_label.tar")
    write_tar(tmp_path / "texts.tar", {"1.txt": b"words"})
    assert "no samples" in sentence(f"wds:{tmp_path}/texts.tar")
    (tmp_path / "not.tar").write_bytes(b"not a tar at all" * 100)
    assert "complete tar file" in sentence(f"wds:{tmp_path}/not.tar")
    whole = shard(tmp_path / "cut.tar", range(10)).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2 + 100])
    assert "cut.tar" in sentence(f"wds:{tmp_path}/cut.tar")
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob(".vitmix*"))
    (tmp_path / "a.tar.gz").write_bytes(b"")
    assert "not a .tar file" in sentence(f"wds:{tmp_path}/a.tar.gz")


def test_an_absurd_label_does_not_name_millions_of_classes(tmp_path: Path) -> None:
    write_tar(tmp_path / "data.tar", {"1.png": png(1), "1.cls": str(10**7).encode()})
    with pytest.raises(ValueError, match="label 10000000 among 1 images, more than the 100,000 classes"):
        open_images(f"wds:{tmp_path}/data.tar", "train")


def test_training_on_shards_resumes_exactly(shards: Path, tmp_path: Path) -> None:
    settings = {"data": f"wds:{shards}", "method": "mixup", "batch": 6, "eval_split": "val"}
    train(tmp_path / "whole", **settings)
    train_until(tmp_path / "parts", 4, checkpoint_every="3 steps", workers=2, **settings)
    train(tmp_path / "parts", workers=1, **settings)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


# Hugging Face


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets", reason="datasets is not installed (extra hf)")


def rows(datasets, numbers: range, **more):
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cow"]), **more}
    columns = {
        "image": [{"bytes": png(number), "path": None} for number in numbers],
        "label": [number % 3 for number in numbers],
        **{name: [number % 2 for number in numbers] for name in more},
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.mark.parametrize("form", ["disk", "parquet", "imagefolder"])
def test_forms_of_hugging_face_data(datasets, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "data"
    parts = {"train": rows(datasets, range(12)), "validation": rows(datasets, range(20, 26))}
    if form == "disk":
        datasets.DatasetDict(parts).save_to_disk(str(place))
    elif form == "parquet":
        for name, part in parts.items():
            part.to_parquet(place / f"{name}-00000-of-00001.parquet")
    else:
        for name, numbers in (("train", range(12)), ("validation", range(20, 26))):
            for number in numbers:
                path = place / name / ["ant", "bee", "cow"][number % 3] / f"{number:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(number))
    images = open_images(f"hfds:{place}", "train")
    assert images.classes == ["ant", "bee", "cow"] and len(images) == 12
    seen = numbers_of(EvalLoader(images, PLAIN, batch=5))
    assert sorted(seen) == list(range(12)) and [number % 3 for number in seen] == list(images.labels)
    assert sorted(numbers_of(EvalLoader(open_images(f"hfds:{place}", "test"), PLAIN, batch=5))) == list(range(20, 26))


def test_undivided_data_is_held_out_and_workers_agree(datasets, tmp_path: Path) -> None:
    rows(datasets, range(30)).shuffle(seed=0).save_to_disk(str(tmp_path / "data"))
    kept, held = (open_images(f"hfds:{tmp_path / 'data'}", split) for split in ("train", "val"))
    assert len(kept) == 27 and len(held) == 3
    here, there = (
        [batch.images for batch in TrainLoader(kept, PLAIN, batch=9, seed=1, workers=workers).epoch(0)]
        for workers in (0, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_columns_are_chosen(datasets, tmp_path: Path) -> None:
    rows(datasets, range(12), coarse=datasets.ClassLabel(names=["even", "odd"])).save_to_disk(str(tmp_path / "data"))
    with pytest.raises(ValueError, match=r"2 label columns \(label, coarse\); choose with"):
        open_images(f"hfds:{tmp_path / 'data'}", "train")
    assert open_images(f"hfds:{tmp_path / 'data'}(label=coarse)", "train").classes == ["even", "odd"]
    with pytest.raises(ValueError, match="unknown column"):
        open_images(f"hfds:{tmp_path / 'data'}(label=fine)", "train")
    with pytest.raises(ValueError, match="unknown setting of hfds 'labl'"):
        open_images(f"hfds:{tmp_path / 'data'}(labl=coarse)", "train")


def test_labels_as_words(datasets, tmp_path: Path) -> None:
    part = rows(datasets, range(9)).cast_column("label", datasets.Value("int64"))
    words = part.remove_columns("label").add_column("label", [["dog", "ape", "cat"][n % 3] for n in range(9)])
    words.save_to_disk(str(tmp_path / "data"))
    images = open_images(f"hfds:{tmp_path / 'data'}?holdout=0.3", "train")
    assert images.classes == ["ape", "cat", "dog"]
    assert {images.classes[label] for label in images.labels} == {"ape", "cat", "dog"}


def test_an_absurd_label_of_hugging_face_data_is_refused(datasets, tmp_path: Path) -> None:
    part = rows(datasets, range(3)).remove_columns("label").add_column("label", [0, 1, 10**7])
    part.save_to_disk(str(tmp_path / "data"))
    with pytest.raises(ValueError, match="label 10000000 among 3 images"):
        open_images(f"hfds:{tmp_path / 'data'}", "train")


def test_missing_place(datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="neither a dataset folder") as caught:
        open_images(f"hfds:{tmp_path}/gone", "train")
    assert "\n" not in str(caught.value) and os.path.exists(tmp_path)


# Weights spread over processes


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes left their runs."""
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip(f"torch {torch.__version__} spreads weights over GPUs alone")
    folder = tmp_path_factory.mktemp("spread")
    run_pair("fsdp_worker.py", folder)
    return folder


@pytest.mark.parametrize("number", range(len(METHODS)), ids=METHODS)
def test_spread_weights_train_alike(spread: Path, number: int) -> None:
    whole, parts = weights(spread / f"{number}-False"), weights(spread / f"{number}-True")
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-5)


def test_each_process_holds_its_part(spread: Path) -> None:
    assert 0.45 < json.loads((spread / "facts.json").read_text())["held"] < 0.55


def test_spread_weights_resume_exactly(spread: Path) -> None:
    assert same_weights(weights(spread / "1-True"), weights(spread / "resumed"))
    assert same_weights(weights(spread / "1-True", "best"), weights(spread / "resumed", "best"))


def test_spread_weights_resume_before_an_evaluation(spread: Path) -> None:
    assert same_weights(weights(spread / "1-True"), weights(spread / "stopped"))


@pytest.mark.parametrize("number", range(len(METHODS)), ids=METHODS)
def test_spread_weights_are_measured_on_every_image_once(spread: Path, number: int) -> None:
    whole, parts = ([float(row["eval_loss"]) for row in epochs(spread / f"{number}-{fsdp}")] for fsdp in (False, True))
    assert parts == pytest.approx(whole, rel=1e-4)


def test_one_process_continues_what_two_spread(spread: Path) -> None:
    trainer = train(spread / "left", method=METHODS[1], grad_checkpointing=False, **SETTINGS)
    assert trainer.update == 6 and len(trainer.optimizer.state) == len(list(trainer.core.parameters()))
    assert weights(spread / "left").keys() == weights(spread / "1-False").keys()


def test_refusals_of_fsdp(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs several processes; start with torchrun"):
        train(tmp_path / "run", fsdp=True)
    assert not (tmp_path / "run").exists()
