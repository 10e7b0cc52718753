"""Words that fit: measured with their font, broken into lines, and cut in front, since names tell most at their end."""

import re
from collections.abc import Callable
from functools import cache

import matplotlib
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

DPI = 720  # so fine that rounding to pixels does not matter
BREAKS = re.compile(r"(?<=[ _,:;/(+|-])")
UNDRAWABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # no letters, and none that XML has


def fitted(words: str, width: float, *, size: float, lines: int, weight: str = "normal") -> list[str]:
    """Words in at most so many lines of `width` inches; "…" stands for what does not fit, in front.

    "n02056570_king_penguin" becomes "…king_penguin": where it leaves enough, the cut is between words.
    """

    def cut(start: int) -> list[str]:
        return broken("…" * (start > 0) + words[start:].lstrip(), width, size=size, weight=weight)

    if len(whole := cut(0)) <= lines:
        return whole
    start = len(words) - 1
    while start > 1 and len(cut(start - 1)) <= lines:
        start -= 1
    between = [at.start() for at in BREAKS.finditer(words) if start <= at.start() <= (start + len(words)) / 2]
    return cut(min(between, default=start))


def broken(words: str, width: float, *, size: float, weight: str = "normal") -> list[str]:
    """Words in lines of `width` inches, broken after spaces, brackets and signs; between letters where it must be."""

    def fits(text: str) -> bool:
        return text_width(text.rstrip(), size, weight) <= width

    lines = [""]
    for piece in BREAKS.split(UNDRAWABLE.sub("?", words)):
        if lines[-1] and not fits(lines[-1] + piece):
            lines.append("")
        while len(piece) > 1 and not fits(lines[-1] + piece):
            count = _most_that_fit(piece, fits)
            lines[-1], piece = piece[:count], piece[count:]
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines]


def text_width(words: str, size: float, weight: str = "normal") -> float:
    """Inches of a line, in the fonts that are set now; letters are added up, so kerning does not count."""
    family = tuple(matplotlib.rcParams["font.family"])
    return size / DPI * sum(_letter_width(letter, weight, family) for letter in words)


@cache
def _letter_width(letter: str, weight: str, family: tuple[str, ...]) -> float:
    """Pixels at one point."""
    font = FontProperties(family=list(family), weight=weight, size=10)
    # Between bars, as what is measured is ink, which a space has none of.
    renderer = RendererAgg(1, 1, DPI)
    between, alone = (renderer.get_text_width_height_descent(each, font, False)[0] for each in (f"|{letter}|", "||"))
    return (between - alone) / 10


def _most_that_fit(piece: str, fits: Callable[[str], bool]) -> int:
    count = 1
    while fits(piece[: count + 1]):
        count += 1
    return count
