"""Run folders of unknown origin: a report is written, or one sentence says why not; never a traceback, never a hang."""

import copy
import gzip
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fuzz_values import places
from support import ROOT
from test_report import Page, without_script
from training import one_thread, train  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = int(os.environ.get("VITMIX_FUZZ", "40"))
ATTACK = ["--limit", "8", "--attack-limit", "4", "--alphas", "0.01", "--steps", "1", "--epsilons", "0.02"]
FILES = ("metrics.jsonl", "summary.json", "evaluation.json", "robustness.json", "examples.json", "config.yaml")
STUDIES = ("accuracy", "fluctuation", "htm")
SCRIPT = '"><script>alert(1)</script>'
VALUES = [
    *(None, True, 0, 1, -1, 10**400, -(10**30), 1e308, 5e-324, float("nan"), float("inf"), 0.5),
    *("", "x", "\ud800", "12", "²", SCRIPT, "none", "linf", "best", "../../x"),
    *([], {}, [[]], [None], [1, 2, 3], [{}], {"": None}, {"part": []}, {"mean": "x"}, [[0, 10**9, 1]]),
]


@pytest.fixture(scope="module")
def whole(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Two runs with everything that a report reads."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method in (("a", "cutmix + htm(block=1, tau=9)"), ("b", "mixup")):
        run = folder / name
        train(run, method=method, epochs=2)
        assert cli.main(["eval", str(run), "--workers", "0"]) == 0
        assert cli.main(["eval", str(run), "--suite", "clean,noise,occlusion,attacks", *ATTACK]) == 0
        given = ["--figure", "svg", "--output", str(run / "analysis"), "--images", "12", "--study"]
        assert cli.main(["analyze", str(run), *given, *STUDIES[: 3 if name == "a" else 2]]) == 0
        for path in run.rglob("*"):  # which no report reads
            if path.is_file() and path.suffix in (".svg", ".csv", ".txt"):
                path.unlink()
    return folder


def with_change(value: Any, chance: random.Random) -> Any:
    """The value with one of its parts replaced, removed or doubled."""
    value = copy.deepcopy(value)
    *way, last = chance.choice(places(value)[1:])
    place = value
    for key in way:
        place = place[key]
    kind = chance.random()
    if kind < 0.7:
        place[last] = copy.deepcopy(chance.choice(VALUES))
    elif kind < 0.9:
        del place[last]
    elif isinstance(place, list):
        place.append(copy.deepcopy(place[last]))
    else:
        place["more"] = copy.deepcopy(place[last])
    return value


def damage(path: Path, chance: random.Random) -> None:
    """Changes a file into something that its writer never wrote."""
    content = path.read_text()
    if chance.random() < 0.25:
        changes: list[Callable[[], bytes]] = [
            lambda: json.dumps(chance.choice(VALUES)).encode(),
            lambda: content.encode()[: chance.randrange(len(content))],
            lambda: chance.randbytes(20) + content.encode(),
            lambda: b"[" * 100_000,
            lambda: b'{"a": ' * 900 + b"1" + b"}" * 900,
        ]
        path.write_bytes(chance.choice(changes)())
    elif path.suffix == ".jsonl":
        rows = with_change([json.loads(line) for line in content.splitlines()], chance)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        value = yaml.safe_load(content) if path.suffix == ".yaml" else json.loads(content)
        path.write_text(json.dumps(with_change(value, chance)))  # which is YAML too


def test_any_file_of_a_run_may_be_damaged(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written = 0
    for seed in range(CASES):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(whole, folder, copy_function=os.link)
        for _ in range(chance.choice([1, 1, 3])):
            run = folder / chance.choice("ab")
            names = [*FILES, *(f"analysis/{path.name}" for path in sorted((run / "analysis").glob("*.json")))]
            path = run / chance.choice(names)
            damaged = tmp_path / path.name
            shutil.copy(path, damaged)
            try:
                damage(damaged, chance)
            except (ValueError, IndexError, yaml.YAMLError, RecursionError):
                continue  # it was damaged before
            damaged.replace(path)
        start = time.process_time()
        page = folder / "page.html"
        code = cli.main(["report", str(folder), "--output", str(page), "--examples", "2"])
        assert time.process_time() - start < 5, seed
        said = capfd.readouterr().err
        assert code in (0, 2) and said.count("\n") == (code == 2), (seed, said)
        if code == 0:
            written += 1
            text = page.read_text()
            assert not Page(text).open and "<script" not in without_script(text), seed
        shutil.rmtree(folder)
    assert written > CASES / 2  # one damaged file does not cost the page


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"text": 3, "broken_images": []}', "[" * 10_000, "", "\ud800"])
def test_what_is_no_summary_ends_no_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_bytes(content.encode(errors="surrogatepass"))
    assert Run(tmp_path).summary is None


def test_metrics_end_at_a_damaged_row(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"epoch": 1, "loss": 2.5}\n{"epoch": 2, \x8e"loss": 2}\n{"epoch": 3}\n')
    assert [epoch.to_json() for epoch in Run(tmp_path).epochs] == [{"epoch": 1, "loss": 2.5}]


def test_pipes_are_not_waited_for(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    files = ("summary.json", "evaluation.json", "robustness.json", "examples.json", "analysis/accuracy.json")
    for name in (*files, "pictures/x.png"):
        path = folder / "a" / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    page = tmp_path / "page.html"
    assert cli.main(["report", str(folder), "--output", str(page), "--examples", "0"]) == 0
    assert "a is not evaluated" in page.read_text()


def test_results_of_damaged_weights_are_not_shown(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    (folder / "b" / "best.safetensors").write_bytes(b"\0" * 100)
    page = tmp_path / "page.html"
    assert cli.main(["report", str(folder), "--output", str(page), "--examples", "1"]) == 0
    for name in ("evaluation.json", "examples.json", "analysis/accuracy.json"):
        assert f"b/{name} is about other weights" in page.read_text()
    assert "a is not evaluated: " not in page.read_text()


@pytest.mark.parametrize(
    "image", ["https://example.org/x.png", "javascript:alert(1)", 'data:image/png;base64,"onload=']
)
def test_examples_lead_nowhere(whole: Path, tmp_path: Path, image: str) -> None:
    folder = shutil.copytree(whole / "a", tmp_path / "run")
    found = json.loads((folder / "examples.json").read_text())
    found["mixed"][0]["mixed"] = image
    (folder / "examples.json").write_text(json.dumps(found))
    page = tmp_path / "page.html"
    assert cli.main(["report", str(folder), "--output", str(page)]) == 0
    assert "an image is not a data URI of one" in page.read_text() and image not in page.read_text()


def test_any_line_of_a_published_comparison_may_be_damaged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stored = gzip.decompress((ROOT / "results" / "cifar10" / FILE).read_bytes())
    lines = [json.loads(line) for line in stored.splitlines()]
    written = 0
    for seed in range(CASES):
        chance = random.Random(seed)
        changed = list(lines)
        place = chance.randrange(len(lines))
        changed[place] = with_change(lines[place], chance)
        content = gzip.compress("".join(json.dumps(line) + "\n" for line in changed).encode())
        if chance.random() < 0.2:
            content = chance.choice([content[:-20], content[:50] + b"x" + content[51:], b"", b"{}", stored])
        (tmp_path / FILE).write_bytes(content)
        codes = [
            cli.main(["report", str(tmp_path), "--output", str(tmp_path / "page.html")]),
            cli.main(["compare", str(tmp_path), "--no-train", "--output", str(tmp_path / "out")]),
        ]
        said = capfd.readouterr().err
        assert set(codes) <= {0, 2} and said.count("\n") == codes.count(2), (seed, said)
        written += codes[0] == 0
    assert written > CASES / 3
