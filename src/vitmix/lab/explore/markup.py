"""Scenes as HTML with embedded images: the page needs no files and shows no paths.

Macros in `templates/scene.html.j2` write the HTML; images and words are made here.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitmix.lab.plotting.canvas import HEAT, SHARE
from vitmix.lab.plotting.grid import as_pixels, unit_scale
from vitmix.lab.report.html import environment
from vitmix.lab.show import ORIGIN, MethodResult
from vitmix.parts.base import Shown

from .scene import Scene

SIDE = 320  # of the images on the page, in pixels
RULES = {
    "area": "pixels pasted",
    "attention": "TransMix",
    "aligned": "TL-Align",
    "activation": "TokenMix, with the model's maps",
    "prior": "where objects often are",
    "guided": "TdAttenMix",
    "object": "OA-CutMix, with the model's maps",
    "progressive": "MixPro",
}


def scene_html(scene: Scene) -> str:
    """Original, partner, mask, mixed image, what the method reads, the target, label rules and predictions."""
    return str(_macros.scene(scene, RULES, _mask_words(scene.method), _loss_words(scene.losses)))


def depth_html(scene: Scene, number: int) -> str:
    """Attention and carried share of one block (from 1), over a strip of all blocks."""
    if not scene.blocks:
        return note_html("The blocks of this model cannot be read.")
    return str(_macros.depth(scene, scene.blocks[min(max(number, 1), len(scene.blocks)) - 1]))


def gallery_html(results: Sequence[MethodResult], links: Sequence[str], left_out: Sequence[str]) -> str:
    """Every method on the pair; its title is a link that opens it."""
    return str(_macros.gallery(list(zip(results, links, strict=True)), left_out))


def note_html(text: str, *, problem: bool = False) -> str:
    return str(_macros.note(text, problem))


def framed_html(title: str, page: str) -> str:
    """A whole page in a frame of its own."""
    return str(_macros.framed(title, page))


def _mask_words(method: MethodResult) -> str:
    share = float(method.origin.mean())
    if method.bank is not None:
        return "dots: tokens in the bank"
    return "nothing pasted" if share == 0 else f"partner's part: {share:.1%}"


def _loss_words(losses: dict[str, float]) -> str:
    parts = [f"{name} {value:.3f}" for name, value in losses.items() if name != "loss"]
    return f"Loss of the pair: {losses['loss']:.3f}" + (f" = {' + '.join(parts)}" if len(parts) > 1 else "")


def _percent(value: float) -> str:
    return "<1%" if 0 < value < 0.01 else f"{value:.0%}"


def _dots(method: MethodResult) -> Iterator[tuple[float, float, float]]:
    """Place and radius, in percent, of each token in VTM's bank: the larger, the more blocks took it."""
    if method.bank is None:
        return
    rows, columns = method.bank.shape
    most = float(method.bank.max().clamp_min(1))
    for row, column in method.bank.nonzero().tolist():
        radius = 38 / max(rows, columns) * (float(method.bank[row, column]) / most) ** 0.5
        yield 100 * (column + 0.5) / columns, 100 * (row + 0.5) / rows, radius


# Images


def _photo(image: Tensor) -> str:
    return _uri(as_pixels(image), "JPEG", quality=88)


def _heat(grid: Tensor) -> str:
    return _cells(HEAT(unit_scale(grid.float()).numpy()))


def _share(grid: Tensor) -> str:
    return _cells(SHARE(grid.float().clamp(0, 1).numpy()))


def _statistic(shown: Shown) -> str:
    return _share(shown.grid) if shown.kind == "share" else _heat(shown.grid)


def _cells(colors: np.ndarray) -> str:
    """One pixel per cell, which the page enlarges."""
    return _uri(colors[..., :3], "PNG", compress_level=1)


def _uri(pixels: np.ndarray, kind: str, **settings: Any) -> str:
    image, file = Image.fromarray((pixels * 255).round().astype(np.uint8)), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(file, kind, **settings)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


_templates = environment("vitmix.lab.explore")
_templates.filters |= {
    **{"photo": _photo, "heat": _heat, "share": _share, "statistic": _statistic, "dots": _dots},
    **{"origin": lambda grid: _cells(ORIGIN(grid.float().numpy())), "percent": _percent},
    **{"tenths": lambda value: f"{value:.1%}"},
}
_macros: Any = _templates.get_template("scene.html.j2").module
