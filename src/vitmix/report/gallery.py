"""Where a run's model looks, as HTML: attention and aligned label maps of a few held-out images."""

from collections.abc import Callable
from html import escape

import numpy as np

from vitmix.adapters import read_model
from vitmix.data.images import BrokenImage, ImageSet
from vitmix.draw.kinds import Subjects, draw_attention, draw_labels
from vitmix.draw.looks import chosen_blocks
from vitmix.draw.sheet import Sheet
from vitmix.draw.sights import sight_of
from vitmix.evaluate.stored import own_images
from vitmix.evaluate.subject import Subject
from vitmix.show.pictures import Picture

from .examples import data_uri, encoded
from .html import note

IMAGES = 4  # two pairs
SIDE = 112  # pixels of a tile, at most
MOST_BLOCKS = 6
SEED = 0  # of the mixing: the same for every run


def draw_gallery(subject: Subject) -> str:
    """Strips of tiles; for what cannot be drawn, a sentence that says why."""
    try:
        pictures = _held_out(subject)
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


def _held_out(subject: Subject) -> list[Picture]:
    """Readable images of classes as different as there are, the same for every run on the same data."""
    images: ImageSet = own_images(subject)
    classes = np.unique(images.labels)
    wanted = classes[np.arange(IMAGES) * len(classes) // IMAGES][[0, 2, 1, 3]]  # pairs of two classes, if there are two
    found: list[Picture] = []
    for number, label in enumerate(wanted):
        rows = np.flatnonzero(images.labels == label)
        for index in np.roll(rows, -number):  # another image where classes repeat
            try:
                found.append(Picture(images[int(index)][0], images.classes[label]))
                break
            except BrokenImage:
                continue
    if len(found) < IMAGES:
        raise ValueError(f"fewer than {IMAGES} of the classes of {images.description} have a readable image")
    return found
