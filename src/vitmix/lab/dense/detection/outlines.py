"""Instance masks as COCO stores them: polygons, run lengths, and run lengths packed into a text.

Run lengths go down the columns and start with the background. The packed text writes each run as its difference from
the run before the last one, five bits per character, least significant first, from `0` on.

A polygon covers the pixels whose center is inside by the even-odd rule; several polygons of one object are united.
COCO's own code draws the border of a polygon with rounding of its own, so the two differ in pixels on the border.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitmix.lab.reading import is_count, is_number

Size = tuple[int, int]  # height, width
Outline = np.ndarray | tuple[np.ndarray, ...]  # run lengths, or polygons of (n, 2) points x, y


def read_outline(segmentation: Any, size: Size) -> Outline:
    """A `segmentation` of COCO for an image of this size, checked. Anything else is a ValueError."""
    if isinstance(segmentation, list):
        return tuple(_polygon(each, size) for each in segmentation)
    if isinstance(segmentation, dict) and "counts" in segmentation:
        if segmentation.get("size") != list(size):
            raise ValueError(f"run lengths of size {segmentation.get('size')} in an image of {list(size)}")
        counts = segmentation["counts"]
        return _runs(unpack_runs(counts) if isinstance(counts, str) else counts, size)
    raise ValueError("a segmentation is a list of polygons or run lengths with size and counts")


def draw_mask(outline: Outline, size: Size) -> np.ndarray:
    """`(H, W)` bool: the mask of an outline."""
    if isinstance(outline, np.ndarray):
        return np.repeat(np.arange(len(outline)) % 2 == 1, outline).reshape(size[::-1]).T
    mask = np.zeros(size, dtype=bool)
    for polygon in outline:
        mask |= polygon_mask(polygon, size)
    return mask


def _runs(counts: Any, size: Size) -> np.ndarray:
    if not isinstance(counts, list) or not all(map(is_count, counts)) or sum(counts) != size[0] * size[1]:
        raise ValueError(f"run lengths must be counts that add up to {size[0]} x {size[1]} pixels")
    return np.asarray(counts, dtype=np.int64)


def _polygon(numbers: Any, size: Size) -> np.ndarray:
    if not isinstance(numbers, list) or len(numbers) < 6 or len(numbers) % 2 or not all(map(is_number, numbers)):
        raise ValueError("a polygon is a list of at least three x, y pairs")
    points, sides = np.asarray(numbers, dtype=np.float64).reshape(-1, 2), np.array(size[::-1])
    if (points < -sides).any() or (points > 2 * sides).any():  # COCO's code takes memory for the length of its border
        raise ValueError(f"a polygon leaves its image of {size[0]} x {size[1]} pixels by more than its size")
    return points


def encode_runs(mask: np.ndarray) -> list[int]:
    """The run lengths of a mask `(H, W)` down its columns, background first."""
    flat = np.concatenate([[False], mask.T.reshape(-1), [False]])
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    if not len(edges):
        return [mask.size]
    runs = np.diff(edges, prepend=0).tolist()
    rest = mask.size - int(edges[-1])
    return [*runs, rest] if rest else runs


def pack_runs(counts: Sequence[int]) -> str:
    """Run lengths as COCO's text."""
    text: list[str] = []
    for number, count in enumerate(counts):
        value = count - counts[number - 2] if number > 2 else count
        more = True
        while more:
            bits, value = value & 0x1F, value >> 5
            more = value != (-1 if bits & 0x10 else 0)  # the sign is in the last character's highest bit
            text.append(chr(48 + (bits | (0x20 if more else 0))))
    return "".join(text)


def unpack_runs(text: str) -> list[int]:
    """Run lengths from COCO's text."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError("packed run lengths contain invalid characters")
        value |= (bits & 0x1F) << shift
        shift += 5
        if not bits & 0x20:
            value -= (1 << shift) if bits & 0x10 else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("packed run lengths end within a number")
    return counts


def polygon_mask(points: np.ndarray, size: Size) -> np.ndarray:
    """`(H, W)` bool: the pixels whose center is inside the polygon of `(n, 2)` points x, y, by the even-odd rule."""
    height, width = size
    flips = np.zeros((height, width + 1), dtype=np.int32)  # the pixel from which on an edge is to the left
    for (x, y), (x2, y2) in zip(points, np.roll(points, -1, axis=0), strict=True):
        low, high = min(y, y2), max(y, y2)
        rows = np.arange(np.clip(np.ceil(low - 0.5), 0, height), np.clip(np.ceil(high - 0.5), 0, height), dtype=int)
        if len(rows):
            crossing = x + (rows + 0.5 - y) * (x2 - x) / (y2 - y)
            np.add.at(flips, (rows, np.clip(np.ceil(crossing - 0.5), 0, width).astype(int)), 1)
    return np.cumsum(flips[:, :-1], axis=1) % 2 == 1
