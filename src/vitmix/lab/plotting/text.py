"""Text that fits: fonts for any script, and names that are measured, wrapped and cut at the front."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import matplotlib
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, findfont, get_font, get_font_names

DEFAULT = "DejaVu Sans"  # comes with matplotlib
OTHERS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans SC", "WenQuanYi Zen Hei",
    "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic",
    "Noto Sans", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai",
    "Arial Unicode MS", "Nirmala UI", "Unifont",
)  # fmt: skip
DPI = 720  # so fine that rounding to pixels does not matter
BREAKS = re.compile(r"(?<=[ _,:;/(+|-])")
UNPRINTABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # XML has no such characters


@contextmanager
def any_script() -> Iterator[None]:
    """Inside this context, text uses all installed fonts; `font_remarks` names letters that none of them has."""
    with matplotlib.rc_context({"font.family": _families()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def font_remarks(names: list[str]) -> list[str]:
    """A message if a figure cannot show these names."""
    missing = {letter: None for name in names for letter in name if not letter.isspace()}
    for family in _families():
        known = get_font(findfont(FontProperties(family=family))).get_charmap()
        missing = {letter: None for letter in missing if ord(letter) not in known}
    if not missing:
        return []
    letters = "".join(missing)
    return [f"No installed font has the letters {letters}; they show as boxes. Install one, such as Noto Sans CJK."]


def _families() -> list[str]:
    """Fonts in which a letter is looked up, in this order; installed ones only, since matplotlib warns about others."""
    installed = set(get_font_names())
    return [DEFAULT, *(name for name in OTHERS if name in installed)]


def fitted(words: str, width: float, *, size: float, lines: int, weight: str = "normal") -> list[str]:
    """Words in at most so many lines of `width` inches; "…" replaces what does not fit, at the front.

    The end of a name says most: "n02056570_king_penguin" becomes "…king_penguin". If enough is left, the cut is
    between words.
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
    """Words in lines of `width` inches, broken after spaces, brackets and signs; between letters if necessary."""
    rest, lines = UNPRINTABLE.sub("?", words), []
    while True:
        count = 1
        while count < len(rest) and text_width(rest[: count + 1].rstrip(), size, weight) <= width:
            count += 1
        if count >= len(rest):
            return [*lines, rest.strip()]
        between = [at.start() for at in BREAKS.finditer(rest, 1) if at.start() <= count]
        count = max(between, default=count)
        lines.append(rest[:count].strip())
        rest = rest[count:]


def text_width(words: str, size: float, weight: str = "normal") -> float:
    """Inches of a line in the current fonts; letters are added up, so kerning does not count."""
    family = tuple(matplotlib.rcParams["font.family"])
    return size / DPI * sum(_letter_width(letter, weight, family) for letter in words)


@cache
def _letter_width(letter: str, weight: str, family: tuple[str, ...]) -> float:
    """Pixels at one point."""
    font = FontProperties(family=list(family), weight=weight, size=10)
    # Between bars, because only ink is measured, and a space has none.
    renderer = RendererAgg(1, 1, DPI)
    between, alone = (renderer.get_text_width_height_descent(each, font, False)[0] for each in (f"|{letter}|", "||"))
    return (between - alone) / 10
