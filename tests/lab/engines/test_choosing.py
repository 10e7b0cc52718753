"""Flags of a cluster, as a new user gives them."""

import sys
from pathlib import Path

import pytest

from command import vitmix
from comparing import write
from vitmix.lab.engines import LocalProcesses
from vitmix.lab.engines.choosing import choose_engine, options_of
from vitmix.lab.engines.on_ray import check_address


def refusal(tmp_path: Path, *flags: str) -> str:
    said = vitmix("compare", str(write(tmp_path)), "--output", str(tmp_path / "out"), *flags)
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1
    return said.err


def test_flags_that_do_not_fit(tmp_path: Path) -> None:
    assert "unknown on 'dask', known: ray, slurm" in refusal(tmp_path, "--on", "dask")
    assert "--store is for a cluster; add --on ray or --on slurm" in refusal(tmp_path, "--store", "s3://x")
    assert "--address is for a cluster; add --on ray" in refusal(tmp_path, "--on", "slurm", "--address", "a:1")
    assert "--slurm is for a cluster; add --on slurm" in refusal(tmp_path, "--on", "ray", "--slurm", "time=1")
    assert "Slurm has no object store" in refusal(tmp_path, "--on", "slurm", "--store", "objects")


def test_missing_packages_and_commands_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 'get it with: pip install "vitmix[cluster]"' in refusal(tmp_path, "--on", "ray")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no sbatch here" in refusal(tmp_path, "--on", "slurm")


def test_options_of_sbatch_keep_their_text() -> None:
    texts = ["partition=gpu", "time=4:00:00", "exclusive", "--mem=8G", "gpus_per_node=1"]
    expected = {"partition": "gpu", "time": "4:00:00", "exclusive": "", "mem": "8G", "gpus-per-node": "1"}
    assert options_of(texts) == expected
    with pytest.raises(ValueError, match="--slurm takes options of sbatch"):
        options_of(["=gpu"])


def test_addresses_that_do_not_answer_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no Ray cluster answers at 127.0.0.1:9"):
        check_address("127.0.0.1:9")
    for address in ("nonsense", "head:port", ":6379", "head:"):
        with pytest.raises(ValueError, match=f"--address needs HOST:PORT, got '{address}'; 'ray status' shows it"):
            check_address(address)
    with pytest.raises(ValueError, match="is the address of a Ray client"):
        check_address("ray://head:10001")
    for address in (None, "auto", "local"):
        check_address(address)


def test_without_a_cluster_runs_are_local(tmp_path: Path) -> None:
    nothing = {"address": None, "cpus": None, "gpus": None, "slurm": (), "store": None}
    engine = choose_engine(None, tmp_path, jobs=None, **nothing)  # type: ignore[arg-type]
    assert isinstance(engine, LocalProcesses) and engine.jobs == 1
