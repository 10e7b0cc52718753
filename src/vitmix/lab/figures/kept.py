"""Pictures that stay with the runs they are of: RUN/pictures/NAME.png, which `vitmix report` shows."""

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitmix.lab.data.decoding import check_pixels
from vitmix.lab.evaluation.subject import checksum
from vitmix.lab.reading import open_regular
from vitmix.lab.writing import make_folder, write_file

FOLDER = "pictures"
DPI = 110  # a printed page's width is then about that of a window
WORDS, WEIGHTS = "Description", "Weights"  # texts within the file


@dataclass(frozen=True)
class Kept:
    """A picture of a run, what it is, and whether the run's best weights are still those that it was drawn of."""

    path: Path
    words: str
    image: Image.Image
    current: bool


def keep_picture(run: Path, name: str, png: bytes, words: str, weights: str | None) -> Path:
    """Stores a picture with a run, in the place of an earlier one of the same name; `weights` is what it is of."""
    texts = PngInfo()
    texts.add_itxt(WORDS, words)
    texts.add_itxt(WEIGHTS, weights or "")
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(file, format="PNG", pnginfo=texts, optimize=True)
    path = run / FOLDER / f"{name}.png"
    make_folder(path.parent)
    write_file(path, file.getvalue())
    return path


def kept_pictures(run: Path) -> list[Kept]:
    """A run's pictures by name, those included that somebody put there; files that are no pictures are passed over."""
    paths = sorted((run / FOLDER).glob("*.png"))
    weights = _weights(run) if paths else ""
    found = []
    for path in paths:
        try:
            with open_regular(path) as stored, Image.open(stored) as file:
                check_pixels(file)
                image = file.convert("RGB")
                texts = file.info
        except Exception:  # decoders raise nearly anything on damaged bytes
            continue
        found.append(Kept(path, str(texts.get(WORDS, path.stem)), image, texts.get(WEIGHTS, weights) == weights))
    return found


def _weights(run: Path) -> str:
    try:
        return checksum(run / "best.safetensors")
    except OSError:
        return ""
