"""Images that a run shows of itself: examples.json, with each image as a small file within a data URI."""

import re
from dataclasses import dataclass

from .records import Record, absent

SOURCES = {"own": "original image", "partner": "partner", "taken": "image whose tokens were taken"}
ROLES = (*SOURCES, "other", "rest")
"""Of a source: the image itself, the one mixed into it, the one (as mixed) whose tokens HTM took. Of a part of a target
also a class of none of them (`other`), and what smoothing spreads over all classes (`rest`)."""
_URI = re.compile(r"data:image/(?:png|jpeg|webp);base64,[A-Za-z0-9+/=]*")


def _check(image: str, role: str | None = None) -> None:
    """Anything but an image in the file itself could lead a reader of a page elsewhere."""
    if not _URI.fullmatch(image):
        raise ValueError("an image is not a data URI of one")
    if role is not None and role not in ROLES:
        raise ValueError(f"{role!r} is not a role")


@dataclass(frozen=True)
class Part(Record):
    """A class's part of a target."""

    role: str
    name: str
    share: float

    def __post_init__(self) -> None:
        _check("data:image/png;base64,", self.role)


@dataclass(frozen=True)
class Source(Record):
    """An image that a mixed one is made of."""

    role: str
    image: str

    def __post_init__(self) -> None:
        _check(self.image, self.role)


@dataclass(frozen=True)
class Example(Record):
    """A mixed image, the images that it is made of, and its target in the same order."""

    method: str
    mixed: str
    sources: tuple[Source, ...]
    target: tuple[Part, ...]

    def __post_init__(self) -> None:
        _check(self.mixed)


@dataclass(frozen=True)
class Tile(Record):
    image: str
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        _check(self.image)


@dataclass(frozen=True)
class Strips(Record):
    """Rows of tiles about one thing, such as attention by block."""

    what: str
    rows: tuple[tuple[Tile, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Examples(Record):
    """What a run's best weights were shown with; `problems` say what could not be drawn, and why."""

    weights_sha256: str | None = absent()
    mixed: tuple[Example, ...]
    strips: tuple[Strips, ...]
    problems: tuple[str, ...] = ()
