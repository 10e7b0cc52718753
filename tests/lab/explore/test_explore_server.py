"""The page of `vitmix explore` without a browser: its programming interface, and what it refuses to serve."""

import http.client
import json
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from PIL import Image

from explore_page import serving
from support import ROOT
from test_explore import data_url

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


def test_only_this_machine_is_answered(address):
    place = urlsplit(address)
    assert place.hostname == "127.0.0.1"
    assert get(address, "/", Host="evil.example")[0] == 421  # a name that points here
    assert get(address, "/", Host=f"localhost:{place.port}")[0] == 200
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in (each for each in others if not each.startswith("127.")):
        with pytest.raises(OSError):
            socket.create_connection((other, place.port or 0), timeout=2)


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
