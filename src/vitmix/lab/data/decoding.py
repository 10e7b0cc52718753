"""From the bytes of a file to an RGB image, within limits, because a tiny file can unpack to any size."""

import io
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 89_478_485  # of one image; Pillow warns above this
# By name, because Pillow goes by the content, and would start Ghostscript for an EPS file under any name.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MAX_BYTES = 2**30  # of one image file: that many pixels, uncompressed, in 16 bits


def open_image(file: BinaryIO) -> Image.Image:
    """An image that is not yet decoded, if it has one of the accepted formats."""
    return Image.open(file, formats=FORMATS)


def decode(content: bytes) -> Image.Image:
    """The image in the bytes of a file."""
    # From memory: given a file, Pillow asks for as many bytes as a header claims, and Python allocates them.
    image = open_image(io.BytesIO(content))
    check_pixels(image)  # before the pixels are unpacked
    image.load()
    return image


def check_pixels(image: Image.Image, most: int | None = None) -> None:
    """Refuses images of too many pixels (default: of more than any image may have)."""
    most = MAX_PIXELS if most is None else most
    if image.width * image.height > most:
        raise ValueError(f"{image.width} x {image.height} pixels, more than the {most:,} allowed")


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in 8 bits per channel. Integers above 255, which Pillow would clip, are taken as 16 bits."""
    if image.mode.startswith("I"):
        wide = max(int(values.max(initial=0)) for values in _bands(image)) > 255
        levels = [(values / 257 if wide else values).round().clip(0, 255).astype(np.uint8) for values in _bands(image)]
        image = Image.fromarray(np.concatenate(levels))
    return image.convert("RGB")


def _bands(image: Image.Image) -> Iterator[np.ndarray]:
    """The values of a few rows at a time, because a large image as numbers takes several times its memory."""
    for top in range(0, image.height, 256):
        yield np.asarray(image.crop((0, top, image.width, min(top + 256, image.height))))


def reason_of(problem: Exception) -> str:
    """One line about an error, without the file name."""
    if isinstance(problem, UnidentifiedImageError):
        return "not an image of a known kind"
    if isinstance(problem, Image.DecompressionBombError):  # Pillow's own limit, met before ours
        return f"more than the {MAX_PIXELS:,} pixels allowed"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
