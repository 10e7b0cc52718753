"""The sections with images: mixed images with targets, where models look, and stored figures of `vitmix figure`."""

import base64
import io
from collections.abc import Sequence

from PIL import Image

from vitmix.lab.figures.stored import StoredFigure, stored_figures
from vitmix.lab.runs.examples import SOURCES
from vitmix.lab.runs.folder import EXAMPLES

from .groups import Group, advice, every_run
from .html import Html, html

MOST_GROUPS = 6
WIDTH = 1400  # pixels of a figure, at most
EXACT = 200_000  # bytes up to which a figure is shown as it is
MOST = 900_000  # bytes of all figures together: the page must stay small


def examples(groups: Sequence[Group], count: int) -> list[Html]:
    """At most so many mixed images for each method of each configuration."""
    parts: list[Html] = []
    taken = False
    for group in groups[: MOST_GROUPS if count else 0]:
        found, repair = group.first.examples, advice(group.first, "eval {}", "draws examples")
        if found is None:  # a published run never has any
            parts += [html.note(f"{group.name}: {group.first.problems[EXAMPLES]}{repair}")] if repair else []
            continue
        parts += [html.note(f"{group.name}: {each}") for each in found.problems]
        taken |= any("taken" in each.sources for each in found.mixed)
        for method in dict.fromkeys(each.method for each in found.mixed):
            shown = [each for each in found.mixed if each.method == method][:count]
            parts.append(html.tiles(html.key(group.number, html.code(method)), shown, SOURCES))
    return [html.about_examples(taken), *parts] if parts else []


def gallery(groups: Sequence[Group], count: int) -> list[Html]:
    """The strips of each configuration; empty without examples."""
    parts: list[Html] = []
    for group in groups[: MOST_GROUPS if count else 0]:
        found = group.first.examples
        if found is not None and found.strips:
            parts += [html.heading(group.key), *map(html.strips, found.strips)]
    return [html.about_gallery(), *parts] if parts else []


def figures(groups: Sequence[Group]) -> list[Html]:
    """Each figure once, even if it shows several runs; figures that are too large for the page are named."""
    found: dict[bytes, StoredFigure] = {}
    for run in every_run(groups):
        for kept in stored_figures(run.path):
            found.setdefault(kept.image.tobytes(), kept)
    parts: list[Html] = []
    left_out, total = [], 0
    for kept in found.values():
        uri = _data_uri(kept.image)
        total += len(uri) * 3 // 4
        if total > MOST:
            left_out.append(str(kept.path))
            continue
        words = kept.description if kept.current else f"{kept.description} Made with earlier weights of the run."
        parts.append(html.stored(uri, kept.path.stem, kept.image.width, words))
    if left_out:
        parts.append(html.note(f"Left out, because they are too large for this page: {', '.join(left_out)}"))
    return parts


def _data_uri(image: Image.Image) -> str:
    image = image.copy()
    image.thumbnail((WIDTH, 4 * WIDTH))
    exact, small = io.BytesIO(), io.BytesIO()
    image.save(exact, format="PNG", optimize=True)
    image.save(small, format="JPEG", quality=85)
    jpeg = exact.tell() > EXACT and small.tell() < exact.tell()
    content = (small if jpeg else exact).getvalue()
    return f"data:image/{'jpeg' if jpeg else 'png'};base64,{base64.b64encode(content).decode()}"
