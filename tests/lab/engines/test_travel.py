"""A run's files on their way between nodes: every beginning of the journey is a state that a kill can leave."""

from pathlib import Path

import pytest

from training import TINY
from vitmix.lab.engines.files import bring, copy, in_order, newest_update, progress
from vitmix.lab.engines.stores import FolderStore, Store, StoreError, UrlStore, checked, open_store
from vitmix.lab.runs import Run
from vitmix.lab.training.checkpoints import newest_checkpoint
from vitmix.lab.training.config import resolve
from vitmix.lab.training.engine import Trainer

OLD, NEW = "checkpoints/update-000000002", "checkpoints/update-000000004"


@pytest.fixture
def source(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "source")
    for path in ("config.yaml", "metrics.jsonl", "best.safetensors", ".lock", ".claim", ".left_out", "train.log"):
        store.write("run", path, path.encode())
    for folder in (OLD, NEW):
        for name in ("model.safetensors", "manifest.json"):
            store.write("run", f"{folder}/{name}", folder.encode())
    return store


def stores(tmp_path: Path) -> list[Store]:
    return [open_store(f"file://{tmp_path}/target"), UrlStore(f"memory://{tmp_path.name}/target")]


def test_the_order_of_the_journey(source: FolderStore) -> None:
    for name in ("summary.json", "evaluation.json", "analysis/labels.json"):
        source.write("run", name, b"{}")
    order = in_order(source.files("run"))
    assert order[-4:] == [f"{NEW}/model.safetensors", f"{NEW}/manifest.json", "summary.json", "evaluation.json"]
    assert set(order[:-4]) == {
        *("config.yaml", "metrics.jsonl", "best.safetensors", ".left_out", "train.log", "analysis/labels.json")
    }


@pytest.mark.parametrize("number", [0, 1])
def test_changes_travel_once_and_old_checkpoints_go(source: FolderStore, tmp_path: Path, number: int) -> None:
    target, seen = stores(tmp_path)[number], dict[str, str]()
    target.write("run", f"{OLD}/manifest.json", b"old")
    copy(source, target, "run", seen)
    assert set(target.files("run")) == {*in_order(source.files("run"))} == {*seen}
    assert newest_update(target.files("run")) == 4 and not any(path.startswith(OLD) for path in target.files("run"))
    before = target.files("run")
    copy(source, target, "run", seen)
    assert target.files("run") == before
    source.write("run", "metrics.jsonl", b"more rows")
    copy(source, target, "run", seen, only=("train.log",))
    assert target.read("run", "metrics.jsonl") == b"metrics.jsonl"
    copy(source, target, "run", seen)
    assert target.read("run", "metrics.jsonl") == b"more rows"
    bring(target, "run", tmp_path / "folder")
    assert (tmp_path / "folder" / NEW / "manifest.json").read_bytes() == NEW.encode()


def test_a_journey_that_ends_early_leaves_the_older_checkpoint(source: FolderStore, tmp_path: Path) -> None:
    target = FolderStore(tmp_path / "target")
    for path in (f"{OLD}/model.safetensors", f"{OLD}/manifest.json"):
        target.write("run", path, b"old")
    steps = in_order(source.files("run"))
    for path in steps[:-1]:  # all but the new manifest
        target.write("run", path, source.read("run", path))
    assert newest_update(target.files("run")) == 2
    bring(target, "run", tmp_path / "folder")
    assert not (tmp_path / "folder" / NEW).exists() and (tmp_path / "folder" / OLD).exists()


def test_a_target_that_cannot_be_written_is_an_error(source: FolderStore, tmp_path: Path) -> None:
    """A folder below /proc is missing when it is made: that is not a file that was removed at the source."""
    target = FolderStore(Path("/proc/vitmix"))
    with pytest.raises(OSError):
        copy(source, target, "run", {})


def test_a_real_checkpoint_is_recognized(tmp_path: Path) -> None:
    config = resolve({**TINY, "output": str(tmp_path / "runs" / "run"), "epochs": 1, "track": "none"})
    assert Trainer(config).run() == 0
    store = FolderStore(tmp_path / "runs")
    newest, _ = newest_checkpoint(Run(tmp_path / "runs" / "run").checkpoints)
    assert newest is not None and newest.name == f"update-{newest_update(store.files('run')):09d}"
    bring(store, "run", tmp_path / "copy")
    assert newest_checkpoint(tmp_path / "copy" / "checkpoints") == (tmp_path / "copy" / "checkpoints" / newest.name, {})
    assert progress(store.files("run"))[0] is False  # its best weights are not evaluated


def test_states_of_a_run_are_ordered() -> None:
    nothing, begun, further = progress({}), progress(["config.yaml"]), progress([f"{OLD}/manifest.json", "config.yaml"])
    finished = progress(["summary.json", "evaluation.json", "config.yaml"])
    assert progress(["summary.json", "dense.json", "config.yaml"]) == finished  # of a transfer
    assert in_order(["dense.json", "summary.json", "metrics.jsonl"]) == ["metrics.jsonl", "summary.json", "dense.json"]
    assert nothing < begun < further < finished


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/file", "a/../../b", "a\\b", ""])
def test_names_in_a_store_stay_below_the_run(path: str) -> None:
    with pytest.raises(ValueError, match="not a path below a run"):
        checked(path)


def test_stores_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="--store needs a URL"):
        open_store("folder")
    for url in ("file://folder", "file://./folder", "file://"):  # each node would take it for another place
        with pytest.raises(ValueError, match=f"--store needs an absolute path such as file:///folder, got '{url}'"):
            open_store(url)
    with pytest.raises(ValueError, match="cannot open the store nosuch://x"):
        open_store("nosuch://x")


def test_a_silent_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = UrlStore("memory://silent")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no route\nto host")

    monkeypatch.setattr(store, "system", type("Silent", (), {"find": fail, "cat_file": fail})())
    with pytest.raises(
        StoreError,
        match="the store memory://silent does not answer as expected: no route to host; check its "
        "address and your credentials",
    ):
        store.files("run")
