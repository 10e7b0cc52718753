"""Shards by URL: found, fetched once into a bounded cache, read in an order that is a function of (seed, epoch)."""

import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from training import same_weights, train, train_until, weights
from vitmix.lab.cli import main as cli
from vitmix.lab.data import Augmentation, EvalLoader, TrainLoader, open_images, remote, shard_cache
from vitmix.lab.data.images import DataLost
from vitmix.lab.data.plan import EpochPlan, Window, generator_for, shuffled_order
from vitmix.lab.data.remote import RemoteShard
from vitmix.lab.data.shard_cache import ShardCache, in_units

PLAIN = Augmentation(16, crop_pct=1.0, scale=None, auto_augment=None)


def tar_bytes(numbers: range) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for number in numbers:
            image = io.BytesIO()
            Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(image, "PNG")
            for name, data in ((f"{number:04d}.png", image.getvalue()), (f"{number:04d}.cls", b"%d" % (number % 3))):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return content.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this test; attempts to fetch follow each other at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VITMIX_SHARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VITMIX_SHARD_CACHE_SIZE", "10 MB")
    monkeypatch.setattr(remote, "WAITS", (0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def url(tmp_path: Path, cache: Path) -> str:
    """A folder of three training shards and one to evaluate on."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        (folder / f"train-{number}.tar").write_bytes(tar_bytes(range(10 * number, 10 * number + 10)))
    (folder / "val-0.tar").write_bytes(tar_bytes(range(100, 108)))
    (folder / "classes.json").write_text(json.dumps(["ant", "bee", "cow"]))
    return f"file://{folder}"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that were fetched, in order."""
    names: list[str] = []
    copy = remote._copy

    def noted(shard: RemoteShard, target: Path) -> None:
        names.append(shard.url.rpartition("/")[2])
        copy(shard, target)

    monkeypatch.setattr(remote, "_copy", noted)
    return names


def order(images: Any, **settings: Any) -> list[int]:
    loader = TrainLoader(images, PLAIN, batch=5, seed=3, **settings)
    return [int(index) for batch in loader.epoch(1) for index in batch.indices]


def sentence(act: Callable[[], Any], kind: type[Exception] = ValueError) -> str:
    with pytest.raises(kind) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What a URL names


@pytest.mark.parametrize("pattern", ["", "/{train-{0..2},val-0}.tar", "/*.tar", "/train-[0-2].tar"])
def test_shards_of_a_url(url: str, pattern: str) -> None:
    images = open_images(f"wds:{url}{pattern}", "train")
    assert len(images) == (27 if "[" in pattern else 30) and images.classes == ["ant", "bee", "cow"]
    local = open_images(f"wds:{url.removeprefix('file://')}{pattern}", "train")
    assert order(images) == order(local) and images.name(0) == local.name(0)


def test_shards_in_memory_are_shards(cache: Path) -> None:
    fsspec.filesystem("memory").pipe({"/many/a-0.tar": tar_bytes(range(6)), "/many/a-1.tar": tar_bytes(range(6, 12))})
    images = open_images("wds:memory://many/a-{0..1}.tar?holdout=0.3", "train")
    assert len(images) < 12 and {images[index][1] for index in range(len(images))} == {0, 1, 2}


def test_refusals_of_urls(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no shard" in sentence(lambda: open_images(f"wds:{url}/train-{{0..9}}.tar", "train"))
    assert "there is no shard" in sentence(lambda: open_images(f"wds:{url}/nothing", "train"))
    assert "cannot be read by URL" in sentence(lambda: open_images("wds:sth://a/b.tar", "train"))
    assert "window must be a number" in sentence(lambda: open_images(f"wds:{url}(window=many)", "train"))
    assert "leave one of them out" in sentence(
        lambda: TrainLoader(open_images(f"wds:{url}(window=2)", "train"), PLAIN, batch=5, seed=0, balance=True)
    )
    for size in ("0", "-3 GB", "much", "5 parsec"):
        monkeypatch.setenv("VITMIX_SHARD_CACHE_SIZE", size)
        assert "must be a size above 0, such as '500 GB'" in sentence(lambda: open_images(f"wds:{url}", "train"))
    monkeypatch.setenv("VITMIX_SHARD_CACHE_SIZE", "15 KB")
    said = sentence(lambda: open_images(f"wds:{url}", "train"))
    assert "has 30.8 KB, and the shard cache holds 15 KB; set VITMIX_SHARD_CACHE_SIZE='122.9 KB' or more" in said


def test_a_cache_that_an_epoch_would_exhaust_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMIX_SHARD_CACHE_SIZE", "50 KB")
    images = open_images(f"wds:{url}", "train")
    said = sentence(lambda: order(images))
    assert "needs 92.2 KB for 3 shards, and the shard cache holds 50 KB; add (window=32) to the pattern, or" in said
    assert len([*EvalLoader(images, PLAIN, batch=5)]) == 6  # in order, which needs one shard at a time
    windowed = open_images(f"wds:{url}(window=2)", "train")
    said = sentence(lambda: order(windowed))
    assert "2 + 2 shards at a time" in said and "smaller window" in said


@pytest.mark.parametrize(("size", "text"), [(999, "999"), (1000, "1 KB"), (1_234_567_890, "1.3 GB"), (5e12, "5 TB")])
def test_sizes_read_as_they_are_written(size: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_units(size) == text
    monkeypatch.setenv("VITMIX_SHARD_CACHE_SIZE", text)
    assert size <= shard_cache.shard_cache().limit <= size * 1.1


# The index


def test_the_index_fetches_every_shard_once(url: str, cache: Path, fetched: list[str]) -> None:
    images = open_images(f"wds:{url}", "train")
    assert sorted(fetched) == ["train-0.tar", "train-1.tar", "train-2.tar"]
    order(images)
    assert len(fetched) == 3  # an epoch finds them in the cache
    for path in cache.iterdir():
        path.unlink()
    open_images(f"wds:{url}", "train")
    assert len(fetched) == 3  # the index lies beside the shards: other machines need not look through them either
    (Path(url.removeprefix("file://")) / "train-1.tar").write_bytes(tar_bytes(range(5)))
    assert len(open_images(f"wds:{url}", "train")) == 25


def test_the_index_stays_here_where_storage_is_read_only(
    url: str, tmp_path: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **settings: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(type(fsspec.filesystem("file")), "pipe_file", refuse)
    open_images(f"wds:{url}", "val")
    # Of the training images too: the classes are theirs.
    assert [path.suffix for path in (tmp_path / "home" / "vitmix").iterdir()] == [".npz", ".npz"]
    open_images(f"wds:{url}", "val")
    assert fetched.count("val-0.tar") == 1


# The order


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 30))
def test_a_window_mixes_neighboring_shards(shards: int, window: int, per_shard: int) -> None:
    numbers = np.repeat(np.arange(shards), per_shard)
    found = shuffled_order(len(numbers), generator_for(1, 2), Window(numbers, window))
    assert sorted(found.tolist()) == list(range(len(numbers)))
    first = [int(np.flatnonzero(numbers[found] == shard).min()) for shard in range(shards)]
    last = [int(np.flatnonzero(numbers[found] == shard).max()) for shard in range(shards)]
    for place in range(len(numbers)):
        assert sum(a <= place <= b for a, b in zip(first, last, strict=True)) <= window


def test_a_windowed_epoch_is_a_function_of_seed_and_epoch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMIX_SHARD_CACHE_SIZE", "93 KB")
    images = open_images(f"wds:{url}(window=1)", "train")
    whole = order(images)
    assert sorted(whole) == list(range(30)) and whole == order(images, workers=2)
    ranks = [order(images, rank=rank, world=2) for rank in range(2)]
    assert sorted(sum(ranks, [])) == list(range(30))
    plan = EpochPlan(30, 5, 3, window=images.window)
    assert [index for keys in plan.keys(1, 2) for _, index, _ in keys] == whole[10:]
    assert not np.array_equal(plan.order(0)[0], plan.order(1)[0])


def test_training_by_url_resumes_exactly(url: str, tmp_path: Path) -> None:
    settings = {"data": f"wds:{url}(window=2)", "method": "mixup", "batch": 6, "eval_split": "val"}
    train(tmp_path / "whole", **settings)
    train_until(tmp_path / "parts", 4, checkpoint_every="3 steps", workers=1, **settings)
    train(tmp_path / "parts", **settings)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


# The cache


def stored(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def shards_of(folder: Path, count: int, size: int = 1000) -> list[RemoteShard]:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.tar").write_bytes(bytes([number]) * size)
    return remote.find_remote("", [f"file://{folder}"])


def test_the_least_recently_used_shard_gives_way(tmp_path: Path, cache: Path, fetched: list[str]) -> None:
    shards, small = shards_of(tmp_path / "data", 4), ShardCache(cache, 2500)
    for number in (0, 1, 0, 2, 0, 3, 1):
        with small.open(shards[number]) as file:
            assert file.read() == bytes([number]) * 1000
        assert sum(path.stat().st_size for path in cache.iterdir()) <= 2500
    assert fetched == ["0.tar", "1.tar", "2.tar", "3.tar", "1.tar"]
    assert len(stored(cache)) == 2 and not any(name.startswith(".") for name in stored(cache))


def test_an_open_shard_may_give_way(tmp_path: Path, cache: Path) -> None:
    shards, small = shards_of(tmp_path / "data", 2), ShardCache(cache, 1000)
    with small.open(shards[0]) as file, small.open(shards[1]):
        assert len(stored(cache)) == 1 and file.read() == bytes(1000)


def read_all(shards: list[RemoteShard], cache: ShardCache, log: Path, start: int) -> None:
    copy = remote._copy

    def slow(shard: RemoteShard, target: Path) -> None:
        with open(log, "a") as file:
            file.write(shard.url + "\n")
        copy(shard, target)
        time.sleep(0.02)

    remote._copy = slow
    for number in range(len(shards)):
        shard = shards[(number + start) % len(shards)]
        with cache.open(shard) as file:
            assert file.read() == bytes([int(Path(shard.url).stem)]) * 1000
        held = sum(path.stat().st_size for path in cache.folder.glob("*.tar"))
        assert held <= cache.limit


@pytest.mark.parametrize(("limit", "most"), [(6000, 6), (2000, 24)])
def test_processes_share_the_cache(tmp_path: Path, cache: Path, limit: int, most: int) -> None:
    """Four processes and six shards: with room for all, each is fetched once; with room for two, none waits forever."""
    shards = shards_of(tmp_path / "data", 6)
    fork = multiprocessing.get_context("fork")
    running = [
        fork.Process(target=read_all, args=(shards, ShardCache(cache, limit), tmp_path / "log", start))
        for start in (0, 0, 2, 4)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    assert [process.exitcode for process in running] == [0] * 4
    assert 6 <= len((tmp_path / "log").read_text().splitlines()) <= most
    assert not any(name.startswith(".") for name in stored(cache))


def test_what_a_killed_process_had_fetched_is_not_used(tmp_path: Path, cache: Path) -> None:
    shards, small = shards_of(tmp_path / "data", 2), ShardCache(cache, 1500)

    def die(shard: RemoteShard, target: Path) -> None:
        target.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    def fetch_and_die() -> None:
        remote._copy = die
        small.open(shards[0])

    process = multiprocessing.get_context("fork").Process(target=fetch_and_die)
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL and any(".partial" in name for name in stored(cache))
    small.open(shards[1]).close()  # needs the room that the other one had reserved
    assert not any(".partial" in name for name in stored(cache))
    with small.open(shards[0]) as file:
        assert file.read() == bytes(1000)


def test_a_shard_that_lost_bytes_is_fetched_again(tmp_path: Path, cache: Path, fetched: list[str]) -> None:
    (shard,), small = shards_of(tmp_path / "data", 1), ShardCache(cache, 1500)
    small.open(shard).close()
    (path,) = cache.glob("*.tar")
    path.write_bytes(b"")
    with small.open(shard) as file:
        assert file.read() == bytes(1000) and len(fetched) == 2


# Failures


def failing(attempts: int, problem: Exception) -> Callable[..., None]:
    """Fetches from the attempt of this number on."""
    count = [0]

    def get_file(self: Any, path: str, target: str, **settings: Any) -> None:
        count[0] += 1
        if count[0] < attempts:
            Path(target).write_bytes(Path(path).read_bytes()[:300])
            raise problem
        Path(target).write_bytes(Path(path).read_bytes())

    return get_file


def test_a_lost_connection_is_tried_again(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shard,), files = shards_of(tmp_path / "data", 1), type(fsspec.filesystem("file"))
    monkeypatch.setattr(files, "get_file", failing(3, ConnectionResetError(104, "Connection reset by peer")))
    with ShardCache(cache, 1500).open(shard) as file:
        assert file.read() == bytes(1000)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), "after 3 attempts: connection reset by peer"),
        (OSError(28, "No space left on device"), "free some space, or lower VITMIX_SHARD_CACHE_SIZE"),
        (PermissionError("Forbidden"), "Forbidden"),
        (FileNotFoundError("gone"), "is not there any more; put it back"),
    ],
)
def test_failures_are_one_sentence(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception, said: str
) -> None:
    (shard,) = shards_of(tmp_path / "data", 1)
    monkeypatch.setattr(type(fsspec.filesystem("file")), "get_file", failing(99, problem))
    assert said in sentence(lambda: ShardCache(cache, 1500).open(shard), DataLost)
    assert stored(cache) == []


def test_truncated_and_changed_shards(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shard,), files = shards_of(tmp_path / "data", 1), type(fsspec.filesystem("file"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "get_file", lambda self, path, target, **_: Path(target).write_bytes(b"cut"))
        assert "3 of 1,000 bytes arrived" in sentence(lambda: ShardCache(cache, 1500).open(shard), DataLost)
    (tmp_path / "data" / "0.tar").write_bytes(b"other")
    assert "has changed since its index" in sentence(lambda: ShardCache(cache, 1500).open(shard), DataLost)
    assert stored(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, cache: Path) -> None:
    (shard,) = shards_of(tmp_path / "data", 1)
    cache.write_text("a file")
    assert "set VITMIX_SHARD_CACHE to another folder" in sentence(lambda: ShardCache(cache, 1500).open(shard), DataLost)


@pytest.mark.parametrize("workers", [0, 1])
def test_lost_storage_ends_a_training_in_one_sentence(
    url: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    """Images that cannot be fetched are not called damaged and skipped."""
    images = open_images(f"wds:{url}", "train")
    for path in cache.iterdir():
        path.unlink()
    (Path(url.removeprefix("file://")) / "train-1.tar").rename(tmp_path / "elsewhere.tar")
    loader = TrainLoader(images, PLAIN, batch=5, seed=3, workers=workers)
    assert "train-1.tar is not there any more" in sentence(lambda: [*loader.epoch(0)], DataLost)
    assert not images.broken
    code = cli.main(["train", "--data", f"wds:{url}/train-{{0..2}}.tar", "--output", str(tmp_path / "run"), "--cpu"])
    assert code == 2 and "there is no shard" in capsys.readouterr().err


# Object storage


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server that stands for S3."""
    for name in ("moto", "s3fs", "flask"):
        pytest.importorskip(name, reason=f"{name} is not installed; pip install s3fs 'moto[server]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                assert server.poll() is None
                time.sleep(0.2)
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def bucket(s3: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    fsspec.filesystem("s3").clear_instance_cache()
    fs = fsspec.filesystem("s3")
    fs.mkdirs("shards", exist_ok=True)
    for number in range(3):
        fs.pipe_file(f"shards/train-{number}.tar", tar_bytes(range(10 * number, 10 * number + 10)))
    fs.pipe_file("shards/val-0.tar", tar_bytes(range(100, 108)))
    return "s3://shards"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_shards_in_s3(bucket: str, cache: Path, tmp_path: Path, fetched: list[str]) -> None:
    images = open_images(f"wds:{bucket}/train-{{0..2}}.tar(window=1)?holdout=0.1", "train")
    assert len(images) == 27 and len(fetched) == 3
    assert order(images) == order(images, workers=2)  # forked: connections are made anew
    settings = {"data": f"wds:{bucket}(window=2)", "method": "mixup", "batch": 6, "eval_split": "val", "workers": 1}
    train(tmp_path / "whole", **settings)
    train_until(tmp_path / "parts", 4, checkpoint_every="3 steps", **settings)
    for path in cache.glob("*"):  # another machine
        path.unlink()
    train(tmp_path / "parts", **settings)
    assert same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_failures_of_s3(bucket: str, cache: Path) -> None:
    assert "there is no shard" in sentence(lambda: open_images(f"wds:{bucket}/test-{{0..1}}.tar", "train"))
    missing = sentence(lambda: open_images("wds:s3://other/train-0.tar", "train"))
    assert "cannot be listed" in missing or "there is no shard" in missing
    images = open_images(f"wds:{bucket}", "train")
    for path in cache.glob("*"):
        path.unlink()
    fsspec.filesystem("s3").rm("shards/train-2.tar")
    assert "train-2.tar is not there any more" in sentence(lambda: [images[index] for index in range(30)], DataLost)
