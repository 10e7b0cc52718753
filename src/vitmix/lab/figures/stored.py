"""Figures stored with the runs they show: RUN/pictures/NAME.png, which `vitmix report` includes."""

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitmix.lab.data.decoding import check_pixels
from vitmix.lab.reading import open_regular
from vitmix.lab.runs import Run
from vitmix.lab.writing import make_folder, write_file

FOLDER = "pictures"  # as version 0.1 calls it
DPI = 110  # the width of a printed page is then about that of a window
DESCRIPTION, WEIGHTS = "Description", "Weights"  # texts within the file


@dataclass(frozen=True)
class StoredFigure:
    """A figure of a run, its description, and whether it shows the run's current best weights."""

    path: Path
    description: str
    image: Image.Image
    current: bool


def store_figure(run: Path, name: str, png: bytes, description: str, weights: str | None) -> Path:
    """Stores a figure with a run, replacing one of the same name; `weights` is the checksum of the weights it shows."""
    texts = PngInfo()
    texts.add_itxt(DESCRIPTION, description)
    texts.add_itxt(WEIGHTS, weights or "")
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(file, format="PNG", pnginfo=texts, optimize=True)
    path = run / FOLDER / f"{name}.png"
    make_folder(path.parent)
    write_file(path, file.getvalue())
    return path


def stored_figures(run: Path) -> list[StoredFigure]:
    """A run's figures by name, including other PNG files in the folder; unreadable files are skipped."""
    paths = sorted((run / FOLDER).glob("*.png"))
    weights = (Run(run).checksum() or "") if paths else ""
    found = []
    for path in paths:
        try:
            with open_regular(path) as stored, Image.open(stored) as file:
                check_pixels(file)
                image = file.convert("RGB")
                texts = file.info
        except Exception:  # decoders raise nearly anything on damaged bytes
            continue
        description, current = str(texts.get(DESCRIPTION, path.stem)), texts.get(WEIGHTS, weights) == weights
        found.append(StoredFigure(path, description, image, current))
    return found
