"""Pages in a real browser, at desktop and phone width: `vitmix explore` and the HTML report."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from explore_page import serving
from training import one_thread, train  # noqa: F401
from vitmix.lab.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
SHOTS = os.environ.get("VITMIX_SHOTS")  # a folder for screenshots, to look at

pytestmark = [
    pytest.mark.browser,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium in the PATH"),
]


@dataclass
class Seen:
    """A tab, and what it did that a page of ours must not."""

    page: Any
    width: str
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def check(self) -> None:
        assert not self.errors and not self.outside
        wide, window = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= window, "the page scrolls sideways"

    def shot(self, name: str) -> None:
        if SHOTS:
            self.page.screenshot(path=f"{SHOTS}/{name}-{self.width}.png", full_page=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def tab(browser: Any, width: str, allowed: str, **settings: Any) -> Iterator[Seen]:
    """A tab that may load only addresses that begin like this, besides data inside the page."""
    size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    context = browser.new_context(viewport=size, **settings)
    seen = Seen(context.new_page(), width)
    seen.page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))

    def requested(request: Any) -> None:
        if not request.url.startswith((allowed, "data:", "blob:", "about:")):
            seen.outside.append(request.url)

    seen.page.on("request", requested)
    try:
        yield seen
    finally:
        context.close()


# vitmix explore


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    pytest.importorskip("gradio", reason="needs gradio: pip install 'vitmix[app]'")
    with serving(str(runs)) as address:
        yield address


def opened(seen: Seen, address: str) -> Any:
    seen.page.goto(address)
    seen.page.wait_for_selector("#vx-scene [data-target]", timeout=60_000)
    seen.page.wait_for_selector("#vx-base-alpha input", timeout=30_000)
    return seen.page


def target(page: Any) -> str:
    return page.get_attribute("#vx-scene [data-target]", "data-target")


def changed(page: Any, read: Callable[[Any], str], act: Callable[[], Any]) -> None:
    """Does something, and waits until what is read differs."""
    before = read(page)
    act()
    for _ in range(150):
        if read(page) != before:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"still {before[:80]!r}")


def original(page: Any) -> str:
    return page.get_attribute("#vx-scene .vx-tile.own img", "src")


@pytest.mark.parametrize("width", WIDTHS)
def test_explore(browser, address, width, tmp_path):
    """The page loads, takes an image, changes with method, settings, seed and depth, and gives figure and link."""
    with tab(browser, width, address) as seen:
        page = opened(seen, address)
        seen.check()
        file = tmp_path / "photo.png"
        Image.effect_noise((900, 700), 90).save(file)
        changed(page, original, lambda: page.locator("input[type=file]").first.set_input_files(file))

        menu = page.locator("#vx-base input")
        changed(page, target, lambda: _choose(page, menu, "mixup"))
        assert page.locator("#vx-text textarea, #vx-text input").input_value() == "mixup"
        page.wait_for_function("document.querySelector('#vx-base-alpha input').value === '0.8'")  # not tl_align's 1
        changed(page, target, lambda: _number(page, "#vx-base-alpha input", "3"))
        assert page.locator("#vx-text textarea, #vx-text input").input_value() == "mixup(alpha=3.0)"
        changed(page, target, lambda: _number(page, "#vx-seed input", "5"))

        changed(page, lambda page: page.get_attribute("[data-block]", "data-block"), lambda: _right(page))
        assert page.get_attribute("[data-block]", "data-block") == "2"
        with page.expect_download(timeout=60_000) as download:
            page.locator("#vx-download").click()
        saved = tmp_path / "figure.png"
        download.value.save_as(saved)
        with Image.open(saved) as figure:
            assert download.value.suggested_filename == "vitmix.png" and figure.width > 400
        seen.shot("explore")
        text = page.content()
        assert str(tmp_path) not in text and os.getcwd() not in text
        seen.check()


def _choose(page: Any, menu: Any, name: str) -> None:
    """With the keyboard alone, but for the focus."""
    menu.focus()
    menu.fill(name)
    page.keyboard.press("Enter")


def _number(page: Any, place: str, value: str) -> None:
    page.locator(place).fill(value)
    page.keyboard.press("Tab")


def _right(page: Any) -> None:
    page.locator("#vx-block input[type=range]").focus()
    page.keyboard.press("ArrowRight")


def test_links_restore_the_page(browser, address):
    query = "?method=mix(mask%3Dblock(share%3D0.25),share%3Daligned)%2Bconsistency&seed=7&block=3&first=shapes+7"
    with tab(browser, "desktop", address) as seen:
        seen.page.goto(f"{address}{query}")
        seen.page.wait_for_selector("#vx-mask-share input", timeout=60_000)
        seen.page.wait_for_selector("#vx-scene [data-target]", timeout=60_000)
        page = seen.page
        assert page.locator("#vx-base input").input_value() == "mix: build your own"
        assert page.locator("#vx-mask-share input[type=number]").input_value() == "0.25"
        assert page.locator("#vx-seed input").input_value() == "7"
        assert page.get_attribute("[data-block]", "data-block") == "3"
        page.wait_for_function("location.search.includes('seed=7')")
        link, before = page.url, target(page)
        page.goto("about:blank")
        page.goto(link)
        page.wait_for_selector("#vx-scene [data-target]", timeout=60_000)
        assert target(page) == before and "consistency" in page.locator("#vx-scene").inner_text()
        seen.check()


def test_wrong_texts_say_what_to_repair_and_keep_the_last_answer(browser, address):
    with tab(browser, "desktop", address) as seen:
        page = opened(seen, address)
        before = target(page)
        box = page.locator("#vx-text textarea, #vx-text input")
        box.fill("cutmx")
        box.press("Enter")
        page.wait_for_selector("[role=alert]", timeout=30_000)
        assert "did you mean 'cutmix'" in page.locator("[role=alert]").inner_text() and target(page) == before
        seen.check()


@pytest.mark.parametrize("width", WIDTHS)
def test_gallery_and_comparison(browser, address, width):
    with tab(browser, width, address, color_scheme="dark") as seen:
        page = opened(seen, address)
        page.get_by_role("tab", name="Gallery").click()
        page.wait_for_selector(".vx-card", timeout=60_000)
        assert page.locator(".vx-card").count() >= 8
        seen.shot("gallery")
        seen.check()
        page.get_by_role("tab", name="Compare runs").click()
        page.get_by_role("button", name="Compare", exact=True).click()
        page.wait_for_selector("iframe", timeout=60_000)
        page.frame_locator("iframe").get_by_role("heading", name="Results", exact=True).wait_for(timeout=30_000)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", color)[:3])) < 60  # dark, as the system asks for
        seen.shot("comparison")
        seen.check()


# The report


@pytest.fixture(scope="module")
def runs(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("runs")
    for name, epochs in (("mixup", 2), ("cutmix", 1), ("none", 3)):
        train(folder / name, method=name, epochs=epochs)
    return folder


@pytest.mark.parametrize("width", WIDTHS)
def test_report(browser, runs, tmp_path, width):
    """The page opens, its tables sort by mouse and keyboard, and scroll on a phone; nothing is loaded."""
    output = tmp_path / "report.html"
    write_report([runs], output)
    with tab(browser, width, output.as_uri()) as seen:
        page = seen.page
        page.goto(output.as_uri())
        table = page.locator("#runs table")
        head = table.locator("th").nth(2)
        assert head.inner_text() == "epochs"

        def column() -> list[int]:
            return [
                int(re.findall(r"\d+", text)[0]) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()
            ]

        head.click()
        assert column() == [3, 2, 1] and head.get_attribute("aria-sort") == "descending"
        head.press("Enter")
        assert column() == [1, 2, 3] and head.get_attribute("aria-sort") == "ascending"
        table.locator("th").nth(0).click()
        names = table.locator("tbody td:nth-child(1)").all_inner_texts()
        assert [Path(name).name for name in names] == ["none", "mixup", "cutmix"]
        if width == "phone":
            box = page.locator("#runs .scroll")
            inside = box.evaluate(
                "(box) => { box.scrollLeft = 80; return [box.scrollWidth, box.clientWidth, box.scrollLeft]; }"
            )
            assert inside[0] > inside[1] and inside[2] > 0
        page.mouse.wheel(0, 4000)
        page.wait_for_function("scrollY > 0")
        seen.shot("report")
        seen.check()
