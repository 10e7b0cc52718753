"""Scenes as HTML with embedded images: the page needs no files and shows no paths."""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from PIL import Image
from torch import Tensor

from vitmix.lab.plotting.canvas import HEAT, SHARE
from vitmix.lab.plotting.grid import as_pixels, unit_scale
from vitmix.lab.show import ORIGIN, MethodResult
from vitmix.parts.base import Shown

from .rules import Bar
from .scene import Block, Prediction, Scene

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
    first, second = scene.names
    method = scene.method
    tiles = [
        _tile(_photo(scene.pair.pixels[0]), "original image", first, kind="own"),
        _tile(_photo(scene.pair.pixels[1]), "partner", second, kind="partner"),
        _tile(_mask(method), "mask", _mask_words(method), extra=_marks(method)),
        _tile(_photo(method.mixed), "mixed image", _target_words(method)),
        *_statistics(method),
    ]
    notes = [f"Drawn: {scene.drawn}"] if scene.drawn else []
    notes += method.notes
    pieces = [
        f'<div class="vx-tiles">{"".join(tiles)}</div>',
        "".join(f'<p class="vx-note">{escape(note)}</p>' for note in notes),
        '<h3>Target of the method</h3><div class="vx-bars vx-main">',
        _bar_row("target", "", method.own, method.partner, used=True),
        "</div>",
        _legend(first, second),
        '<h3>The same mixed image, labeled by each rule</h3><div class="vx-bars">',
        *map(_rule, scene.bars),
        "</div>",
        '<h3>What the model sees</h3><div class="vx-tops">',
        *(
            _predictions(title, found)
            for title, found in zip(("original image", "partner", "mixed image"), scene.predictions, strict=True)
        ),
        "</div>",
        f'<p class="vx-soft">{_losses(scene.losses)}</p>',
    ]
    return f'<div class="vx" data-target="{method.partner:.6f}">{"".join(pieces)}</div>'


def depth_html(scene: Scene, number: int) -> str:
    """Attention and carried share of one block (from 1), over a strip of all blocks."""
    if not scene.blocks:
        return '<div class="vx"><p class="vx-note">The blocks of this model cannot be read.</p></div>'
    number = min(max(number, 1), len(scene.blocks))
    block = scene.blocks[number - 1]
    tiles = [_tile(_photo(scene.method.mixed), "mixed image", "")]
    if block.attention is not None:
        tiles.append(_tile(_heat(block.attention), "attention", "which tokens it reads"))
    if block.share is not None:
        tiles.append(
            _tile(
                _share(block.share),
                "carried share",
                "" if block.read is None else f"the classifier would read {block.read:.1%}",
            )
        )
    title = f"<h3>After block {number} of {len(scene.blocks)}</h3>"
    return (
        f'<div class="vx" data-block="{number}">{title}<div class="vx-tiles">{"".join(tiles)}</div>'
        f'<div class="vx-strip" aria-hidden="true">{"".join(_stamp(each, number) for each in scene.blocks)}</div></div>'
    )


def gallery_html(results: Sequence[MethodResult], links: Sequence[str], left_out: Sequence[str]) -> str:
    """Every method on the pair; its title is a link that opens it."""
    cards = []
    for result, link in zip(results, links, strict=True):
        tiles = [_tile(_mask(result), "mask", "", extra=_marks(result)), _tile(_photo(result.mixed), "mixed", "")]
        tiles += _statistics(result)[:1]
        cards.append(
            f'<article class="vx-card"><h3><a href="{escape(link)}">{escape(result.title)}</a></h3>'
            f'<div class="vx-tiles vx-small">{"".join(tiles)}</div>'
            f'<div class="vx-bars">{_bar_row("", "", result.own, result.partner)}</div>'
            f"{''.join(f'<p class=vx-soft>{escape(note)}</p>' for note in result.notes)}</article>"
        )
    missing = "".join(f'<p class="vx-note">Left out: {escape(each)}</p>' for each in left_out)
    return f'<div class="vx"><div class="vx-cards">{"".join(cards)}</div>{missing}</div>'


def note_html(text: str, *, problem: bool = False) -> str:
    role = ' role="alert"' if problem else ""
    return f'<div class="vx"><p class="vx-note{" vx-problem" if problem else ""}"{role}>{escape(text)}</p></div>'


# Pieces


def _tile(uri: str, title: str, words: str, *, kind: str = "", extra: str = "") -> str:
    caption = f"<b>{escape(title)}</b>" + (f"<span>{escape(words)}</span>" if words else "")
    pixelated = " vx-cells" if uri.startswith("data:image/png") else ""
    image = f'<img src="{uri}" alt="{escape(f"{title} {words}".strip())}" class="{pixelated.strip()}">'
    return f'<figure class="vx-tile {kind}"><div>{image}{extra}</div><figcaption>{caption}</figcaption></figure>'


def _mask_words(method: MethodResult) -> str:
    share = float(method.origin.mean())
    if method.bank is not None:
        return "dots: tokens in the bank"
    return "nothing pasted" if share == 0 else f"partner's part: {share:.1%}"


def _target_words(method: MethodResult) -> str:
    return f"label: {method.own:.1%} original, {method.partner:.1%} partner"


def _marks(method: MethodResult) -> str:
    """Marks over the mask: where the pasted part came from, and the tokens in VTM's bank."""
    found = ""
    if method.moved_from is not None:
        top, bottom, left, right = (100 * each for each in method.moved_from)
        found += f'<rect x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{bottom - top:.2f}"/>'
    if method.bank is not None:
        rows, columns = method.bank.shape
        most = float(method.bank.max().clamp_min(1))
        for row, column in method.bank.nonzero().tolist():
            radius = 38 / max(rows, columns) * (float(method.bank[row, column]) / most) ** 0.5
            place = f'cx="{100 * (column + 0.5) / columns:.2f}" cy="{100 * (row + 0.5) / rows:.2f}"'
            found += f'<circle {place} r="{radius:.2f}"/>'
    style = 'viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true"'
    return f"<svg {style}>{found}</svg>" if found else ""


def _statistics(method: MethodResult) -> list[str]:
    """What the method reads from the model; otherwise attention, marked as not used."""
    words = "" if method.used else "not used by the method"
    return [_tile(_statistic(each), each.caption, words) for each in method.statistics]


def _statistic(shown: Shown) -> str:
    return _share(shown.grid) if shown.kind == "share" else _heat(shown.grid)


def _bar_row(name: str, words: str, own: float, partner: float, *, used: bool = False) -> str:
    """Both parts of a target. A sum below one leaves a gray rest; above one, both are scaled to fit."""
    whole = max(1.0, own + partner)
    pieces = ""
    for kind, part in (("own", own), ("partner", partner)):
        number = f"{part:.1%}" if part / whole > 0.15 else ""
        pieces += f'<i class="{kind}" style="width:{100 * max(0.0, part) / whole:.2f}%">{number}</i>'
    label = f"<b>{escape(name)}</b><span>{escape(words)}</span>" if name else ""
    said = f"{name} {own:.1%} original, {partner:.1%} partner".strip()
    mark = " used" if used else ""
    return f'<div class="vx-bar{mark}"><p>{label}</p><div role="img" aria-label="{escape(said)}">{pieces}</div></div>'


def _rule(bar: Bar) -> str:
    words = RULES.get(bar.rule, "") + (" · this method" if bar.used else "")
    if bar.missing:
        reason = f'<div class="vx-missing">{escape(bar.missing)}</div>'
        return f'<div class="vx-bar"><p><b>{escape(bar.rule)}</b><span>{escape(words)}</span></p>{reason}</div>'
    return _bar_row(bar.rule, words, bar.own, bar.partner, used=bar.used)


def _legend(first: str, second: str) -> str:
    return (
        f'<p class="vx-legend"><i class="own"></i>original image: {escape(first)}'
        f'<i class="partner"></i>partner: {escape(second)}</p>'
    )


def _predictions(title: str, found: Iterable[Prediction]) -> str:
    rows = "".join(
        f'<li><span style="--p:{100 * each.probability:.1f}%">{escape(each.name)}</span>'
        f"<b>{_percent(each.probability)}</b></li>"
        for each in found
    )
    return f"<section><h4>{escape(title)}</h4><ol>{rows}</ol></section>"


def _losses(losses: dict[str, float]) -> str:
    parts = [f"{escape(name)} {value:.3f}" for name, value in losses.items() if name != "loss"]
    return f"Loss of the pair: {losses['loss']:.3f}" + (f" = {' + '.join(parts)}" if len(parts) > 1 else "")


def _stamp(block: Block, chosen: int) -> str:
    """A block as two small images: attention above, carried share below."""
    images = ""
    for uri in (
        *([_heat(block.attention)] if block.attention is not None else []),
        *([_share(block.share)] if block.share is not None else []),
    ):
        images += f'<img src="{uri}" alt="" class="vx-cells">'
    mark = " chosen" if block.number + 1 == chosen else ""
    return f'<figure class="{mark.strip()}">{images}<figcaption>{block.number + 1}</figcaption></figure>'


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return "<1%" if 0 < value < 0.01 else f"{value:.0%}"


# Images


def _photo(image: Tensor) -> str:
    return _uri(Image.fromarray((as_pixels(image) * 255).round().astype(np.uint8)), "JPEG")


def _heat(grid: Tensor) -> str:
    return _cells(HEAT(unit_scale(grid.float()).numpy()))


def _share(grid: Tensor) -> str:
    return _cells(SHARE(grid.float().clamp(0, 1).numpy()))


def _mask(method: MethodResult) -> str:
    return _cells(ORIGIN(method.origin.float().numpy()))


def _cells(colors: np.ndarray) -> str:
    """One pixel per cell, which the page enlarges with sharp edges."""
    return _uri(Image.fromarray((colors[..., :3] * 255).round().astype(np.uint8)), "PNG")


def _uri(image: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    settings = {"quality": 88} if kind == "JPEG" else {"compress_level": 1}
    image.save(buffer, kind, **settings)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
