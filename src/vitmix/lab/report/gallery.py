"""Where a run's model looks, as HTML: attention and aligned label maps of a few held-out images."""

from collections.abc import Callable
from html import escape

import numpy as np

from vitmix.attention.readers import read_model
from vitmix.lab.evaluation.subject import Subject
from vitmix.lab.figures.held_out import held_out
from vitmix.lab.figures.kinds import Subjects, draw_attention, draw_labels
from vitmix.lab.figures.looks import chosen_blocks
from vitmix.lab.figures.sheet import Sheet
from vitmix.lab.figures.sights import sight_of

from .examples import data_uri, encoded
from .html import note

IMAGES = 4  # two pairs
SIDE = 112  # pixels of a tile, at most
MOST_BLOCKS = 6
SEED = 0  # of the mixing: the same for every run


def draw_gallery(subject: Subject) -> str:
    """Strips of tiles; for what cannot be drawn, a sentence that says why."""
    try:
        pictures = held_out(subject, IMAGES)
        subjects = Subjects([sight_of(subject, "")], pictures, seed=SEED)
        blocks = chosen_blocks(read_model(subject.model).depth, None, most=MOST_BLOCKS)
    except (ValueError, OSError) as error:
        return note(f"Nothing can be drawn of where this model looks: {error}")
    alone = Subjects(subjects.sights, pictures[:2])
    attention = _strips("attention", lambda: draw_attention(alone, blocks=blocks))
    return attention + _strips("label maps", lambda: draw_labels(subjects, blocks=blocks))


def _strips(what: str, draw: Callable[[], Sheet]) -> str:
    try:
        sheet = draw()
    except (ValueError, RuntimeError) as error:
        return note(f"No {what}: {error}")
    rows = []
    for band in sheet.bands:
        for row in band.rows:
            tiles = []
            for head, panel in zip(band.heads, row.panels, strict=True):
                words = "".join(f"<div>{escape(line)}</div>" for line in (head, *panel.caption.splitlines()))
                image = f'<img src="{data_uri(_tile(panel.pixels))}" alt="{escape(f"{what}, {head}")}">'
                tiles.append(f"<figure>{image}<figcaption>{words}</figcaption></figure>")
            rows.append(f'<div class="strip">{"".join(tiles)}</div>')
    return f'<div class="strips">{"".join(rows)}</div>'


def _tile(pixels: np.ndarray) -> bytes:
    return encoded((pixels * 255).round().astype(np.uint8), SIDE)
