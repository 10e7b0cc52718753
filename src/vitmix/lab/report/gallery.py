"""Where a run's model looks, as HTML: attention and aligned label maps of a few held-out images."""

from collections.abc import Callable
from html import escape

import numpy as np

from vitmix.attention.readers import read_model
from vitmix.lab.evaluation.subject import Subject
from vitmix.lab.figures.attention import chosen_blocks
from vitmix.lab.figures.images import held_out
from vitmix.lab.figures.kinds import attention_figure, labels_figure
from vitmix.lab.figures.layout import FigureInputs
from vitmix.lab.figures.models import named_model
from vitmix.lab.plotting.grid import ImageGrid

from .examples import data_uri, encoded
from .html import note

IMAGES = 4  # two pairs
SIDE = 112  # pixels of a tile, at most
MOST_BLOCKS = 6
SEED = 0  # of the mixing: the same for every run


def draw_gallery(subject: Subject) -> str:
    """Strips of tiles; for what cannot be drawn, a sentence that says why."""
    try:
        images = held_out(subject, IMAGES)
        inputs = FigureInputs([named_model(subject, "")], images, seed=SEED)
        blocks = chosen_blocks(read_model(subject.model).depth, None, most=MOST_BLOCKS)
    except (ValueError, OSError) as error:
        return note(f"Nothing can be drawn of where this model looks: {error}")
    alone = FigureInputs(inputs.models, images[:2])
    attention = _strips("attention", lambda: attention_figure(alone, blocks=blocks))
    return attention + _strips("label maps", lambda: labels_figure(inputs, blocks=blocks))


def _strips(what: str, plot: Callable[[], ImageGrid]) -> str:
    try:
        grid = plot()
    except (ValueError, RuntimeError) as error:
        return note(f"No {what}: {error}")
    rows = []
    for section in grid.sections:
        for row in section.rows:
            tiles = []
            for head, tile in zip(section.heads, row.tiles, strict=True):
                words = "".join(f"<div>{escape(line)}</div>" for line in (head, *tile.caption.splitlines()))
                image = f'<img src="{data_uri(_tile(tile.pixels))}" alt="{escape(f"{what}, {head}")}">'
                tiles.append(f"<figure>{image}<figcaption>{words}</figcaption></figure>")
            rows.append(f'<div class="strip">{"".join(tiles)}</div>')
    return f'<div class="strips">{"".join(rows)}</div>'


def _tile(pixels: np.ndarray) -> bytes:
    return encoded((pixels * 255).round().astype(np.uint8), SIDE)
