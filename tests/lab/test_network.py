"""Without a network, what would be downloaded is missed within seconds and in one sentence."""

import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from PIL import Image

from vitmix.lab import network as _network
from vitmix.lab.cli import main as cli


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """No host can be reached, nothing is in the cache; what was asked for."""
    asked: list[Any] = []

    def refuse(*address: Any, **settings: Any) -> None:
        asked.append(address)
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return asked


@pytest.mark.parametrize(
    "command",
    [
        ["show", "--pretrained"],
        ["eval", "vit_tiny_patch16_224", "--pretrained", "--data", "shapes(size=8, length=8, test_length=8)"],
        ["eval", "test_vit", "--data", "hfds:nobody/nothing"],
    ],
    ids=["show", "eval", "data"],
)
def test_a_download_without_a_network_is_one_sentence(
    command: list[str],
    nowhere: list[Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed (extra hf)")
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)  # between tries
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert cli.main(command) == 2
    assert len(nowhere) == 1 and slept == [] and not huggingface_hub.constants.HF_HUB_OFFLINE
    said = capfd.readouterr().err
    assert said.startswith("vitmix: error: ") and said.count("\n") == 1 and "Retrying" not in caplog.text


@pytest.mark.parametrize("missing", ["first", "second"])
def test_a_missing_image_is_told_before_a_model_is_loaded(
    missing: str, nowhere: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "there.png")
    images = [str(tmp_path / "there.png"), str(tmp_path / "MISSING")]
    command = ["show", *(reversed(images) if missing == "first" else images), "--pretrained"]
    assert cli.main([*command, "--output", str(tmp_path / "x.png")]) == 2
    assert "MISSING' does not exist" in capfd.readouterr().err and nowhere == []


def test_a_name_that_is_looked_up_for_minutes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()

    def wait(*given: Any, **settings: Any) -> list[Any]:
        hangs.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(_network, "SECONDS", 0.2)
    start = time.monotonic()
    assert not _network.can_connect("https://example.com")
    assert time.monotonic() - start < 5
    hangs.set()


def test_hosts_and_proxies_that_answer_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert _network.can_connect(f"https://127.0.0.1:{port}/x")
        with _network.downloads(f"https://127.0.0.1:{port}") as reached:
            assert reached and socket.getdefaulttimeout() is None
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        assert _network.can_connect("https://nowhere.invalid")
    assert not _network.can_connect("https://nowhere.invalid")
