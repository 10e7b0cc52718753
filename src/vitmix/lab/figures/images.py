"""The images of a figure: files of any kind and size, built-in ones, or images of a run's data."""

import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vitmix.lab.data.decoding import MAX_BYTES, as_rgb, check_pixels, open_image, reason_of
from vitmix.lab.data.images import BrokenImage
from vitmix.lab.data.shapes import CLASSES, shapes_batch
from vitmix.lab.evaluation.subject import Subject
from vitmix.lab.reading import read_bytes

BUILT_IN = ("shapes:1", "shapes:46")
BUILT_IN_IMAGE = r"shapes:(\d{1,9})"


@dataclass(frozen=True)
class NamedImage:
    """An image and its name: the class, if known."""

    image: Image.Image
    name: str


def check_image(text: str) -> None:
    """Raises ValueError for anything but a file or a built-in image, before a model is loaded."""
    path = Path(text)
    if not re.fullmatch(BUILT_IN_IMAGE, text) and not path.is_file():
        problem = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "does not exist"
        raise ValueError(f"image {text!r} {problem}; give an image file, or shapes:N for a built-in image")


def read_image(text: str, side: int) -> NamedImage:
    """An image file, or built-in image N for the text `shapes:N`, computed with `side` pixels a side."""
    check_image(text)
    built_in = re.fullmatch(BUILT_IN_IMAGE, text)
    if built_in:
        batch = shapes_batch([int(built_in[1])], size=max(side, 8), split="test")
        pixels = (batch.images[0] * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        return NamedImage(Image.fromarray(pixels), CLASSES[int(batch.labels[0])])
    path = Path(text)
    try:
        return NamedImage(decoded(read_bytes(path, MAX_BYTES), 4 * side), path.stem)
    except (ValueError, OSError) as problem:
        raise ValueError(f"image {text!r} cannot be read: {reason_of(problem)}; give another file") from None


def decoded(content: bytes, side: int, *, most: int | None = None) -> Image.Image:
    """The upright image in the bytes of a file, a larger JPEG at about `side` pixels; ValueError if it has none.

    Args:
        most: largest number of pixels.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata, and about the size, which is checked here
            with open_image(io.BytesIO(content)) as opened:
                check_pixels(opened, most)
                opened.draft("RGB", (side, side))
                ImageOps.exif_transpose(opened, in_place=True)  # a copy of a large image is large, too
                return as_rgb(opened)
    except MemoryError:
        raise
    except Exception as problem:  # decoders raise nearly anything on damaged bytes
        raise ValueError(reason_of(problem)) from None


def held_out(subject: Subject, count: int) -> list[NamedImage]:
    """An even number of readable images that a run was evaluated on, the same for all runs on the same data.

    They have as many classes as possible; neighbors become pairs and have different classes if possible.
    """
    images = subject.evaluation_images()
    classes = np.unique(images.labels)
    wanted = classes[np.arange(count) * len(classes) // count].reshape(2, -1).T.ravel()
    found: list[NamedImage] = []
    for number, label in enumerate(wanted):
        rows = np.flatnonzero(images.labels == label)
        for index in np.roll(rows, -number):  # another image if classes repeat
            try:
                found.append(NamedImage(images[int(index)][0], images.classes[label]))
                break
            except BrokenImage:
                continue
    if len(found) < count:
        raise ValueError(f"fewer than {count} of the classes of {images.description} have a readable image")
    return found
