"""Checkpoints: complete or absent, whatever happens; and weights of other origin."""

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitmix  # noqa: F401  registers models with timm
from support import ROOT
from training import replace_file, same_weights
from vitmix._checks import check_output_file
from vitmix.lab import writing
from vitmix.lab.training import checkpoints
from vitmix.lab.training.checkpoints import Checkpoint
from vitmix.lab.training.weights import load_weights, write_weights
from vitmix.lab.writing import write_file

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.lists(st.floats(-10, 10, width=32), max_size=3).map(torch.tensor)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


def equal(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return (
            isinstance(second, dict) and list(first) == list(second) and all(equal(first[k], second[k]) for k in first)
        )
    if isinstance(first, (list, tuple)):
        same = type(first) is type(second) and len(first) == len(second)  # type: ignore[arg-type]
        return same and all(map(equal, first, second))  # type: ignore[call-overload]
    return type(first) is type(second) and first == second


@given(TREES)
def test_trees_come_back(tree: object) -> None:
    tensors, skeleton = checkpoints.pack(tree)
    assert equal(checkpoints.unpack(tensors, json.loads(json.dumps(skeleton))), tree)


def test_strange_values_are_refused() -> None:
    with pytest.raises(TypeError, match="state.a: a builtin_function"):
        checkpoints.pack({"a": print})


def some(number: float) -> Checkpoint:
    """A checkpoint that can be told from others."""
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, number)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    training = {"optimizer": optimizer.state_dict(), "number": number, "betas": (0.9, 0.99), "state": {3: None}}
    return Checkpoint(dict(model.state_dict()), None, training)


def test_round_trip(tmp_path: Path) -> None:
    saved = some(1.5)
    path = checkpoints.save_checkpoint(tmp_path, 7, saved, keep=2)
    loaded = checkpoints.load_checkpoint(path)
    assert same_weights(loaded.model, saved.model) and loaded.ema is None
    assert equal(loaded.training, saved.training)
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json", "model.safetensors", "training.json", "training.safetensors",
    ]  # fmt: skip


def test_rotation(tmp_path: Path) -> None:
    for update in (3, 10, 200):
        checkpoints.save_checkpoint(tmp_path, update, some(update), keep=2)
    assert [path.name for path in checkpoints.list_checkpoints(tmp_path)] == ["update-000000010", "update-000000200"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"short")


def test_what_was_just_written_is_never_pruned(tmp_path: Path) -> None:
    """Even where damaged checkpoints of later updates could not be moved aside."""
    for update in (50, 60):
        damage(checkpoints.save_checkpoint(tmp_path, update, some(update), keep=2))
    for update in (1, 2, 3):
        written = checkpoints.save_checkpoint(tmp_path, update, some(update), keep=2)
        assert checkpoints.find_damage(written) is None
    assert names(tmp_path) == [f"{checkpoints.PREFIX}{update:09d}" for update in (2, 3, 50, 60)]


def test_damaged_checkpoints_are_moved_aside_and_bounded(tmp_path: Path) -> None:
    good = checkpoints.save_checkpoint(tmp_path, 1, some(1), keep=9)
    for update in (7, 8, 9):
        damage(checkpoints.save_checkpoint(tmp_path, update, some(update), keep=9))
    newest, remarks = checkpoints.move_damaged(tmp_path, keep=2)
    assert newest == good
    assert len(remarks) == 3 and "update-000000009 is damaged and was renamed to damaged-update" in remarks[0]
    assert checkpoints.newest_checkpoint(tmp_path) == (good, {})
    aside = ["damaged-update-000000007", "damaged-update-000000008", "damaged-update-000000009"]
    assert names(tmp_path) == [*aside, good.name]  # what was found together stays together
    for update in (2, 8):
        damage(checkpoints.save_checkpoint(tmp_path, update, some(update), keep=9))
        checkpoints.move_damaged(tmp_path, keep=2)
    assert checkpoints.newest_checkpoint(tmp_path) == (good, {})
    assert names(tmp_path) == ["damaged-update-000000008", "damaged-update-000000009", good.name]


def test_damage_that_cannot_be_moved_aside_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoints.save_checkpoint(tmp_path, 7, some(7), keep=1)
    damage(path)

    def fail(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", fail)
    _, (remark,) = checkpoints.move_damaged(tmp_path, keep=1)
    assert "update-000000007 is damaged and was skipped" in remark and path.exists()


def test_what_a_kill_left_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss after the kill would leave its name without content, and older checkpoints are removed by then."""
    path = checkpoints.save_checkpoint(tmp_path, 7, some(7), keep=1)
    partial = path.rename(tmp_path / f".{path.name}.partial")
    steps: list[str] = []
    sync, rename = os.fsync, Path.rename

    def note_sync(handle: int) -> None:
        steps.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    def note_rename(self: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    assert checkpoints.settle_partial(tmp_path) == []
    before = steps[: steps.index("rename")]
    assert sorted(before[:-1]) == sorted(names(path)) and before[-1] == partial.name
    assert checkpoints.newest_checkpoint(tmp_path) == (path, {})


def test_a_disk_that_fails_meanwhile_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoints.save_checkpoint(tmp_path, 7, some(7), keep=1)
    path.rename(tmp_path / f".{path.name}.partial")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_sync)
        with pytest.raises(OSError, match="Input/output error.*update-000000007.partial"):
            checkpoints.settle_partial(tmp_path)
    assert checkpoints.settle_partial(tmp_path) == []
    assert checkpoints.newest_checkpoint(tmp_path) == (path, {})


def failing_sync(handle: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_stray_names_are_left_alone(tmp_path: Path) -> None:
    strays = ["update-", "update-000000120.bak", "update-9", "update-٠٠٠٠٠٠٠٠٩", "update--00000009", "notes.txt"]
    strays += [".update-000000120.bak.partial", ".update-x.old", "damaged-update-000000120.bak", "damaged-"]
    for name in strays:
        (tmp_path / name).mkdir()
    damage(checkpoints.save_checkpoint(tmp_path, 8, some(8), keep=1))
    (tmp_path / "update-000000009").write_text("a file")
    assert checkpoints.settle_partial(tmp_path) == []
    newest, remarks = checkpoints.move_damaged(tmp_path, keep=1)
    assert newest is None and len(remarks) == 2
    for update in (3, 12_345_678_901):
        path = checkpoints.save_checkpoint(tmp_path, update, some(1), keep=1)
        assert checkpoints.newest_checkpoint(tmp_path) == (path, {}) and checkpoints.update_of(path) == update
    aside = ["damaged-update-000000008", "damaged-update-000000009"]
    assert names(tmp_path) == sorted([*strays, *aside, path.name])


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "ema.safetensors"])
def test_numbers_that_are_not_finite_are_damage(tmp_path: Path, name: str) -> None:
    saved = some(1)
    saved = Checkpoint(saved.model, {key: value.clone() for key, value in saved.model.items()}, saved.training)
    moments = saved.training["optimizer"]["state"][0]
    parts: dict[str, Any] = {"model": saved.model, "ema": saved.ema, "training": moments}
    next(value for value in parts[name.split(".")[0]].values() if value.dim())[0] = torch.nan
    path = checkpoints.save_checkpoint(tmp_path, 7, saved, keep=1)
    assert checkpoints.find_damage(path) == f"{name} holds numbers that are not finite"


def test_an_empty_manifest_is_damage(tmp_path: Path) -> None:
    path = checkpoints.save_checkpoint(tmp_path, 7, some(7), keep=1)
    (path / checkpoints.MANIFEST).write_text("{}")
    assert checkpoints.find_damage(path) == "manifest.json does not list model.safetensors"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"[" * 10_000,
        b'{"tensor": "nothing"}',
        b'{"pairs": [[]]}',
        b'{"pairs": 3}',
        b"{}",
        b'{"list": null}',
    ],
)
def test_what_no_training_wrote_is_damage(tmp_path: Path, content: bytes) -> None:
    """Even where its checksum is right: a run folder may come from anywhere."""
    path = checkpoints.save_checkpoint(tmp_path, 7, some(7), keep=1)
    replace_file(path, "training.json", content)
    assert "it cannot be read" in (checkpoints.find_damage(path) or "")


@pytest.mark.parametrize("name", ["../outside", "/dev/zero", "pipe"])
def test_only_regular_files_of_a_checkpoint_are_read(tmp_path: Path, name: str) -> None:
    path = checkpoints.save_checkpoint(tmp_path / "all", 7, some(7), keep=1)
    os.mkfifo(path / "pipe")
    (tmp_path / "all" / "outside").write_bytes(b"")
    replace_file(path, name, b"", write=False)
    assert f"{name} is not a regular file in it" in (checkpoints.find_damage(path) or "")


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "training.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["shorter", "gone", "changed"])
def test_damage_is_found(tmp_path: Path, name: str, damage: str) -> None:
    checkpoints.save_checkpoint(tmp_path, 1, some(1), keep=2)
    path = checkpoints.save_checkpoint(tmp_path, 2, some(2), keep=2)
    content = (path / name).read_bytes()
    if damage == "gone":
        (path / name).unlink()
    elif damage == "shorter":
        (path / name).write_bytes(content[:-3])
    else:
        (path / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    newest, damaged = checkpoints.newest_checkpoint(tmp_path)
    assert newest is not None and newest.name == "update-000000001"
    assert [path.name for path in damaged] == ["update-000000002"]


@pytest.mark.parametrize("interrupted", range(5))
def test_failure_at_any_file_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    """An error of the disk is a failure that is told; a kill is one that is not: the folder must be good after both."""
    old = checkpoints.save_checkpoint(tmp_path, 1, some(1), keep=1)
    write, count = writing.write_synced, [0]

    def write_some(path: Path, content: bytes) -> None:
        if count[0] == interrupted:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        count[0] += 1
        write(path, content)

    monkeypatch.setattr(writing, "write_synced", write_some)
    new = Checkpoint(some(2).model, some(2).model, some(2).training)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save_checkpoint(tmp_path, 2, new, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == [old.name]
    assert checkpoints.find_damage(old) is None


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """For root a renaming would put a file in the place of a device."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        writing.write_file(tmp_path / "pipe", b"x")
    with pytest.raises(ValueError, match="not a regular file"):
        check_output_file(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo() and len([*tmp_path.iterdir()]) == 1


def test_files_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    writing.write_file(path, b"old")

    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        writing.write_file(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["summary.json"]


def test_weights_in_every_form(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=5)
    state = dict(model.state_dict())
    write_weights(tmp_path / "a.safetensors", state, {"vitmix": "{}"})
    torch.save(state, tmp_path / "b.pth")
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "c.pth")
    torch.save({"model_ema": state, "model": {}}, tmp_path / "d.pth")
    for name in ("a.safetensors", "b.pth", "c.pth", "d.pth"):
        other = timm.create_model("test_vit", num_classes=5)
        assert load_weights(other, tmp_path / name) == ([], [])
        assert same_weights(dict(other.state_dict()), state)
    fresh = timm.create_model("test_vit", num_classes=7)
    assert load_weights(fresh, tmp_path / "b.pth") == (["head.bias", "head.weight"], [])
    larger = timm.create_model("test_vit", num_classes=5, img_size=320)
    assert load_weights(larger, tmp_path / "b.pth") == ([], ["pos_embed"])
    assert torch.equal(larger.state_dict()["blocks.0.attn.qkv.weight"], state["blocks.0.attn.qkv.weight"])


def test_kill_at_any_moment() -> None:
    """A sample of the matrix: every training that is killed resumes and ends as the undisturbed one did."""
    here = ROOT / "tests"
    command = [sys.executable, str(here / "kill_runs.py"), "--kills", "4", "--seed", "12"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here)
    assert done.returncode == 0 and done.stdout.endswith("4 kills, 4 equal\n"), done.stdout + done.stderr


def test_a_checkpoint_written_but_not_renamed_is_put_in_place(tmp_path: Path) -> None:
    """A kill between removing the old folder of an update and renaming the new one."""
    saved = checkpoints.save_checkpoint(tmp_path, 7, some(1), keep=1)
    saved.rename(tmp_path / f".{saved.name}{checkpoints.PARTIAL}")
    assert checkpoints.newest_checkpoint(tmp_path) == (None, {})
    assert checkpoints.settle_partial(tmp_path) == []
    assert checkpoints.newest_checkpoint(tmp_path) == (saved, {})
    half = tmp_path / f".{checkpoints.PREFIX}000000009{checkpoints.PARTIAL}"
    half.mkdir()
    assert checkpoints.settle_partial(tmp_path) == [f"{checkpoints.PREFIX}000000009"] and not half.exists()


class Kill(BaseException):
    """The end of the process: no handler of errors runs after it."""


def operations(action: Callable[[], object], kill_at: int = -1) -> int:
    """How many file operations an action made before it ended, or was killed before the one of this number."""
    count = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **settings: Any) -> Any:
            nonlocal count
            if count == kill_at:
                raise Kill
            count += 1
            return operation(*arguments, **settings)

        return act

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, counted(getattr(os, name)))
        with suppress(Kill):
            action()
    return count


def test_a_kill_while_a_checkpoint_is_written_again(tmp_path: Path) -> None:
    """At every file operation, and again while the next start tidies up: the old or the new one is there, whole."""

    def write(folder: Path, number: float) -> None:
        checkpoints.save_checkpoint(folder, 7, some(number), keep=1)

    def settled(folder: Path) -> float:
        checkpoints.settle_partial(folder)
        newest, damaged = checkpoints.newest_checkpoint(folder)
        assert newest is not None and not damaged and names(folder) == [newest.name]
        return checkpoints.load_checkpoint(newest).training["number"]

    old, found = tmp_path / "old", []
    write(old, 1)
    whole = shutil.copytree(old, tmp_path / "whole")
    for number in range(operations(lambda: write(whole, 2))):
        left = shutil.copytree(old, tmp_path / f"killed{number}")
        assert operations(lambda left=left: write(left, 2), kill_at=number) == number
        once = shutil.copytree(left, tmp_path / f"killed{number}-once")
        for again in range(operations(lambda once=once: checkpoints.settle_partial(once))):
            twice = shutil.copytree(left, tmp_path / f"killed{number}-{again}")
            operations(lambda twice=twice: checkpoints.settle_partial(twice), kill_at=again)
            settled(twice)
        found.append(settled(left))
    assert found == sorted(found) and {*found} == {1, 2}


def test_a_whole_checkpoint_replaces_its_damaged_twin(tmp_path: Path) -> None:
    """As a kill left them while the old one was being removed before the new one took its place."""
    target = checkpoints.save_checkpoint(tmp_path, 7, some(1), keep=1)
    whole = checkpoints.save_checkpoint(tmp_path / "other", 7, some(2), keep=1)
    whole.rename(tmp_path / f".{target.name}{checkpoints.PARTIAL}")
    (tmp_path / "other").rmdir()
    (target / "model.safetensors").unlink()
    checkpoints.settle_partial(tmp_path)
    assert names(tmp_path) == [target.name] and checkpoints.find_damage(target) is None


def test_a_failed_replacement_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = checkpoints.save_checkpoint(tmp_path, 7, some(1), keep=1)
    rename = Path.rename

    def fail(self: Path, place: Path) -> Path:
        if self.name.endswith(checkpoints.PARTIAL):
            raise OSError(5, "Input/output error")
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.save_checkpoint(tmp_path, 7, some(2), keep=1)
    assert names(tmp_path) == [target.name] and checkpoints.load_checkpoint(target).training["number"] == 1


def _write(path: Path, failed: Any) -> None:
    for _ in range(200):
        try:
            write_file(path, b"x" * 20000)
        except OSError:
            failed.value += 1


def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    failed = context.Value("i", 0)
    both = [context.Process(target=_write, args=(tmp_path / "cell.json", failed)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert failed.value == 0 and [each.name for each in tmp_path.iterdir()] == ["cell.json"]
