"""The two pictures that are mixed: files of any kind and size, or built-in ones."""

import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from vitmix.lab.data.decoding import MAX_BYTES, as_rgb, check_pixels, reason_of
from vitmix.lab.data.shapes import CLASSES, shapes_batch
from vitmix.lab.reading import read_bytes

BUILT_IN = ("shapes:1", "shapes:46")
BUILT_IN_PICTURE = r"shapes:(\d{1,9})"


@dataclass(frozen=True)
class Picture:
    """A picture, and what it is called: its class where that is known."""

    image: Image.Image
    name: str


def check_picture(text: str) -> None:
    """Refuses what is neither a file nor a built-in picture: to load a model may take long."""
    path = Path(text)
    if not re.fullmatch(BUILT_IN_PICTURE, text) and not path.is_file():
        problem = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "does not exist"
        raise ValueError(f"picture {text!r} {problem}; give an image file, or shapes:N for a built-in picture")


def read_picture(text: str, side: int) -> Picture:
    """A picture file, or built-in picture N where the text is `shapes:N`; those are drawn with `side` pixels a side."""
    check_picture(text)
    built_in = re.fullmatch(BUILT_IN_PICTURE, text)
    if built_in:
        batch = shapes_batch([int(built_in[1])], size=max(side, 8), split="test")
        pixels = (batch.images[0] * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        return Picture(Image.fromarray(pixels), CLASSES[int(batch.labels[0])])
    path = Path(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, and of size, which is checked here
            with Image.open(io.BytesIO(read_bytes(path, MAX_BYTES))) as opened:
                check_pixels(opened)
                opened.draft("RGB", (4 * side, 4 * side))  # lets a JPEG be unpacked small
                ImageOps.exif_transpose(opened, in_place=True)  # a copy of a large picture is large, too
                return Picture(as_rgb(opened), path.stem)
    except MemoryError:
        raise
    except Exception as problem:  # decoders raise nearly anything on damaged bytes
        raise ValueError(f"picture {text!r} cannot be read: {reason_of(problem)}; give another file") from None
