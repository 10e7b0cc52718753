"""Example images of a run: examples.json, with each image as a data URI."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .records import Record, absent

SOURCES = {"own": "original image", "partner": "partner", "taken": "image whose tokens were taken"}
ROLES = (*SOURCES, "other", "rest")
"""The role of a source image: the original, its partner, or the mixed image whose tokens HTM took.

Parts of a target have two more: a class of none of them (`other`), and what smoothing spreads over all classes
(`rest`)."""


@dataclass(frozen=True)
class TargetPart(Record):
    """A class's part of a target."""

    role: str
    name: str
    share: float


@dataclass(frozen=True)
class Example(Record):
    """A mixed image, its source images by role, and its target in the same order."""

    method: str
    mixed: str
    sources: dict[str, str]
    target: tuple[TargetPart, ...]


@dataclass(frozen=True)
class StoredTile(Record):
    image: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Strips(Record):
    """Rows of tiles about one thing, such as attention by block."""

    what: str
    rows: tuple[tuple[StoredTile, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Examples(Record):
    """The examples of a run's best weights; `problems` says what could not be drawn, and why."""

    weights_sha256: str | None = absent()
    mixed: tuple[Example, ...]
    strips: tuple[Strips, ...]
    problems: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Any other address, or a style, could make a page load something else."""
        if not all(
            re.fullmatch(r"data:image/(?:png|jpeg|webp);base64,[A-Za-z0-9+/=]*", each) for each in self._images()
        ):
            raise ValueError("an image is not a data URI of one")
        roles = {part.role for each in self.mixed for part in each.target} - set(ROLES)
        if roles or any(each.sources.keys() - SOURCES for each in self.mixed):
            raise ValueError("an image has an unknown role")

    def _images(self) -> Iterator[str]:
        for each in self.mixed:
            yield from (each.mixed, *each.sources.values())
        for strips in self.strips:
            yield from (tile.image for row in strips.rows for tile in row)
