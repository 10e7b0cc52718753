"""The page of `vitmix explore` without a browser: its programming interface, and what it refuses to serve."""

import asyncio
import http.client
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from explore_page import explorer, serving
from support import ROOT
from test_explore import data_url
from vitmix.lab.explore.server import Guard, serve

pytest.importorskip("gradio", reason="needs gradio: pip install 'vitmix[app]'")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator:
    from gradio_client import Client

    found = Client(address, verbose=False)
    yield found
    found.close()


def ask(client, method: str = "cutmix", **changes) -> dict:
    given = {"first": "shapes 1", "second": "shapes 46", **changes}
    return client.predict(method, api_name="/explore", **given)


def test_a_program_gets_the_answers_of_the_page(client):
    found = ask(client, "transmix", seed=3, block=2)
    assert sum(found["target"]) == pytest.approx(1)
    assert {"area", "attention", "aligned", "activation"} <= set(found["rules"])
    assert found["rules"]["attention"] == pytest.approx(found["target"])
    assert [len(each) for each in found["predictions"]] == [5, 5, 5] and 'data-block="2"' in found["depth"]
    assert found["query"].startswith("method=transmix&") and "learner = " in found["code"]


def test_the_program_in_the_documentation_runs(address, capsys):
    page = (ROOT / "docs" / "explore.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(code.replace("http://127.0.0.1:7860", address), names)
    names["client"].close()
    assert "'attention': [" in capsys.readouterr().out


def test_settings_seed_and_images_change_the_target(client):
    targets = [
        ask(client)["target"],
        ask(client, "cutmix(alpha=0.1)")["target"],
        ask(client, seed=1)["target"],
        ask(client, "transmix", first="shapes 7")["target"],
    ]
    assert len({round(own, 5) for own, _ in targets}) == 4


def test_uploads(client):
    assert "target" in ask(client, first=data_url(Image.effect_noise((300, 200), 60)))
    assert "cannot be read" in ask(client, first="data:image/png;base64,AAAA")["error"]


@pytest.mark.parametrize(
    "changes",
    [
        {"first": "/etc/passwd"},
        {"model": "/etc/passwd"},
        {"model": "../../runs"},
        {"method": "cutmix(alpha=/etc/passwd)"},
        {"method": "no_such_method"},
    ],
)
def test_wrong_input_gets_a_sentence_without_a_path(client, changes):
    said = ask(client, **changes)["error"]
    assert len(said) > 20 and os.getcwd() not in said and "Traceback" not in said


def get(
    address: str, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        f"/gradio_api/file={os.path.abspath(__file__)}",
        "/file=/etc/passwd",
        "/gradio_api/proxy=https://example.com",
        "/gradio_api/upload_progress?upload_id=1",
        "/static/../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/server.py",
        "/gradio_api/runs",
        "/monitoring",
        "/docs",
        "/openapi.json",
        "/gradio_api/vibe-code/",
        "/gradio_api/deep_link",
    ],
)
def test_no_files_and_no_other_routes(address, path):
    assert get(address, path)[0] == 404


def test_no_upload_to_disk_and_no_large_body(address):
    assert get(address, "/gradio_api/upload", method="POST", body=b"x")[0] == 404
    assert get(address, "/gradio_api/queue/join", method="POST", **{"Content-Length": str(10**9)})[0] == 413
    assert get(address, "/gradio_api/queue/join", method="POST", **{"Transfer-Encoding": "chunked"})[0] == 411


JSON = {"Content-Type": "application/json"}
FILE = {"path": "http://127.0.0.1:PORT/x.png", "meta": {"_type": "gradio.FileData"}}


@pytest.fixture
def outside() -> Iterator[tuple[int, list[str]]]:
    """A web server, and the paths that were asked of it."""
    asked: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_port, asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "wrap",
    [lambda file: file, lambda file: [[file]], lambda file: {"image": file}],
    ids=["file", "in a list", "in an object"],
)
@pytest.mark.parametrize(
    "route",
    ["queue/join", "run/explore", "api/explore", "call/explore", "call/v2/explore", "run/predict", "api/explore/"],
)
def test_no_file_is_fetched_for_an_input(address, outside, route, wrap):
    """Gradio would download the address, and read the file of a path."""
    port, asked = outside
    for path in (FILE["path"].replace("PORT", str(port)), "/etc/passwd"):
        inputs = ["cutmix", wrap({**FILE, "path": path}), "shapes 46", "", 0, 1]
        body = {"data": inputs, "fn_index": 0, "session_hash": "x"}
        if route == "call/v2/explore":
            body = {"method": "cutmix", "first": inputs[1], "second": "shapes 46"}
        assert get(address, f"/gradio_api/{route}", method="POST", body=json.dumps(body).encode(), **JSON)[0] == 400
    assert asked == []


@pytest.mark.parametrize("body", [b"[]", b"{", b"1", b"[" * 100_000, b'{"data": "\xff"}'])
def test_what_is_no_request_of_the_page_is_refused(address, body):
    assert get(address, "/gradio_api/run/explore", method="POST", body=body, **JSON)[0] == 400


def listening(port: int) -> set[str]:
    """The addresses at which this machine listens to a port, in Linux's table of sockets."""
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path("/proc/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found.add(socket.inet_ntop(family, b"".join(words)))
    return found


def test_only_this_machine_is_answered(address):
    place = urlsplit(address)
    assert place.hostname == "127.0.0.1"
    assert get(address, "/", Host="evil.example")[0] == 421  # a name that points here
    assert get(address, "/", Host=f"localhost:{place.port}")[0] == 200
    if Path("/proc/net/tcp").exists():
        assert listening(place.port or 0) == {"127.0.0.1"}
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in (each for each in others if not each.startswith("127.")):
        with pytest.raises(OSError):
            socket.create_connection((other, place.port or 0), timeout=2)


def status_for(guard: Guard, host: str) -> int:
    """The status of a request by a guard around an app that answers 200."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", host.encode())]}
    asyncio.run(guard(scope, None, send))  # pyright: ignore
    return sent[0]["status"]


@pytest.mark.parametrize("link", [None, "https://0a1b2c.gradio.live"])
def test_a_shared_page_answers_its_own_link_and_no_other_host(monkeypatch, link):
    launched = {}

    class Page:
        def queue(self, **settings: Any) -> None: ...

        def launch(self, **settings: Any) -> tuple[None, str, str | None]:
            launched.update(settings)
            return None, "http://127.0.0.1:7860/", link

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    monkeypatch.setattr("vitmix.lab.explore.page.build_page", lambda explorer: Page())
    serve(explorer(), share=link is not None, block=False)
    (middleware,) = launched["app_kwargs"]["middleware"]
    guard = middleware.cls(app, **middleware.kwargs)
    assert launched["share"] is (link is not None) and launched["server_name"] == "127.0.0.1"
    assert status_for(guard, "127.0.0.1:7860") == 200 and status_for(guard, "evil.example") == 421
    assert status_for(guard, "0a1b2c.gradio.live") == (200 if link else 421)


def test_the_page_names_no_path_and_no_other_host(address):
    status, page = get(address, "/")
    config = json.loads(get(address, "/config")[1])
    assert status == 200 and config["analytics_enabled"] is False
    for text in (page.decode(), json.dumps(config)):
        assert os.getcwd() not in text and f"{os.path.expanduser('~')}/" not in text
        assert "fonts.googleapis" not in text and "cdnjs" not in text


def test_a_policy_keeps_the_browser_here(address):
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    connection.request("GET", "/")
    policy = connection.getresponse().headers["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy
    connection.close()
