"""What a node does before and after its run, and what the command's side tells it."""

import dataclasses
import errno
import re
from pathlib import Path

import pytest

from comparing import write
from vitmix.lab.comparison import read_matrix
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.engines import home as home_module
from vitmix.lab.engines import node
from vitmix.lab.engines.home import Home
from vitmix.lab.engines.local import reason_of
from vitmix.lab.engines.stores import FolderStore, StoreError
from vitmix.lab.training.config import to_yaml


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return read_matrix(str(write(tmp_path))).trainings(tmp_path / "out")[0]


def home_of(training: Training, url: str | None) -> Home:
    return Home(training.run.path.parent, url)


def test_a_node_sees_the_folder_or_the_store(training: Training, tmp_path: Path) -> None:
    for url in (None, f"file://{tmp_path}/store", f"memory://{tmp_path.name}"):
        spec = home_of(training, url).hand_over(training, [], 1)
        assert node.sees(spec)
    assert not node.sees(home_of(training, None).hand_over(training, [], 1, look=False))


def test_a_store_that_nodes_do_not_share_is_told_before_the_run(training: Training, tmp_path: Path) -> None:
    spec = home_of(training, f"file://{tmp_path}/store").hand_over(training, [], 1)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    report = node.run(spec, carried=FolderStore(tmp_path))
    assert report.code == node.UNSEEN and report.reason == (
        f"node {report.node} does not see what the command wrote to {spec.store}; "
        "give --store a place that all nodes share"
    )


def test_a_node_without_the_folder_is_told_before_the_run(training: Training, tmp_path: Path) -> None:
    spec = home_of(training, None).hand_over(training, [], 1, look=False)
    report = node.run(spec)
    assert report.code == node.UNSEEN
    assert (
        f"does not see the folder {tmp_path}/out/runs; put --output on a file system that all nodes share"
        in report.reason
    )


def test_a_store_that_cannot_be_written_is_told_before_anything_runs(training: Training) -> None:
    with pytest.raises(
        StoreError, match="cannot use the store file:///proc/vitmix: .*; make it writable or give another"
    ):
        home_of(training, "file:///proc/vitmix").hand_over(training, [], 1)


@pytest.mark.parametrize("last", ["evaluation.json", "dense.json"])  # of a training and of a transfer
def test_runs_that_an_earlier_command_left_finished_are_fetched(training: Training, tmp_path: Path, last: str) -> None:
    store, said = FolderStore(tmp_path / "store"), list[str]()
    store.write(training.name, "config.yaml", to_yaml(training.config).encode())
    store.write(training.name, "summary.json", b"{}")
    home_of(training, f"file://{tmp_path}/store").bring_results([training], said.append)
    assert not said and not training.run.path.exists()
    store.write(training.name, last, b"{}")
    home_of(training, f"file://{tmp_path}/store").bring_results([training], said.append)
    assert said == [f"{training.name} is finished in file://{tmp_path}/store; fetching it"]
    assert (training.run.path / last).is_file()


FINISHED = ("summary.json", "evaluation.json")
BEGUN = ("checkpoints/update-000000002/manifest.json",)


@pytest.mark.parametrize("there", [FINISHED, BEGUN, ()])
def test_a_store_with_the_run_of_another_comparison_is_refused(
    training: Training, tmp_path: Path, there: tuple[str, ...]
) -> None:
    """Names of runs do not tell epochs or learning rates, so two comparisons can have equal ones."""
    store, url = FolderStore(tmp_path / "store"), f"file://{tmp_path}/store"
    other = dataclasses.replace(training.config, epochs=7)
    store.write(training.name, "config.yaml", to_yaml(other).encode())
    for name in there:
        store.write(training.name, name, b"{}")
    expected = (
        f"{url} holds a run {training.name} with another configuration (epochs: 7 -> 1); "
        "give another --store, or the run's own settings"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        home_of(training, url).bring_results([training], pytest.fail)
    with pytest.raises(ValueError, match=re.escape(expected)):
        home_of(training, url).hand_over(training, [], 1)
    assert not (training.run.path / "config.yaml").exists()
    assert store.read(training.name, "config.yaml") == to_yaml(other).encode()


def test_a_store_is_not_overwritten_with_the_run_of_another_comparison(training: Training, tmp_path: Path) -> None:
    """Also where the run here is further than the one there."""
    store, url = FolderStore(tmp_path / "store"), f"file://{tmp_path}/store"
    other = to_yaml(dataclasses.replace(training.config, epochs=7)).encode()
    store.write(training.name, "config.yaml", other)
    for name in ("config.yaml", *BEGUN):
        home_of(training, None).here.write(training.name, name, to_yaml(training.config).encode())
    with pytest.raises(ValueError, match="another configuration"):
        home_of(training, url).hand_over(training, [], 1)
    assert store.read(training.name, "config.yaml") == other and not store.files(training.name).keys() & {*BEGUN}


@pytest.mark.parametrize("content", [None, b"epochs: [", b"nonsense: 1"])
def test_a_store_that_does_not_tell_the_settings_of_a_run_is_refused(
    training: Training, tmp_path: Path, content: bytes | None
) -> None:
    store, url = FolderStore(tmp_path / "store"), f"file://{tmp_path}/store"
    for name in FINISHED:
        store.write(training.name, name, b"{}")
    if content is not None:
        store.write(training.name, "config.yaml", content)
    expected = f"the settings of {training.name} in {url} cannot be read: .*; remove that run there or give another"
    with pytest.raises(ValueError, match=expected):
        home_of(training, url).bring_results([training], pytest.fail)


def test_a_store_that_fails_for_a_moment_ends_nothing(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system over a network can answer anything; what a glance has missed comes with the next one."""
    home = home_of(training, f"file://{tmp_path}/store")
    monkeypatch.setattr(home_module, "GLANCE_SECONDS", -1.0)
    FolderStore(tmp_path / "store").write(training.name, "metrics.jsonl", b"{}")
    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "read", stale)
        home.glance(training)
    home.glance(training)
    assert (training.run.path / "metrics.jsonl").read_bytes() == b"{}"


def stale(*_: object) -> bytes:
    raise OSError(errno.ESTALE, "Stale file handle")


def test_a_run_that_ended_well_without_results_says_so(tmp_path: Path) -> None:
    """Its last line is no reason: that one says what to do next."""
    (tmp_path / "log").write_text("Next  vitmix report RUN\n")
    assert reason_of(0, tmp_path / "log") == "it ended without an error, but its results are not here"
