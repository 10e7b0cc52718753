"""Pages in a real browser, at desktop and phone width: `vitmix explore` and the HTML report."""

import base64
import io
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
from vitmix._registry import METHODS
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
    for _ in range(450):
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

        jump = page.get_by_role("button", name="Settings of the method")
        assert jump.is_visible() == (width == "phone")  # where the settings are below the results
        if width == "phone":
            jump.click()
            page.wait_for_function("document.querySelector('#vx-settings').getBoundingClientRect().top < innerHeight")

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


DROPPED = """(content) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], 'photo.png', {type: 'image/png'}));
  return data;
}"""


@pytest.mark.parametrize("width", WIDTHS)
def test_an_image_is_dropped(browser, address, width):
    """Over the partner's field, which shows that it takes the image; in dark mode, for its screenshot."""
    buffer = io.BytesIO()
    Image.effect_noise((90, 70), 90).save(buffer, "PNG")
    with tab(browser, width, address, color_scheme="dark") as seen:
        page = opened(seen, address)
        first = original(page)
        field = page.locator(".vx-drop").nth(1)
        data = page.evaluate_handle(DROPPED, base64.b64encode(buffer.getvalue()).decode())
        field.dispatch_event("dragover", {"dataTransfer": data})
        assert "over" in field.get_attribute("class").split()
        changed(page, target, lambda: field.dispatch_event("drop", {"dataTransfer": data}))
        assert "over" not in field.get_attribute("class").split()
        menu = page.get_by_label("Partner", exact=True).first
        assert menu.input_value() == "uploaded" and menu.evaluate("(box) => box.scrollWidth <= box.clientWidth")
        assert original(page) == first and page.url.startswith(address)  # the browser did not open the file
        seen.shot("dropped")
        seen.check()


def test_uploads_say_what_is_wrong_until_one_is_right(browser, address, tmp_path):
    with tab(browser, "desktop", address) as seen:
        page = opened(seen, address)
        said = page.locator(".vx-drop").first
        for name, content, words in (
            ("text.txt", b"text", "Choose an image file of at most 12 MB"),
            ("large.png", bytes(13 * 2**20), "Choose an image file of at most 12 MB"),
            ("damaged.png", b"text", "not an image that the browser can read"),
        ):
            (tmp_path / name).write_bytes(content)
            page.locator("input[type=file]").first.set_input_files(tmp_path / name)
            said.get_by_text(words).wait_for(timeout=30_000)
        file = tmp_path / "photo.png"
        Image.effect_noise((300, 200), 90).save(file)
        changed(page, original, lambda: page.locator("input[type=file]").first.set_input_files(file))
        assert "Drop another image" in said.inner_text()
        page.get_by_role("combobox", name="Partner").click()
        page.get_by_role("option", name="uploaded").click()
        page.get_by_role("alert").get_by_text("no image is uploaded yet").wait_for(timeout=30_000)
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


# What has the focus: its accessible name, its place, and whether its look changes with the focus.
FOCUSED = """(leave) => {
  const it = document.activeElement;
  const named = [it.getAttribute('aria-label'), it.labels && it.labels[0] && it.labels[0].innerText,
    (it.closest('label') || it.closest('.block') || it).innerText, it.title, it.value];
  const chain = []; for (let node = it; node && chain.length < 5; node = node.parentElement) chain.push(node);
  const look = () => chain.map((node) => { const style = getComputedStyle(node);
    return [style.outlineStyle, style.outlineWidth, style.boxShadow, style.borderColor].join(); }).join(';');
  const box = it.getBoundingClientRect(), focused = look();
  if (leave) it.blur();  // the next Tab continues from here
  const ring = look() !== focused;
  return {tag: it.tagName, type: it.type || '', name: (named.find((each) => each && each.trim()) || '').trim(),
    ring, place: [box.left, box.top + scrollY, box.width, box.height].map(Math.round).join(' ')};
}"""
# Everything on the open tab that a mouse can operate.
OPERABLE = """() => [...document.querySelectorAll('input, textarea, select, button, a[href], [role=tab]')]
  .filter((it) => !it.disabled && it.checkVisibility({visibilityProperty: true}) && it.getClientRects().length
    && !it.closest('footer') && it.tabIndex >= 0 && it.getAttribute('aria-hidden') !== 'true')
  .map((it) => { const box = it.getBoundingClientRect();
    return [box.left, box.top + scrollY, box.width, box.height].map(Math.round).join(' '); })"""


# The Tab key continues from where the focus was last, even after a blur.
TO_THE_TOP = """() => { let top = document.getElementById('top');
  if (!top) { top = document.createElement('span'); top.id = 'top'; top.tabIndex = -1; document.body.prepend(top); }
  scrollTo(0, 0); top.focus(); }"""
STILL = "*, *::before, *::after { transition: none !important; animation: none !important; }"


def stops(page: Any, most: int = 150) -> list[dict[str, Any]]:
    """What the Tab key visits from the top of the page, once around."""
    page.evaluate(TO_THE_TOP)
    found: list[dict[str, Any]] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        here = page.evaluate(FOCUSED, True)
        if here in found:
            return found
        found += [here] if here["tag"] != "BODY" else []  # Gradio's hidden menus take one stop
    raise AssertionError(f"the focus does not come around: {found[-3:]}")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_control_can_be_reached_and_seen_with_the_keyboard(browser, address, width):
    with tab(browser, width, address) as seen:
        page = opened(seen, address)
        page.get_by_text("Add losses, mixing inside the network, pairing").click()
        page.add_style_tag(content=STILL)
        page.wait_for_timeout(500)
        found = stops(page)
        missed = set(page.evaluate(OPERABLE)) - {here["place"] for here in found}
        assert not missed, f"not reached: {missed}"
        assert [here for here in found if not here["name"]] == []  # a screen reader has something to say
        assert [here["name"] for here in found if not here["ring"]] == []  # and a person sees where the focus is
        names = " | ".join(here["name"] for here in found)
        for name in ("Original image", "Partner", "Model", "Method", "Seed", "Depth: block", "Download the figure"):
            assert name in names, f"{name} is not in {names}"
        seen.check()


def test_the_page_works_without_a_mouse(browser, address, tmp_path):
    """Chooses a method, opens the menu of losses, checks one, moves the depth and saves the figure: keys only."""
    with tab(browser, "desktop", address) as seen:
        page = opened(seen, address)

        def go_to(name: str, kind: str = "") -> None:
            page.evaluate(TO_THE_TOP)
            for _ in range(150):
                page.keyboard.press("Tab")
                here = page.evaluate(FOCUSED, False)
                if name in here["name"] and here["tag"] != "BODY" and kind in (here["type"], ""):
                    return
            raise AssertionError(f"{name} is not reached")

        def choose_method() -> None:
            go_to("Method")
            page.keyboard.press("ControlOrMeta+A")
            page.keyboard.type("smmix")
            page.keyboard.press("Enter")

        changed(page, target, choose_method)
        text = page.locator("#vx-text textarea, #vx-text input")
        assert text.input_value() == "smmix"
        page.wait_for_timeout(1000)
        go_to("Add losses")
        page.keyboard.press("Enter")
        page.get_by_label("decoupled").wait_for()
        page.wait_for_timeout(1000)
        go_to("decoupled", "checkbox")
        changed(page, lambda page: text.input_value(), lambda: page.keyboard.press("Space"))
        assert "decoupled" in text.input_value()

        def deeper() -> None:
            go_to("Depth: block", "range")
            page.keyboard.press("ArrowRight")

        changed(page, lambda page: page.get_attribute("[data-block]", "data-block"), deeper)
        go_to("Download the figure")
        with page.expect_download(timeout=60_000) as download:
            page.keyboard.press("Enter")
        assert download.value.suggested_filename == "vitmix.png"
        go_to("Gallery")
        page.keyboard.press("Enter")
        page.wait_for_selector(".vx-card", timeout=180_000)
        seen.check()


def test_a_link_to_a_switch_has_no_menus(browser, address):
    with tab(browser, "desktop", address) as seen:
        page = seen.page
        page.goto(f"{address}?method=mixup%7Ccutmix")
        page.wait_for_selector("#vx-scene [data-target]", timeout=60_000)
        page.get_by_text("menus show one method").wait_for(timeout=30_000)
        text = page.locator("#vx-text textarea, #vx-text input")
        assert page.locator("#vx-base input").input_value() == "" and text.input_value() == "mixup|cutmix"
        page.get_by_text("Add losses, mixing inside the network, pairing").click()
        page.get_by_label("decoupled").check()
        page.get_by_role("alert").get_by_text("choose a method from the menu first").wait_for(timeout=30_000)
        assert text.input_value() == "mixup|cutmix"
        page.get_by_label("decoupled").uncheck()
        changed(page, lambda page: text.input_value(), lambda: _choose(page, page.locator("#vx-base input"), "cutmix"))
        page.wait_for_selector("#vx-base-alpha input", timeout=30_000)
        seen.check()


def test_a_link_to_an_unknown_model_waits_for_nothing(browser, address):
    with tab(browser, "desktop", address) as seen:
        seen.page.goto(f"{address}?model=nowhere")
        seen.page.get_by_role("alert").get_by_text("unknown model 'nowhere'").wait_for(timeout=60_000)
        assert not seen.page.get_by_text("Computing the first answer").is_visible()
        seen.check()


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
        assert page.locator(".vx-card").count() == len(METHODS) - 1  # all but none
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
