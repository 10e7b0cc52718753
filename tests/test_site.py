"""The documentation site: the reference is complete, every page is reachable, and the build has no warning."""

import inspect
import re
import shutil
import subprocess
import sys
import zlib
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vitmix._registry import KINDS, METHODS, parts
from vitmix.lab.cli import NAMES

ROOT = Path(__file__).parents[1]
PUBLIC = [
    "vitmix",
    "vitmix.functional",
    "vitmix.parts",
    "vitmix.attention",
    "vitmix.attention.readers",
    "vitmix.models",
]
PUBLIC += ["vitmix.integrations"] if util.find_spec("vitmix.integrations") else []
PATHS = [
    f"{module}.{name}"
    for module in PUBLIC
    for name in import_module(module).__all__
    if not isinstance(getattr(import_module(module), name), ModuleType)
]
SETTINGS: dict[str, Any] = {f"method {name}": factory for name, factory in METHODS.items()}
SETTINGS |= {f"{kind} {name}": part for kind in KINDS for name, part in parts(kind).items()}


def _load(name: str) -> ModuleType:
    """A script of docs/."""
    spec = util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return _load("site_pages")


@pytest.fixture(scope="module")
def pages(site: ModuleType) -> dict[str, str]:
    return site.pages()


def test_every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    text = "\n".join(pages.values())
    documented = re.findall(r"^\.\. auto(?:class|function|data):: (\S+)$", text, flags=re.MULTILINE)
    also = re.findall(r"^   Also ``(\S+)``\.$", text, flags=re.MULTILINE)
    assert sorted([*documented, *also]) == sorted(PATHS)  # each of them once


def test_every_public_name_has_a_summary(site: ModuleType) -> None:
    data = {"READERS", "REFUSED"}
    assert [each.path for each in site.public() if not each.summary and each.name not in data] == []


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_explained(name: str) -> None:
    text = inspect.getdoc(SETTINGS[name]) or ""
    for setting in inspect.signature(SETTINGS[name]).parameters:
        assert setting == "num_classes" or re.search(rf"\b{setting}\b", text), f"{name} does not explain {setting}"


def test_every_method_and_part_has_its_settings_and_defaults(pages: dict[str, str]) -> None:
    """Slow twin: the rows of the page against the signatures."""
    entries = re.split(r"^### ", pages["api_settings"], flags=re.MULTILINE)[1:]
    assert len(entries) == len(SETTINGS)
    for entry, thing in zip(entries, SETTINGS.values(), strict=True):
        rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \| \S.* \|$", entry, flags=re.MULTILINE))
        signature = inspect.signature(thing).parameters
        for name in set(signature) - {"num_classes", "common"}:
            text = str(signature[name].default).replace("(", "[").replace(",)", "]").replace(")", "]")
            assert rows[name] == text.replace("None", "none"), f"{entry[:20]}: {name}"
        assert set(rows) - set(signature) <= {"smoothing", "loss"}


def test_every_command_is_in_the_reference(pages: dict[str, str]) -> None:
    headings = re.findall(r"^## (.*)$", pages["commands"], flags=re.MULTILINE)
    assert headings == list(NAMES)
    assert pages["commands"].count("\nusage: vitmix ") == len(re.findall(r"^##", pages["commands"], flags=re.MULTILINE))
    assert "--method STRING" in pages["commands"] and "(default: shapes)" in pages["commands"]


def test_every_example_is_on_the_site(pages: dict[str, str]) -> None:
    for path in (ROOT / "examples").rglob("*.py"):
        assert f"literalinclude}} /{path.relative_to(ROOT).as_posix()}\n" in pages["examples"]


def test_navigation_has_new_pages_and_no_missing_ones(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("```{toctree}\n:glob:\n\nFirst <first>\nsecond*\nabsent*\nall-other-pages\n```\n")
    for name in ("first", "second_page", "newest"):
        (docs / f"{name}.md").write_text(f"# {name}\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    source = [(docs / "index.md").read_text()]
    site.adapt(None, "docs/index", source)
    assert source[0].split() == ["```{toctree}", ":glob:", "First", "<first>", "second*", "newest", "```"]


def test_gallery_lists_every_card(site: ModuleType) -> None:
    source = [(ROOT / "docs" / "gallery.md").read_text()]
    site.adapt(None, "docs/gallery", source)
    cards = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    rows = dict(re.findall(r"^\| \[.+?\]\(methods/(\w+)\.md\) \| (.*) \|$", source[0], flags=re.MULTILINE))
    assert set(rows) == cards and all(len(words) > 20 for words in rows.values())


def test_links_of_cards_lead_from_the_gallery(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    text = "# A\n\nLike [B](b.md#use-it), see\n[speed](../speed.md), [paper](https://x.org/a).\n\n## Use it\n"
    (tmp_path / "docs" / "methods" / "a.md").write_text(text)
    monkeypatch.setattr(site, "ROOT", tmp_path)
    words = "Like [B](methods/b.md#use-it), see [speed](speed.md), [paper](https://x.org/a)."
    assert site.cards_table().splitlines()[-1] == f"| [A](methods/a.md) | {words} |"


def test_links_to_examples_lead_to_their_page(site: ModuleType) -> None:
    source = ["[a](../examples/own_parts.py) [b](../examples/integrations) [c](../results/README.md)"]
    site.adapt(None, "docs/library", source)
    a, b, c = re.findall(r"\((.*?)\)", source[0])
    assert f"({a[1:]})=" in site.pages()["examples"]
    assert (b, c) == ("/docs/generated/examples.md", "../results/README.md")


def test_figures_are_made_by_one_command_and_small() -> None:
    pytest.importorskip("skimage", reason="the figures' photographs; pip install -e '.[docs]'")
    from PIL import Image

    figures = _load("make_figures")
    made = {path for path, _ in figures.commands(Path("photographs"), "weights").values()}
    stored = {*(ROOT / "docs" / "figures").iterdir(), ROOT / "docs" / "show.png"}
    assert made == stored
    assert sum(path.stat().st_size for path in stored) < 3_000_000
    with Image.open(ROOT / "docs" / "figures" / "flow.webp") as flow:
        assert flow.n_frames > 12  # the input and each block  # pyright: ignore
    assert (ROOT / "docs" / "figures" / "flow.webp").stat().st_size < 1_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as its page on design says."""
    for package in ("sphinx", "myst_parser", "pydata_sphinx_theme"):
        pytest.importorskip(package, reason="pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", str(ROOT / "docs"), "-d", str(folder / "trees")]
    done = subprocess.run([*command, str(ROOT), str(folder / "site")], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.slow
def test_site_builds_without_warnings_and_without_the_network(built: Path) -> None:
    inventory = (built / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]
    found = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    also = {
        name for page in built.glob("docs/generated/*.html") for name in re.findall(r"vitmix[\w.]+", page.read_text())
    }
    assert not set(PATHS) - found - also
    assert "Search.setIndex" in (built / "searchindex.js").read_text()[:100]  # a script, so it loads from a file too
    for page in built.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]*)"', page.read_text())
        loaded += re.findall(r'<link[^>]*\shref="([^"]*)"', page.read_text())
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page.name
    assert not re.search(r"url\((['\"]?)https?:", "".join(path.read_text() for path in built.rglob("*.css")))


@pytest.mark.slow
@pytest.mark.browser
def test_search_works_without_a_server(built: Path) -> None:
    """In pages that are opened from a folder, with the keys that the page names."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs chromium in the PATH")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, outside, errors = browser.new_page(), [], []
        page.on("request", lambda request: outside.append(request.url) if request.url[:5] != "file:" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((built / "docs" / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.locator("input[type=search]:focus").fill("carried share")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="vitmix.functional.carried_share").first.wait_for(timeout=60_000)
        page.get_by_role("link", name="TL-Align", exact=True).first.click()
        page.get_by_role("heading", name="TL-Align", level=1).wait_for(timeout=60_000)
        browser.close()
    assert not outside and not errors
