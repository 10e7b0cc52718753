"""The images of the page: photographs that scikit-image contains, built-in images, and uploads within bounds."""

import base64
import binascii
import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image

from vitmix.lab.data.decoding import as_rgb
from vitmix.lab.figures.images import NamedImage, decoded, read_image

MOST_BYTES = 12 * 2**20  # of an uploaded file
MOST_PIXELS = 24_000_000
KEPT_SIDE = 640  # of an uploaded image; no model of the page sees more
UPLOADED = "uploaded"
_DATA_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,")


@dataclass(frozen=True)
class Photo:
    """A file in the data folder of scikit-image, its class name, and its credit."""

    file: str
    name: str
    credit: str


PHOTOS = {
    "cat": Photo("chelsea.png", "cat", "Chelsea the cat, Stefan van der Walt, CC0"),
    "coffee": Photo("coffee.png", "coffee", "Coffee cup at Pikolo Espresso Bar, Rachel Michetti, CC0"),
    "cameraman": Photo("camera.png", "cameraman", "Photographer, Lav Varshney, CC0"),
    "rocket": Photo("rocket.jpg", "rocket", "Falcon 9 launches DSCOVR, SpaceX, public domain"),
    "astronaut": Photo("astronaut.png", "astronaut", "Eileen Collins, NASA, public domain"),
}
SHAPES = {"shapes 1": "shapes:1", "shapes 46": "shapes:46", "shapes 7": "shapes:7"}


def photo_names() -> list[str]:
    """The built-in images: photographs if scikit-image is installed, then computed ones."""
    return [*(name for name, photo in PHOTOS.items() if _file(photo) is not None), *SHAPES]


def credit(name: str) -> str:
    """The credit of an image."""
    return PHOTOS[name].credit if name in PHOTOS else "computed by vitmix" if name in SHAPES else "an uploaded image"


def open_image(source: str, side: int) -> NamedImage:
    """A built-in image by name, or an uploaded one as a data URL. No path is ever opened."""
    if not source:
        raise ValueError("no image is uploaded yet; drop one, or choose another in the menu")
    if source in SHAPES:
        return read_image(SHAPES[source], side)
    if source in PHOTOS:
        return _photo(source)
    if source.startswith("data:"):
        return NamedImage(_uploaded(source), UPLOADED)
    raise ValueError(f"unknown image {source[:40]!r}; choose one of {', '.join(photo_names())}, or upload one")


@lru_cache(maxsize=len(PHOTOS))
def _photo(name: str) -> NamedImage:
    path = _file(PHOTOS[name])
    if path is None:
        raise ValueError(f"the photograph {name!r} comes with scikit-image: pip install 'vitmix[app]'")
    with Image.open(path) as opened:
        return NamedImage(as_rgb(opened), PHOTOS[name].name)


def _file(photo: Photo) -> Path | None:
    # The file, not `skimage.data`, which would download what it does not find.
    found = importlib.util.find_spec("skimage")
    path = Path(found.origin).parent / "data" / photo.file if found is not None and found.origin else None
    return path if path is not None and path.is_file() else None


def _uploaded(url: str) -> Image.Image:
    head = _DATA_URL.match(url[:80])
    if head is None:
        raise ValueError("an upload must be an image file; choose a JPEG, PNG or WebP")
    if (len(url) - head.end()) * 3 // 4 > MOST_BYTES:
        raise ValueError(f"an upload may have {MOST_BYTES // 2**20} MB; choose a smaller file")
    try:
        content = base64.b64decode(url[head.end() :], validate=True)
        image = decoded(content, KEPT_SIDE, most=MOST_PIXELS)
    except binascii.Error:
        raise ValueError("the upload is damaged; choose the file again") from None
    except ValueError as problem:
        raise ValueError(f"the upload cannot be read: {problem}; choose another file") from None
    image.thumbnail((KEPT_SIDE, KEPT_SIDE))
    return image
