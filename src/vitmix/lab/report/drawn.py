"""The section of a report with the pictures that `vitmix draw` left in the run folders."""

import io
from collections.abc import Sequence
from html import escape

from PIL import Image

from vitmix.lab.figures.stored import StoredFigure, stored_figures

from .examples import JPEG, data_uri
from .html import note
from .runs import Group

WIDTH = 1400  # pixels of a picture, at most
EXACT = 200_000  # bytes up to which a picture is shown as it is
MOST = 900_000  # bytes of all pictures together: the page must stay small


def drawn_section(groups: Sequence[Group]) -> str:
    """Each picture once, however many of the runs it shows; what is too much for a page is named."""
    found: dict[bytes, StoredFigure] = {}
    for run in (run for group in groups for run in group.runs):
        for kept in stored_figures(run.folder):
            found.setdefault(kept.image.tobytes(), kept)
    parts, left_out, total = [], [], 0
    for kept in found.values():
        file = _encoded(kept.image)
        total += len(file)
        if total > MOST:
            left_out.append(str(kept.path))
            continue
        words = kept.description if kept.current else f"{kept.description} Drawn of earlier weights of the run."
        image = f'<img src="{data_uri(file)}" alt="{escape(kept.path.stem)}" width="{kept.image.width}">'
        parts.append(f'<figure class="drawn">{image}<figcaption class="soft">{escape(words)}</figcaption></figure>')
    if left_out:
        parts.append(note(f"Too much for this page, and left out: {', '.join(left_out)}"))
    return "".join(parts)


def _encoded(image: Image.Image) -> bytes:
    image = image.copy()
    image.thumbnail((WIDTH, 4 * WIDTH))
    exact, small = io.BytesIO(), io.BytesIO()
    image.save(exact, format="PNG", optimize=True)
    if exact.tell() <= EXACT:
        return exact.getvalue()
    image.save(small, **JPEG)
    return min(exact.getvalue(), small.getvalue(), key=len)
