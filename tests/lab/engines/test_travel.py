"""A run's files on their way between nodes: every beginning of the journey is a state that a kill can leave."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from training import TINY
from vitmix.lab.engines.files import bring, copy, newest_update, progress
from vitmix.lab.engines.stores import FolderStore, Store, StoreError, UrlStore, checked, open_store
from vitmix.lab.runs import Run
from vitmix.lab.training.checkpoints import FILES, Checkpoint, newest_checkpoint, save_checkpoint
from vitmix.lab.training.config import resolve
from vitmix.lab.training.engine import Trainer

OLD, NEW = "checkpoints/update-000000002", "checkpoints/update-000000004"


def save(store: FolderStore, update: int, number: float = 0.0, *, keep: int = 3) -> str:
    """Saves a checkpoint in a folder as training does; returns its path in the run."""
    training: Any = {"update": update, "optimizer": {"state": {0: {"momentum": torch.ones(2)}}, "param_groups": []}}
    checkpoint = Checkpoint({"weight": torch.full((2,), number)}, None, training)
    return f"checkpoints/{save_checkpoint(store.root / 'run/checkpoints', update, checkpoint, keep=keep).name}"


@pytest.fixture
def source(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "source")
    for path in ("config.yaml", "metrics.jsonl", "best.safetensors", ".lock", ".claim", ".left_out", "train.log"):
        store.write("run", path, path.encode())
    for update in (2, 4):
        save(store, update)
    return store


def truncate(store: Store, checkpoint: str) -> None:
    path = f"{checkpoint}/model.safetensors"
    store.write("run", path, store.read("run", path)[:-1])


class Recorded(FolderStore):
    """A store that remembers what was written to it, and vanishes after so many writes and removals."""

    def __init__(self, root: Path, left: int = 10**9) -> None:
        super().__init__(root)
        self.written, self.left = list[str](), left

    def write(self, run: str, path: str, content: bytes) -> None:
        self._step()
        self.written.append(path)
        super().write(run, path, content)

    def remove(self, run: str, path: str) -> None:
        self._step()
        super().remove(run, path)

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreError("vanished")


def found(store: Store, folder: Path) -> int:
    """The update from which a node would go on."""
    bring(store, "run", folder)
    newest, damaged = newest_checkpoint(folder / "checkpoints")
    assert not damaged
    return 0 if newest is None else int(newest.name.rpartition("-")[2])


def stores(tmp_path: Path) -> list[Store]:
    return [open_store(f"file://{tmp_path}/target"), UrlStore(f"memory://{tmp_path.name}/target")]


def test_the_order_of_the_journey(source: FolderStore, tmp_path: Path) -> None:
    for name in ("summary.json", "evaluation.json", "dense.json", "analysis/labels.json"):
        source.write("run", name, b"{}")
    target = Recorded(tmp_path / "target")
    copy(source, target, "run", {})
    order = target.written
    assert order[-4:] == [f"{NEW}/manifest.json", "summary.json", "evaluation.json", "dense.json"]
    assert sorted(order[-7:-4]) == [f"{NEW}/{name}" for name in sorted(FILES)]
    assert set(order[:-7]) == {
        *("config.yaml", "metrics.jsonl", "best.safetensors", ".left_out", "train.log", "analysis/labels.json")
    }
    bring(target, "run", tmp_path / "folder")
    assert {path for path in order if path} == {*FolderStore(tmp_path).files("folder")}


@pytest.mark.parametrize("number", [0, 1])
def test_changes_travel_once(source: FolderStore, tmp_path: Path, number: int) -> None:
    target, seen = stores(tmp_path)[number], dict[str, str]()
    copy(source, target, "run", seen)
    assert newest_update(target.files("run")) == 4 and not any(path.startswith(OLD) for path in target.files("run"))
    before = target.files("run")
    copy(source, target, "run", seen)
    assert target.files("run") == before
    source.write("run", "metrics.jsonl", b"more rows")
    copy(source, target, "run", seen, only=("train.log",))
    assert target.read("run", "metrics.jsonl") == b"metrics.jsonl"
    copy(source, target, "run", seen)
    assert target.read("run", "metrics.jsonl") == b"more rows"
    assert found(target, tmp_path / "folder") == 4


@pytest.mark.parametrize("number", [0, 1])
def test_a_store_keeps_two_checkpoints(tmp_path: Path, number: int) -> None:
    source, target, seen = FolderStore(tmp_path / "source"), stores(tmp_path)[number], dict[str, str]()
    target.write("run", "checkpoints/update-000000001/model.safetensors", b"of a node that vanished")
    for update in (2, 4, 6):
        save(source, update, keep=1)
        copy(source, target, "run", seen)
    kept = {path.split("/")[1] for path in target.files("run")}
    assert kept == {"update-000000004", "update-000000006"}


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_checkpoint_in_a_store_is_removed(tmp_path: Path, number: int) -> None:
    """It would be the newest forever, and every later attempt of the run would start from zero."""
    source, target, seen = FolderStore(tmp_path / "source"), stores(tmp_path)[number], dict[str, str]()
    for update in (110, 120):
        save(source, update)
        copy(source, target, "run", seen)
    truncate(target, "checkpoints/update-000000120")
    assert found(target, tmp_path / "first") == 110
    log = (tmp_path / "first" / "train.log").read_text()
    assert "checkpoints/update-000000120 is damaged and was removed from the store: model.safetensors has " in log
    assert newest_update(target.files("run")) == 110
    truncate(target, "checkpoints/update-000000110")
    assert found(target, tmp_path / "second") == 0
    node = FolderStore(tmp_path / "node")
    for attempt, update in enumerate((10, 20, 30)):
        save(node, update)
        copy(node, target, "run", {})
        assert found(target, tmp_path / f"again{attempt}") == update


def test_a_damaged_checkpoint_does_not_travel(source: FolderStore, tmp_path: Path) -> None:
    target = FolderStore(tmp_path / "target")
    save(target, 3)
    truncate(source, NEW)
    copy(source, target, "run", {})
    assert found(target, tmp_path / "first") == 3 and newest_update(target.files("run")) == 3
    for damaged in (b"{", b"[]", b'{"../x": {}}', b'{"model.safetensors": 5}'):
        source.write("run", f"{NEW}/manifest.json", damaged)
        copy(source, target, "run", {})
        assert newest_update(target.files("run")) == 3


def test_a_journey_that_ends_early_leaves_a_checkpoint(tmp_path: Path) -> None:
    """Also when a checkpoint of the same update is sent again, by an attempt of which the store knows only this."""
    source, again = FolderStore(tmp_path / "source"), FolderStore(tmp_path / "again")
    save(source, 2)
    save(again, 2, 1.0)
    save(again, 4, 1.0)
    for left in range(12):
        root = tmp_path / f"target{left}"
        copy(source, FolderStore(root), "run", {})
        with suppress(StoreError):
            copy(again, Recorded(root, left), "run", {})
        assert found(FolderStore(root), tmp_path / f"folder{left}") == (2 if left < 4 else 4)
        shutil.rmtree(again.root / "run/checkpoints/update-000000004")
        with suppress(StoreError):
            copy(again, Recorded(root, left), "run", {})
        assert found(FolderStore(root), tmp_path / f"other{left}") == (2 if left < 4 else 4)
        save(again, 4, 1.0)


def test_a_checkpoint_that_is_replaced_meanwhile_waits(source: FolderStore, tmp_path: Path) -> None:
    """What says that a run is finished must not overtake the checkpoint before it."""
    source.write("run", "summary.json", b"{}")
    listed = source.files("run")
    (source.root / "run" / NEW / "model.safetensors").unlink()
    target = FolderStore(tmp_path / "target")
    copy(source, target, "run", {})  # only one file is missing, and will always be
    assert newest_update(target.files("run")) == 2 and "summary.json" in target.files("run")
    shutil.rmtree(source.root / "run" / NEW)
    shutil.rmtree(target.root)
    answers = [listed]
    files = source.files
    source.files = lambda run: answers.pop() if answers else files(run)  # type: ignore[method-assign]
    copy(source, target, "run", {})
    assert newest_update(target.files("run")) == 0 and "summary.json" not in target.files("run")


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
