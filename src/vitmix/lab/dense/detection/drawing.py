"""Images of a report: true objects, detections with scores, and errors."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitmix.lab.evaluation.examples import data_uri
from vitmix.lab.plotting.canvas import OWN, PARTNER
from vitmix.lab.runs.examples import StoredTile

from .outlines import draw_mask, read_outline
from .records import Annotation, Detected, Located
from .scoring import overlaps

SIDE = 320  # pixels of a tile's longer side
SHOWN = 0.5  # least score of a detection that is drawn
MISSED, RIGHT, WRONG = "#CC79A7", OWN, PARTNER
IOU = 0.5  # at which a detection is right


class _Sheet:
    """An enlarged image to draw on."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.scale = SIDE / max(pixels.shape[:2])
        size = (round(pixels.shape[1] * self.scale), round(pixels.shape[0] * self.scale))
        self.image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
        self.size = (pixels.shape[0], pixels.shape[1])
        self.draw = ImageDraw.Draw(self.image)

    def object(self, each: Located, color: str, words: str) -> None:
        left, top, width, height = (value * self.scale for value in each["bbox"])
        if mask := each.get("segmentation"):
            self._outline(draw_mask(read_outline(mask, self.size), self.size), color)
        self.draw.rectangle((left, top, left + width, top + height), outline=color, width=2)
        font = ImageFont.load_default(12)
        text = words.encode("latin-1", "replace").decode("latin-1")  # what Pillow's own font has
        x0, y0, x1, y1 = self.draw.textbbox((max(left, 1), max(top, 1)), text, font=font)
        self.draw.rectangle((x0 - 1, y0 - 1, x1 + 2, y1 + 1), fill=color)
        self.draw.text((max(left, 1), max(top, 1)), text, fill="white", font=font)

    def _outline(self, mask: np.ndarray, color: str) -> None:
        large = np.asarray(Image.fromarray(mask).resize(self.image.size, Image.Resampling.NEAREST))
        inner = large.copy()
        for axis in (0, 1):
            for step in (-1, 1):
                inner &= np.roll(large, step, axis)
        edge = Image.fromarray(large & ~inner)
        self.image.paste(Image.new("RGB", self.image.size, color), (0, 0), edge)
        self.draw = ImageDraw.Draw(self.image)

    def tile(self, *words: str) -> StoredTile:
        return StoredTile(data_uri(np.asarray(self.image) / 255, SIDE), words)


def example_tiles(
    pixels: np.ndarray, truth: Sequence[Annotation], found: Sequence[Detected], names: dict[int, str]
) -> list[StoredTile]:
    """Three tiles of an image `(H, W, 3)`: the objects, the detections, and what is wrong with them.

    `names` are those of the categories.
    """
    size = (pixels.shape[0], pixels.shape[1])
    objects = [each for each in truth if not each.get("iscrowd")]
    shown = sorted((each for each in found if each["score"] >= SHOWN), key=lambda each: -each["score"])
    right, missed = _judged(shown, objects, size)
    true, predicted, errors = _Sheet(pixels), _Sheet(pixels), _Sheet(pixels)
    for each in objects:
        true.object(each, RIGHT, names[each["category_id"]])
    for each in reversed(shown):
        predicted.object(each, RIGHT, f"{names[each['category_id']]} {each['score']:.2f}")
    for each, good in zip(shown, right, strict=True):
        if not good:
            errors.object(each, WRONG, f"{names[each['category_id']]} {each['score']:.2f}")
    for each in missed:
        errors.object(each, MISSED, names[each["category_id"]])
    wrong = right.count(False)
    return [
        true.tile("truth", f"{len(objects)} object{'s' * (len(objects) != 1)}"),
        predicted.tile("detections", f"score of at least {SHOWN:g}"),
        errors.tile("errors", f"{wrong} wrong, {len(missed)} missed"),
    ]


def _judged(
    found: Sequence[Detected], objects: Sequence[Annotation], size: tuple[int, int]
) -> tuple[list[bool], list[Annotation]]:
    """Which detections are right by their boxes, and the objects that none found."""
    right = [False] * len(found)
    missed: list[Annotation] = []
    for category in dict.fromkeys(each["category_id"] for each in (*objects, *found)):
        rows = [row for row, each in enumerate(found) if each["category_id"] == category]
        mine = [each for each in objects if each["category_id"] == category]
        ious = overlaps([found[row] for row in rows], mine, size, "bbox")
        taken: set[int] = set()
        for place, row in enumerate(rows):
            free = [(float(ious[place, each]), each) for each in range(len(mine)) if each not in taken]
            best = max(free, default=(0.0, -1))
            if best[0] >= IOU:
                taken.add(best[1])
                right[row] = True
        missed += [each for number, each in enumerate(mine) if number not in taken]
    return right, missed
