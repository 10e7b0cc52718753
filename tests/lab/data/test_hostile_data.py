"""Data of unknown origin: what would hang, fill the memory or end in a traceback is skipped or refused."""

import errno
import hashlib
import io
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image

from training import one_thread  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.data import open_images, tar_index
from vitmix.lab.data import tar_sets as tars
from vitmix.lab.data.archive import MOST_COMPRESSED
from vitmix.lab.data.hf_sets import ArrowImages
from vitmix.lab.data.images import ArrayImages, BrokenImage, DataLost, NothingReadable
from vitmix.lab.data.object_masks import MaskFolder
from vitmix.lab.evaluation.shifts import open_class_folders
from vitmix.lab.figures import read_image
from vitmix.lab.maps.making import make_maps
from vitmix.lab.maps.stored import MapShard, describe_data, read_label_maps, read_top_maps
from vitmix.lab.maps.teachers import Teacher, saliency_teacher
from vitmix.lab.reading import is_fault, open_regular, read_bytes

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Everything here ends within seconds, and nothing goes to the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start = time.process_time()
    yield
    assert time.process_time() - start < 5


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


def folder_of(place: Path, *classes: str) -> Path:
    for split in ("train", "val"):
        for name in classes:
            (place / split / name).mkdir(parents=True)
            for number in range(2):
                (place / split / name / f"{number}.png").write_bytes(png(number))
    return place


# Regular files


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    (tmp_path / "file").write_bytes(b"four")
    assert read_bytes(tmp_path / "file", 4) == b"four"
    with pytest.raises(ValueError, match="more than the 3 bytes allowed"):
        read_bytes(tmp_path / "file", 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no sockets in the file system")
def test_a_socket_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(OSError, match="not a regular file"):
            open_regular("socket")


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTCONN, errno.EKEYEXPIRED, errno.EIO, errno.ESTALE])
def test_what_may_be_intact_is_not_damaged(number: int) -> None:
    assert is_fault(OSError(number, "x"))


@pytest.mark.parametrize(
    "error",
    [OSError("image file is truncated"), FileNotFoundError(errno.ENOENT, "x"), IsADirectoryError(errno.EISDIR, "x")],
)
def test_what_a_file_holds_is_no_fault(error: OSError) -> None:
    assert not is_fault(error)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN])
def test_a_place_that_fails_leaves_images_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    images = open_images(f"imagefolder:{folder_of(tmp_path, 'a', 'b')}", "train")

    def fail(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("vitmix.lab.data.images.read_bytes", fail)
    with pytest.raises(DataLost, match=f"imagefolder.* cannot be read now: {os.strerror(number)}; rerun the command"):
        images.readable(0)
    assert not images.broken
    number = errno.EIO  # a bad sector concerns one file
    with pytest.raises(NothingReadable):
        images.readable(0)


def test_postscript_does_not_reach_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow looks at the content, and runs Ghostscript for EPS under any name."""
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, format="EPS")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("ran a program"))
    path = folder_of(tmp_path, "a", "b") / "train" / "a" / "0.png"
    path.write_bytes(content.getvalue())
    with pytest.raises(BrokenImage, match="not an image of a known kind"):
        open_images(f"imagefolder:{tmp_path}", "train")[0]
    with pytest.raises(ValueError, match="not an image of a known kind"):
        read_image(str(path), 16)
    with pytest.raises(ValueError, match="not an image of a known kind"):
        MaskFolder(path.parents[1], open_images(f"imagefolder:{tmp_path}", "train")).read(0)


def test_a_header_takes_no_more_memory_than_its_file(tmp_path: Path) -> None:
    """A PNG whose pixels are said to have 4 GB, in a folder and by itself."""
    whole = png(1)
    at = whole.index(b"IDAT") - 4
    path = folder_of(tmp_path, "a", "b") / "train" / "a" / "0.png"
    path.write_bytes(whole[:at] + b"\xff\xff\0\0" + whole[at + 4 :])
    images = open_images(f"imagefolder:{tmp_path}", "train")
    tracemalloc.start()
    try:
        with suppress(BrokenImage):
            images[0]
        with suppress(ValueError):
            read_image(str(path), 16)
        assert read_bytes(path, 2**31) == path.read_bytes()
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("mode", ["RGB", "I;16"])
def test_a_large_image_takes_little_more_than_its_pixels(tmp_path: Path, mode: str) -> None:
    """As a whole process: Pillow's memory is not Python's."""
    path = tmp_path / "large.png"
    Image.new(mode, (4000, 4000)).save(path, compress_level=1)
    script = (
        "from vitmix.lab.figures import read_image\n"
        "peak = lambda: next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        f"before = peak(); read_image({str(path)!r}, 4000); print(peak() - before)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    pixels = 4000 * 4000 * 4 / 1024  # KiB of an RGB image in Pillow
    assert int(said.stdout) < 2.5 * pixels


# Folders of images


def test_links_that_lead_back_are_followed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = folder_of(tmp_path / "data", "a", "b")
    for number in range(12):  # each a way to all others
        inside = data / "train" / "a" / f"d{number}"
        inside.mkdir()
        (inside / "x.png").write_bytes(png(number))
        for other in range(12):
            (inside / f"to{other}").symlink_to(data / "train" / "a" / f"d{other}")
    (data / "train" / "b" / "up").symlink_to(data / "train" / "b")
    (data / "train" / "b" / "self").symlink_to("self")
    images = open_images(f"imagefolder:{data}", "train")
    assert [images.name(number) for number in range(len(images))] == [
        *("a/0.png", "a/1.png", *sorted(f"a/d{number}/x.png" for number in range(12)), "b/0.png", "b/1.png")
    ]
    assert "skipped 144 entries" in caplog.text and "skipped 1 entries" in caplog.text


def test_links_to_elsewhere_are_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.png").write_bytes(png(1))
    data = folder_of(tmp_path / "data", "a", "b")
    (data / "train" / "a" / "more").symlink_to(elsewhere)
    (data / "train" / "a" / "link.png").symlink_to(elsewhere / "x.png")
    (data / "train" / "a" / "lost.png").symlink_to(elsewhere / "gone.png")
    images = open_images(f"imagefolder:{data}", "train")
    names = [images.name(number) for number in range(len(images))]
    assert names[:5] == ["a/0.png", "a/1.png", "a/link.png", "a/lost.png", "a/more/x.png"]
    with pytest.raises(BrokenImage, match="lost.png: no such file"):
        images[3]


def test_pipes_named_like_images_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = folder_of(tmp_path / "data", "n01440764", "n01443537")
    os.mkfifo(data / "train" / "n01440764" / "x.png")
    (data / "train" / "n01440764" / "zero.png").symlink_to("/dev/zero")
    images = open_images(f"imagefolder:{data}", "train")
    assert len(images) == 4 and "skipped 2 entries" in caplog.text and "x.png" in caplog.text
    shifted = open_class_folders(data / "train", {"n01440764": 0, "n01443537": 1}, "a set")
    assert len(shifted.images) == 4
    # One that takes the place of an image later is an image that cannot be read.
    path = data / "train" / "n01440764" / "0.png"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BrokenImage, match="not a regular file"):
        images[0]


@pytest.mark.parametrize("named", ["/dev/zero", "pipe"])
def test_rows_that_name_what_is_no_file_are_unreadable(tmp_path: Path, named: str) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra hf)")
    os.mkfifo(tmp_path / "pipe")
    rows = [{"bytes": None, "path": str(tmp_path / named)}, {"bytes": png(1), "path": None}]
    features = datasets.Features({"image": datasets.Image(decode=False)})
    found = datasets.Dataset.from_dict({"image": rows}, features=features)
    images = ArrowImages(found, "image", np.array([0, 1]), ["a", "b"], "rows")
    with pytest.raises(BrokenImage, match="not a regular file"):
        images[0]
    assert images[1][1] == 1


# Shards


def write_tar(path: Path, count: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            for kind, content in (("png", png(number)), ("cls", str(number % 2).encode())):
                entry = tarfile.TarInfo(f"{number}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return path


def index_in(folder: Path) -> Path:
    (found,) = folder.glob(".vitmix-*.npz")
    return found


def arrays(**changes: Any) -> bytes:
    file = io.BytesIO()
    whole = {name: np.zeros(4, np.int64) for name in ("shard", "offset", "size", "label")} | {
        "name": np.array([b"x"] * 4)
    }
    np.savez(file, **{name: each for name, each in {**whole, **changes}.items() if each is not None})
    return file.getvalue()


GARBLED = {
    "empty": b"",
    "zeros": b"\0" * 5000,
    "other text": b"PK\x03\x04 and no more",
    "other numbers": arrays(shard=np.full(4, 7)),
    "before the start": arrays(offset=np.full(4, -1)),
    "behind the end": arrays(size=np.full(4, 2**62)),
    "negative": arrays(size=np.full(4, -1)),
    "fractions": arrays(offset=np.zeros(4)),
    "one short": arrays(label=np.zeros(3, np.int64)),
    "without names": arrays(name=None),
    "no samples": arrays(**{name: np.zeros(0, np.int64) for name in tar_index.Index._fields}),
}


@pytest.mark.parametrize("name", GARBLED)
def test_an_index_that_cannot_be_read_is_built_again(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "data" / "train-0.tar")
    open_images(f"wds:{tmp_path / 'data'}", "train")
    path = index_in(tmp_path / "data")
    whole = path.read_bytes()
    path.write_bytes(GARBLED[name])
    images = open_images(f"wds:{tmp_path / 'data'}", "train")
    assert np.asarray(images[1][0])[0, 0, 0] in (0, 1, 2, 3)
    assert path.read_bytes() == whole and len(os.listdir(path.parent)) == 2


def test_half_an_index_is_built_again(tmp_path: Path) -> None:
    write_tar(tmp_path / "data" / "train-0.tar", 40)
    tar_index.read_index([str(tmp_path / "data" / "train-0.tar")])
    path = index_in(tmp_path / "data")
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        tar_index.read_index([str(tmp_path / "data" / "train-0.tar")])
        assert path.read_bytes() == whole
    path.unlink()
    os.mkfifo(path)
    tar_index.read_index([str(tmp_path / "data" / "train-0.tar")])
    assert path.is_fifo() and (tmp_path / "cache" / "vitmix" / path.name).is_file()


def test_an_index_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = write_tar(tmp_path / "data" / "train-0.tar")
    done: list[tuple[str, int]] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(("sync", os.fstat(handle).st_size))
        sync(handle)

    def renamed(source: str, target: str) -> None:
        done.append(("rename", os.path.getsize(source)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    tar_index.read_index([str(shard)])
    assert [what for what, _ in done] == ["sync", "rename", "sync"] and done[0][1] == done[1][1] > 0


def test_an_interrupted_index_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = write_tar(tmp_path / "data" / "train-0.tar")

    def interrupted(*given: Any, **arrays: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tar_index.read_index([str(shard)])
    assert os.listdir(tmp_path / "data") == ["train-0.tar"]


@pytest.mark.parametrize(
    "pattern",
    [
        *("{0..99999999999}.tar", "{0..99999999999}*.tar", "{" + "9" * 400 + ".." + "9" * 401 + "}.tar"),
        *("{a}" * 1500, "{" * 1500 + "}" * 1500, "train-0{" + "," * 2000 + "}{" + "," * 2000 + "}.tar"),
    ],
    ids=["numbers", "globs", "digits", "groups", "nested", "products"],
)
def test_patterns_that_stand_for_too_many(tmp_path: Path, pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    write_tar(tmp_path / "train-0.tar")
    with pytest.raises(ValueError, match="wds: "):
        tars.find_shards(f"{tmp_path}/{pattern}")
    assert cli.main(["eval", "test_vit", "--data", f"wds:{tmp_path}/{pattern}"]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_braces_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "MOST_SHARDS", 10)
    assert len(tars.expand_braces("{0..9}")) == 10
    with pytest.raises(ValueError, match="more than 10 shards"):
        tars.expand_braces("{0..4}{0..4}")


def test_a_pipe_is_no_shard(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.tar")
    for place in (tmp_path, tmp_path / "train.tar", tmp_path / "*.tar"):
        with pytest.raises(ValueError, match="not a regular file|no shard"):
            open_images(f"wds:{place}", "train")


def test_members_that_are_larger_than_the_file(tmp_path: Path) -> None:
    for name, size in (("0.png", 2**40), ("0.cls", 2**40), ("0.json", 2**40)):
        entry = tarfile.TarInfo(name)
        entry.size = size
        (tmp_path / "train.tar").write_bytes(entry.tobuf() + b"\0" * 1024)
        with pytest.raises(ValueError, match="larger than the file|not a complete tar"):
            open_images(f"wds:{tmp_path}", "train")
    entry = tarfile.TarInfo("0.png")
    entry.size = -512  # whose end is its beginning
    content = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    (tmp_path / "train.tar").write_bytes(bytes(content) + b"\0" * 1024)
    with pytest.raises(ValueError, match="-512 bytes|not a complete tar"):
        open_images(f"wds:{tmp_path}", "train")


def test_any_bytes_are_a_shard_or_a_sentence(tmp_path: Path) -> None:
    whole = bytearray(write_tar(tmp_path / "train.tar").read_bytes())
    for seed in range(300):
        chance = random.Random(seed)
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 20)):
            content[chance.randrange(512 * 4)] = chance.randrange(256)
        (tmp_path / "train.tar").write_bytes(content)
        try:
            list(tar_index._samples(0, str(tmp_path / "train.tar")))
        except ValueError as refusal:
            assert str(refusal).startswith("wds: "), seed


# Arrays


def npy(shape: str, kind: str = "|u1", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


LABELS = npy("(2,)", "<i8", struct.pack("<2q", 0, 1))
IMAGES = npy("(2, 4, 4, 3)", data=b"\7" * 96)


def test_arrays_made_by_hand_are_read(tmp_path: Path) -> None:
    pixels, labels = npy("(20, 4, 4, 3)", data=b"7" * 960), npy("(20,)", data=bytes([0, 1] * 10))
    images = open_images(f"npz:{npz(tmp_path / 'a.npz', images=pixels, labels=labels)}", "train")
    assert len(images) == 18


HOSTILE = {
    "terabytes": npy("(1000000000, 100, 100, 3)"),
    "terabytes of numbers": npy("(1000000000000,)", "<f8"),
    "more than can be counted": npy("(" + "9" * 400 + ",)"),
    "negative": npy("(-5, 4, 4, 3)"),
    "no height": npy("(2, 0, 4, 3)"),
    "no width": npy("(2, 4, 0, 3)"),
    "no pixels of gray": npy("(2, 0, 0)"),
    "deep": npy("(" * 500 + "1," + ")" * 500),
    "fractions": npy("(1.5, 4, 4, 3)"),
    "no array": b"hello",
    "nothing": b"",
    "one byte short": IMAGES[:-1],
    "an object": npy("(2,)", "|O"),
    "structured": npy("(2,)", "[('a', '<i4')]"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("compression", MOST_COMPRESSED)
def test_hostile_arrays_are_one_sentence(
    tmp_path: Path, name: str, compression: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = npz(tmp_path / "data.npz", compression, images=HOSTILE[name], labels=LABELS)
    said = "it claims .* bytes, but .* are stored" if "terabytes" in name else "npz: "  # before numpy asks for memory
    with pytest.raises(ValueError, match=said):
        open_images(f"npz:{path}", "train")
    path = npz(tmp_path / "data.npz", compression, images=IMAGES, labels=HOSTILE[name])
    assert cli.main(["eval", "test_vit", "--data", f"npz:{path}"]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_what_is_said_of_an_archive_is_not_believed_either(tmp_path: Path) -> None:
    """The sizes in the archive's list, made as large as the array says that it is."""
    path = npz(tmp_path / "data.npz", images=HOSTILE["terabytes of numbers"], labels=LABELS)
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    struct.pack_into("<II", content, place + 20, 2**32 - 2, 2**32 - 2)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it claims .* bytes, but .* are stored"):
        open_images(f"npz:{path}", "train")


def test_hostile_files_of_one_array(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(npy("(1000000000000,)", "<f8"))
    with pytest.raises(ValueError, match="one array without a name"):
        open_images(f"npz:{tmp_path / 'data.npz'}", "train")
    (tmp_path / "data.npz").unlink()
    os.mkfifo(tmp_path / "data.npz")
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / "train.npz")
    with pytest.raises(ValueError, match="not a regular file"):
        open_images(f"npz:{tmp_path / 'x'}", "train")


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": npy("()", "<i8", b"\0" * 8)},
        {"offset": npy("(2,)", "<f8", b"\0" * 16)},
        {"offset": npy("(2, 1)", "<i8", b"\0" * 16)},
        {"webp": npy("()", data=b"\0")},
        {"offset": npy("(0,)", "<i8")},
        {"offset": npy("(2,)", "<i8", struct.pack("<2q", -(2**60), 2**60))},
    ],
)
def test_hostile_strips_are_one_sentence(tmp_path: Path, changes: dict[str, bytes]) -> None:
    whole = {"webp": npy("(4,)", data=b"RIFF"), "offset": npy("(2,)", "<i8", struct.pack("<2q", 0, 4)), "label": LABELS}
    with pytest.raises(ValueError):
        open_images(f"npz:{npz(tmp_path / 'data.npz', **whole | changes)}", "train")


def test_any_bytes_are_arrays_or_a_sentence(tmp_path: Path) -> None:
    pixels, labels = npy("(20, 4, 4, 3)", data=b"7" * 960), npy("(20,)", data=bytes([0, 1] * 10))  # enough to hold out
    path = npz(tmp_path / "data.npz", images=pixels, labels=labels)
    whole = path.read_bytes()
    (tmp_path / "classes.json").write_text(json.dumps(["a", "b"]))
    opened = 0
    for seed in range(300):
        chance = random.Random(seed)
        content = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        for _ in range(chance.randrange(8)):
            content[chance.randrange(len(content))] = chance.randrange(256) if content else 0
        path.write_bytes(content)
        try:
            opened += len(open_images(f"npz:{path}", "train")) > 0
        except ValueError as refusal:
            assert "\n" not in str(refusal), seed
    assert 10 < opened < 290, opened


# Activation maps

CHANGES: dict[str, dict[str, Any]] = {
    "a device as shard": {"shards": [{"file": "/dev/zero", "rows": [0, 4], "sha256": ""}]},
    "a shard that is none": {"shards": [3]},
    "rows that are none": {"shards": [{"file": "x", "rows": ["0", 4], "sha256": ""}]},
    "a grid of terabytes": {"grid": [10**6, 10**6]},
    "a grid that is none": {"grid": "x"},
    "another grid": {"grid": [3, 3]},
    "no classes": {"classes": []},
    "classes that are none": {"classes": ["a", "b"]},
    "looks that are none": {"data": []},
}


@pytest.mark.parametrize("name", CHANGES)
def test_hostile_maps_are_one_sentence(tmp_path: Path, name: str) -> None:
    images = four_images()
    make_maps(images, saliency_teacher("spectral"), tmp_path)
    assert read_label_maps(tmp_path, images).shape == (4, 16, 16)
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | CHANGES[name]))
    with pytest.raises(ValueError):
        read_label_maps(tmp_path, images)


def four_images() -> ArrayImages:
    pixels = np.random.default_rng(0).integers(0, 255, (4, 16, 16, 3), np.uint8)
    return ArrayImages(pixels, [0, 1, 0, 1], ["a", "b"], "four")


def top_maps(folder: Path, spans: list[tuple[int, int]], **changes: Any) -> ArrayImages:
    """A folder of the two highest logits, in shards of these rows, with other arrays or classes in it."""
    images, teacher = four_images(), Teacher("t", torch.nn.Identity(), (16, 16))
    number, rank = np.indices((4, 2, 3, 3))[:2]
    arrays = {"values": number.astype(np.float16), "classes": rank.astype(np.uint16)} | changes
    shards = []
    for number, (first, end) in enumerate(spans):
        content = safetensors.numpy.save({name: arrays[name][first:end].copy() for name in ("values", "classes")})
        (folder / f"{number}.safetensors").write_bytes(content)
        shards.append(MapShard(f"{number}.safetensors", (first, end), hashlib.sha256(content).hexdigest()))
    index = {"format": 1, "top": 2, "classes": changes.get("known", (0, 1)), "grid": (3, 3), "broken": ()}
    facts = {"data": describe_data(images).to_json(), "teacher": teacher.facts().to_json()}
    (folder / "index.json").write_text(json.dumps(index | facts | {"shards": [each.to_json() for each in shards]}))
    return images


def test_maps_in_several_shards_are_read(tmp_path: Path) -> None:
    images = top_maps(tmp_path, [(2, 4), (0, 2)])
    values, classes = read_top_maps(tmp_path, images)
    assert values.shape == classes.shape == (4, 2, 3, 3) and classes[0, :, 2, 2].tolist() == [0, 1]
    assert values[:, 1, 2, 2].tolist() == read_label_maps(tmp_path, images)[:, 0, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("spans", [[(0, 2), (1, 3)], [(0, 2), (0, 2)], [(0, 4), (1, 2)], [(0, 3)], [(0, 2), (1, 4)]])
@pytest.mark.parametrize("read", [read_label_maps, read_top_maps])
def test_shards_must_hold_each_image_once(tmp_path: Path, spans: list[tuple[int, int]], read: Any) -> None:
    images = top_maps(tmp_path, spans)
    with pytest.raises(ValueError, match="shards overlap|lacks the maps of 1 of 4 images"):
        read(tmp_path, images)


LOGITS, NUMBERS = np.ones((4, 2, 3, 3), np.float16), np.ones((4, 2, 3, 3), np.int64)
UNFIT: dict[str, dict[str, Any]] = {
    "NaN": {"values": np.where(NUMBERS.cumsum().reshape(NUMBERS.shape) == 17, np.float16("nan"), LOGITS)},
    "infinite": {"values": LOGITS * np.float16("inf")},
    "too large": {"values": LOGITS.astype(np.float64) * 1e30},
    "integers": {"values": NUMBERS},
    "no logits": {"values": LOGITS[:, :0], "classes": NUMBERS[:, :0]},
    "large classes": {"classes": NUMBERS << 40},
    "classes that wrap around": {"classes": NUMBERS + 2**32},
    "negative classes": {"classes": -NUMBERS},
    "large classes of the teacher": {"known": (0, 2**40)},
    "negative classes of the teacher": {"known": (-1, 0)},
}


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("read", [read_label_maps, read_top_maps])
def test_unfit_numbers_in_maps_are_one_sentence(tmp_path: Path, name: str, read: Any) -> None:
    """A NaN loss, many updates later, would blame the learning rate."""
    images = top_maps(tmp_path, [(0, 2), (2, 4)], **UNFIT[name])
    with pytest.raises(ValueError, match=r"does not hold the maps of 2 images|not an index of activation maps"):
        read(tmp_path, images)


def test_one_class_several_times_stays_finite(tmp_path: Path) -> None:
    images = top_maps(tmp_path, [(0, 4)], values=LOGITS * np.float16(60_000), classes=NUMBERS)
    assert read_label_maps(tmp_path, images).isfinite().all()


@pytest.mark.parametrize("factor", [float("nan"), 1e6])
def test_a_teacher_whose_maps_are_not_finite_is_refused(tmp_path: Path, factor: float) -> None:
    """1e6 is infinite in the half precision in which maps are stored."""

    class Unfit(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images[:, :2, ::8, ::8] * 0 + factor

    teacher = Teacher("unfit", Unfit(), (16, 16), mean=(0.0,) * 3, std=(1.0,) * 3)
    with pytest.raises(ValueError, match="^teacher unfit gives image 0 a map .* not finite.*; use another teacher$"):
        make_maps(four_images(), teacher, tmp_path)


def test_shards_of_other_sizes_are_made_again(tmp_path: Path) -> None:
    images, teacher = four_images(), saliency_teacher("spectral")
    make_maps(images, teacher, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "other")
    index = json.loads((tmp_path / "other" / "index.json").read_text())
    index["shards"] = [index["shards"][0] | {"rows": [0, 3]}]
    (tmp_path / "other" / "index.json").write_text(json.dumps(index))
    make_maps(images, teacher, tmp_path / "other")
    assert torch.equal(read_label_maps(tmp_path / "other", images), read_label_maps(tmp_path / "whole", images))
